// Reads a box of a tensor's value into a buffer. All other reading of tensors is built on this.
#pragma once

#include "lazy/cast_counts.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Reads values of any LazyTensor through buffers of a fixed size, allocated on first use. Each worker thread has its
/// own. It can be used for one tensor after another.
class Gatherer {
public:
    /// Maximum of the memory that it uses, in bytes, whatever it reads.
    static constexpr std::uint64_t most_memory = 2304U << 10;

    Gatherer();
    ~Gatherer();
    Gatherer(Gatherer&&) noexcept;
    Gatherer& operator=(Gatherer&&) noexcept;

    /// Fills `out` with the box, row-major. `out` has exactly the size of the box.
    void fill(const LazyTensor& tensor, const Box& box, std::span<std::byte> out);
    /// Fills `out` with the bytes [offset, offset + out.size()) of the row-major value.
    void fill(const LazyTensor& tensor, std::uint64_t offset, std::span<std::byte> out);

    /// Returns the statistics of casts since the last call.
    CastCounts take_counts() noexcept;

private:
    class Impl;
    void fill_elements(const LazyTensor& tensor, std::uint64_t first, std::span<std::byte> out);
    std::unique_ptr<Impl> impl_;
};

}  // namespace safemap::SAFEMAP_ABI
