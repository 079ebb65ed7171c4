// Writes files of ranks as torch pickles them: DTensors of several versions, ShardedTensors, flat parameters. Checks
// nothing, so that tests can write invalid files.
#pragma once

#include "base/folder.hpp"
#include "distributed/ranks/read_rank_files.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "reference/slow_sharding.hpp"
#include "state/contents.hpp"

#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/open_options.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
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

Value numbers(const Numbers& list);
Value text_tuple(const std::vector<std::string>& words);

std::string bytes_of_i32(const Numbers& list);

// Meshes.

/// A mesh: all of a root mesh, or some of its dimensions.
struct ForgedMesh {
    Numbers root = {};   ///< sizes of the root mesh
    Numbers ranks = {};  ///< in the root mesh, row-major
    std::vector<std::string> names = {};
    std::vector<std::size_t> dimensions = {};  ///< the dimensions of the root that are taken; empty: all

    std::vector<std::size_t> taken() const;
    Numbers shape() const;
    std::vector<std::string> own_names() const;
    Numbers root_strides() const;
    /// Returns the coordinates of a rank in the root mesh.
    Numbers root_coordinates(std::uint64_t rank) const;
    /// Returns the coordinates of a rank in the dimensions that are taken.
    Numbers coordinates(std::uint64_t rank) const;
    /// Returns the ranks of the copy of the mesh that has this rank, row-major.
    Numbers ranks_with(std::uint64_t rank) const;
};

ForgedMesh line(std::uint64_t size, std::vector<std::string> names = {"dp"});

/// Returns the DeviceMesh that the process of a rank pickles.
Value device_mesh(const ForgedMesh& mesh, std::uint64_t rank, Era era);

// Placements.

Value replicate(Era era = Era::torch_2_13);
Value shard(std::uint64_t dimension, Era era = Era::torch_2_13);
Value strided(std::uint64_t dimension, std::uint64_t factor, Era era = Era::torch_2_13);
Value partial(std::string_view name = "Partial");

// Tensors.

/// Returns the spec of a DTensor; tests may add fields.
Value dtensor_spec(Value mesh, std::vector<Value> placements, Dtype dtype, const Shape& shape, Era era);

Value dtensor(Value local, const Shape& shape, Value spec, Dtype dtype, Era era);

/// A shard of a ShardedTensor.
struct ForgedShard {
    Numbers start = {};
    Numbers extent = {};
    std::uint64_t rank = 0;
};

Value shard_metadata(const ForgedShard& shard);

/// Returns a ShardedTensor with some of the shards as local ones.
Value sharded_tensor(std::vector<std::pair<ForgedShard, Value>> locals, const Shape& shape,
                     const std::vector<ForgedShard>& shards, Dtype dtype, std::uint64_t rank, std::uint64_t world);

// Values.

/// A whole tensor.
struct Whole {
    Dtype dtype = Dtype::f32;
    Shape shape = {};
    std::string bytes = {};
};

Whole random_whole(std::mt19937& random, Dtype dtype, Shape shape);

/// Returns the bytes of some elements of a tensor.
std::string take(const Whole& whole, const Numbers& elements);

// Sets.

/// The files of a set, which tests change before they are opened.
struct ForgedSet {
    std::string prefix = "model_world_size_";
    std::map<std::uint64_t, Value> ranks = {};
    std::map<std::string, std::string> others = {};  ///< further files in the folder
    std::optional<std::uint64_t> world = {};         ///< in the names; otherwise the number of files
    bool sized = true;                               ///< false: the names are the prefix and the rank

    std::string name(std::uint64_t rank) const;
    std::shared_ptr<const safemap::Folder> folder(pt::Container container = pt::Container::zip) const;
    void write(const std::filesystem::path& folder) const;
    std::vector<std::string> files() const;
    safemap::state::Contents open(safemap::OpenOptions options = {},
                                  pt::Container container = pt::Container::zip) const;
};

/// Returns a dictionary of one DTensor on a line of ranks, for each rank.
ForgedSet rows_on_a_line(const Whole& whole, std::uint64_t world, Era era = Era::torch_2_13);

const safemap::LazyTensor* find(const safemap::state::Contents& contents, std::string_view name);

}  // namespace rank_forge
