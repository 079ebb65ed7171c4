// Parameters out of flat tensors, which a manifest describes: the flat parameters of FSDP1 (LOCAL_STATE_DICT), and
// layers that each rank holds as chunks.
#pragma once

#include "distributed/flat/manifest.hpp"
#include "distributed/ranks/rank_skeleton.hpp"
#include "distributed/ranks/rank_tensors.hpp"

#include <safemap/state_tree.hpp>

#include <string_view>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns true if a dictionary of the tree has a tensor under a key of FSDP1's flat parameters, "_flat_param" or
/// "blocks.0._flat_param".
bool has_flat_parameters(const StateTree& tree);
/// Returns true for the key of a flat parameter: "_flat_param", "blocks.0._flat_param".
bool is_flat_key(std::string_view key);
/// Returns true if the tree is a list with an item for each layer: a chunk, which is a tensor in one dimension, or a
/// pair of chunks.
bool is_list_of_chunks(const StateTree& tree);

/// Throws manifest_mismatch, with the path of the manifest, if it has no flat parameters, or if its parameters leave
/// out more elements than FSDP1 pads with.
void check_flat_parameters(const Manifest& manifest, std::uint64_t ranks);

/// Returns a function for the roles of plain tensors beside flat parameters.
Skeleton::RoleOf roles_beside_flat(const Manifest& manifest);

/// Replaces the flat parameters of `tree`, the tree of the skeleton, by the parameters in them. The tensors must have
/// been made. Throws manifest_mismatch, with the path of the manifest, if it describes other tensors than the files
/// have, or other sizes; and what whole() throws.
void replace_flat_parameters(StateTree& tree, const RankFileSet& set, const RankTensors& tensors,
                             const Manifest& manifest);

/// Returns a dictionary of the parameters of layers that the ranks hold as chunks. Throws likewise.
StateTree parameters_of_chunks(const RankFileSet& set, const RankTensors& tensors, const Manifest& manifest);

}  // namespace safemap::SAFEMAP_ABI::distributed
