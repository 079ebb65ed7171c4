// The contents of an opened checkpoint, which every reader returns before they become a Checkpoint.
#pragma once

#include "base/folder.hpp"
#include "state/stored_places.hpp"

#include <safemap/error.hpp>
#include <safemap/open_options.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>
#include <safemap/training_layout.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

struct LateTree;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Returns the value of a key, or null if the key is missing.
const std::string* find_value(const Metadata& metadata, std::string_view key);

/// Two tensors that should be equal: a weight that several ranks hold whole.
struct Replica {
    std::string name = {};
    LazyTensor first;  ///< the one that is listed
    LazyTensor other;
    std::string first_file = {};
    std::string other_file = {};
};

/// A list of replicas, and those that are not listed, because there may be millions.
struct Replicas : std::vector<Replica> {
    using Visit = std::function<void(const Replica&)>;

    /// Calls visit() with the replicas that are not listed, one after another. May be called from several threads.
    std::function<void(const Visit& visit)> more = {};

    void each(const Visit& visit) const {
        for (const Replica& replica : *this) visit(replica);
        if (more) more(visit);
    }
};

/// The tree of a checkpoint. That of a flat state dict of a pickle is only made when it is asked for.
struct Tree : std::shared_ptr<const StateTree> {
    Tree() = default;
    Tree(std::shared_ptr<const StateTree> made) noexcept : shared_ptr(std::move(made)) {}
    Tree(std::shared_ptr<const LateTree> maker) noexcept : late(std::move(maker)) {}

    std::shared_ptr<const LateTree> late = {};  ///< makes the tree from the tensors that were read
};

/// A tensor of a shard that the index does not name. Readers that go by the index lose it.
struct Unindexed {
    std::string name = {};
    std::string shard = {};  ///< the path
};

/// The contents of an opened checkpoint.
struct Contents {
    Contents();
    Contents(const Contents&);
    Contents(Contents&&) noexcept;
    Contents& operator=(const Contents&);
    Contents& operator=(Contents&&) noexcept;
    ~Contents();

    Format format = Format::safetensors;
    std::vector<std::string> files = {};
    Metadata metadata = {};
    bool has_metadata = false;  ///< true if the file has metadata, even if it is empty
    /// Reads the metadata again, as the file has it; empty if that is `metadata`. May be called from several threads at
    /// once.
    std::function<Metadata()> raw_metadata = {};
    std::vector<std::string> notes = {};
    std::vector<SkippedObject> skipped = {};
    std::vector<AliasGroup> aliases = {};
    std::vector<LazyTensor> tensors = {};
    Tree tree = {};
    std::vector<StatePart> parts = {};  ///< parts of the whole tree; set by take_root()
    std::string root = {};              ///< path of the part that names are relative to
    std::string root_prefix = {};       ///< prefix that these names have lost: "state_dict/" or, in DCP, "model."
    bool final_names = false;           ///< true if a save has noted that the names of the file are those to give
    std::vector<std::string> lost_without_structure = {};
    /// True if the structure document was read, and no digest of it is stored.
    bool structure_unchecked = false;
    /// Set if the document does not match its digest, and the lenient policy has read the tensors without it.
    std::optional<Error> structure_fault = {};
    StoredPlaces stored = {};
    std::vector<NamedGlobal> globals = {};
    Findings findings = {};
    bool asks_for_code = false;  ///< true if pickles would call unknown functions, or name functions that run code
    /// All sources that hold tensors, for callers that read all of them.
    std::vector<std::shared_ptr<const Source>> sources = {};
    /// The index or file that makes a folder the folder of a finished model; empty for every other folder.
    std::string model_file = {};
    std::shared_ptr<const Folder> folder = {};  ///< set only if a folder was opened
    /// The folders around it, up to the one that was opened, the innermost first.
    std::vector<std::shared_ptr<const Folder>> around = {};
    /// The absolute path that was opened: a folder or a file. Empty for a list of files of several folders, and for
    /// sources.
    std::filesystem::path opened = {};
    std::vector<Unindexed> unindexed = {};      ///< verify() reports them
    Replicas replicas = {};                     ///< verify() compares them
    std::optional<TrainingLayout> layout = {};  ///< set only for the folder of a training framework
    TrainingState training = {};                ///< as far as values say it that are not in the tree
    /// Returns the state of the optimizer; empty if the files lack it. May be called from several threads at once.
    std::function<Contents()> optimizer = {};
    /// Set if that state is a checkpoint in a folder of its own: its path. verify() reads it, too.
    std::string optimizer_path = {};
};

/// Returns the size of all values in bytes. Throws shape_overflow, with the path of the first file, if it does not fit
/// in 64 bits: tensors that repeat their elements can reach such sizes.
std::uint64_t total_bytes(const Contents& contents);

/// Moves all elements of `from` to the end of `to`.
template <class From, class T> void move_to_end(From&& from, std::vector<T>& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

/// Sets the tree, and everything that flatten() makes of it: named tensors, aliases, skipped objects and notes.
void set_tree(Contents& contents, StateTree tree);
/// Sets the same of flatten_named().
void set_named_tree(Contents& contents, StateTree tree,
                    const std::unordered_map<StateTree::NodeId, std::string>& names);

/// Several files that become one checkpoint. The readers merge tensors and aliases themselves.
class Joined {
public:
    Contents contents;

    /// Adds everything else of the file `name`. Notes get its name in front. Only metadata that all files agree on is
    /// kept.
    void add(Contents& one, const std::string& name);

private:
    bool any_ = false;
};

}  // namespace safemap::SAFEMAP_ABI::state
