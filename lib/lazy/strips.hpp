// Reads tensors together whose elements alternate in one storage, such as the columns of a matrix. One by one, each of
// them would read most of the storage.
#pragma once

#include "lazy/gatherer.hpp"

#include <safemap/bytes.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Returns true if `next` is another strip beside `first`: a view of the same storage with the same shape and strides,
/// whose elements begin between those of `first`.
bool alternates(const LazyTensor& first, const LazyTensor& next);
/// Returns true if the value of a tensor is in short rows, in the order in which they are stored.
bool is_strip(const LazyTensor& tensor);

/// Returns how many tensors, from number `first` on and before number `end`, are strips of one storage. At least 1.
/// `at(number)` returns a tensor.
template <class At> std::size_t count_strips(std::size_t first, std::size_t end, At&& at) {
    std::size_t next = first + 1;
    if (next >= end || !alternates(at(first), at(next)) || !is_strip(at(first))) return 1;
    while (next < end && alternates(at(first), at(next))) ++next;
    return next - first;
}

/// Strips of one storage, cut into units: the same range of bytes of many of them. Units read the storage forward.
class Strips {
public:
    /// Cuts `count` strips like `one`, which are cast to `dtype`, for buffers of `buffer` bytes.
    Strips(const LazyTensor& one, Dtype dtype, std::size_t count, std::uint64_t buffer);

    std::uint64_t units() const noexcept { return sets_ * parts_; }
    struct Unit {
        std::size_t first = 0;  ///< number of its first strip
        std::size_t count = 0;
        Extent part = {};  ///< bytes of each strip

        std::uint64_t bytes() const noexcept { return count * part.size; }
    };
    Unit unit(std::uint64_t number) const noexcept {
        const std::size_t first = static_cast<std::size_t>(number / parts_) * at_once_;
        const std::uint64_t offset = number % parts_ * part_;
        return {first, std::min(at_once_, count_ - first), {offset, std::min(part_, size_ - offset)}};
    }
    /// Returns the number of the last unit that has bytes of a strip.
    std::uint64_t last_unit_of(std::size_t strip) const noexcept { return (strip / at_once_ + 1) * parts_ - 1; }

    /// Fills `out` with the bytes of a unit: those of its first strip, then those of the next one. `at(number)` returns
    /// a strip. Throws what the Gatherer throws.
    template <class At>
    void gather(const Unit& unit, Gatherer& gatherer, std::span<std::byte> out, const GatherRoom& room, At&& at,
                CastCounts* counts = nullptr) const {
        const auto part = static_cast<std::size_t>(unit.part.size);
        const auto place = [&](std::size_t i) { return out.subspan((i - unit.first) * part, part); };
        gather_apart(unit, gatherer, place, room, at, counts);
    }
    /// Does the same, but fills `place(number)` with the bytes of the strip with this number.
    template <class Place, class At>
    void gather_apart(const Unit& unit, Gatherer& gatherer, Place&& place, const GatherRoom& room, At&& at,
                      CastCounts* counts = nullptr) const {
        const auto part = static_cast<std::size_t>(unit.part.size);
        gatherer.begin(room);
        for (std::size_t done = 0; done < part; done += step_)
            for (std::size_t i = unit.first; i < unit.first + unit.count; ++i)
                gatherer.add(at(i), dtype_, unit.part.offset + done,
                             place(i).subspan(done, std::min(step_, part - done)), counts);
        gatherer.flush();
    }

private:
    Dtype dtype_;
    std::size_t count_;
    std::size_t at_once_ = 0;  // strips of a unit
    std::size_t step_ = 0;     // bytes of each strip that are gathered before the next strip
    std::uint64_t size_ = 0;   // bytes of a strip
    std::uint64_t part_ = 0;   // bytes of each strip in a unit
    std::uint64_t parts_ = 0;  // parts of a strip
    std::uint64_t sets_ = 0;   // sets of `at_once_` strips
};

}  // namespace safemap::SAFEMAP_ABI
