// Reads DTensor and ShardedTensor objects. The reference is torch/distributed/tensor and
// torch/distributed/_shard, 2.13; older versions have other names and fewer fields. From the top:
//
//   fields         parts of objects, by name
//   DTensor        _local_tensor, and in _spec the mesh and the placements
//   ShardedTensor  its state is a tuple: local shards, metadata of all shards, process group, …
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/sharded_nodes.hpp"

#include "base/text.hpp"
#include "distributed/ranks/shard_lists.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

// Fields.

std::string_view class_of(std::string_view type) { return type.substr(type.rfind('.') + 1); }  // npos + 1 is 0

bool truth(const Value& object, std::string_view field) {
    const auto found = object.find(field);
    return found && found->boolean().value_or(false);
}

std::optional<Dtype> dtype_in(const std::optional<Value>& value) { return value ? value->dtype() : std::nullopt; }

/// Returns a field of an object: an attribute under one of two names, or an argument of its class.
std::optional<Value> field_of(const Value& object, std::string_view name, std::string_view other,
                              std::size_t argument) {
    if (auto found = object.find(name)) return found;
    if (auto found = object.find(other)) return found;
    return object.argument(argument);
}

[[noreturn]] void refuse_dimension(const MeshPlacement& placement, std::size_t rank) {
    throw Error(Errc::piece_outside, "the placement " + to_string(std::span(&placement, 1)) +
                                         " cuts a dimension that a tensor of " + counted(rank, "dimension") +
                                         " does not have");
}

// Placements.

std::int64_t dimension_in(const Value& placement) {
    const auto found = field_of(placement, "dim", "_dim", 0);
    if (!found || !found->integer())
        throw Error(Errc::field_missing, "the field placements: a Shard has no integer dim");
    return *found->integer();
}

std::uint64_t split_factor_in(const Value& placement) {
    const auto found = field_of(placement, "split_factor", "sf", 1);
    if (!found || found->integer().value_or(0) < 1)
        throw Error(Errc::field_missing, "the field placements: a _StridedShard has no split_factor of at least 1");
    return found->count();
}

MeshPlacement placement_in(const Value& placement, std::size_t rank) {
    if (placement.type().empty())
        throw Error(Errc::field_missing, "the field placements holds a value that is not a placement");
    const std::string_view name = class_of(placement.type());
    if (name == "Replicate") return {};
    // torch has Partial (before 2.4 also _Partial), _MaskPartial and _NormPartial.
    if (name.ends_with("Partial")) return {.kind = MeshPlacement::Kind::partial, .reduction = std::string(name)};
    if (name != "Shard" && name != "_StridedShard")
        throw Error(Errc::unsupported_layout,
                    "a DTensor has the placement " + excerpt(placement.type()) + ", which safemap does not know")
            .with_hint("save it as a full tensor: full_tensor() of the DTensor");
    MeshPlacement out{.kind = MeshPlacement::Kind::shard, .dimension = dimension_in(placement)};
    if (name == "_StridedShard") {
        out.kind = MeshPlacement::Kind::strided;
        out.split_factor = split_factor_in(placement);
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
    const auto* const object = std::get_if<StateTree::Opaque>(&node);
    if (object == nullptr || !object->type.starts_with("torch.distributed.")) return std::nullopt;
    const std::string_view name = class_of(object->type);
    if (name == "DTensor") return StatedTensor::Kind::dtensor;
    if (name == "ShardedTensor") return StatedTensor::Kind::sharded;
    return std::nullopt;
}

ShardedNodes::ShardedNodes(const StateTree& tree, const RankNames& names, std::uint64_t rank, RankMeshes& meshes,
                           const ShardLists* lists)
    : tree_(tree), file_(tree), names_(names), rank_(rank), meshes_(meshes), lists_(lists) {
    constexpr std::uint64_t least = std::uint64_t{1} << 16;
    constexpr std::uint64_t times = 8;
    shards_left_ = least + times * (lists == nullptr ? 0 : lists->shards());
}

StatedLocal ShardedNodes::read(StateTree::NodeId node, const StatedTensor* first) {
    const Value object = file_.root_at(node);
    return distributed_kind(tree_[node]) == StatedTensor::Kind::dtensor ? dtensor(object) : sharded(object, first);
}

const LazyTensor* ShardedNodes::tensor(const Value& value) const {
    if (const LazyTensor* const found = value.tensor()) return found;
    throw Error(Errc::piece_mismatch, "the local value is no plain tensor" +
                                          (value.type().empty() ? std::string() : " but " + excerpt(value.type())));
}

/// Throws if a list was taken from the pickle: it is in the place of another value.
const Value& ShardedNodes::untaken(const Value& list) const {
    if (lists_ != nullptr && lists_->has(list.node())) throw TakenValue();
    return list;
}

// DTensor.

std::vector<MeshPlacement> ShardedNodes::placements(const Value& list, std::size_t rank) const {
    std::vector<MeshPlacement> out;
    const std::vector<Value> items = untaken(list).items();
    if (items.size() > most_dimensions)
        throw Error(Errc::field_missing, "the field placements has " + std::to_string(items.size()) +
                                             " items; expected one for each dimension of the mesh");
    for (const Value& item : items) out.push_back(placement_in(item, rank));
    return out;
}

/// Reads the order in which the mesh's dimensions cut those of the tensor, which torch states since 2.10.
std::vector<Sharding::Order> ShardedNodes::orders(const Value& spec, const StatedTensor& tensor) const {
    const auto list = spec.find("shard_order");
    if (!list) return {};
    const auto require = [](bool fits) {
        if (!fits) throw Error(Errc::field_missing, "the field shard_order does not fit the placements");
    };
    std::vector<bool> named(tensor.placements.size());
    std::vector<Sharding::Order> out;
    for (const Value& entry : untaken(*list).items()) {
        const auto dimension = field_of(entry, "tensor_dim", "tensor_dim", 0);
        const auto mesh_dimensions = field_of(entry, "mesh_dims", "mesh_dims", 1);
        require(dimension && mesh_dimensions);
        Sharding::Order& order = out.emplace_back();
        order.dimension = dimension->count();
        for (const std::uint64_t m : untaken(*mesh_dimensions).counts()) {
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

StatedMesh ShardedNodes::mesh(const Value& value) {
    const auto [found, fresh] = known_meshes_.try_emplace(value.node());
    if (fresh) {
        found->second = read_mesh(value, names_, rank_, meshes_);
        if (!stated_rank_) stated_rank_ = found->second.rank;
    }
    return found->second;
}

StatedLocal ShardedNodes::dtensor(const Value& object) {
    StatedLocal out;
    StatedTensor& said = out.tensor;
    said.shape = untaken(object.at("size")).shape();
    const Value spec = object.at("_spec");
    if (const auto meta = spec.find("tensor_meta"))
        if (const auto stated = field_of(*meta, "shape", "0", 0); stated && untaken(*stated).shape() != said.shape)
            throw Error(Errc::piece_mismatch, "the shape is " + to_string(said.shape) + ", but tensor_meta says " +
                                                  to_string(stated->shape()));
    out.mesh = mesh(spec.at("mesh")).number;
    said.placements = placements(spec.at("placements"), said.shape.size());
    const Mesh& mesh = meshes_[out.mesh];
    if (said.placements.size() != mesh.shape.size())
        throw Error(Errc::field_missing, "the placements " + to_string(said.placements) + " are not one for each " +
                                             "dimension of the mesh " + to_string(mesh));
    refuse_partial(said.placements);
    said.orders = orders(spec, said);
    constexpr std::string_view by_factors = "use_strided_shard_as_shard_order";
    if (spec.find(by_factors) && !truth(spec, by_factors)) said.order = CutOrder::by_mesh;
    const LazyTensor* const local = tensor(object.at("_local_tensor"));
    said.dtype = local->dtype();
    if (const auto dtype = dtype_in(object.find("dtype")); dtype && *dtype != said.dtype)
        throw Error(Errc::piece_mismatch, "the dtype is " + std::string(name(*dtype)) +
                                              ", but that of the local value is " + std::string(name(said.dtype)));
    out.values.push_back({{}, local});
    out.parameter = truth(object, "parameter");
    out.requires_grad = truth(object, "requires_grad");
    return out;
}

// ShardedTensor.

StatedShard ShardedNodes::shard(const Value& metadata) const {
    StatedShard out;
    out.start = untaken(metadata.at("shard_offsets")).shape();
    out.extent = untaken(metadata.at("shard_sizes")).shape();
    if (out.start.size() != out.extent.size())
        throw Error(Errc::field_missing, "a shard has offsets " + to_string(out.start) + " and sizes " +
                                             to_string(out.extent) + ": not as many");
    // A remote device, "rank:1/cuda:1". Its rank can be missing.
    if (const auto placement = metadata.find("placement"))
        if (const auto rank = placement->find("_rank")) out.rank = rank->count();
    return out;
}

void ShardedNodes::read_shards(const Value& list, const StatedTensor* first, StatedTensor& said) {
    if (lists_ != nullptr && lists_->has(list.node())) {
        const auto read_node = [&](StateTree::NodeId item) { return shard(list.root_at(item)); };
        said.shards_as_first = first != nullptr && lists_->is(tree_, list.node(), first->shards, read_node);
        if (!said.shards_as_first) said.shards = lists_->at(tree_, list.node(), read_node);
        const std::size_t count = said.shards_as_first ? first->shards.size() : said.shards.size();
        if (count >= shards_left_)
            throw Error(Errc::pickle_too_large,
                        "the pickle has lists in many places; together they hold too many values for its size");
        shards_left_ -= count + 1;
    } else {
        for (const Value& item : list.items()) said.shards.push_back(shard(item));
    }
}

void ShardedNodes::add_local_shards(const Value& list, StatedLocal& out) const {
    for (const Value& item : untaken(list).items()) {
        const StatedShard own = shard(item.at("metadata"));
        const LazyTensor* const value = tensor(item.at("tensor"));
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

StatedLocal ShardedNodes::sharded(const Value& object, const StatedTensor* first) {
    StatedLocal out;
    StatedTensor& said = out.tensor;
    said.kind = StatedTensor::Kind::sharded;
    const Value metadata = object.at("1");
    said.shape = untaken(metadata.at("size")).shape();
    read_shards(metadata.at("shards_metadata"), first, said);
    if (const auto group = object.find("2"); group && !stated_rank_)
        if (const auto rank = group->find("global_rank")) stated_rank_ = rank->count();
    // The files of the ranks in the list of the first file are there.
    if (!said.shards_as_first) require_files_of(said.shards);
    add_local_shards(object.at("0"), out);
    auto dtype = dtype_in(object.find("dtype"));
    if (!dtype)
        if (const auto properties = metadata.find("tensor_properties"))
            dtype = dtype_in(field_of(*properties, "dtype", "0", 0));
    if (!dtype && !out.values.empty()) dtype = out.values.front().value->dtype();
    if (!dtype) throw Error(Errc::field_missing, "the field dtype is missing");
    said.dtype = *dtype;
    out.parameter = truth(object, "parameter");
    out.requires_grad = truth(object, "requires_grad");
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
