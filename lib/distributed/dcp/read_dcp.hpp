// Reads a folder of torch.distributed.checkpoint (DCP): whole tensors from the chunks that ranks have written.
#pragma once

#include "base/faults.hpp"
#include "base/folder.hpp"
#include "state/contents.hpp"

#include <safemap/open_options.hpp>

#include <memory>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

/// Reads the checkpoint in a folder. `metadata` are the names of its files of metadata: `.metadata`, or the
/// `__R.metadata` of all ranks that saved without each other, in any order. Reads all metadata and the directories of
/// all items, several at a time, and no byte of a tensor. Every chunk and item has been checked on return.
///
/// Names are those of DCP, the steps of paths joined by dots; the tree has the structure of planner_data. Objects are
/// in the tree, and so is what a `common.pt` of Megatron beside the metadata holds, under the key "common.pt".
///
/// Throws what read_dcp_metadata() throws, and ranks_differ. Reports what read_dcp_items() reports; duplicate_name and
/// field_missing for paths that contradict each other; and what whole() throws of each tensor. If `faults` returns,
/// entries with a fault are left out.
state::Contents read_dcp(const std::shared_ptr<const Folder>& folder, std::span<const std::string> metadata,
                         const OpenOptions& options, FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::distributed
