// Reads the checkpoint in the folder of a DeepSpeed tag: all files of all ranks become whole tensors.
#pragma once

#include "base/folder.hpp"
#include "state/contents.hpp"

#include <safemap/open_options.hpp>

#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

/// The folder of a tag.
struct ZeroTag {
    std::shared_ptr<const Folder> folder;
    std::string tag = {};     ///< its name
    std::string prefix = {};  ///< "global_step500/": begins the names in Contents::files
};

/// Reads a tag: ZeRO of stages 0 to 3, with tensor and pipeline parallelism and experts. Tensors are fp32 masters,
/// unless `options` ask for others. Reads the pickles of all ranks, several at a time; what is read of one is freed but
/// for its tensors. Throws:
///
/// - rank_missing, rank_repeated, world_mismatch, ranks_differ, field_missing; what whole() throws
/// - unsupported_layout for layouts that are known and not read
/// - unsafe_call, and whatever reading a `.pt` throws
/// - invalid_argument if the folder does not have what `options` ask for
state::Contents read_zero(const ZeroTag& tag, const OpenOptions& options);

/// Reads a universal checkpoint, likewise. Also throws unfinished_checkpoint if files of parameters are missing.
state::Contents read_universal_tag(const ZeroTag& tag, const OpenOptions& options);

}  // namespace safemap::SAFEMAP_ABI::distributed
