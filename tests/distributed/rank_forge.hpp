// Writes files of ranks as torch pickles them: DTensors of several versions, ShardedTensors, flat parameters. Checks
// nothing, so that tests can write invalid files.
#pragma once

#include "distributed/pt_value.hpp"
#include "distributed/read_rank_files.hpp"
#include "forge.hpp"
#include "reference/slow_sharding.hpp"

#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/open_options.hpp>
#include <safemap/shape.hpp>
#include <safemap/tensor_view.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rank_forge {

using pt::Value;
using safemap::Dtype;
using safemap::Shape;
using slow::Numbers;

/// Versions of torch, by what they pickle.
enum class Era : std::uint8_t {
    torch_2_3,   ///< the mesh is a tensor; other names of modules
    torch_2_6,   ///< the mesh is a tensor
    torch_2_10,  ///< the mesh is a layout of two tuples over a list of ranks
    torch_2_13   ///< the layout has objects for its axes
};
constexpr Era eras[] = {Era::torch_2_3, Era::torch_2_6, Era::torch_2_10, Era::torch_2_13};

inline Value numbers(const Numbers& list) {
    Value out = pt::tuple();
    for (const std::uint64_t number : list) out.push(pt::integer(number));
    return out;
}
inline Value text_tuple(const std::vector<std::string>& words) {
    if (words.empty()) return pt::none();
    Value out = pt::tuple();
    for (const std::string& word : words) out.push(pt::text(word));
    return out;
}

inline std::string bytes_of_i32(const Numbers& list) {
    std::string bytes;
    for (const std::uint64_t number : list) bytes += forge::little(number, 4);
    return bytes;
}

// Meshes.

/// A mesh: all of a root mesh, or some of its dimensions.
struct ForgedMesh {
    Numbers root = {};   ///< sizes of the root mesh
    Numbers ranks = {};  ///< in the root mesh, row-major
    std::vector<std::string> names = {};
    std::vector<std::size_t> dimensions = {};  ///< the dimensions of the root that are taken; empty: all

    std::vector<std::size_t> taken() const {
        if (!dimensions.empty()) return dimensions;
        std::vector<std::size_t> all(root.size());
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    Numbers shape() const {
        Numbers out;
        for (const std::size_t d : taken()) out.push_back(root[d]);
        return out;
    }
    std::vector<std::string> own_names() const {
        std::vector<std::string> out;
        for (const std::size_t d : taken())
            if (!names.empty()) out.push_back(names[d]);
        return out;
    }
    Numbers root_strides() const {
        Numbers out(root.size(), 1);
        for (std::size_t d = root.size(); d-- > 1;) out[d - 1] = out[d] * root[d];
        return out;
    }
    /// Returns the coordinates of a rank in the root mesh.
    Numbers root_coordinates(std::uint64_t rank) const {
        auto place = static_cast<std::uint64_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
        Numbers out(root.size());
        for (std::size_t d = root.size(); d-- > 0;) {
            out[d] = place % root[d];
            place /= root[d];
        }
        return out;
    }
    /// Returns the coordinates of a rank in the dimensions that are taken.
    Numbers coordinates(std::uint64_t rank) const {
        Numbers out;
        for (const std::size_t d : taken()) out.push_back(root_coordinates(rank)[d]);
        return out;
    }
    /// Returns the ranks of the copy of the mesh that has this rank, row-major.
    Numbers ranks_with(std::uint64_t rank) const {
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
};

inline ForgedMesh line(std::uint64_t size, std::vector<std::string> names = {"dp"}) {
    Numbers ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    return {.root = {size}, .ranks = ranks, .names = std::move(names)};
}

/// Returns the DeviceMesh that the process of a rank pickles.
inline Value device_mesh(const ForgedMesh& mesh, std::uint64_t rank, Era era) {
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

// Placements.

inline std::string_view placement_module(Era era) {
    return era == Era::torch_2_3 ? "torch.distributed._tensor.placement_types"
                                 : "torch.distributed.tensor.placement_types";
}
inline Value replicate(Era era = Era::torch_2_13) { return pt::object(placement_module(era), "Replicate"); }
inline Value shard(std::uint64_t dimension, Era era = Era::torch_2_13) {
    return pt::object(placement_module(era), "Shard", {{"dim", pt::integer(dimension)}});
}
inline Value strided(std::uint64_t dimension, std::uint64_t factor, Era era = Era::torch_2_13) {
    return pt::object(placement_module(era), "_StridedShard",
                      {{"dim", pt::integer(dimension)}, {"split_factor", pt::integer(factor)}});
}
inline Value partial(std::string_view name = "Partial") {
    return pt::object(placement_module(Era::torch_2_13), name, {{"reduce_op", pt::text("sum")}});
}

// Tensors.

inline Value wrapper(Value type, Dtype dtype, const Shape& shape, Value state) {
    Value size = pt::tuple();
    for (const std::uint64_t one : shape) size.push(pt::integer(one));
    Value arguments = pt::tuple({type, pt::global("torch", safemap::torch_name(dtype)), size, size, pt::integer(0),
                                 pt::call("torch.serialization", "_get_layout", {pt::text("torch.strided")}),
                                 pt::call("torch", "device", {pt::text("cpu")}), pt::boolean(false)});
    return pt::call("torch._tensor", "_rebuild_from_type_v2",
                    {pt::global("torch._utils", "_rebuild_wrapper_subclass"), std::move(type), std::move(arguments),
                     std::move(state)});
}

/// Returns the spec of a DTensor; tests may add fields.
inline Value dtensor_spec(Value mesh, std::vector<Value> placements, Dtype dtype, const Shape& shape, Era era) {
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

inline Value dtensor(Value local, const Shape& shape, Value spec, Dtype dtype, Era era) {
    const Value type = era == Era::torch_2_3 ? pt::global("torch.distributed._tensor.api", "DTensor")
                                             : pt::global("torch.distributed.tensor", "DTensor");
    return wrapper(
        type, dtype, shape,
        pt::tuple({pt::none(), pt::dict({{"_local_tensor", std::move(local)}, {"_spec", std::move(spec)}})}));
}

/// A shard of a ShardedTensor.
struct ForgedShard {
    Numbers start = {};
    Numbers extent = {};
    std::uint64_t rank = 0;
};

inline Value shard_metadata(const ForgedShard& shard) {
    return pt::object("torch.distributed._shard.metadata", "ShardMetadata",
                      {{"shard_offsets", pt::integers(shard.start)},
                       {"shard_sizes", pt::integers(shard.extent)},
                       {"placement", pt::object("torch.distributed.remote_device", "_remote_device",
                                                {{"_worker_name", pt::none()}, {"_rank", pt::integer(shard.rank)}})}});
}

/// Returns a ShardedTensor with some of the shards as local ones.
inline Value sharded_tensor(std::vector<std::pair<ForgedShard, Value>> locals, const Shape& shape,
                            const std::vector<ForgedShard>& shards, Dtype dtype, std::uint64_t rank,
                            std::uint64_t world) {
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

// Values.

/// A whole tensor.
struct Whole {
    Dtype dtype = Dtype::f32;
    Shape shape = {};
    std::string bytes = {};
};

inline Whole random_whole(std::mt19937& random, Dtype dtype, Shape shape) {
    std::string bytes(pt::elements(shape) * pt::element_bytes(dtype), '\0');
    for (char& byte : bytes) byte = static_cast<char>(dtype == Dtype::boolean ? random() % 2 : random() % 256);
    return {dtype, std::move(shape), std::move(bytes)};
}

/// Returns the bytes of some elements of a tensor.
inline std::string take(const Whole& whole, const Numbers& elements) {
    const std::size_t size = pt::element_bytes(whole.dtype);
    std::string out;
    for (const std::uint64_t element : elements) out += whole.bytes.substr(element * size, size);
    return out;
}

inline std::string bytes_of(const safemap::LazyTensor& tensor) {
    const safemap::TensorView view = tensor.load();
    return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
}

// Sets.

/// The files of a set, which tests change before they are opened.
struct ForgedSet {
    std::string prefix = "model_world_size_";
    std::map<std::uint64_t, Value> ranks = {};
    std::map<std::string, std::string> others = {};  ///< further files in the folder
    std::optional<std::uint64_t> world = {};         ///< in the names; otherwise the number of files
    bool sized = true;                               ///< false: the names are the prefix and the rank

    std::string name(std::uint64_t rank) const {
        if (!sized) return prefix + std::to_string(rank) + ".pt";
        return prefix + std::to_string(world.value_or(ranks.size())) + "_rank_" + std::to_string(rank) + ".pt";
    }
    std::shared_ptr<const safemap::Folder> folder(pt::Container container = pt::Container::zip) const {
        std::map<std::string, std::string> files = others;
        for (const auto& [rank, value] : ranks) files[name(rank)] = pt::Writer::file(value, container);
        return std::make_shared<forge::Folder>(std::move(files), "run");
    }
    void write(const std::filesystem::path& folder) const {
        for (const auto& [rank, value] : ranks)
            std::ofstream(folder / name(rank), std::ios::binary) << pt::Writer::file(value);
    }
    std::vector<std::string> files() const {
        std::vector<std::string> out;
        for (const auto& [rank, value] : ranks) out.push_back(name(rank));
        return out;
    }
    safemap::state::Contents open(safemap::OpenOptions options = {},
                                  pt::Container container = pt::Container::zip) const {
        return safemap::distributed::read_rank_files({folder(container), files()}, options);
    }
};

/// Returns a dictionary of one DTensor on a line of ranks, for each rank.
inline ForgedSet rows_on_a_line(const Whole& whole, std::uint64_t world, Era era = Era::torch_2_13) {
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

inline const safemap::LazyTensor* find(const safemap::state::Contents& contents, std::string_view name) {
    for (const safemap::LazyTensor& tensor : contents.tensors)
        if (tensor.name() == name) return &tensor;
    return nullptr;
}

}  // namespace rank_forge
