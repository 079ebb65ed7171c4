// From a region of a value to the boxes that it stands in: each intersection as axes that are walked through a source
// and an output together, so that no row is looked up.
#pragma once

#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// One dimension of the work: how many, how far apart in what is read, how far apart in what is written.
struct Axis {
    std::uint64_t extent;
    std::int64_t in;
    std::int64_t out;
};

/// Joins axes that continue each other in both.
void join(std::vector<Axis>& axes);
/// Walks every axis upwards in what is read, the nearest elements last. `in` and `out` are where the walk begins.
void nearest_last(std::vector<Axis>& axes, std::int64_t& in, std::int64_t& out);

/// What one box holds of a region.
struct BoxPart {
    std::uint32_t source;
    std::int64_t in;         // byte of the source at which the walk begins
    std::int64_t out;        // byte of the output
    std::vector<Axis> axes;  // in bytes, in no order
};

/// A region of a value as a region of its base: of each dimension of the base the elements low, low + step, …
class BaseRegion {
public:
    /// Nothing where some dimension of the view does not stay in one dimension of the base, or shares one.
    static std::optional<BaseRegion> of(const StoredTensor& stored, const StridedView& view, const Box& box);

    /// Calls visit(BoxPart&&) for each box of `stored` that has elements of it. Only for a tensor in boxes.
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
        std::int64_t out = 0;  // bytes of the output from one to the next
    };

    bool add(const Shape& base, std::uint64_t extent, std::int64_t stride, std::int64_t out);
    Box hull() const;
    std::optional<BoxPart> part_in(const StoredTensor::Piece& piece) const;

    std::int64_t unit_ = 1;
    std::int64_t out_ = 0;  // where the lowest element goes
    std::vector<Dimension> dimensions_;
    std::vector<Axis> repeats_;  // dimensions of the view along which the base does not move
};

}  // namespace safemap::SAFEMAP_ABI
