// Writes zips, valid and invalid, and deflates bytes.
#include "forge/zip.hpp"

#include "forge/pickle.hpp"

#include <zlib.h>

#include <stdexcept>

namespace forge {

std::vector<std::byte> deflated(std::span<const std::byte> data) {
    z_stream stream{};
    if (deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        throw std::runtime_error("deflate cannot start");
    std::vector<std::byte> out(deflateBound(&stream, data.size()));
    stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(data.data()));
    stream.avail_in = static_cast<uInt>(data.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    const int status = deflate(&stream, Z_FINISH);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    if (status != Z_STREAM_END) throw std::runtime_error("deflate did not end");
    return out;
}

std::string deflated(const std::string& data) {
    const auto packed = deflated(std::as_bytes(std::span(data)));
    return {reinterpret_cast<const char*>(packed.data()), packed.size()};
}

void Zip::add_deflated(std::string name, const std::string& data) {
    records.push_back(
        {.name = std::move(name), .data = deflated(data), .method = 8, .size = data.size(), .crc32 = crc(data)});
}

std::string Zip::join() const {
    std::string body, directory;
    // The version that readers need: PyTorch's writer says 0, and Python's 20.
    const std::string version = little(descriptors ? 0 : 20, 2);
    for (const Record& record : records) {
        const std::uint64_t header_at = body.size();
        const std::string sums = little(record.crc32, 4) + little(record.packed, 4) + little(record.size, 4);
        const std::size_t unpadded = header_at + 30 + record.local_name.size() + 4;
        const std::size_t padding = (alignment - unpadded % alignment) % alignment;
        const std::string extra = alignment > 1 ? "FB" + little(padding, 2) + std::string(padding, 'Z') : "";
        body += "PK\3\4" + version + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                (descriptors ? little(0, 12) : sums) + little(record.local_name.size(), 2) + little(extra.size(), 2) +
                record.local_name + extra + record.data;
        if (descriptors) body += "PK\7\10" + sums;
        directory += "PK\1\2" + version + version + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                     sums + little(record.name.size(), 2) + little(record.extra.size(), 2) + little(0, 10) +
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

std::string zip(std::vector<Zip::Record> records, std::size_t alignment) {
    Zip zip{.records = std::move(records), .zip64_end = false, .descriptors = false, .alignment = alignment};
    for (Zip::Record& record : zip.records) record.flags = 0;
    return zip.join();
}

}  // namespace forge
