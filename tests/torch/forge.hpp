// Builds zip files, valid and invalid, and pickles opcode by opcode.
#pragma once

#include "base/checksum.hpp"
#include "deflate.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace forge {

/// Returns the low `size` bytes of `value`, little-endian.
inline std::string little(std::uint64_t value, std::size_t size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i, value >>= 8) bytes += static_cast<char>(static_cast<unsigned char>(value));
    return bytes;
}

inline std::uint32_t crc(std::string_view data) { return safemap::crc32(0, std::as_bytes(std::span(data))); }

/// A zip of stored records, in parts that a test can change before they are joined.
struct Zip {
    struct Record {
        std::string name;
        std::string data;
        std::string local_name = name;
        std::uint16_t flags = 0x0808;
        std::uint16_t method = 0;
        std::uint64_t packed = data.size();
        std::uint64_t size = data.size();
        std::string extra = {};  ///< extra field of the central entry
        std::uint32_t crc32 = crc(data);
    };
    std::vector<Record> records;
    std::string prefix = {};
    std::string comment = {};
    bool zip64_end = true;
    int count_error = 0;

    void add(std::string name, std::string data) {
        records.push_back({.name = std::move(name), .data = std::move(data)});
    }
    void add_deflated(std::string name, const std::string& data) {
        records.push_back(
            {.name = std::move(name), .data = deflated(data), .method = 8, .size = data.size(), .crc32 = crc(data)});
    }

    std::string join() const {
        std::string body, directory;
        for (const Record& record : records) {
            const std::uint64_t header_at = body.size();
            body += "PK\3\4" + little(0, 2) + little(record.flags, 2) + little(record.method, 2) + little(0, 16) +
                    little(record.local_name.size(), 2) + little(0, 2) + record.local_name + record.data;
            body += "PK\7\10" + little(record.crc32, 4) + little(record.packed, 4) + little(record.size, 4);
            directory += "PK\1\2" + little(0, 4) + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                         little(record.crc32, 4) + little(record.packed, 4) + little(record.size, 4) +
                         little(record.name.size(), 2) + little(record.extra.size(), 2) + little(0, 10) +
                         little(header_at, 4) + record.name + record.extra;
        }
        const std::uint64_t count = records.size() + static_cast<std::uint64_t>(count_error);
        const std::uint64_t at = body.size(), size = directory.size();
        std::string end;
        if (zip64_end) {
            end = "PK\6\6" + little(44, 8) + little(0, 12) + little(count, 8) + little(count, 8) + little(size, 8) +
                  little(at, 8);
            end += "PK\6\7" + little(0, 4) + little(at + size, 8) + little(1, 4);
        }
        end += "PK\5\6" + little(0, 4) + little(count, 2) + little(count, 2) + little(size, 4) + little(at, 4) +
               little(comment.size(), 2) + comment;
        return prefix + body + directory + end;
    }
};

// Opcodes, of protocol 2 where there is a choice.

inline std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }
inline std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }
inline std::string global(std::string_view module, std::string_view name) {
    return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string tuple(std::initializer_list<std::string> items) {
    std::string out = "(";
    for (const std::string& item : items) out += item;
    return out + "t";
}
inline std::string call(std::string_view module, std::string_view name, std::initializer_list<std::string> arguments) {
    return global(module, name) + tuple(arguments) + "R";
}
inline std::string storage(std::string_view type, std::string_view key, std::int64_t count,
                           std::string_view location = "cpu") {
    return tuple({text("storage"), global("torch", type), text(key), text(location), integer(count)}) + "Q";
}
inline std::string tensor(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                          std::initializer_list<std::string> stride) {
    return call("torch._utils", "_rebuild_tensor_v2",
                {storage, integer(offset), tuple(size), tuple(stride), "\x89", call("collections", "OrderedDict", {})});
}
inline std::string dict(std::initializer_list<std::string> keys_and_values) {
    std::string out = "}(";
    for (const std::string& item : keys_and_values) out += item;
    return out + "u";
}
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

/// Returns a file of torch.save with this pickle and these storages.
inline std::string archive(const std::string& value,
                           const std::vector<std::pair<std::string, std::string>>& storages = {}) {
    Zip zip;
    zip.add("a/data.pkl", pickle(value));
    zip.add("a/byteorder", "little");
    for (const auto& [key, data] : storages) zip.add("a/data/" + key, data);
    return zip.join();
}

}  // namespace forge
