// Intersects a region of a value with the boxes that store it. Each intersection is a list of axes that walk source and
// output together, so that no row has to be located.
#pragma once

#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// One dimension of a walk: the number of steps, and their distance in the source and in the output.
struct Axis {
    std::uint64_t extent;
    std::int64_t in;
    std::int64_t out;
};

/// Joins axes that are contiguous in both source and output.
void join(std::vector<Axis>& axes);
/// Reverses axes that run backwards in the source, sorts the smallest stride last, and joins axes. Adjusts `in` and
/// `out`, where the walk begins.
void nearest_last(std::vector<Axis>& axes, std::int64_t& in, std::int64_t& out);

/// The intersection of one box with a region.
struct BoxPart {
    std::uint32_t source;
    std::int64_t in;         // byte of the source where the walk begins
    std::int64_t out;        // byte of the output
    std::vector<Axis> axes;  // in bytes, unsorted
};

/// A region of a value as a region of its base: for each dimension of the base, the elements low, low + step, …
class BaseRegion {
public:
    /// Returns nothing if a dimension of the view spans several dimensions of the base, or shares one with another
    /// dimension of the view.
    static std::optional<BaseRegion> of(const StoredTensor& stored, const StridedView& view, const Box& box);

    /// Calls visit(BoxPart&&) for each box of `stored` that overlaps the region. Requires a tensor in boxes.
    template <class Visit> void each_part(const StoredTensor& stored, Visit&& visit) const {
        stored.each_piece_in(hull(), [&](const StoredTensor::Piece& piece) {
            if (auto part = part_in(piece)) visit(*std::move(part));
        });
    }

private:
    struct Dimension {
        std::uint64_t low = 0;
        std::uint64_t step = 1;
        std::uint64_t count = 1;
        std::int64_t out = 0;  // bytes of the output from one element to the next
    };

    bool add(const Shape& base, std::uint64_t extent, std::int64_t stride, std::int64_t out);
    Box hull() const;
    std::optional<BoxPart> part_in(const StoredTensor::Piece& piece) const;

    std::int64_t unit_ = 1;
    std::int64_t out_ = 0;  // byte of the output for the lowest element
    std::vector<Dimension> dimensions_;
    std::vector<Axis> repeats_;  // dimensions of the view with stride 0
};

}  // namespace safemap::SAFEMAP_ABI
