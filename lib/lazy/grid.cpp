// Detects whether boxes form a grid, and builds the tree if they do not.
#include "lazy/grid.hpp"

#include <safemap/error.hpp>

#include <numeric>
#include <span>

namespace safemap::SAFEMAP_ABI {

Grid::Grid(const Shape& shape, std::size_t count, std::vector<std::uint64_t> places)
    : rank_(shape.size()), count_(count), places_(std::move(places)) {
    if (count_ >= UINT32_MAX) throw Error(Errc::invalid_argument, "too many boxes: 2^32 or more");
    find_cuts();
    is_grid_ = fills_cells(shape);
    if (is_grid_ || count_ == 0) return;
    cuts_.clear();
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), 0U);
    build({0, 0, count_}, 0);
}

void Grid::find_cuts() {
    cuts_.resize(rank_);
    for (std::size_t d = 0; d < rank_; ++d) {
        std::vector<std::uint64_t>& cuts = cuts_[d];
        for (std::size_t box = 0; box < count_; ++box) {
            const std::uint64_t cut = start(box)[d];
            if (cuts.empty() || cuts.back() != cut) cuts.push_back(cut);
        }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    }
}

// Returns true if each cell between the cuts has exactly one box, and the cells cover the shape.
bool Grid::fills_cells(const Shape& shape) const {
    std::uint64_t cells = 1;
    for (std::size_t d = 0; d < rank_; ++d) {
        if (cuts_[d].empty() || cuts_[d].front() != 0) return false;
        cells *= cuts_[d].size();
        if (cells > count_) return false;
    }
    if (cells != count_) return false;
    for (std::size_t box = 0; box < count_; ++box) {
        std::size_t cell = box;
        for (std::size_t d = rank_; d-- > 0;) {
            const std::size_t cut = cell % cuts_[d].size();
            cell /= cuts_[d].size();
            const std::uint64_t end = cut + 1 < cuts_[d].size() ? cuts_[d][cut + 1] : shape[d];
            if (start(box)[d] != cuts_[d][cut] || start(box)[d] + extent(box)[d] != end) return false;
        }
    }
    return true;
}

// Returns a coordinate of a box as a point of 2 * rank_ coordinates: its starts, then its ends.
std::uint64_t Grid::coordinate(std::size_t box, std::size_t which) const noexcept {
    return which < rank_ ? start(box)[which] : start(box)[which - rank_] + extent(box)[which - rank_];
}

// Splits at the median of one coordinate after another, as a k-d tree does. So a query among n disjoint boxes of r
// dimensions takes O(n^(1 - 1/2r)) plus the boxes found, however long, thin and interleaved the boxes are.
void Grid::build(const Node& node, std::size_t depth) {
    bound(node);
    if (node.leaf()) return;
    const std::array<Node, 2> halves = node.halves();
    const std::size_t which = first_that_differs(node, depth);
    const auto first = order_.begin() + static_cast<std::ptrdiff_t>(node.begin);
    if (which < 2 * rank_)
        std::nth_element(first, first + static_cast<std::ptrdiff_t>(halves[1].begin - node.begin),
                         first + static_cast<std::ptrdiff_t>(node.end - node.begin),
                         [&](std::uint32_t a, std::uint32_t b) { return coordinate(a, which) < coordinate(b, which); });
    for (const Node& half : halves) build(half, which + 1);
}

// Returns the first coordinate, from `depth` on and cyclically, in which boxes of the node differ; 2 * rank_ if there
// is no difference.
std::size_t Grid::first_that_differs(const Node& node, std::size_t depth) const noexcept {
    for (std::size_t tried = 0; tried < 2 * rank_; ++tried) {
        const std::size_t which = (depth + tried) % (2 * rank_);
        const std::uint64_t one = coordinate(order_[node.begin], which);
        for (std::size_t i = node.begin + 1; i < node.end; ++i)
            if (coordinate(order_[i], which) != one) return which;
    }
    return 2 * rank_;
}

void Grid::bound(const Node& node) {
    if (bounds_.size() < (node.at + 1) * 2 * rank_) bounds_.resize((node.at + 1) * 2 * rank_);
    std::uint64_t* const bounds = bounds_.data() + node.at * 2 * rank_;
    for (std::size_t d = 0; d < rank_; ++d) {
        std::uint64_t low = UINT64_MAX;
        std::uint64_t high = 0;
        for (std::size_t i = node.begin; i < node.end; ++i) {
            low = std::min(low, coordinate(order_[i], d));
            high = std::max(high, coordinate(order_[i], d + rank_));
        }
        bounds[d] = low;
        bounds[d + rank_] = high - low;
    }
}

std::optional<Shape> Grid::first_shared() const {
    if (is_grid_) return std::nullopt;
    for (std::size_t box = 0; box < count_; ++box) {
        const Box region{Shape(std::span(start(box), rank_)), Shape(std::span(extent(box), rank_))};
        std::size_t other = count_;
        each_in(region, [&](std::size_t found) {
            if (found > box) other = std::min(other, found);
        });
        if (other == count_) continue;
        Shape shared = region.start;
        for (std::size_t d = 0; d < rank_; ++d) shared[d] = std::max(shared[d], start(other)[d]);
        return shared;
    }
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI
