// Tensors over a source that counts reads, and fails on demand.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// Returns the byte at this offset of the source with this seed.
std::byte pattern(std::uint64_t seed, std::uint64_t at);

class Counted {
public:
    explicit Counted(std::uint64_t seed, std::uint64_t size);

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

    safemap::LazyTensor tensor(std::string name, safemap::Dtype dtype, safemap::Shape shape) const;

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

    Bytes(std::string name, std::uint64_t size);
};
