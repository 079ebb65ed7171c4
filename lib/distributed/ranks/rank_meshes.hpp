// The device meshes that the files of ranks state, each kept once.
#pragma once

#include "distributed/ranks/mesh.hpp"
#include "distributed/values.hpp"
#include "names/rank_names.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::distributed {

using names::RankNames;

/// The meshes of all files. A mesh is known by a number; equal ones have the same. May be used from several threads at
/// once.
class RankMeshes {
public:
    /// Returns the number of the mesh. If it is new, calls check(mesh), which may throw, and adds it.
    std::uint32_t add(Mesh mesh, const std::function<void(const Mesh&)>& check);
    /// Returns a mesh. The reference is valid as long as this object.
    const Mesh& operator[](std::uint32_t number) const;

private:
    /// Returns the number of the mesh, or nothing if it was not added. `mutex_` is held.
    std::optional<std::uint32_t> find(const Mesh& mesh, std::uint64_t digest) const;

    mutable std::mutex mutex_;
    std::deque<Mesh> meshes_ = {};
    std::unordered_multimap<std::uint64_t, std::uint32_t> by_digest_ = {};
};

/// A mesh as one file states it.
struct StatedMesh {
    std::uint32_t number = 0;
    std::optional<std::uint64_t> rank = {};  ///< the process that saved the file, if stated
};

/// Reads a DeviceMesh: a tensor of ranks (torch 2.0 to 2.9), or a layout over a list of ranks (2.10 and later). Reads
/// the numbers from the file. If the mesh does not say which rank saved the file, `rank` is taken.
///
/// Throws:
/// - field_missing if a field that it needs is missing or of the wrong kind
/// - world_mismatch if a rank is in the mesh twice, or more ranks than there are files of; see also require_files_of()
/// - rank_missing, likewise
StatedMesh read_mesh(const Value& device_mesh, const RankNames& names, std::uint64_t rank, RankMeshes& meshes);

}  // namespace safemap::SAFEMAP_ABI::distributed
