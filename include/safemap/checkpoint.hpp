// One open for every format: names and lazy tensors.
#pragma once

#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/open_options.hpp>
#include <safemap/selection.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace checkpoint {
struct Origin;
}

SAFEMAP_API std::string_view name(Format format) noexcept;

/// A small file that is stored beside a model: a configuration, a tokenizer, a licence.
struct ExtraFile {
    std::string name;  ///< of the file, without a folder
    std::shared_ptr<const Source> source;
};

struct Extras {
    std::vector<ExtraFile> files = {};    ///< sorted by name
    std::vector<std::string> notes = {};  ///< human sentences: files that are too large to be extras
};

/// A checkpoint that has been opened: every tensor described, none read. Cheap to copy; copies share. All members
/// are const and may be called from several threads at once. Tensors and views taken from it may outlive it.
class SAFEMAP_API Checkpoint {
public:
    /// Opens a file, a folder, or an index (`*.index.json`, or JSON with a weight_map). Formats are told by content,
    /// but a name in ".safetensors" is always read as safetensors, and a path in ".index.json" as an index. In a folder
    /// an index of safetensors goes over `model.safetensors`, that over `*.bin.index.json`, that over
    /// `pytorch_model.bin`, and that over the only other file in .safetensors, .pt, .pth, .bin or .ckpt. A folder with
    /// exactly one folder that holds a checkpoint is that folder. docs/format.md has the table. Reads headers only.
    /// Throws the first fault found, one of the "data is wrong" codes, unsupported_layout for a layout of training that
    /// has no reader; path_not_found, several_models, invalid_argument for what is neither a file nor a folder; and the
    /// codes of a failing system.
    static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {});
    /// The shards of one checkpoint, without an index, in the order given. Throws duplicate_name where two of them hold
    /// a tensor of the same name, invalid_argument for an empty list or a null source, and what a file throws.
    static Checkpoint open(std::span<const std::filesystem::path> files, const OpenOptions& options = {});
    static Checkpoint open(std::span<const std::shared_ptr<const Source>> files, const OpenOptions& options = {});
    /// The same over a source of any kind that holds one file, no index. Its name counts as a file's does.
    static Checkpoint open(std::shared_ptr<const Source> source, const OpenOptions& options = {});

    Format format() const noexcept;
    /// The files it consists of, as an index or the file system names them.
    const std::vector<std::string>& files() const& noexcept;
    const std::vector<std::string>& files() const&& = delete;
    /// `__metadata__`: of a single file, its own; of a list of files, what all of them agree on; of an index, the
    /// strings in the index's `metadata`, and what all shards agree on. Sorted by key.
    const std::vector<std::pair<std::string, std::string>>& metadata() const& noexcept;
    const std::vector<std::pair<std::string, std::string>>& metadata() const&& = delete;
    /// Returns whether there is a `__metadata__`, be it empty: in the file, or in one of several; or a string in the
    /// `metadata` of an index. A structure document counts, which is not in metadata(). False for `.pt`.
    bool has_metadata() const noexcept;
    /// Human sentences about what was allowed, skipped or is opaque.
    const std::vector<std::string>& notes() const& noexcept;
    const std::vector<std::string>& notes() const&& = delete;
    /// Returns every class and function that a pickle of a `.pt` names, also where the value is dropped or stands in a
    /// file inside the pickle: each once for each pickle, in their order, and the first 16,384 of a file. Empty for
    /// safetensors.
    const std::vector<NamedGlobal>& globals() const& noexcept;
    const std::vector<NamedGlobal>& globals() const&& = delete;
    /// What a `.pt` holds that is no tensor (storages, objects of unknown classes; numbers and texts are only counted,
    /// in notes()), or a tensor that is not kept as one: meta, sparse, quantised; and of whole modules the tensors that
    /// their state_dict() leaves out. A tensor whose dtype alone has no name in safetensors is one of the tensors, as
    /// the numbers of a quantised tensor are; save() skips it, unless it writes a structure document.
    const std::vector<SkippedObject>& skipped() const& noexcept;
    const std::vector<SkippedObject>& skipped() const&& = delete;
    /// Tensors with several names: the stored name first. The other names can be looked up too. In safetensors they are
    /// keys of the metadata; see docs/format.md.
    const std::vector<AliasGroup>& aliases() const& noexcept;
    const std::vector<AliasGroup>& aliases() const&& = delete;

    /// How many tensors there are, each stored tensor once.
    std::size_t size() const noexcept;
    bool empty() const noexcept { return size() == 0; }
    /// Bytes of all their values.
    std::uint64_t total_bytes() const noexcept;
    /// The i-th tensor in the order of the source: safetensors by offset, `.pt` in dictionary order, an index by
    /// shard file name, then offset.
    const LazyTensor& tensor(std::size_t i) const& noexcept;
    const LazyTensor& tensor(std::size_t i) const&& = delete;
    /// The tensor of that name or alias. Throws tensor_not_found; among up to 4096 tensors it names near ones.
    const LazyTensor& operator[](std::string_view name) const&;
    LazyTensor operator[](std::string_view name) const&& { return (*this)[name]; }
    const LazyTensor& operator[](const char* name) const& { return (*this)[std::string_view(name)]; }
    LazyTensor operator[](const char* name) const&& { return (*this)[std::string_view(name)]; }
    /// The same for a name that may be absent: null then. Constant time, without an allocation.
    const LazyTensor* find(std::string_view name) const& noexcept;
    const LazyTensor* find(std::string_view name) const&& = delete;
    // The kernel's page cache, for the tensors that `selection` names, all of them at once; see LazyTensor.
    Residency residency(const Selection& selection = {}) const;
    void prefetch(const Selection& selection = {}, const Work& work = {}) const;
    void evict(const Selection& selection = {}) const;

    /// In the order of tensor(i).
    const LazyTensor* begin() const& noexcept;
    const LazyTensor* end() const& noexcept;
    const LazyTensor* begin() const&& = delete;
    const LazyTensor* end() const&& = delete;

    /// The nested tree of a single `.pt`, or of safetensors with a structure document; null for anything else. select()
    /// and renamed() leave it as it is: it has all tensors, under the names that they were opened with. That of a flat
    /// state dict is made when it is first asked for, in linear time.
    const StateTree* tree() const&;
    const StateTree* tree() const&& = delete;
    // Checkpoints made from this one. They open no file and read no byte of a tensor. What is not said here stays as
    // it is: metadata, notes, skipped objects, files. save() keeps their ties, metadata and structure.

    /// Returns the tensors that `selection` names, in order, each once: under its own name, or else the first of its
    /// other names that is selected. The other selected names stay in aliases(), and pairs of the metadata that say a
    /// tie say it of the names that are left. Linear in all names.
    Checkpoint select(const Selection& selection) const;
    /// Returns the same tensors under the names that `function` gives; it is called once for each name in all_names().
    /// Pairs of the metadata that say a tie follow the names. Throws name_collision if two names become one, or if the
    /// metadata has another pair under the new other name of a tied tensor; and what `function` throws. Linear.
    Checkpoint renamed(const std::function<std::string(std::string_view)>& function) const;
    /// Returns what lies at a path of the tree: names begin there, whatever renamed() made of them. A tensor that was
    /// not selected is one of the skipped objects. Throws invalid_argument where nothing is there, or there is no tree;
    /// the hint has the candidates. Linear in the tree.
    Checkpoint below(std::string_view path) const;
    /// The parts of the tree's root that hold tensors: "model", "optimizer". None of a flat state dict.
    std::vector<std::string> parts() const;

    /// Of the one file that it was opened from: what tells later whether that has changed; docs/format.md,
    /// "safemap.source", defines it. Nothing for several files. Reads up to 1.4 MiB, and throws what reading throws.
    std::optional<std::string> fingerprint() const;

    /// Lists the small files that transformers reads besides the weights, for SaveOptions::extras. Empty unless the
    /// checkpoint was opened from the folder of a finished model, one with an index of safetensors or of
    /// `pytorch_model.bin`, `model.safetensors` or `pytorch_model.bin`. Extras are regular files of at most 64 MiB, or
    /// symbolic links to such, named `*.json` (but not `*.index.json`), `tokenizer*`, `*.model`, `*.txt`, `*.jinja`,
    /// `LICENSE*`, `NOTICE*` or `README.md`. Hidden files, weights and code are never extras, whatever their names.
    /// Opens the files and reads none of them. Throws file_changed if the folder was replaced since the checkpoint was
    /// opened, or a file disappeared while the folder was listed; and what opening a file throws.
    Extras extras() const;

private:
    struct State;
    friend struct checkpoint::Origin;
    explicit Checkpoint(std::shared_ptr<const State> state);
    std::shared_ptr<const State> state_;
};

}  // namespace safemap::SAFEMAP_ABI
