// What an opened checkpoint consists of, before it becomes a Checkpoint: what every reader gives.
#pragma once

#include "base/folder.hpp"
#include "state/stored_places.hpp"

#include <safemap/error.hpp>
#include <safemap/open_options.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

struct LateTree;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Null if there is no such key.
const std::string* find_value(const Metadata& metadata, std::string_view key);

struct Contents {
    Format format = Format::safetensors;
    std::vector<std::string> files = {};
    Metadata metadata = {};
    bool has_metadata = false;  ///< there is one, be it empty
    std::vector<std::string> notes = {};
    std::vector<SkippedObject> skipped = {};
    std::vector<AliasGroup> aliases = {};
    std::vector<LazyTensor> tensors = {};
    std::shared_ptr<const StateTree> tree = {};
    /// In place of `tree` for a flat state dict of a pickle: makes it of the tensors that were read.
    std::shared_ptr<const LateTree> late_tree = {};
    std::vector<std::string> only_in_tree = {};
    /// The structure document was read, and no digest of it is stored.
    bool structure_unchecked = false;
    /// The lenient policy read the tensors without a document that is not what its digest says.
    std::optional<Error> structure_fault = {};
    std::vector<StoredChecksum> checksums = {};
    std::vector<StoragePlace> storages = {};
    std::vector<NamedGlobal> globals = {};
    bool asks_for_code = false;  ///< pickles would call unknown functions, or name ones that run code
    /// Everything that tensors stand in, for those who want to read all of it.
    std::vector<std::shared_ptr<const Source>> sources = {};
    /// The index or file that makes a folder the folder of a finished model; empty for every other folder.
    std::string model_file = {};
    std::shared_ptr<const Folder> folder = {};  ///< only where it is a folder that was opened
};

/// Bytes of all values. Throws shape_overflow, with the first file's path, where they do not fit in 64 bits: tensors
/// that repeat their elements come to such sizes.
std::uint64_t total_bytes(const Contents& contents);

template <class T> void move_to_end(std::vector<T>& from, std::vector<T>& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

/// Gives it a tree, the names and tensors of the tree, and what flatten() notes of it.
void set_tree(Contents& contents, StateTree tree);

/// Several files that become one checkpoint. Tensors and aliases are for the readers to merge.
class Joined {
public:
    Contents contents;

    /// All else of the file `name`: notes begin with its name; metadata stays that all files agree on.
    void add(Contents& one, const std::string& name);

private:
    bool any_ = false;
};

}  // namespace safemap::SAFEMAP_ABI::state
