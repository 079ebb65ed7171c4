// Cuts the dimensions of tensors by the rule of torch.chunk. The reference is torch/distributed/tensor, 2.13:
// placement_types.py for a single cut, _dtensor_spec.py for the order that factors spell. Tested by
// tests/distributed/mesh_test.cpp against a slow twin, and by tests/interop/rank_files.py against torch itself.
#include "distributed/ranks/mesh.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cassert>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Returns the interval of chunk number `i` of `count` indices in `chunks` chunks. Later chunks may be shorter or
/// empty.
Interval chunk(std::uint64_t count, std::uint64_t chunks, std::uint64_t i) {
    const std::uint64_t length = count / chunks + (count % chunks != 0 ? 1 : 0);
    if (length == 0 || i > count / length) return {count, 0};
    const std::uint64_t start = length * i;
    return {start, std::min(length, count - start)};
}

std::uint64_t total(const std::vector<Interval>& intervals) {
    std::uint64_t count = 0;
    for (const Interval& one : intervals) count += one.count;
    return count;
}

/// Appends ranges of a list of intervals, in ascending order, to another list.
class Selection {
public:
    Selection(const std::vector<Interval>& from, std::size_t most) : from_(from), most_(most) {}

    /// Appends the indices [range.start, range.start + range.count) of the list. `range` is not before an earlier one.
    void add(Interval range) {
        while (range.count > 0) {
            const Interval& here = from_[at_];
            if (range.start - before_ >= here.count) {
                before_ += here.count;
                ++at_;
                continue;
            }
            const std::uint64_t skipped = range.start - before_;
            const std::uint64_t taken = std::min(range.count, here.count - skipped);
            append({here.start + skipped, taken});
            range.start += taken;
            range.count -= taken;
        }
    }
    std::vector<Interval> take() { return std::move(to_); }

private:
    void append(Interval one) {
        if (!to_.empty() && to_.back().start + to_.back().count == one.start) {
            to_.back().count += one.count;
            return;
        }
        if (to_.size() >= most_)
            throw Error(Errc::pickle_too_large,
                        "the placements cut the tensor into more than " + std::to_string(most_) + " pieces");
        to_.push_back(one);
    }

    const std::vector<Interval>& from_;
    std::size_t most_;
    std::size_t at_ = 0;        ///< the interval of `from_` at which the next range may begin
    std::uint64_t before_ = 0;  ///< number of indices before it
    std::vector<Interval> to_ = {};
};

/// Returns the part of `indices` that a rank has after the cut.
std::vector<Interval> apply(const Cut& cut, std::uint64_t coordinate, const std::vector<Interval>& indices,
                            std::size_t most) {
    const std::uint64_t count = total(indices);
    const std::uint64_t length = chunk(count, cut.pieces, 0).count;
    if (length == 0) return {};
    const std::uint64_t own = chunk(length, cut.ranks, coordinate).count;
    if (own == length) return indices;
    Selection selection(indices, most);
    // A rank with nothing of a piece of full length can only have something of the last one, which is shorter.
    const std::uint64_t first = own > 0 ? 0 : count / length;
    for (std::uint64_t piece = first; piece < cut.pieces; ++piece) {
        const Interval outer = chunk(count, cut.pieces, piece);
        if (outer.count == 0) break;  // so are all later ones
        const Interval inner = chunk(outer.count, cut.ranks, coordinate);
        selection.add({outer.start + inner.start, inner.count});
    }
    return selection.take();
}

/// Returns how many of `count` indices a rank has after the cut.
std::uint64_t size_after(const Cut& cut, std::uint64_t coordinate, std::uint64_t count) {
    if (cut.pieces == 1) return chunk(count, cut.ranks, coordinate).count;
    // All pieces before the last one that is not empty have the same length.
    const std::uint64_t length = chunk(count, cut.pieces, 0).count;
    if (length == 0) return 0;
    const std::uint64_t rest = count % length;
    const std::uint64_t last = rest == 0 ? 0 : chunk(rest, cut.ranks, coordinate).count;
    return count / length * chunk(length, cut.ranks, coordinate).count + last;
}

/// Returns the cuts along these dimensions of the mesh, which are in ascending order and cut one dimension of the
/// tensor, in the order that their factors spell. Goes from the last to the first: each is inserted before the cuts
/// that it precedes.
std::vector<Cut> by_factors(std::span<const std::size_t> dimensions, std::span<const std::uint64_t> mesh,
                            std::span<const MeshPlacement> placements) {
    std::vector<Cut> order;
    for (std::size_t i = dimensions.size(); i-- > 0;) {
        const std::size_t d = dimensions[i];
        const std::uint64_t factor =
            placements[d].kind == MeshPlacement::Kind::strided ? placements[d].split_factor : 1;
        std::uint64_t product = 1;
        std::size_t place = 0;
        while (product != factor && place < order.size() && product < factor) product *= order[place++].ranks;
        const bool spells_order = product == factor;
        if (!spells_order) place = 0;
        order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), {d, mesh[d], spells_order ? 1 : factor});
    }
    return order;
}

std::vector<Cut> in_order(std::span<const std::size_t> dimensions, std::span<const std::uint64_t> mesh,
                          std::span<const MeshPlacement> placements) {
    std::vector<Cut> order;
    for (const std::size_t d : dimensions)
        order.push_back(
            {d, mesh[d], placements[d].kind == MeshPlacement::Kind::strided ? placements[d].split_factor : 1});
    return order;
}

std::size_t dimension_of(const MeshPlacement& placement, std::size_t rank) {
    const std::int64_t d = placement.dimension;
    return static_cast<std::size_t>(d < 0 ? d + static_cast<std::int64_t>(rank) : d);
}

template <class List> std::string listed(const List& items) {
    std::string text;
    for (const auto& item : items) text += (text.empty() ? "" : ", ") + item;
    return text;
}

}  // namespace

std::vector<std::uint64_t> coordinates_of(std::span<const std::uint64_t> mesh, std::uint64_t place) {
    std::vector<std::uint64_t> coordinates(mesh.size());
    for (std::size_t d = mesh.size(); d-- > 0;) {
        coordinates[d] = place % mesh[d];
        place /= mesh[d];
    }
    return coordinates;
}

std::optional<std::uint64_t> place_of(const Mesh& mesh, std::uint64_t rank) {
    const auto found = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
    if (found == mesh.ranks.end()) return std::nullopt;
    return static_cast<std::uint64_t>(found - mesh.ranks.begin());
}

std::string to_string(const Mesh& mesh) {
    std::vector<std::string> sizes;
    for (const std::uint64_t size : mesh.shape) sizes.push_back(std::to_string(size));
    std::vector<std::string> names;
    for (const std::string& name : mesh.names) names.push_back(excerpt(name));
    return "[" + listed(sizes) + "]" + (names.empty() ? "" : " (" + listed(names) + ")");
}

std::string to_string(std::span<const MeshPlacement> placements) {
    std::vector<std::string> texts;
    for (const MeshPlacement& one : placements) {
        const std::string dimension = std::to_string(one.dimension);
        switch (one.kind) {
            case MeshPlacement::Kind::replicate: texts.emplace_back("Replicate"); break;
            case MeshPlacement::Kind::shard: texts.push_back("Shard(" + dimension + ")"); break;
            case MeshPlacement::Kind::strided:
                texts.push_back("_StridedShard(" + dimension + ", " + std::to_string(one.split_factor) + ")");
                break;
            case MeshPlacement::Kind::partial: texts.push_back(excerpt(one.reduction)); break;
        }
    }
    return "(" + listed(texts) + ")";
}

Sharding::Sharding(Shape whole, std::vector<std::uint64_t> mesh, std::span<const MeshPlacement> placements,
                   CutOrder order, std::span<const Order> orders)
    : whole_(std::move(whole)), mesh_(std::move(mesh)), cuts_(whole_.size()) {
    assert(placements.size() == mesh_.size());
    std::vector<std::vector<std::size_t>> dimensions(whole_.size());
    for (std::size_t d = 0; d < placements.size(); ++d) {
        replicates_.push_back(!placements[d].cuts());
        if (placements[d].cuts()) dimensions[dimension_of(placements[d], whole_.size())].push_back(d);
    }
    for (std::size_t d = 0; d < whole_.size(); ++d) {
        const auto said =
            std::find_if(orders.begin(), orders.end(), [d](const Order& one) { return one.dimension == d; });
        if (said != orders.end()) {
            const std::vector<std::size_t> given(said->mesh_dimensions.begin(), said->mesh_dimensions.end());
            cuts_[d] = in_order(given, mesh_, placements);
        } else {
            cuts_[d] = order == CutOrder::by_factors ? by_factors(dimensions[d], mesh_, placements)
                                                     : in_order(dimensions[d], mesh_, placements);
        }
    }
}

bool Sharding::interleaves() const noexcept {
    // A cut after others may also find indices that are not consecutive, but only if one of them interleaves.
    return std::any_of(cuts_.begin(), cuts_.end(), [](const std::vector<Cut>& cuts) {
        return std::any_of(cuts.begin(), cuts.end(), [](const Cut& cut) { return cut.pieces > 1; });
    });
}

Shape Sharding::local_shape(std::span<const std::uint64_t> coordinates) const {
    Shape shape = whole_;
    for (std::size_t d = 0; d < shape.size(); ++d)
        for (const Cut& cut : cuts_[d]) shape[d] = size_after(cut, coordinates[cut.mesh_dimension], shape[d]);
    return shape;
}

std::vector<Interval> Sharding::local_indices(std::size_t dimension, std::span<const std::uint64_t> coordinates,
                                              std::size_t most) const {
    std::vector<Interval> indices;
    if (whole_[dimension] > 0) indices.push_back({0, whole_[dimension]});
    for (const Cut& cut : cuts_[dimension]) indices = apply(cut, coordinates[cut.mesh_dimension], indices, most);
    return indices;
}

std::uint64_t Sharding::replica_of(std::span<const std::uint64_t> coordinates) const {
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < mesh_.size(); ++d)
        if (replicates_[d]) number = number * mesh_[d] + coordinates[d];
    return number;
}

std::vector<LocalBox> boxes_of(const Sharding& sharding, std::span<const std::uint64_t> coordinates, std::size_t most) {
    const std::size_t rank = sharding.whole().size();
    std::vector<LocalBox> boxes(1, {Shape(rank, 0), Shape(rank, 0), Shape(rank, 0)});
    for (std::size_t d = 0; d < rank; ++d) {
        const std::vector<Interval> indices = sharding.local_indices(d, coordinates, most / boxes.size());
        std::vector<LocalBox> cut;
        cut.reserve(boxes.size() * indices.size());
        for (const LocalBox& box : boxes) {
            std::uint64_t held = 0;
            for (const Interval& one : indices) {
                LocalBox& next = cut.emplace_back(box);
                next.whole_start[d] = one.start;
                next.local_start[d] = held;
                next.extent[d] = one.count;
                held += one.count;
            }
        }
        boxes = std::move(cut);
        if (boxes.empty()) break;
    }
    return boxes;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
