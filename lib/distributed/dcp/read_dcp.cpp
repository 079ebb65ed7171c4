// From the metadata of a DCP folder to the contents of a checkpoint. The order of the steps:
//
//   read_metadata     one file, or those of all ranks, joined
//   read_dcp_items    what the files hold for each chunk and object (items.hpp)
//   make_tensors      whole tensors, in parallel
//   make_tree         the nested state dict, with objects and common.pt
//   describe          layout, files and notes
//
// Tested by tests/distributed/dcp_test.cpp.
#include "distributed/dcp/read_dcp.hpp"

#include "base/pool.hpp"
#include "base/text.hpp"
#include "distributed/dcp/dcp_metadata.hpp"
#include "distributed/dcp/dcp_tree.hpp"
#include "distributed/dcp/items.hpp"
#include "distributed/pickles.hpp"
#include "lazy/whole.hpp"
#include "names/file_names.hpp"
#include "state/stored_places.hpp"
#include "torch/parts.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using state::Contents;

constexpr std::string_view common_file = "common.pt";
constexpr std::size_t most_named = 16;

/// Sorts files by rank; files with other names come last.
void sort_by_rank(std::vector<std::string>& files) {
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string>> sorted;
    for (std::string& file : files) {
        const auto name = names::dcp_name(file);
        sorted.emplace_back(name ? name->rank : UINT64_MAX, name ? name->file : UINT64_MAX, std::move(file));
    }
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < files.size(); ++i) files[i] = std::get<2>(std::move(sorted[i]));
}

// Checks: what verify() reads, the places of all items, and the copies that several ranks have saved.

using state::Replica;

bool is_zip(const Source& source) {
    std::array<std::byte, 2> head{};
    if (source.size() < head.size()) return false;
    source.read_at(0, head);
    return head[0] == std::byte{'P'} && head[1] == std::byte{'K'};
}

std::shared_ptr<const StoredItems> stored_items(StoredItems listed, const DcpMetadata& metadata,
                                                const std::shared_ptr<const Source>& common,
                                                std::uint64_t metadata_bytes) {
    auto stored = std::make_shared<StoredItems>(std::move(listed));
    for (const DcpEntry& entry : metadata.entries) stored->names.push_back(entry.name);
    if (common && is_zip(*common)) {
        stored->files.push_back(common);
        stored->items.push_back({.offset = 0,
                                 .length = common->size(),
                                 .file = static_cast<std::uint32_t>(stored->files.size() - 1),
                                 .name = static_cast<std::uint32_t>(stored->names.size()),
                                 .zstd = false});
        stored->names.emplace_back("common.pt");
    }
    stored->bytes_beside = metadata_bytes;
    return stored;
}

/// The metadata and the items, as long as copies may be asked for.
struct Kept {
    DcpMetadata metadata;
    DcpItems items;

    /// Returns the values of a copy and of the item that is read: for an object, the bytes of the items. Returns
    /// nothing if one of them is faulty, or is an object that is compressed.
    std::optional<Replica> replica(std::size_t i) const {
        const DcpReplica& copy = metadata.replicas[i];
        const DcpItem& first = metadata.items[copy.item];
        const DcpEntry& entry = metadata.entries[first.entry];
        if (items.faulty[first.entry]) return std::nullopt;
        if (!entry.tensor && (first.transform != 0 || copy.other.transform != 0)) return std::nullopt;
        const auto bytes_of = [&](const DcpItem& item) {
            return LazyTensor({}, stored_run(Dtype::u8, {item.length}, items.sources[item.file], item.offset));
        };
        return Replica{.name = entry.name,
                       .first = entry.tensor ? items.value(items.locals[copy.item]) : bytes_of(first),
                       .other = entry.tensor ? items.value(items.replicas[i]) : bytes_of(copy.other),
                       .first_file = metadata.files[first.file],
                       .other_file = metadata.files[copy.other.file]};
    }
};

/// Sets StoredPlaces::items and Replicas::more. `common` is Megatron's common.pt, or null. `metadata_bytes` is the
/// size of the files of metadata. Keeps of the metadata and the items only what is needed.
void set_checks(Contents& contents, DcpMetadata metadata, DcpItems items, const std::shared_ptr<const Source>& common,
                std::uint64_t metadata_bytes) {
    contents.stored.items = stored_items(std::exchange(items.stored, {}), metadata, common, metadata_bytes);
    if (metadata.replicas.empty()) return;
    metadata.places = {};
    metadata.steps = {};
    metadata.texts = {};
    items.trees = {};
    const auto kept = std::make_shared<const Kept>(Kept{std::move(metadata), std::move(items)});
    contents.replicas.more = [kept](const std::function<void(const Replica&)>& visit) {
        for (std::size_t i = 0; i < kept->metadata.replicas.size(); ++i)
            if (const auto replica = kept->replica(i)) visit(*replica);
    };
}

/// The reading of one folder.
class DcpReader {
public:
    DcpReader(const std::shared_ptr<const Folder>& folder, std::span<const std::string> metadata,
              const OpenOptions& options, FaultSink& faults)
        : folder_(folder),
          metadata_files_(metadata.begin(), metadata.end()),
          options_(options),
          faults_(faults),
          globals_(options.strict_globals) {}

    Contents read() {
        sort_by_rank(metadata_files_);
        metadata_ = read_metadata();
        items_ = read_dcp_items(*folder_, metadata_, options_.work, faults_, globals_);
        tensors_.resize(metadata_.entries.size());
        make_tensors();
        make_tree();
        describe();
        set_checks(contents_, std::move(metadata_), std::move(items_), common_, metadata_bytes_);
        globals_.move_to(contents_);
        return std::move(contents_);
    }

private:
    DcpMetadata read_metadata() {
        std::vector<DcpMetadata> ranks(metadata_files_.size());
        std::vector<std::uint64_t> sizes(ranks.size());  // a pickle may be read twice
        for_each_pickle(*folder_, metadata_files_, options_.work, &globals_,
                        [&](std::size_t i, const auto& source, auto& named) {
                            ranks[i] = read_dcp_metadata(*source, named, ranks.size());
                            sizes[i] = source->size();
                        });
        for (const std::uint64_t size : sizes) metadata_bytes_ += size;
        if (ranks.size() == 1) return std::move(ranks.front());
        return joined(std::move(ranks), metadata_files_);
    }

    // Tensors.

    void make_tensors() {
        PartSources sources;
        for (const auto& source : items_.sources)
            if (source) sources.add(source);
        static_cast<void>(sources.table());  // made before threads share it
        std::vector<std::optional<Error>> wrong(metadata_.entries.size());
        constexpr ThreadLimits threads{16, 16};
        parallel_for(metadata_.entries.size(), thread_count(options_.work.threads, threads),
                     [&](std::size_t i, unsigned) {
                         const DcpEntry& entry = metadata_.entries[i];
                         if (!entry.tensor || items_.faulty[i]) return;
                         try {
                             tensors_[i] = tensor_of(entry, sources);
                         } catch (Error& error) {
                             if (exit_code(error.code()) != 1) throw;
                             wrong[i] = std::move(error);
                         }
                     });
        for (std::optional<Error>& error : wrong)
            if (error) faults_.fault(std::move(with_hint(*error)));
    }

    LazyTensor tensor_of(const DcpEntry& entry, const PartSources& sources) const {
        std::vector<Part> parts;
        parts.reserve(entry.item_count);
        for (std::size_t k = 0; k < entry.item_count; ++k) {
            const std::size_t item = entry.first_item + k;
            if (metadata_.items[item].file == DcpItem::not_needed) continue;
            parts.push_back({Shape(metadata_.start(entry, k)), items_.value(items_.locals[item])});
        }
        // whole() has no parts of elements smaller than a byte.
        if (parts.size() == 1 && parts.front().value.shape() == entry.shape)
            return parts.front().value.renamed(entry.name);
        return whole(entry.name, entry.dtype, entry.shape, parts, sources);
    }

    Error& with_hint(Error& error) const {
        if (error.code() == Errc::pieces_overlap)
            error.with_hint(
                "weights that pack several matrices, such as QKV, have such chunks if they were saved under tensor "
                "parallelism and not redistributed: torch describes them wrongly, and values cannot be told apart");
        if (error.code() == Errc::not_covered) {
            const std::vector<std::string> others = ranks_without_metadata();
            if (!others.empty())
                error.with_hint("these files are of ranks whose metadata is missing: " +
                                names_text(others, most_named));
        }
        return error;
    }

    /// Returns the files that no metadata names, of ranks that have no metadata of their own.
    std::vector<std::string> ranks_without_metadata() const {
        if (metadata_files_.size() == 1 && metadata_files_.front() == ".metadata") return {};
        std::vector<std::string> others = unnamed_files();
        std::erase_if(others, [&](const std::string& file) {
            const auto name = names::dcp_name(file);
            return !name || std::any_of(metadata_files_.begin(), metadata_files_.end(), [&](const std::string& own) {
                const auto rank = names::dcp_name(own);
                return rank && rank->rank == name->rank;
            });
        });
        return others;
    }

    // The tree.

    void make_tree() {
        DcpTree tree(metadata_);
        for (std::size_t i = 0; i < metadata_.entries.size(); ++i) {
            const DcpEntry& entry = metadata_.entries[i];
            reporting(faults_, [&] {
                if (tensors_[i]) tree.add(entry, *std::exchange(tensors_[i], std::nullopt));
                else if (items_.tree_of[i] != DcpItems::no_tree) tree.add(entry, items_.tree_of[i], items_.trees);
            });
        }
        add_common(tree);
        state::set_named_tree(contents_, tree.take(), tree.names());
    }

    /// Adds what Megatron has saved beside the sharded state.
    void add_common(DcpTree& tree) {
        const std::vector<std::string> all = folder_->list();
        if (!std::binary_search(all.begin(), all.end(), common_file)) return;
        const std::string names[] = {std::string(common_file)};
        reporting(faults_, [&] {
            for_each_pickle(
                *folder_, names, options_.work, &globals_, [&](std::size_t, const auto& source, auto& named) {
                    torch::Parts read = torch::read_whole(source, &named);
                    const std::string key = tree.add(common_file, std::move(read.tree));
                    contents_.notes.push_back("the values of common.pt are under the key " + safemap::quoted(key));
                    contents_.sources.push_back(source);
                    common_ = source;
                });
        });
    }

    // Description.

    /// Returns the files of items that no metadata names, and that are not empty.
    std::vector<std::string> unnamed_files() const {
        std::vector<std::string> named = metadata_.files;
        std::sort(named.begin(), named.end());
        std::vector<std::string> found;
        for (const std::string& name : folder_->list()) {
            if (!names::is_kind(name, names::NameKind::dcp_similar) ||
                std::binary_search(named.begin(), named.end(), name))
                continue;
            const auto source = folder_->open(name);
            if (source && source->size() > 0) found.push_back(name);
        }
        sort_by_rank(found);
        return found;
    }

    void describe() {
        contents_.format = Format::dcp;
        contents_.files = metadata_files_;
        std::vector<std::string> files = metadata_.files;
        sort_by_rank(files);
        state::move_to_end(files, contents_.files);
        if (common_) contents_.files.emplace_back(common_file);
        std::vector<std::shared_ptr<const Source>> sources;
        for (std::size_t i = 0; i < metadata_.files.size(); ++i)
            if (items_.sources[i]) sources.push_back(items_.sources[i]);
        state::move_to_end(contents_.sources, sources);
        contents_.sources = std::move(sources);
        contents_.layout = TrainingLayout{.kind = "dcp", .world_size = world_size(), .version = metadata_.version};
        std::uint64_t chunks = 0;
        for (const DcpEntry& entry : metadata_.entries) chunks += entry.tensor ? entry.item_count : 0;
        contents_.layout->chunks = chunks;
        add_notes();
    }

    /// Returns the number of ranks, by the names of files.
    std::optional<std::uint64_t> world_size() const {
        if (metadata_files_.size() > 1) return metadata_files_.size();
        std::optional<std::uint64_t> ranks;
        for (const std::string& file : metadata_.files)
            if (const auto name = names::dcp_name(file); name && name->rank < UINT64_MAX)
                ranks = std::max(ranks.value_or(0), name->rank + 1);
        return ranks;
    }

    void add_notes() {
        std::vector<std::string>& notes = contents_.notes;
        notes.insert(notes.end(), metadata_.notes.begin(), metadata_.notes.end());
        if (const auto unnamed = unnamed_files(); !unnamed.empty())
            notes.push_back("not read, because the metadata does not name " +
                            std::string(unnamed.size() == 1 ? "it, perhaps the file" : "them, perhaps files") +
                            " of an older save: " + names_text(unnamed, most_named));
        for (const std::string& name : folder_->list())
            if (names::is_kind(name, names::NameKind::dcp_unfinished))
                notes.push_back("a save into this folder was interrupted later: " + excerpt(name) + " is left of it");
        if (items_.unchecked > 0)
            notes.push_back(counted(items_.unchecked, "item has", "items have") +
                            " records without a checksum; if they were saved under skip_data(), these are holes that "
                            "read as zeros");
        note_replicas();
    }

    void note_replicas() {
        const std::size_t count = metadata_.replicas.size();
        if (count == 0) return;
        contents_.notes.push_back(
            counted(count, "item is a copy of what a lower rank has", "items are copies of what lower ranks have") +
            " saved, too; the lowest rank's are read, and verify compares the others with them");
    }

    std::shared_ptr<const Folder> folder_;
    std::vector<std::string> metadata_files_;
    const OpenOptions& options_;
    FaultSink& faults_;
    FoundGlobals globals_;
    DcpMetadata metadata_ = {};
    DcpItems items_ = {};
    std::vector<std::optional<LazyTensor>> tensors_ = {};
    std::uint64_t metadata_bytes_ = 0;
    std::shared_ptr<const Source> common_ = {};
    Contents contents_ = {};
};

}  // namespace

Contents read_dcp(const std::shared_ptr<const Folder>& folder, std::span<const std::string> metadata,
                  const OpenOptions& options, FaultSink& faults) {
    return DcpReader(folder, metadata, options, faults).read();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
