// Computes the bytes of a source from a seed, so that a tensor of any size takes no memory.
#include "device/counted.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <utility>

namespace {

__attribute__((no_sanitize("thread"))) inline std::byte byte_at(std::uint64_t seed, std::uint64_t at) {
    std::uint64_t x = (at + 1) * 0x9E37'79B9'7F4A'7C15 ^ seed * 0xD6E8'FEB8'6659'FD93;
    x ^= x >> 31;
    return static_cast<std::byte>(x * 0x94D0'49BB'1331'11EB >> 56);
}

/// Writes the bytes of the source with this seed, from `offset` on. ThreadSanitizer would look at each by itself.
__attribute__((no_sanitize("thread"))) void make_pattern(std::uint64_t seed, std::uint64_t offset, std::byte* to,
                                                         std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) to[i] = byte_at(seed, offset + i);
}

}  // namespace

std::byte pattern(std::uint64_t seed, std::uint64_t at) { return byte_at(seed, at); }

Counted::Counted(std::uint64_t seed, std::uint64_t size) : state_(std::make_shared<State>()) {
    const auto state = state_;
    source_ = safemap::callback_source("counted", size, [state, seed](std::uint64_t offset, std::span<std::byte> into) {
        ++state->reads;
        if (state->fail.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::io_error, "the disk is gone");
        state->held.wait(true);
        if (state->microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(state->microseconds));
        state->bytes += into.size();
        std::array<std::byte, 4096> block;  // ThreadSanitizer sees the copy
        while (!into.empty()) {
            const std::size_t part = std::min(into.size(), block.size());
            make_pattern(seed, offset, block.data(), part);
            std::memcpy(into.data(), block.data(), part);
            offset += part;
            into = into.subspan(part);
        }
    });
}

safemap::LazyTensor Counted::tensor(std::string name, safemap::Dtype dtype, safemap::Shape shape) const {
    return {std::move(name), safemap::stored_run(dtype, std::move(shape), source_, 0)};
}

Bytes::Bytes(std::string name, std::uint64_t size)
    : counted(std::hash<std::string>()(name), size),
      tensor(counted.tensor(std::move(name), safemap::Dtype::u8, {size})) {}
