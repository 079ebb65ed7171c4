// Compares dtypes, shapes, placements, meshes and shards, then keeps the place of a local value in 24 bytes. Tested by
// tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/local_parts.hpp"

#include "base/text.hpp"
#include "distributed/ranks/tree_values.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

std::string role_text(TensorRole role) {
    if (role == TensorRole::dtensor) return "a DTensor";
    return role == TensorRole::sharded ? "a ShardedTensor" : "a plain tensor";
}

std::string described(const std::vector<StatedShard>& shards) {
    constexpr std::size_t most = 4;
    std::string text = std::to_string(shards.size()) + (shards.size() == 1 ? " shard" : " shards");
    for (std::size_t i = 0; i < std::min(shards.size(), most); ++i)
        text += (i == 0 ? ": " : ", ") + to_string(shards[i].start) + " + " + to_string(shards[i].extent);
    return text + (shards.size() > most ? ", ..." : "");
}

bool same_shards(const std::vector<StatedShard>& a, const std::vector<StatedShard>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StatedShard& x, const StatedShard& y) {
        return x.start == y.start && x.extent == y.extent;
    });
}

bool is_byte_list(const LazyTensor& tensor) {
    return tensor.dtype() == Dtype::u8 && tensor.shape().size() == 1 && tensor.nbytes() <= compared_bytes;
}

/// The numbers of a ShardedTensor's shards, by their places.
class ShardNumbers {
public:
    explicit ShardNumbers(const std::vector<StatedShard>& shards) : shards_(shards) {}

    /// Returns the number of a local shard. Throws piece_mismatch if it is not one of the shards.
    std::uint32_t of(const LocalValue& value) {
        // Most files have one shard of each tensor.
        constexpr int most_searched = 4;
        if (asked_++ == most_searched)
            for (std::size_t i = 0; i < shards_.size(); ++i)
                by_place_.emplace(key(shards_[i].start, shards_[i].extent), i);
        std::size_t found = shards_.size();
        if (asked_ <= most_searched) {
            const auto same = [&](const StatedShard& one) {
                return one.start == value.start && one.extent == value.value->shape();
            };
            found = static_cast<std::size_t>(std::find_if(shards_.begin(), shards_.end(), same) - shards_.begin());
        } else if (const auto at = by_place_.find(key(value.start, value.value->shape())); at != by_place_.end()) {
            found = at->second;
        }
        if (found == shards_.size())
            throw Error(Errc::piece_mismatch,
                        "the local shard " + to_string(value.start) + " + " + to_string(value.value->shape()) +
                            " is not one of the shards that the metadata lists: " + described(shards_));
        return static_cast<std::uint32_t>(found);
    }

private:
    using Key = std::vector<std::uint64_t>;

    static Key key(const Shape& start, const Shape& extent) {
        Key out(start.begin(), start.end());
        out.insert(out.end(), extent.begin(), extent.end());
        return out;
    }

    const std::vector<StatedShard>& shards_;
    int asked_ = 0;
    std::map<Key, std::size_t> by_place_ = {};
};

bool fits(const Sharding& sharding, const std::vector<std::uint64_t>& at, const LazyTensor& value) {
    const Shape shape = sharding.local_shape(at);
    // torch gives values without elements various shapes.
    return shape == value.shape() || (element_count(shape) == 0 && value.element_count() == 0);
}

}  // namespace

std::string kind_text(const StateTree::Node& node) {
    if (const auto kind = distributed_kind(node))
        return *kind == StatedTensor::Kind::dtensor ? "a DTensor" : "a ShardedTensor";
    return std::holds_alternative<StateTree::Tensor>(node) ? "a plain tensor" : "no tensor";
}

bool LocalParts::add(std::uint32_t number, NodeId other) {
    const SkeletonTensor& tensor = skeleton_.tensors()[number];
    const StateTree::Node& node = tree_[other];
    if (tensor.role == TensorRole::dtensor || tensor.role == TensorRole::sharded) {
        const auto kind = distributed_kind(node);
        if (!kind || (*kind == StatedTensor::Kind::dtensor) != (tensor.role == TensorRole::dtensor))
            differ("the kinds of this tensor", role_text(tensor.role), kind_text(node));
        add_distributed(number, tensor, other);
        return false;
    }
    const auto* const plain = std::get_if<StateTree::Tensor>(&node);
    if (plain == nullptr || plain->numpy) differ("the kinds of this tensor", role_text(tensor.role), kind_text(node));
    return add_plain(number, tensor, plain->tensor);
}

void LocalParts::add_distributed(std::uint32_t number, const SkeletonTensor& tensor, NodeId other) {
    const StatedLocal local = nodes_.read(other, &tensor.said);
    if (const auto stated = nodes_.stated_rank(); stated && *stated != share_.rank) {
        share_.foreign = stated;
        return;
    }
    if (tensor.role == TensorRole::dtensor) add_dtensor(number, tensor, local);
    else add_sharded(number, tensor, local);
}

bool LocalParts::add_plain(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value) {
    if (tensor.role == TensorRole::ignored) {
        set_part(number, {.offset = value.element_count()});
        return false;
    }
    agree_("the dtype", tensor.dtype, value.dtype());
    if (tensor.role == TensorRole::piece) {
        set_part(number, odd({{0, &value}}));
        return false;
    }
    agree_("the shape", tensor.shape, value.shape());
    const bool is_other = sampled_differ(tensor, value);
    if (is_other && is_byte_list(value)) {
        set_part(number, {.state = LocalPart::State::empty});
        return true;
    }
    if (is_other && !share_.other_value) share_.other_value = number;
    set_part(number, part_of(tensor, 0, value));
    return false;
}

/// Returns true if the first bytes were compared and differ from those of the lowest rank.
bool LocalParts::sampled_differ(const SkeletonTensor& tensor, const LazyTensor& value) {
    const bool bytes = is_byte_list(value);
    const std::uint64_t size = std::min(value.nbytes(), bytes ? compared_bytes : samples_.each);
    if (size == 0 || size > samples_.all) return false;
    samples_.all -= size;
    const auto& first = std::get<StateTree::Tensor>(skeleton_.tree()[tensor.node]).tensor;
    return &first != &value && !have_equal_bytes(first, value, size);
}

void LocalParts::compare(const StatedTensor& first, const StatedTensor& other) const {
    agree_("the dtype", first.dtype, other.dtype);
    agree_("the shape", first.shape, other.shape);
    if (first.placements != other.placements)
        differ("the placements", to_string(first.placements), to_string(other.placements));
    if (first.orders != other.orders || first.order != other.order)
        differ("the order in which the tensor is sharded", "one", "another");
    if (!other.shards_as_first && !same_shards(first.shards, other.shards))
        differ("the shards", described(first.shards), described(other.shards));
}

void LocalParts::compare_meshes(const SkeletonTensor& tensor, const StatedLocal& local) const {
    if (tensor.mesh == local.mesh) return;
    const Mesh& first = meshes_[tensor.mesh];
    const Mesh& other = meshes_[local.mesh];
    if (first.shape != other.shape || first.names != other.names)
        differ("the meshes", to_string(first), to_string(other));
}

void LocalParts::add_dtensor(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local) {
    compare_meshes(tensor, local);
    compare(tensor.said, local.tensor);
    const LazyTensor& value = *local.values.front().value;
    const auto* const coordinates = coordinates_in(local.mesh);
    if (coordinates == nullptr) {
        if (value.element_count() > 0)
            throw Error(Errc::world_mismatch, "the file of rank " + std::to_string(share_.rank) +
                                                  " has values, but its rank is not in the mesh " +
                                                  to_string(meshes_[local.mesh]));
        return set_part(number, {.place = local.mesh, .state = LocalPart::State::empty});
    }
    check_shape(number, tensor, value, *coordinates, local.mesh);
    set_part(number, part_of(tensor, local.mesh, value));
}

/// Returns the coordinates of this rank, or null if it is not in the mesh.
const std::vector<std::uint64_t>* LocalParts::coordinates_in(std::uint32_t mesh) {
    const auto [found, fresh] = coordinates_.try_emplace(mesh);
    if (fresh)
        if (const auto place = place_of(meshes_[mesh], share_.rank))
            found->second = coordinates_of(meshes_[mesh].shape, *place);
    return found->second ? &*found->second : nullptr;
}

void LocalParts::check_shape(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value,
                             const std::vector<std::uint64_t>& at, std::uint32_t mesh) {
    const bool fits_first = fits(*tensor.sharding, at, value);
    const bool fits_other = tensor.other && fits(*tensor.other, at, value);
    if (tensor.other && (fits_first || fits_other)) {
        share_.fits.push_back({number, fits_first, fits_other});
        return;
    }
    if (fits_first) return;
    throw Error(Errc::piece_mismatch,
                "the local value of rank " + std::to_string(share_.rank) + " has the shape " +
                    to_string(value.shape()) + "; expected " + to_string(tensor.sharding->local_shape(at)) + " of " +
                    to_string(tensor.said.shape) + " with the placements " + to_string(tensor.said.placements) +
                    " on the mesh " + to_string(meshes_[mesh]));
}

void LocalParts::add_sharded(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local) {
    compare(tensor.said, local.tensor);
    ShardNumbers numbers(tensor.said.shards);
    Values values;
    for (const LocalValue& one : local.values) {
        if (one.value->dtype() != tensor.said.dtype)
            throw Error(Errc::piece_mismatch, "a local shard has the dtype " + std::string(name(one.value->dtype())) +
                                                  "; expected " + std::string(name(tensor.said.dtype)));
        values.emplace_back(numbers.of(one), one.value);
    }
    if (values.size() == 1) set_part(number, part_of(tensor, values.front().first, *values.front().second));
    else if (values.empty()) set_part(number, {.state = LocalPart::State::empty});
    else set_part(number, odd(values));
}

/// Returns the part that a value is: a run of the file if possible.
LocalPart LocalParts::part_of(const SkeletonTensor& tensor, std::uint32_t place, const LazyTensor& value) {
    if (value.element_count() == 0) return {.place = place, .state = LocalPart::State::empty};
    const StoredTensor& stored = *value.stored();
    const StridedView view = value.strided_view();
    if (whole_bytes(value.dtype()) && stored.in_one_run() && stored.shared_source(0) == share_.source &&
        stored.dtype() == value.dtype() && value.decoding() == tensor.decoding &&
        is_contiguous(view.shape, view.strides))
        return {.offset = stored.locate(static_cast<std::uint64_t>(view.offset)).offset,
                .place = place,
                .state = LocalPart::State::run};
    LocalPart part = odd({{place, &value}});
    part.place = place;
    return part;
}

LocalPart LocalParts::odd(const Values& values) {
    if (values.size() > std::numeric_limits<std::uint16_t>::max())
        throw Error(Errc::pickle_too_large, "a rank has more than 65,535 shards of one tensor");
    LocalPart part{.first = static_cast<std::uint32_t>(share_.values.size()),
                   .count = static_cast<std::uint16_t>(values.size()),
                   .state = LocalPart::State::values};
    for (const auto& [shard, value] : values) share_.values.push_back({shard, value->renamed({})});
    return part;
}

/// Sets the part of a tensor. A tensor that the lowest rank has in several places is one tensor in this file too.
void LocalParts::set_part(std::uint32_t number, const LocalPart& part) {
    LocalPart& here = share_.parts[number];
    const bool same = here == part || (here.state == part.state && part.state == LocalPart::State::values);
    if (here.state != LocalPart::State::absent && !same)
        differ("the ties of this tensor", "one tensor that has several names", "several tensors");
    if (here.state == LocalPart::State::absent) here = part;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
