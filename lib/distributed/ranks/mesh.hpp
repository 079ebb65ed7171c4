// Device meshes and placements: which regions of a whole tensor the local value of a rank holds. Data and arithmetic
// only; nothing here reads a file.
#pragma once

#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Ranks in a grid.
struct Mesh {
    std::vector<std::uint64_t> shape = {};
    std::vector<std::uint64_t> ranks = {};  ///< row-major; one for each place of the grid
    std::vector<std::string> names = {};    ///< one for each dimension, or none

    friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// Returns the coordinates of a place of the grid, given by its row-major number.
std::vector<std::uint64_t> coordinates_of(std::span<const std::uint64_t> mesh, std::uint64_t place);
/// Returns the place of a rank, or nothing if the mesh does not have it. Linear in the number of ranks.
std::optional<std::uint64_t> place_of(const Mesh& mesh, std::uint64_t rank);
/// Returns "[2, 4] (dp, tp)".
std::string to_string(const Mesh& mesh);

/// How the ranks along one dimension of a mesh share a tensor.
struct MeshPlacement {
    enum class Kind : std::uint8_t {
        replicate,  ///< each has all of it
        shard,      ///< each has a chunk of dimension `dimension`, by the rule of torch.chunk
        strided,    ///< as `shard`, but the cut is that of _StridedShard: see Sharding
        partial     ///< each has a term of a sum, or of another reduction
    };
    Kind kind = Kind::replicate;
    std::int64_t dimension = 0;      ///< negative numbers count from the last dimension
    std::uint64_t split_factor = 1;  ///< for `strided`; at least 1
    std::string reduction = {};      ///< for `partial`: its class, for messages

    bool cuts() const noexcept { return kind == Kind::shard || kind == Kind::strided; }
    friend bool operator==(const MeshPlacement&, const MeshPlacement&) = default;
};

/// Returns "(Replicate, Shard(0))".
std::string to_string(std::span<const MeshPlacement> placements);

/// A number of consecutive indices of one dimension.
struct Interval {
    std::uint64_t start = 0;
    std::uint64_t count = 0;

    friend bool operator==(const Interval&, const Interval&) = default;
};

/// The order in which a tensor is cut.
enum class CutOrder : std::uint8_t {
    /// The order that the factors of _StridedShard spell, as FSDP over tensor parallelism cuts: such a placement comes
    /// after the dimensions of the mesh behind it, if its factor is the product of the sizes of some of them that cut
    /// the same dimension of the tensor. Any other factor interleaves.
    by_factors,
    /// The order of the mesh's dimensions: each _StridedShard interleaves, as distribute_tensor() of torch cuts.
    by_mesh
};

/// A cut of one dimension of a tensor along one dimension of the mesh. The indices are divided into `pieces` chunks,
/// and each of them into a chunk for each rank; a rank has its chunks of all pieces, one after the other.
struct Cut {
    std::size_t mesh_dimension = 0;
    std::uint64_t ranks = 1;
    std::uint64_t pieces = 1;  ///< more than 1 if the cut interleaves

    friend bool operator==(const Cut&, const Cut&) = default;
};

/// A tensor on a mesh. Immutable.
class Sharding {
public:
    /// Mesh dimensions in the order in which they cut a dimension of the tensor, for tensors that say so.
    struct Order {
        std::uint64_t dimension = 0;
        std::vector<std::uint64_t> mesh_dimensions = {};

        friend bool operator==(const Order&, const Order&) = default;
    };

    /// `placements` has one entry for each dimension of `mesh`, none of them partial, and each cuts a dimension that
    /// the tensor has. `orders` may be empty. For the dimensions that it names, it is used in place of `order`; it
    /// lists all mesh dimensions that cut them.
    Sharding(Shape whole, std::vector<std::uint64_t> mesh, std::span<const MeshPlacement> placements, CutOrder order,
             std::span<const Order> orders = {});

    const Shape& whole() const noexcept { return whole_; }
    const std::vector<std::uint64_t>& mesh() const noexcept { return mesh_; }
    /// Returns the cuts of a dimension, in the order in which they apply.
    const std::vector<Cut>& cuts(std::size_t dimension) const noexcept { return cuts_[dimension]; }
    /// Returns true if a local value can be several boxes.
    bool interleaves() const noexcept;

    /// Returns the shape of the local value at these coordinates.
    Shape local_shape(std::span<const std::uint64_t> coordinates) const;
    /// Returns the indices of a dimension that the local value holds, in the order in which it holds them: intervals
    /// that are not empty, the fewest possible. Throws pickle_too_large if there are more than `most`.
    std::vector<Interval> local_indices(std::size_t dimension, std::span<const std::uint64_t> coordinates,
                                        std::size_t most) const;
    /// Returns a number that is 0 for the first of all ranks that hold the same region, then 1, and so on.
    std::uint64_t replica_of(std::span<const std::uint64_t> coordinates) const;

    friend bool operator==(const Sharding&, const Sharding&) = default;

private:
    Shape whole_;
    std::vector<std::uint64_t> mesh_;
    std::vector<std::vector<Cut>> cuts_;  ///< for each dimension of the tensor
    std::vector<bool> replicates_;        ///< for each dimension of the mesh
};

/// A region of a whole tensor, and where it stands in the local value.
struct LocalBox {
    Shape whole_start = {};
    Shape local_start = {};
    Shape extent = {};
};

/// Returns the boxes that the local value at these coordinates consists of; none if it is empty. Throws
/// pickle_too_large if there are more than `most`.
std::vector<LocalBox> boxes_of(const Sharding& sharding, std::span<const std::uint64_t> coordinates, std::size_t most);

}  // namespace safemap::SAFEMAP_ABI::distributed
