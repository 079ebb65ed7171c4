// Checkpoint: opens a file, a folder or an index of any supported format, and describes its tensors.
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

/// Returns "safetensors" or "torch".
SAFEMAP_API std::string_view name(Format format) noexcept;

/// A small file that is stored beside a model: a configuration, a tokenizer, a licence.
struct ExtraFile {
    std::string name;  ///< file name, without a folder
    std::shared_ptr<const Source> source;
};

/// The small files beside a model, as listed by Checkpoint::extras().
///
/// Example:
///     safemap::SaveOptions options;
///     options.extras = checkpoint.extras();
///     safemap::save("out/", checkpoint, options);
struct Extras {
    std::vector<ExtraFile> files = {};    ///< sorted by name
    std::vector<std::string> notes = {};  ///< human sentences about files that are too large to be extras
};

/// An open checkpoint: the description of every tensor in it. Opening reads headers, indexes and pickles. Values are
/// read when they are requested.
///
/// A Checkpoint owns its descriptions and keeps its sources open. It is cheap to copy, and copies share. All members
/// are const and may be called from several threads at once. Tensors and views taken from it may outlive it; references
/// and pointers that its members return are valid while it or a copy of it lives.
///
/// Example:
///     auto model = safemap::Checkpoint::open("model/");
///     for (const auto& tensor : model) std::cout << tensor.name() << ' ' << tensor.shape() << '\n';
///     safemap::TensorView first = model.tensor(0).load();
class SAFEMAP_API Checkpoint {
public:
    /// Opens a file, a folder, or an index (`*.index.json`, or JSON with a weight_map). The content decides the format,
    /// with two exceptions: a name that ends in ".safetensors" is always read as safetensors, and a name that ends in
    /// ".index.json" as an index. In a folder, the order of preference is:
    ///
    /// 1. a safetensors index, `*.safetensors.index.json`
    /// 2. `model.safetensors`
    /// 3. `*.bin.index.json`
    /// 4. `pytorch_model.bin`
    /// 5. the only other file that ends in .safetensors, .pt, .pth, .bin or .ckpt
    /// 6. the only inner folder that holds a checkpoint
    ///
    /// The table in docs/format.md is complete: it also has the layouts of training frameworks.
    ///
    /// Throws the first fault found:
    /// - one of the "data is wrong" codes; unsupported_layout for a training layout that has no reader
    /// - path_not_found; several_models; invalid_argument if `path` is neither a file nor a folder
    /// - one of the "system failed" codes; cancelled
    ///
    /// Reads headers only: the cost grows with the number of tensors, not with their size. A plain pickle has its
    /// tensors inside, so all of it is read.
    static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {});
    /// Opens the shards of one checkpoint without an index, in the given order. Throws duplicate_name if two shards
    /// hold a tensor of the same name, invalid_argument for an empty list or a null source, and whatever opening one
    /// file throws.
    static Checkpoint open(std::span<const std::filesystem::path> files, const OpenOptions& options = {});
    static Checkpoint open(std::span<const std::shared_ptr<const Source>> files, const OpenOptions& options = {});
    /// Opens one file from a source of any kind; an index is not supported. The source's name counts like the name of a
    /// file: if it ends in ".safetensors", the bytes are read as safetensors. Throws as opening a file does.
    static Checkpoint open(std::shared_ptr<const Source> source, const OpenOptions& options = {});

    /// Returns the format that was found.
    Format format() const noexcept;
    /// Returns the files of the checkpoint, as an index or the file system names them.
    const std::vector<std::string>& files() const& noexcept;
    const std::vector<std::string>& files() const&& = delete;
    /// Returns the pairs of `__metadata__`, sorted by key:
    ///
    /// - of a single file: its own pairs
    /// - of a list of files: the pairs that all files agree on
    /// - of an index: the strings in the index's `metadata`, and the pairs that all shards agree on
    const std::vector<std::pair<std::string, std::string>>& metadata() const& noexcept;
    const std::vector<std::pair<std::string, std::string>>& metadata() const&& = delete;
    /// Returns true if the file, or one of several files, has a `__metadata__`, even an empty one, or if the `metadata`
    /// of an index has a string. A structure document counts, although metadata() does not list it. Returns false for
    /// `.pt`.
    bool has_metadata() const noexcept;
    /// Returns human sentences about contents that were allowed, skipped, or are opaque.
    const std::vector<std::string>& notes() const& noexcept;
    const std::vector<std::string>& notes() const&& = delete;
    /// Returns every class and function that a pickle of a `.pt` names, even if its value is dropped or is in a file
    /// inside the pickle. Each is listed once for each pickle, in the pickle's order, up to 16,384 in one file. Empty
    /// for safetensors.
    const std::vector<NamedGlobal>& globals() const& noexcept;
    const std::vector<NamedGlobal>& globals() const&& = delete;
    /// Returns the contents of a `.pt` that are not listed as tensors:
    ///
    /// - storages, and objects of unknown classes
    /// - meta, sparse and quantised tensors
    /// - of a pickled module: the tensors that its state_dict() leaves out
    ///
    /// Numbers and texts are not listed; notes() counts them. The numbers of a quantised tensor are listed as a tensor,
    /// and so is a tensor whose dtype has no name in safetensors; save() skips such tensors unless it writes a
    /// structure document.
    const std::vector<SkippedObject>& skipped() const& noexcept;
    const std::vector<SkippedObject>& skipped() const&& = delete;
    /// Returns the groups of names of tied tensors. In each group the stored name comes first; the other names can be
    /// looked up too. In safetensors the other names are keys of the metadata; see docs/format.md.
    const std::vector<AliasGroup>& aliases() const& noexcept;
    const std::vector<AliasGroup>& aliases() const&& = delete;

    /// Returns the number of stored tensors. A tied tensor counts once.
    std::size_t size() const noexcept;
    bool empty() const noexcept { return size() == 0; }
    /// Returns the size of all tensor values in bytes. A tied tensor counts once.
    std::uint64_t total_bytes() const noexcept;
    /// Returns the i-th tensor. The order is that of the source: by offset in a safetensors file, dictionary order in a
    /// `.pt`, by shard file name and then offset for an index. `i` must be below size().
    const LazyTensor& tensor(std::size_t i) const& noexcept;
    const LazyTensor& tensor(std::size_t i) const&& = delete;
    /// Returns the tensor with this name or alias. Throws tensor_not_found; in a checkpoint of up to 4096 tensors, the
    /// error suggests similar names.
    const LazyTensor& operator[](std::string_view name) const&;
    LazyTensor operator[](std::string_view name) const&& { return (*this)[name]; }
    const LazyTensor& operator[](const char* name) const& { return (*this)[std::string_view(name)]; }
    LazyTensor operator[](const char* name) const&& { return (*this)[std::string_view(name)]; }
    /// Returns the tensor with this name or alias, or null if it is missing. Takes constant time and allocates nothing.
    const LazyTensor* find(std::string_view name) const& noexcept;
    const LazyTensor* find(std::string_view name) const&& = delete;
    // The kernel's page cache, for all tensors that `selection` names at once. See the members of LazyTensor.
    Residency residency(const Selection& selection = {}) const;
    void prefetch(const Selection& selection = {}, const Work& work = {}) const;
    void evict(const Selection& selection = {}) const;

    /// Returns iterators over all tensors, in the order of tensor(i).
    const LazyTensor* begin() const& noexcept;
    const LazyTensor* end() const& noexcept;
    const LazyTensor* begin() const&& = delete;
    const LazyTensor* end() const&& = delete;

    /// Returns the nested tree of a single `.pt`, or of safetensors with a structure document; null for anything else.
    /// select() and renamed() do not change the tree: it has all tensors, under the names that they were opened with.
    /// The tree of a flat state dict is built on the first call, in linear time.
    const StateTree* tree() const&;
    const StateTree* tree() const&& = delete;
    // Checkpoints made from this one. These functions open no file and read no tensor. They change only the parts that
    // their comments name; metadata, notes, skipped objects and files stay. save() keeps ties, metadata and structure.

    /// Returns a checkpoint of the tensors that `selection` names, in order, each tensor once. A tied tensor keeps its
    /// own name if that is selected, or else gets its first selected alias. The other selected names stay in aliases(),
    /// and metadata pairs that declare a tie are adjusted to the remaining names. Takes time linear in all names.
    Checkpoint select(const Selection& selection) const;
    /// Returns a checkpoint of the same tensors under the names that `function` returns; it is called once for each
    /// name in all_names(). Metadata pairs that declare a tie follow the names. Throws name_collision if two names
    /// become equal, or if the metadata has another pair under the new alias of a tied tensor. Exceptions of `function`
    /// pass through. Takes linear time.
    Checkpoint renamed(const std::function<std::string(std::string_view)>& function) const;
    /// Returns a checkpoint of the part of the tree at `path`. Its names begin there, whatever renamed() made of them.
    /// A tensor that was not selected is one of the skipped objects. Throws invalid_argument if there is no tree or
    /// `path` leads to nothing; the hint lists candidates. Takes time linear in the tree.
    Checkpoint below(std::string_view path) const;
    /// Returns the entries of the tree's root that hold tensors, such as "model" and "optimizer". Empty for a flat
    /// state dict.
    std::vector<std::string> parts() const;

    /// Returns a fingerprint of the one file that the checkpoint was opened from, which later shows if that file has
    /// changed. docs/format.md, "safemap.source", defines it. Returns nothing for several files. Reads up to 1.4 MiB,
    /// and throws whatever reading throws.
    std::optional<std::string> fingerprint() const;

    /// Lists the small files that transformers reads besides the weights, for SaveOptions::extras. Opens the files and
    /// reads none of them. Extras are regular files of at most 64 MiB, or symbolic links to such files, named `*.json`
    /// (but not `*.index.json`), `tokenizer*`, `*.model`, `*.txt`, `*.jinja`, `LICENSE*`, `NOTICE*` or `README.md`.
    /// Hidden files, weights and code are never extras, whatever their names.
    ///
    /// Returns an empty list unless the checkpoint was opened from the folder of a finished model: a folder with
    /// `model.safetensors`, `pytorch_model.bin`, or an index of either. Throws file_changed if the folder was replaced
    /// since the checkpoint was opened, or if a file disappeared while the folder was listed; and whatever opening a
    /// file throws.
    Extras extras() const;

private:
    struct State;
    friend struct checkpoint::Origin;
    explicit Checkpoint(std::shared_ptr<const State> state);
    std::shared_ptr<const State> state_;
};

}  // namespace safemap::SAFEMAP_ABI
