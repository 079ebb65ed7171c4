// Answers the one question asked of a tensor: fill this box of your value into this buffer.
#pragma once

#include "lazy/cast_counts.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Reads values of any LazyTensor through fixed buffers (at most 3 MiB, allocated when first needed). One for each
/// worker thread; it may be used for one tensor after another.
class Gatherer {
public:
    /// Bytes of memory that it takes, whatever it fills.
    static constexpr std::uint64_t most_memory = 2304U << 10;

    Gatherer();
    ~Gatherer();
    Gatherer(Gatherer&&) noexcept;
    Gatherer& operator=(Gatherer&&) noexcept;

    /// Fills `out` with the region, row-major. `out` has exactly the region's size.
    void fill(const LazyTensor& tensor, const Box& box, std::span<std::byte> out);
    /// Fills `out` with the bytes [offset, offset + out.size()) of the row-major value.
    void fill(const LazyTensor& tensor, std::uint64_t offset, std::span<std::byte> out);

    /// What casts did since the last call.
    CastCounts take_counts() noexcept;

private:
    class Impl;
    void fill_elements(const LazyTensor& tensor, std::uint64_t first, std::span<std::byte> out);
    std::unique_ptr<Impl> impl_;
};

}  // namespace safemap::SAFEMAP_ABI
