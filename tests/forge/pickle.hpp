// Builds zip files, valid and invalid, and pickles opcode by opcode.
#pragma once

#include "base/checksum.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forge {

/// Returns the low `size` bytes of `value`, little-endian.
std::string little(std::uint64_t value, std::size_t size);

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
    void add_deflated(std::string name, const std::string& data);

    std::string join() const;
};

// Opcodes, of protocol 2 where there is a choice.

inline std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }
inline std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }
inline std::string global(std::string_view module, std::string_view name) {
    return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
std::string tuple(std::initializer_list<std::string> items);
std::string call(std::string_view module, std::string_view name, std::initializer_list<std::string> arguments);
std::string storage(std::string_view type, std::string_view key, std::int64_t count, std::string_view location = "cpu");
std::string tensor(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                   std::initializer_list<std::string> stride);
std::string dict(std::initializer_list<std::string> keys_and_values);
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

/// Returns a file of torch.save with this pickle and these storages.
std::string archive(const std::string& value, const std::vector<std::pair<std::string, std::string>>& storages = {});

}  // namespace forge
