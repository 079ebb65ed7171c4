// Deflates with zlib, without a header.
#include "deflate.hpp"

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

}  // namespace forge
