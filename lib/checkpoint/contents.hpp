// What an opened checkpoint consists of, before it becomes a Checkpoint; and the readers that fill it in. open()
// gives them a sink that throws, verify() one that collects.
#pragma once

#include "base/faults.hpp"
#include "checkpoint/folder_shape.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/file.hpp>

#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

struct Contents {
    Format format = Format::safetensors;
    std::vector<std::string> files = {};
    std::vector<std::pair<std::string, std::string>> metadata = {};
    std::vector<std::string> notes = {};
    std::vector<SkippedObject> skipped = {};
    std::vector<AliasGroup> aliases = {};
    std::vector<LazyTensor> tensors = {};
    std::shared_ptr<const StateTree> tree = {};
    std::vector<std::string> only_in_tree = {};
    /// The structure document was read, and no digest of it is stored.
    bool structure_unchecked = false;
    /// The lenient policy read the tensors without a document that is not what its digest says.
    std::optional<Error> structure_fault = {};
    std::vector<Checkpoint::StoredChecksum> checksums = {};
    std::vector<Checkpoint::Storage> storages = {};
    std::vector<NamedGlobal> globals = {};
    bool asks_for_code = false;  ///< pickles would call unknown functions, or name ones that run code
    /// Everything that tensors stand in, for those who want to read all of it.
    std::vector<std::shared_ptr<const Source>> sources = {};
    /// The index or file that makes a folder the folder of a finished model; empty for every other folder.
    std::string model_file = {};
    std::shared_ptr<const Folder> folder = {};  ///< only where it is a folder that was opened
};

/// One file, told by its content, or by a name in ".safetensors".
Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// Files that are one checkpoint without an index, in this order. duplicate_name where two hold the same name.
Contents read_files(std::span<const std::shared_ptr<const Source>> sources, const OpenOptions& options,
                    FaultSink& faults);
/// Files of several ranks, in folders of `folder` that their names begin with. Nothing is merged.
Contents read_ranks(const Folder& folder, const FileNames& files, const OpenOptions& options, FaultSink& faults);
/// The shards of an index, which lie in `folder`.
Contents read_shards(const Folder& folder, const std::shared_ptr<const Source>& index, const OpenOptions& options,
                     FaultSink& faults);
/// A folder whose checkpoint has been found: the folder itself, or one in it.
struct Located {
    std::shared_ptr<const Folder> folder;
    FolderNames names = {};
    FolderShape shape = {};
    FileNames notes = {};
};

/// Finds the checkpoint of a folder by names. Throws what a damaged pointer deserves (bad_tag), and no fault of the
/// checkpoint.
Located locate(std::shared_ptr<const Folder> folder);
/// Reads the checkpoint. Throws unsupported_layout and the like if there is no reader for its shape.
Contents read_located(const Located& found, const OpenOptions& options, FaultSink& faults);
/// How the files of a path are mapped.
Mapping mapping_of(Access access);
/// A file, an index or a folder of the file system.
Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults);

/// Bytes of all values. Throws shape_overflow, with the first file's path, where they do not fit in 64 bits: tensors
/// that repeat their elements come to such sizes.
std::uint64_t total_bytes(const Contents& contents);

template <class T> void move_to_end(std::vector<T>& from, std::vector<T>& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

/// Several files that become one checkpoint. Tensors and aliases are for the readers to merge.
class Joined {
public:
    Contents contents;

    /// All else of the file `name`: notes begin with its name; metadata stays that all files agree on.
    void add(Contents& one, const std::string& name);

private:
    bool any_ = false;
};

/// Adds the path to every fault on its way.
class PathSink final : public FaultSink {
public:
    PathSink(FaultSink& next, std::string_view path) : next_(next), path_(path) {}
    void fault(Error error) override { next_.fault(std::move(error.with_path(path_))); }

private:
    FaultSink& next_;
    std::string path_;
};

/// As Checkpoint::extras().
Extras extras_of(const Contents& contents);

using safemap::reporting;

}  // namespace safemap::SAFEMAP_ABI::checkpoint
