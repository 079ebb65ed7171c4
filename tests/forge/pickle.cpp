// Spells opcodes of pickles, and joins records to a zip with its central directory.
#include "torch/forge.hpp"

#include "deflate.hpp"

namespace forge {

std::string little(std::uint64_t value, std::size_t size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i, value >>= 8) bytes += static_cast<char>(static_cast<unsigned char>(value));
    return bytes;
}

void Zip::add_deflated(std::string name, const std::string& data) {
    records.push_back(
        {.name = std::move(name), .data = deflated(data), .method = 8, .size = data.size(), .crc32 = crc(data)});
}

std::string Zip::join() const {
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

std::string tuple(std::initializer_list<std::string> items) {
    std::string out = "(";
    for (const std::string& item : items) out += item;
    return out + "t";
}

std::string call(std::string_view module, std::string_view name, std::initializer_list<std::string> arguments) {
    return global(module, name) + tuple(arguments) + "R";
}

std::string storage(std::string_view type, std::string_view key, std::int64_t count, std::string_view location) {
    return tuple({text("storage"), global("torch", type), text(key), text(location), integer(count)}) + "Q";
}

std::string tensor(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                   std::initializer_list<std::string> stride) {
    return call("torch._utils", "_rebuild_tensor_v2",
                {storage, integer(offset), tuple(size), tuple(stride), "\x89", call("collections", "OrderedDict", {})});
}

std::string dict(std::initializer_list<std::string> keys_and_values) {
    std::string out = "}(";
    for (const std::string& item : keys_and_values) out += item;
    return out + "u";
}

std::string archive(const std::string& value, const std::vector<std::pair<std::string, std::string>>& storages) {
    Zip zip;
    zip.add("a/data.pkl", pickle(value));
    zip.add("a/byteorder", "little");
    for (const auto& [key, data] : storages) zip.add("a/data/" + key, data);
    return zip.join();
}

}  // namespace forge
