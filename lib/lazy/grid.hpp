// Finds boxes of one shape that overlap each other or a region. If the boxes form a grid, the cuts along each dimension
// answer that; otherwise a tree does. So no time is spent on boxes elsewhere.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace safemap::SAFEMAP_ABI {

class Grid {
public:
    Grid() = default;
    /// `places` has start and extent of each of `count` boxes, in lexicographical order of the starts. Each box is
    /// inside `shape` and not empty. Takes O(n log n) for n boxes. Throws invalid_argument for 2^32 boxes or more.
    Grid(const Shape& shape, std::size_t count, std::vector<std::uint64_t> places);

    std::size_t size() const noexcept { return count_; }
    const std::uint64_t* start(std::size_t box) const noexcept { return places_.data() + box * 2 * rank_; }
    const std::uint64_t* extent(std::size_t box) const noexcept { return start(box) + rank_; }

    /// Returns the first element of the overlap of two boxes: of the first box that overlaps any, with the first such
    /// box after it. Returns nothing if no boxes overlap. For a grid, nothing is compared; otherwise each box queries
    /// the tree once.
    std::optional<Shape> first_shared() const;

    /// Calls visit(box) for each box that overlaps `region`, which is not empty. The order is that of the boxes for a
    /// grid, else that of the tree.
    template <class Visit> void each_in(const Box& region, Visit&& visit) const {
        if (is_grid_) each_cell(region, 0, 0, visit);
        else each_below({0, 0, count_}, region, visit);
    }

private:
    /// A node of the tree: the boxes [begin, end) of order_. `at` is the index of its bounds.
    struct Node {
        std::size_t at;
        std::size_t begin;
        std::size_t end;

        bool leaf() const noexcept { return end - begin <= most_in_leaf; }
        std::array<Node, 2> halves() const noexcept {
            const std::size_t middle = begin + (end - begin) / 2;
            return {{{2 * at + 1, begin, middle}, {2 * at + 2, middle, end}}};
        }
    };
    static constexpr std::size_t most_in_leaf = 8;

    void find_cuts();
    bool fills_cells(const Shape& shape) const;
    void build(const Node& node, std::size_t depth);
    std::size_t first_that_differs(const Node& node, std::size_t depth) const noexcept;
    void bound(const Node& node);
    std::uint64_t coordinate(std::size_t box, std::size_t which) const noexcept;

    bool meets(const std::uint64_t* start, const std::uint64_t* extent, const Box& region) const noexcept {
        for (std::size_t d = 0; d < rank_; ++d)
            if (start[d] >= region.start[d] + region.extent[d] || region.start[d] >= start[d] + extent[d]) return false;
        return true;
    }

    // Cells are boxes: sorted by start, they are in row-major order.
    template <class Visit> void each_cell(const Box& region, std::size_t d, std::size_t cell, Visit& visit) const {
        if (d == rank_) return static_cast<void>(visit(cell));
        const std::vector<std::uint64_t>& cuts = cuts_[d];
        const std::uint64_t end = region.start[d] + region.extent[d];
        auto cut = std::upper_bound(cuts.begin(), cuts.end(), region.start[d]) - 1;
        for (; cut != cuts.end() && *cut < end; ++cut)
            each_cell(region, d + 1, cell * cuts.size() + static_cast<std::size_t>(cut - cuts.begin()), visit);
    }

    template <class Visit> void each_below(const Node& node, const Box& region, Visit& visit) const {
        const std::uint64_t* const bounds = bounds_.data() + node.at * 2 * rank_;
        if (!meets(bounds, bounds + rank_, region)) return;
        if (!node.leaf()) {
            for (const Node& half : node.halves()) each_below(half, region, visit);
            return;
        }
        for (std::size_t i = node.begin; i < node.end; ++i)
            if (meets(start(order_[i]), extent(order_[i]), region)) visit(std::size_t{order_[i]});
    }

    std::size_t rank_ = 0;
    std::size_t count_ = 0;
    bool is_grid_ = false;
    std::vector<std::uint64_t> places_;
    std::vector<std::vector<std::uint64_t>> cuts_;  // for a grid: where cells begin along each dimension
    std::vector<std::uint32_t> order_;              // otherwise: boxes in the order of the leaves
    std::vector<std::uint64_t> bounds_;             // start and extent of the boxes below each node
};

}  // namespace safemap::SAFEMAP_ABI
