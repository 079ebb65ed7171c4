// What is stored of a tensor, in a compact form: at most 64 bytes for each piece of two dimensions.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace safemap {

/// Pieces count *units*: elements, or bytes for sub-byte dtypes, whose pieces are runs of whole bytes.
class StoredTensor {
public:
    struct Run {
        std::uint64_t offset;  // of its first unit, in bytes of the source
        std::uint64_t first;   // unit of the base
        std::uint64_t count;
        std::uint32_t source;
    };

    /// Checks, sorts and keeps; throws as stored_runs and stored_boxes say.
    StoredTensor(Dtype dtype, Shape shape, std::span<const RunPiece> runs);
    StoredTensor(Dtype dtype, Shape shape, std::span<const BoxPiece> boxes);

    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const noexcept { return shape_; }
    std::uint64_t element_count() const noexcept { return elements_; }
    /// Bytes of a unit.
    unsigned unit_size() const noexcept { return whole_bytes(dtype_) ? element_size(dtype_) : 1; }
    std::size_t piece_count() const noexcept { return runs_.size() + boxes_.size(); }

    /// Where a unit stands, and how many units of the base follow it at the same distance from each other.
    struct Place {
        std::uint32_t source;
        std::uint64_t offset;  // bytes
        std::uint64_t count;   // at least 1: the unit itself
        std::int64_t stride;   // in units
    };
    Place locate(std::uint64_t unit) const noexcept;

    const std::shared_ptr<const Source>& source(std::uint32_t i) const noexcept { return sources_[i]; }
    std::span<const std::shared_ptr<const Source>> sources() const noexcept { return sources_; }

private:
    struct BoxHead {
        std::uint64_t offset;
        std::uint32_t source;
    };

    void count_elements();
    std::uint32_t add_source(const std::shared_ptr<const Source>& source);
    void check_box(const BoxPiece& box) const;
    void check_boxes_disjoint() const;
    const std::uint64_t* start_of(std::size_t box) const noexcept { return &places_[box * 2 * shape_.size()]; }
    const std::uint64_t* extent_of(std::size_t box) const noexcept { return start_of(box) + shape_.size(); }
    const std::int64_t* strides_of(std::size_t box) const noexcept { return &strides_[box * shape_.size()]; }
    std::size_t box_at(const Shape& at) const noexcept;
    Place locate_in_boxes(std::uint64_t element) const noexcept;

    Dtype dtype_;
    Shape shape_;
    std::uint64_t elements_ = 0;
    std::vector<std::shared_ptr<const Source>> sources_;
    std::vector<Run> runs_;              // sorted by first
    std::vector<BoxHead> boxes_;         // sorted by start
    std::vector<std::uint64_t> places_;  // start and extent of each box
    std::vector<std::int64_t> strides_;  // of each box
};

}  // namespace safemap
