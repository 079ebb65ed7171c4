// Writes files of ranks as torch pickles them.
#include "forge/ranks.hpp"

#include "forge/pickle.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/tensor_view.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <span>

namespace rank_forge {
namespace {

std::string_view placement_module(Era era) {
    return era == Era::torch_2_3 ? "torch.distributed._tensor.placement_types"
                                 : "torch.distributed.tensor.placement_types";
}

Value wrapper(Value type, Dtype dtype, const Shape& shape, Value state) {
    Value size = pt::tuple();
    for (const std::uint64_t one : shape) size.push(pt::integer(one));
    Value arguments = pt::tuple({type, pt::global("torch", safemap::torch_name(dtype)), size, size, pt::integer(0),
                                 pt::call("torch.serialization", "_get_layout", {pt::text("torch.strided")}),
                                 pt::call("torch", "device", {pt::text("cpu")}), pt::boolean(false)});
    return pt::call("torch._tensor", "_rebuild_from_type_v2",
                    {pt::global("torch._utils", "_rebuild_wrapper_subclass"), std::move(type), std::move(arguments),
                     std::move(state)});
}

}  // namespace

Value numbers(const Numbers& list) {
    Value out = pt::tuple();
    for (const std::uint64_t number : list) out.push(pt::integer(number));
    return out;
}

Value text_tuple(const std::vector<std::string>& words) {
    if (words.empty()) return pt::none();
    Value out = pt::tuple();
    for (const std::string& word : words) out.push(pt::text(word));
    return out;
}

std::string bytes_of_i32(const Numbers& list) {
    std::string bytes;
    for (const std::uint64_t number : list) bytes += forge::little(number, 4);
    return bytes;
}

std::vector<std::size_t> ForgedMesh::taken() const {
    if (!dimensions.empty()) return dimensions;
    std::vector<std::size_t> all(root.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
}

Numbers ForgedMesh::shape() const {
    Numbers out;
    for (const std::size_t d : taken()) out.push_back(root[d]);
    return out;
}

std::vector<std::string> ForgedMesh::own_names() const {
    std::vector<std::string> out;
    for (const std::size_t d : taken())
        if (!names.empty()) out.push_back(names[d]);
    return out;
}

Numbers ForgedMesh::root_strides() const {
    Numbers out(root.size(), 1);
    for (std::size_t d = root.size(); d-- > 1;) out[d - 1] = out[d] * root[d];
    return out;
}

Numbers ForgedMesh::root_coordinates(std::uint64_t rank) const {
    auto place = static_cast<std::uint64_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    Numbers out(root.size());
    for (std::size_t d = root.size(); d-- > 0;) {
        out[d] = place % root[d];
        place /= root[d];
    }
    return out;
}

Numbers ForgedMesh::coordinates(std::uint64_t rank) const {
    Numbers out;
    for (const std::size_t d : taken()) out.push_back(root_coordinates(rank)[d]);
    return out;
}

Numbers ForgedMesh::ranks_with(std::uint64_t rank) const {
    Numbers out;
    for (const std::uint64_t other : ranks) {
        bool same = true;
        const auto mine = root_coordinates(rank);
        const auto its = root_coordinates(other);
        const auto own = taken();
        for (std::size_t d = 0; d < root.size(); ++d)
            if (std::find(own.begin(), own.end(), d) == own.end()) same = same && mine[d] == its[d];
        if (same) out.push_back(other);
    }
    return out;
}

ForgedMesh line(std::uint64_t size, std::vector<std::string> names) {
    Numbers ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    return {.root = {size}, .ranks = ranks, .names = std::move(names)};
}

Value device_mesh(const ForgedMesh& mesh, std::uint64_t rank, Era era) {
    Value out = pt::object("torch.distributed.device_mesh", "DeviceMesh");
    const bool in_tensor = era == Era::torch_2_3 || era == Era::torch_2_6;
    const Numbers shape = mesh.shape();
    const std::string underscore = in_tensor ? "" : "_";
    out.set(underscore + "device_type", pt::text("cpu"));
    if (in_tensor) {
        const Numbers ranks = mesh.ranks_with(rank);
        out.set("mesh", pt::tensor(Dtype::i32, Shape(std::span<const std::uint64_t>(shape)), bytes_of_i32(ranks)));
    } else {
        Value axes = pt::tuple();
        Value sizes = pt::tuple();
        Value steps = pt::tuple();
        const Numbers strides = mesh.root_strides();
        for (const std::size_t d : mesh.taken()) {
            const bool one = mesh.root[d] == 1;  // torch leaves out dimensions of one rank
            axes.push(pt::object("torch.distributed._mesh_layout", "_FlatLayout",
                                 {{"shape", numbers(one ? Numbers() : Numbers{mesh.root[d]})},
                                  {"stride", numbers(one ? Numbers() : Numbers{strides[d]})}}));
            sizes.push(pt::integer(mesh.root[d]));
            steps.push(pt::integer(strides[d]));
        }
        Value layout = pt::object("torch.distributed._mesh_layout", "_MeshLayout");
        if (era == Era::torch_2_13) layout.set("axes", axes);
        else layout.set("shape", sizes);
        if (era == Era::torch_2_10) layout.set("stride", steps);
        out.set("_layout", layout);
        out.set("_rank_map", pt::tensor(Dtype::i32, {mesh.ranks.size()}, bytes_of_i32(mesh.ranks)));
        out.set("_rank", pt::integer(rank));
    }
    out.set(underscore + "mesh_dim_names", text_tuple(mesh.own_names()));
    const bool member = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank) != mesh.ranks.end();
    out.set("_coordinate_on_dim", member ? numbers(mesh.coordinates(rank)) : pt::none());
    out.set("_hash", pt::integer(rank * 7919 + 1));  // differs between ranks
    return out;
}

Value replicate(Era era) { return pt::object(placement_module(era), "Replicate"); }

Value shard(std::uint64_t dimension, Era era) {
    return pt::object(placement_module(era), "Shard", {{"dim", pt::integer(dimension)}});
}

Value strided(std::uint64_t dimension, std::uint64_t factor, Era era) {
    return pt::object(placement_module(era), "_StridedShard",
                      {{"dim", pt::integer(dimension)}, {"split_factor", pt::integer(factor)}});
}

Value partial(std::string_view name) {
    return pt::object(placement_module(Era::torch_2_13), name, {{"reduce_op", pt::text("sum")}});
}

Value dtensor_spec(Value mesh, std::vector<Value> placements, Dtype dtype, const Shape& shape, Era era) {
    const std::string_view module =
        era == Era::torch_2_3 ? placement_module(era) : "torch.distributed.tensor._dtensor_spec";
    Value stride = pt::tuple();
    for (std::size_t d = 0; d < shape.size(); ++d) stride.push(pt::integer(1));
    return pt::object(
        module, "DTensorSpec",
        {{"mesh", std::move(mesh)},
         {"placements", pt::tuple(std::move(placements))},
         // A named tuple is pickled as a call of its class.
         {"tensor_meta",
          pt::call(module, "TensorMeta", {pt::size(shape), stride, pt::global("torch", safemap::torch_name(dtype))})}});
}

Value dtensor(Value local, const Shape& shape, Value spec, Dtype dtype, Era era) {
    const Value type = era == Era::torch_2_3 ? pt::global("torch.distributed._tensor.api", "DTensor")
                                             : pt::global("torch.distributed.tensor", "DTensor");
    return wrapper(
        type, dtype, shape,
        pt::tuple({pt::none(), pt::dict({{"_local_tensor", std::move(local)}, {"_spec", std::move(spec)}})}));
}

Value shard_metadata(const ForgedShard& shard) {
    return pt::object("torch.distributed._shard.metadata", "ShardMetadata",
                      {{"shard_offsets", pt::integers(shard.start)},
                       {"shard_sizes", pt::integers(shard.extent)},
                       {"placement", pt::object("torch.distributed.remote_device", "_remote_device",
                                                {{"_worker_name", pt::none()}, {"_rank", pt::integer(shard.rank)}})}});
}

Value sharded_tensor(std::vector<std::pair<ForgedShard, Value>> locals, const Shape& shape,
                     const std::vector<ForgedShard>& shards, Dtype dtype, std::uint64_t rank, std::uint64_t world) {
    Value local = pt::list();
    for (auto& [where, value] : locals)
        local.push(pt::object("torch.distributed._shard.sharded_tensor.shard", "Shard",
                              {{"tensor", std::move(value)}, {"metadata", shard_metadata(where)}}));
    Value all = pt::list();
    for (const ForgedShard& one : shards) all.push(shard_metadata(one));
    const std::string_view module = "torch.distributed._shard.sharded_tensor.metadata";
    Value metadata =
        pt::object(module, "ShardedTensorMetadata",
                   {{"shards_metadata", std::move(all)}, {"size", pt::size(shape)}, {"tensor_properties", pt::none()}});
    Value group = pt::object("torch.distributed._shard.sharded_tensor.api", "ProcessGroupState",
                             {{"local_rank", pt::integer(rank)},
                              {"global_rank", pt::integer(rank)},
                              {"local_world_size", pt::integer(world)},
                              {"global_world_size", pt::integer(world)}});
    return wrapper(
        pt::global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), dtype, shape,
        pt::tuple({std::move(local), std::move(metadata), std::move(group), pt::none(), pt::boolean(false)}));
}

Whole random_whole(std::mt19937& random, Dtype dtype, Shape shape) {
    std::string bytes(pt::elements(shape) * pt::element_bytes(dtype), '\0');
    for (char& byte : bytes) byte = static_cast<char>(dtype == Dtype::boolean ? random() % 2 : random() % 256);
    return {dtype, std::move(shape), std::move(bytes)};
}

std::string take(const Whole& whole, const Numbers& elements) {
    const std::size_t size = pt::element_bytes(whole.dtype);
    std::string out;
    for (const std::uint64_t element : elements) out += whole.bytes.substr(element * size, size);
    return out;
}

std::string ForgedSet::name(std::uint64_t rank) const {
    if (!sized) return prefix + std::to_string(rank) + ".pt";
    return prefix + std::to_string(world.value_or(ranks.size())) + "_rank_" + std::to_string(rank) + ".pt";
}

std::shared_ptr<const safemap::Folder> ForgedSet::folder(pt::Container container) const {
    std::map<std::string, std::string> files = others;
    for (const auto& [rank, value] : ranks) files[name(rank)] = pt::Writer::file(value, container);
    return std::make_shared<forge::Folder>(std::move(files), "run");
}

void ForgedSet::write(const std::filesystem::path& folder) const {
    for (const auto& [rank, value] : ranks)
        std::ofstream(folder / name(rank), std::ios::binary) << pt::Writer::file(value);
}

std::vector<std::string> ForgedSet::files() const {
    std::vector<std::string> out;
    for (const auto& [rank, value] : ranks) out.push_back(name(rank));
    return out;
}

safemap::state::Contents ForgedSet::open(safemap::OpenOptions options, pt::Container container) const {
    return safemap::distributed::read_rank_files({folder(container), files()}, options);
}

ForgedSet rows_on_a_line(const Whole& whole, std::uint64_t world, Era era) {
    ForgedSet set;
    const slow::Sharded how{.whole = Numbers(whole.shape.begin(), whole.shape.end()),
                            .mesh = {world},
                            .orders = std::vector<std::vector<std::size_t>>(whole.shape.size()),
                            .pieces = {1}};
    slow::Sharded by_rows = how;
    by_rows.orders[0] = {0};
    for (std::uint64_t rank = 0; rank < world; ++rank) {
        Shape shape = whole.shape;
        shape[0] = by_rows.held({rank})[0].size();
        Value local = pt::tensor(whole.dtype, shape, take(whole, slow::elements(by_rows, {rank})));
        Value spec = dtensor_spec(device_mesh(line(world), rank, era), {shard(0, era)}, whole.dtype, whole.shape, era);
        set.ranks[rank] =
            pt::dict({{"rows", dtensor(std::move(local), whole.shape, std::move(spec), whole.dtype, era)}});
    }
    return set;
}

const safemap::LazyTensor* find(const safemap::state::Contents& contents, std::string_view name) {
    for (const safemap::LazyTensor& tensor : contents.tensors)
        if (tensor.name() == name) return &tensor;
    return nullptr;
}

}  // namespace rank_forge
