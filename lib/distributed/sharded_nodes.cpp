// Reads DTensor and ShardedTensor objects. The reference is torch/distributed/tensor and
// torch/distributed/_shard, 2.13; older versions have other names and fewer fields. From the top:
//
//   fields         parts of objects, by name
//   DTensor        _local_tensor, and in _spec the mesh and the placements
//   ShardedTensor  its state is a tuple: local shards, metadata of all shards, process group, …
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/sharded_nodes.hpp"

#include "base/text.hpp"
#include "distributed/shard_lists.hpp"
#include "distributed/values.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;
using Opaque = StateTree::Opaque;

// Fields.

std::string_view class_of(const Opaque& object) {
    return std::string_view(object.type).substr(object.type.rfind('.') + 1);  // npos + 1 is 0
}

NodeId require_part(const StateTree& tree, NodeId node, std::string_view name) {
    if (const auto found = part_of(tree, node, name)) return *found;
    throw Error(Errc::field_missing, "the field " + std::string(name) + " is missing");
}

bool is_none(const StateTree& tree, NodeId node) { return std::holds_alternative<StateTree::None>(tree[node]); }

std::optional<Dtype> dtype_in(const StateTree& tree, std::optional<NodeId> node) {
    if (!node) return std::nullopt;
    const auto* const said = std::get_if<StateTree::Constant>(&tree[*node]);
    if (said == nullptr || said->kind != StateTree::Constant::Kind::dtype) return std::nullopt;
    return dtype_from_torch(said->text);
}

bool truth(const StateTree& tree, std::optional<NodeId> node) {
    if (!node) return false;
    const auto* const value = std::get_if<bool>(&tree[*node]);
    return value != nullptr && *value;
}

/// Returns a field of a placement: an attribute, or an argument of its class.
std::optional<NodeId> placement_field(const StateTree& tree, NodeId node, std::string_view name, std::string_view other,
                                      std::uint32_t argument) {
    if (const auto found = part_of(tree, node, name)) return found;
    if (const auto found = part_of(tree, node, other)) return found;
    const auto* const object = std::get_if<Opaque>(&tree[node]);
    if (object == nullptr || argument >= std::min<std::size_t>(object->arguments, object->children.size()))
        return std::nullopt;
    return object->children[argument].second;
}

[[noreturn]] void refuse_dimension(const MeshPlacement& placement, std::size_t rank) {
    throw Error(Errc::piece_outside, "the placement " + to_string(std::span(&placement, 1)) +
                                         " cuts a dimension that a tensor of " + std::to_string(rank) +
                                         (rank == 1 ? " dimension" : " dimensions") + " does not have");
}

// Placements.

std::int64_t dimension_in(const StateTree& tree, NodeId node) {
    const auto found = placement_field(tree, node, "dim", "_dim", 0);
    const auto* const number = found ? std::get_if<std::int64_t>(&tree[*found]) : nullptr;
    if (number == nullptr) throw Error(Errc::field_missing, "the field placements: a Shard has no integer dim");
    return *number;
}

std::uint64_t split_factor_in(const StateTree& tree, NodeId node) {
    const auto found = placement_field(tree, node, "split_factor", "sf", 1);
    const auto* const number = found ? std::get_if<std::int64_t>(&tree[*found]) : nullptr;
    if (number == nullptr || *number < 1)
        throw Error(Errc::field_missing, "the field placements: a _StridedShard has no split_factor of at least 1");
    return static_cast<std::uint64_t>(*number);
}

MeshPlacement placement_in(const StateTree& tree, NodeId node, std::size_t rank) {
    const auto* const object = std::get_if<Opaque>(&tree[node]);
    if (object == nullptr)
        throw Error(Errc::field_missing, "the field placements holds a value that is not a placement");
    const std::string_view name = class_of(*object);
    if (name == "Replicate") return {};
    // torch has Partial (before 2.4 also _Partial), _MaskPartial and _NormPartial.
    if (name.ends_with("Partial")) return {.kind = MeshPlacement::Kind::partial, .reduction = std::string(name)};
    if (name != "Shard" && name != "_StridedShard")
        throw Error(Errc::unsupported_layout,
                    "a DTensor has the placement " + excerpt(object->type) + ", which safemap does not know")
            .with_hint("save it as a full tensor: full_tensor() of the DTensor");
    MeshPlacement out{.kind = MeshPlacement::Kind::shard, .dimension = dimension_in(tree, node)};
    if (name == "_StridedShard") {
        out.kind = MeshPlacement::Kind::strided;
        out.split_factor = split_factor_in(tree, node);
    }
    const auto most = static_cast<std::int64_t>(rank);
    if (out.dimension >= most || out.dimension < -most) refuse_dimension(out, rank);
    if (out.dimension < 0) out.dimension += most;
    return out;
}

void refuse_partial(const std::vector<MeshPlacement>& placements) {
    const auto is_partial = [](const MeshPlacement& one) { return one.kind == MeshPlacement::Kind::partial; };
    if (std::none_of(placements.begin(), placements.end(), is_partial)) return;
    throw Error(Errc::partial_placement,
                "the placements are " + to_string(placements) + ": each rank holds a term of a sum that was not taken")
        .with_hint("redistribute the DTensor to Replicate or Shard before it is saved");
}

}  // namespace

std::optional<StatedTensor::Kind> distributed_kind(const StateTree::Node& node) {
    const auto* const object = std::get_if<Opaque>(&node);
    if (object == nullptr || !object->type.starts_with("torch.distributed.")) return std::nullopt;
    const std::string_view name = class_of(*object);
    if (name == "DTensor") return StatedTensor::Kind::dtensor;
    if (name == "ShardedTensor") return StatedTensor::Kind::sharded;
    return std::nullopt;
}

ShardedNodes::ShardedNodes(const StateTree& tree, const RankNames& names, std::uint64_t rank, RankMeshes& meshes,
                           const ShardLists* lists)
    : tree_(tree), names_(names), rank_(rank), meshes_(meshes), lists_(lists) {
    constexpr std::uint64_t least = std::uint64_t{1} << 16;
    constexpr std::uint64_t times = 8;
    left_ = least + times * (tree.size() + (lists == nullptr ? 0 : lists->shards()));
}

StatedLocal ShardedNodes::read(NodeId node, const StatedTensor* first) {
    return distributed_kind(tree_[node]) == StatedTensor::Kind::dtensor ? dtensor(node) : sharded(node, first);
}

const LazyTensor* ShardedNodes::tensor(NodeId node) const {
    if (const auto* const leaf = std::get_if<StateTree::Tensor>(&tree_[node])) return &leaf->tensor;
    const auto* const object = std::get_if<Opaque>(&tree_[node]);
    throw Error(Errc::piece_mismatch, "the local value is no plain tensor" +
                                          (object == nullptr ? std::string() : " but " + excerpt(object->type)));
}

const std::vector<NodeId>& ShardedNodes::items(NodeId node, std::string_view field) {
    if (lists_ != nullptr && lists_->has(node)) throw TakenValue();
    const auto& found = items_of(tree_, node, field);
    count(found.size());
    return found;
}

void ShardedNodes::count(std::size_t items) {
    if (items >= left_)
        throw Error(Errc::pickle_too_large,
                    "the pickle has lists in many places; together they hold too many values for its size");
    left_ -= items + 1;
}

Shape ShardedNodes::shape(NodeId node, std::string_view field) {
    Shape out;
    const auto& sizes = items(node, field);
    if (sizes.size() > most_dimensions)
        throw Error(Errc::field_missing, "the field " + excerpt(field) + " has more than 64 dimensions");
    for (const NodeId item : sizes) out.push_back(count_of(tree_, item, field));
    return out;
}

// DTensor.

std::vector<MeshPlacement> ShardedNodes::placements(NodeId node, std::size_t rank) {
    std::vector<MeshPlacement> out;
    const auto& list = items(node, "placements");
    if (list.size() > most_dimensions)
        throw Error(Errc::field_missing, "the field placements has " + std::to_string(list.size()) +
                                             " items; expected one for each dimension of the mesh");
    for (const NodeId item : list) out.push_back(placement_in(tree_, item, rank));
    return out;
}

/// Reads the order in which the mesh's dimensions cut those of the tensor, which torch states since 2.10.
std::vector<Sharding::Order> ShardedNodes::orders(NodeId spec, const StatedTensor& tensor) {
    const auto list = part_of(tree_, spec, "shard_order");
    if (!list || is_none(tree_, *list)) return {};
    const auto require = [](bool fits) {
        if (!fits) throw Error(Errc::field_missing, "the field shard_order does not fit the placements");
    };
    std::vector<bool> named(tensor.placements.size());
    std::vector<Sharding::Order> out;
    for (const NodeId entry : items(*list, "shard_order")) {
        const auto dimension = placement_field(tree_, entry, "tensor_dim", "tensor_dim", 0);
        const auto mesh_dimensions = placement_field(tree_, entry, "mesh_dims", "mesh_dims", 1);
        require(dimension && mesh_dimensions);
        Sharding::Order& order = out.emplace_back();
        order.dimension = count_of(tree_, *dimension, "shard_order");
        for (const NodeId item : items(*mesh_dimensions, "shard_order")) {
            const std::uint64_t m = count_of(tree_, item, "shard_order");
            require(m < named.size() && !named[m] && tensor.placements[m].cuts() &&
                    static_cast<std::uint64_t>(tensor.placements[m].dimension) == order.dimension);
            named[m] = true;
            order.mesh_dimensions.push_back(m);
        }
        require(!order.mesh_dimensions.empty());
    }
    for (std::size_t m = 0; m < named.size(); ++m) require(named[m] == tensor.placements[m].cuts());
    return out;
}

StatedMesh ShardedNodes::mesh(NodeId node) {
    const auto [found, fresh] = known_meshes_.try_emplace(node);
    if (fresh) {
        found->second = read_mesh(tree_, node, names_, rank_, meshes_);
        if (!stated_rank_) stated_rank_ = found->second.rank;
    }
    return found->second;
}

StatedLocal ShardedNodes::dtensor(NodeId node) {
    StatedLocal out;
    StatedTensor& said = out.tensor;
    said.shape = shape(require_part(tree_, node, "size"), "size");
    const NodeId spec = require_part(tree_, node, "_spec");
    if (const auto meta = part_of(tree_, spec, "tensor_meta"); meta && !is_none(tree_, *meta)) {
        const auto stated = placement_field(tree_, *meta, "shape", "0", 0);
        if (stated && shape(*stated, "tensor_meta") != said.shape)
            throw Error(Errc::piece_mismatch, "the shape is " + to_string(said.shape) + ", but tensor_meta says " +
                                                  to_string(shape(*stated, "tensor_meta")));
    }
    out.mesh = mesh(require_part(tree_, spec, "mesh")).number;
    said.placements = placements(require_part(tree_, spec, "placements"), said.shape.size());
    const Mesh& mesh = meshes_[out.mesh];
    if (said.placements.size() != mesh.shape.size())
        throw Error(Errc::field_missing, "the placements " + to_string(said.placements) + " are not one for each " +
                                             "dimension of the mesh " + to_string(mesh));
    refuse_partial(said.placements);
    said.orders = orders(spec, said);
    const auto by_factors = part_of(tree_, spec, "use_strided_shard_as_shard_order");
    if (by_factors && !is_none(tree_, *by_factors) && !truth(tree_, by_factors)) said.order = CutOrder::by_mesh;
    const LazyTensor* const local = tensor(require_part(tree_, node, "_local_tensor"));
    said.dtype = local->dtype();
    if (const auto stated = dtype_in(tree_, part_of(tree_, node, "dtype")); stated && *stated != said.dtype)
        throw Error(Errc::piece_mismatch, "the dtype is " + std::string(name(*stated)) +
                                              ", but that of the local value is " + std::string(name(said.dtype)));
    out.values.push_back({{}, local});
    out.parameter = truth(tree_, part_of(tree_, node, "parameter"));
    out.requires_grad = truth(tree_, part_of(tree_, node, "requires_grad"));
    return out;
}

// ShardedTensor.

StatedShard ShardedNodes::shard(NodeId node) {
    StatedShard out;
    out.start = shape(require_part(tree_, node, "shard_offsets"), "shard_offsets");
    out.extent = shape(require_part(tree_, node, "shard_sizes"), "shard_sizes");
    if (out.start.size() != out.extent.size())
        throw Error(Errc::field_missing, "a shard has offsets " + to_string(out.start) + " and sizes " +
                                             to_string(out.extent) + ": not as many");
    // A remote device, "rank:1/cuda:1". Its rank can be missing.
    if (const auto placement = part_of(tree_, node, "placement"))
        if (const auto rank = part_of(tree_, *placement, "_rank"); rank && !is_none(tree_, *rank))
            out.rank = count_of(tree_, *rank, "placement/_rank");
    return out;
}

void ShardedNodes::read_shards(NodeId list, const StatedTensor* first, StatedTensor& said) {
    if (lists_ != nullptr && lists_->has(list)) {
        const auto read_node = [this](NodeId item) { return shard(item); };
        said.shards_as_first = first != nullptr && lists_->is(tree_, list, first->shards, read_node);
        if (!said.shards_as_first) said.shards = lists_->at(tree_, list, read_node);
        count(said.shards_as_first ? first->shards.size() : said.shards.size());
    } else {
        for (const NodeId item : items(list, "shards_metadata")) said.shards.push_back(shard(item));
    }
}

void ShardedNodes::add_local_shards(NodeId list, StatedLocal& out) {
    for (const NodeId item : items(list, "local_shards")) {
        const StatedShard own = shard(require_part(tree_, item, "metadata"));
        const LazyTensor* const value = tensor(require_part(tree_, item, "tensor"));
        if (value->shape() != own.extent)
            throw Error(Errc::piece_mismatch, "a local shard has the shape " + to_string(value->shape()) +
                                                  "; its metadata says " + to_string(own.extent));
        out.values.push_back({own.start, value});
    }
}

/// Throws if the file of a rank that has one of the shards is missing.
void ShardedNodes::require_files_of(const std::vector<StatedShard>& shards) {
    std::vector<std::uint64_t> ranks;
    for (const StatedShard& one : shards)
        if (one.rank) ranks.push_back(*one.rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    if (ranks == last_ranks_) return;
    names_.require_files_of(ranks, "a ShardedTensor");
    last_ranks_ = std::move(ranks);
}

StatedLocal ShardedNodes::sharded(NodeId node, const StatedTensor* first) {
    StatedLocal out;
    StatedTensor& said = out.tensor;
    said.kind = StatedTensor::Kind::sharded;
    const NodeId metadata = require_part(tree_, node, "1");
    said.shape = shape(require_part(tree_, metadata, "size"), "size");
    read_shards(require_part(tree_, metadata, "shards_metadata"), first, said);
    if (const auto group = part_of(tree_, node, "2"); group && !stated_rank_)
        if (const auto rank = part_of(tree_, *group, "global_rank"); rank && !is_none(tree_, *rank))
            stated_rank_ = count_of(tree_, *rank, "global_rank");
    // The files of the ranks in the list of the first file are there.
    if (!said.shards_as_first) require_files_of(said.shards);
    add_local_shards(require_part(tree_, node, "0"), out);
    auto dtype = dtype_in(tree_, part_of(tree_, node, "dtype"));
    if (!dtype)
        if (const auto properties = part_of(tree_, metadata, "tensor_properties"))
            dtype = dtype_in(tree_, placement_field(tree_, *properties, "dtype", "0", 0));
    if (!dtype && !out.values.empty()) dtype = out.values.front().value->dtype();
    if (!dtype) throw Error(Errc::field_missing, "the field dtype is missing");
    said.dtype = *dtype;
    out.parameter = truth(tree_, part_of(tree_, node, "parameter"));
    out.requires_grad = truth(tree_, part_of(tree_, node, "requires_grad"));
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
