// Reads some top-level values of a file of torch.save without the others, for checkpoints of many files: a file of a
// rank holds much that is read for no tensor.
#pragma once

#include "pickle/list_reader.hpp"
#include "torch/named_globals.hpp"

#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// A value of a file, and what to say about the file.
struct Parts {
    StateTree tree;
    std::vector<std::string> notes;  ///< sentences for users: trailing bytes, keys that are not texts
    /// Name of the file when it was saved, without its extension: torch names the folder in the zip after it. "archive"
    /// if the file was saved through a stream; empty if it is not a zip.
    std::string saved_as = {};
    std::vector<StateTree::NodeId> taken_lists = {};  ///< see Rebuilt::taken_lists
};

/// Reads the values under these keys of the dictionary that a file of torch.save holds, and returns a dictionary of
/// them: its keys are texts, each once, in the order of the pickle. Keys that the file does not have are left out. No
/// keys: all of them that are texts. The file may be a zip, a legacy file or a plain pickle. Only the values asked for
/// are rebuilt, and no attributes of the root. The pickle is freed on return; tensors keep the source.
///
/// Throws, with the path of the source:
///
/// - file_truncated if the file is empty, unknown_format if it is of another kind, field_missing if it holds no
/// dictionary
/// - unsafe_call if a pickle of the file names a function that runs code, also in a value that is not asked for.
///   Unknown classes and functions that do not are opaque objects, as in any file of torch.save.
/// - unknown_global if `globals` is strict; it is thrown in place of unsafe_call
/// - the zip_*, pickle_* and tensor faults that read_archive(), read_legacy() and read_plain() throw
///
/// `globals` collects what the pickle names and must be new. May be called from several threads at once.
Parts read_parts(const std::shared_ptr<const Source>& source, std::span<const std::string_view> keys,
                 NamedGlobals* globals = nullptr);

/// Reads all of a file, whatever value it holds. Throws as read_parts() does, but never field_missing.
/// If `lists` is not null and the file is a zip, it may take lists of the pickle; then this also throws TakenValue.
Parts read_whole(const std::shared_ptr<const Source>& source, NamedGlobals* globals = nullptr,
                 ListReader* lists = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
