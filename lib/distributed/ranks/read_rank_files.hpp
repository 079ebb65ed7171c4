// Reads sets of one torch.save file for each rank: DTensors, ShardedTensors, flat parameters of FSDP1, local shards of
// OLMo, chunks by hand. Which of these a set is, its first file tells.
#pragma once

#include "base/folder.hpp"
#include "pickle/pickle.hpp"
#include "state/contents.hpp"

#include <safemap/open_options.hpp>
#include <safemap/source.hpp>

#include <memory>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The files of a set.
struct RankFiles {
    std::shared_ptr<const Folder> folder;
    std::vector<std::string> files;  ///< names in the folder, in any order
    /// The manifest that the user gives. Null: `manifest.json` in the folder, if there is one.
    std::shared_ptr<const Source> manifest = {};
    /// True for one file that is opened by itself. It must hold whole tensors: those of a world of one rank, or
    /// replicated ones.
    bool alone = false;
    /// If these are the files of an optimizer: those of its model.
    std::shared_ptr<const RankFiles> model = {};
    /// False: lists of shards are read as any value of a pickle, which takes more time and memory. For tests.
    bool takes_lists = true;
};

/// Returns true if the file of a rank may hold parts of tensors: DTensors, ShardedTensors, flat parameters of FSDP1 or
/// local shards of OLMo are in its tree.
bool holds_parts(const StateTree& tree);

/// Returns true for the classes of torch.distributed that this layer reads from the pickles of ranks.
bool is_known_in_rank_files(const PickleGraph::Global& global);

/// Opens a set as one checkpoint of whole tensors. Reads the pickles of all files in parallel, and keeps none of them.
///
/// - A tensor that all ranks hold, and every other value, is taken from the file of the lowest rank.
/// - Other values than tensors that differ in a rank are listed below `rank_1`, beside the others.
/// - Contents::replicas gives the tensors that should be equal; they are not compared here.
/// - The state of an optimizer beside a model of OLMo is joined by the lists of the model.
/// - State of an optimizer whose parts have no names, in a dictionary beside other values, is left out: it is in
///   `skipped`, and Contents::optimizer throws optimizer_unnamed.
///
/// Throws, with the file and the tensor:
///
/// - rank_missing, with the names, or if one file by itself holds a part of a tensor; rank_repeated; world_mismatch
/// - ranks_differ if files contradict each other, or if no tensor is distributed and plain ones have other values
/// - partial_placement, piece_outside, pieces_overlap, not_covered, piece_missing, piece_mismatch
/// - manifest_missing, manifest_mismatch
/// - optimizer_unnamed if the files hold nothing but such state of an optimizer
/// - unsupported_layout, field_missing, unsafe_call, and what reading a `.pt` throws
state::Contents read_rank_files(const RankFiles& set, const OpenOptions& options);

}  // namespace safemap::SAFEMAP_ABI::distributed
