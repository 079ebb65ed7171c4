// Writes zstd streams without libzstd.
#include "forge/zstd.hpp"

#include <algorithm>

namespace forge {
namespace {

std::string zstd_block(std::string_view data, unsigned type, std::size_t size, bool last) {
    const std::size_t head = (last ? 1 : 0) | type << 1 | size << 3;
    std::string out;
    for (unsigned byte = 0; byte < 3; ++byte) out += static_cast<char>(head >> 8 * byte & 0xFF);
    return out + std::string(data);
}

}  // namespace

std::string zstd_frame(std::string_view data, std::size_t block) {
    std::string out = "\x28\xB5\x2F\xFD";
    out += '\0';    // no size, no checksum, no dictionary
    out += '\x38';  // a window of 128 KiB
    do {
        const std::string_view some = data.substr(0, std::min(block, data.size()));
        data.remove_prefix(some.size());
        const bool same = !some.empty() && some.find_first_not_of(some.front()) == some.npos;
        out += same ? zstd_block(some.substr(0, 1), 1, some.size(), data.empty())
                    : zstd_block(some, 0, some.size(), data.empty());
    } while (!data.empty());
    return out;
}

std::string zstd_skippable(std::string_view data) {
    std::string out = "\x50\x2A\x4D\x18";
    for (unsigned byte = 0; byte < 4; ++byte) out += static_cast<char>(data.size() >> 8 * byte & 0xFF);
    return out + std::string(data);
}

}  // namespace forge
