// Tensors over a source that counts reads, and fails on demand.
#pragma once

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Returns the byte at this offset of the source with this seed.
__attribute__((no_sanitize("thread"))) inline std::byte pattern(std::uint64_t seed, std::uint64_t at) {
    std::uint64_t x = (at + 1) * 0x9E37'79B9'7F4A'7C15 ^ seed * 0xD6E8'FEB8'6659'FD93;
    x ^= x >> 31;
    return static_cast<std::byte>(x * 0x94D0'49BB'1331'11EB >> 56);
}

/// Writes the bytes of the source with this seed, from `offset` on. ThreadSanitizer would look at each by itself.
__attribute__((no_sanitize("thread"))) inline void make_pattern(std::uint64_t seed, std::uint64_t offset, std::byte* to,
                                                                std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) to[i] = pattern(seed, offset + i);
}

class Counted {
public:
    explicit Counted(std::uint64_t seed, std::uint64_t size) : state_(std::make_shared<State>()) {
        const auto state = state_;
        source_ =
            safemap::callback_source("counted", size, [state, seed](std::uint64_t offset, std::span<std::byte> into) {
                ++state->reads;
                if (state->fail.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::io_error, "the disk is gone");
                state->held.wait(true);
                if (state->microseconds > 0)
                    std::this_thread::sleep_for(std::chrono::microseconds(state->microseconds));
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

    const std::shared_ptr<const safemap::Source>& source() const { return source_; }
    std::uint64_t bytes() const { return state_->bytes; }
    std::uint64_t reads() const { return state_->reads; }
    /// Makes one read fail after so many more successful reads.
    void fail_after(std::int64_t reads) const { state_->fail = reads; }
    void slow(int microseconds) const { state_->microseconds = microseconds; }
    /// Makes reads wait until go_on().
    void hold() const { state_->held = true; }
    void go_on() const {
        state_->held = false;
        state_->held.notify_all();
    }

    safemap::LazyTensor tensor(std::string name, safemap::Dtype dtype, safemap::Shape shape) const {
        return {std::move(name), safemap::stored_run(dtype, std::move(shape), source_, 0)};
    }

private:
    struct State {
        std::atomic<std::uint64_t> bytes = 0;
        std::atomic<std::uint64_t> reads = 0;
        std::atomic<std::int64_t> fail = -1;
        std::atomic<int> microseconds = 0;
        std::atomic<bool> held = false;
    };
    std::shared_ptr<State> state_;
    std::shared_ptr<const safemap::Source> source_;
};

/// A tensor of `size` bytes with a source of its own.
struct Bytes {
    Counted counted;
    safemap::LazyTensor tensor;

    Bytes(std::string name, std::uint64_t size)
        : counted(std::hash<std::string>()(name), size),
          tensor(counted.tensor(std::move(name), safemap::Dtype::u8, {size})) {}
};
