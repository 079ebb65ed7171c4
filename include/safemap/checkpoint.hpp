// Checkpoint: opens a file, a folder or an index of any supported format, and describes its tensors.
#pragma once

#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/open_options.hpp>
#include <safemap/selection.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>
#include <safemap/training_layout.hpp>
#include <safemap/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
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

/// Returns "safetensors", "torch", "zero", "dcp" or "fsdp".
[[nodiscard]] SAFEMAP_API std::string_view name(Format format) noexcept;

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
    std::vector<ExtraFile> files = {};  ///< sorted by name
    std::vector<std::string> notes =
        {};  ///< human sentences about files that are too large, or links out of the folder
};

/// An open checkpoint: the description of every tensor in it. Opening reads headers, indexes and pickles. Values are
/// read when they are requested.
///
/// A Checkpoint owns the descriptions of its tensors, and keeps its sources alive. It holds no values of tensors. It
/// may close files and open them again; if a file was deleted or replaced meanwhile, reading it throws file_changed
/// (docs/lifetimes.md, "Open files"). Copies of a Checkpoint share one state, so they are cheap. Copies of its tensors,
/// and views of them, may outlive it. References and pointers that its members return are valid while the Checkpoint or
/// a copy of it lives.
///
/// All member functions are const and may be called from several threads at once. Assigning to a Checkpoint that other
/// threads use needs a lock. On a temporary, operator[] returns a copy; members that return references or pointers do
/// not compile.
///
/// Example:
///     auto model = safemap::Checkpoint::open("model/");
///     for (const auto& tensor : model) std::cout << tensor.name() << ' ' << tensor.shape() << '\n';
///     safemap::TensorView first = model.tensor(0).load();
class [[nodiscard]] SAFEMAP_API Checkpoint {
public:
    /// A copy refers to the same files, and costs as much as a copy of a shared_ptr. A move copies, so that no
    /// Checkpoint is ever empty.
    Checkpoint(const Checkpoint&) = default;
    Checkpoint& operator=(const Checkpoint&) = default;

    /// Opens a file, a folder, or an index (`*.index.json`, or JSON with a weight_map). The content decides the format,
    /// with two exceptions: a name that ends in ".safetensors" is always read as safetensors, and a name that ends in
    /// ".index.json" as an index. In a folder, the order of preference is:
    ///
    /// 1. a safetensors index, `*.safetensors.index.json`
    /// 2. `model.safetensors`, or all of its numbered shards, `model-00001-of-0000N.safetensors`
    /// 3. an index of pickles, `*.bin.index.json`
    /// 4. `pytorch_model.bin`, or all of its numbered shards; then the names of other libraries, such as
    ///    `diffusion_pytorch_model.safetensors` and `adapter_model.bin`; then variants, such as
    ///    `model.fp16.safetensors`
    /// 5. the folder of a training framework: Hugging Face shards, torch.distributed.checkpoint (DCP), DeepSpeed,
    ///    Megatron
    /// 6. the only set of files of ranks, or the set of a model beside that of its optimizer
    /// 7. the only other file that ends in .safetensors, .sft, .pt, .pth, .bin or .ckpt and is neither hidden nor a
    ///    trainer's file, such as `optimizer.pt`
    /// 8. in the cache of a model hub, the snapshot that `refs/main` names, or the only one
    /// 9. the only inner folder that holds a model, also beside that of its optimizer
    ///
    /// docs/cli.md ("A folder") has the same list, and docs/format.md ("Which folders open") every row of it. The
    /// folder of a pipeline of diffusers (`model_index.json`) has a model in each component: several_models lists them.
    ///
    /// Throws the first fault found:
    /// - a code of the group "The data is wrong" of Errc, such as unsupported_layout for a training layout that has no
    ///   reader
    /// - path_not_found; several_models; invalid_argument if `path` is neither a file nor a folder
    /// - a code of the group "The system failed while working" of Errc; cancelled
    ///
    /// Reads headers, indexes and pickles: the cost grows with the number of tensors, not with their size. The
    /// exception is a plain pickle, which has its tensors inside and is read as a whole.
    static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {});
    /// Does the same. Throws invalid_argument for null, which std::getenv() returns.
    static Checkpoint open(const char* path, const OpenOptions& options = {});
    /// Opens the shards of one checkpoint without an index, in the given order. Throws duplicate_name if two shards
    /// hold a tensor of the same name, shard_missing if the names of files are those of numbered shards
    /// ("model-00001-of-00003.safetensors") of which some are not given, invalid_argument for an empty list or a null
    /// source, and whatever opening one file throws.
    static Checkpoint open(std::span<const std::filesystem::path> files, const OpenOptions& options = {});
    static Checkpoint open(std::span<const std::shared_ptr<const Source>> files, const OpenOptions& options = {});
    /// Opens one file from a source of any kind; an index is not supported. The source's name counts like the name of a
    /// file: if it ends in ".safetensors", the bytes are read as safetensors. Throws as opening a file does.
    static Checkpoint open(std::shared_ptr<const Source> source, const OpenOptions& options = {});

    /// Makes a checkpoint of tensors that the caller has, such as a LazyTensor over memory. It is the checkpoint that a
    /// safetensors file with these tensors in this order, and with `metadata` as its `__metadata__`, opens as: a pair
    /// (alias, name of a tensor) declares a tie, and a structure document is read. `aliases` declares further ties, as
    /// the ones of a `.pt`: in each group the name of a tensor comes first, and then its other names. save() writes
    /// `__metadata__[alias] = name` for them.
    ///
    /// Reads no tensor, copies no value, and keeps the sources of the tensors alive. LazyTensor says when the caller
    /// may change bytes. files(), optimizer() and fingerprint() have nothing. save() checks names and metadata: for
    /// UTF-8, NUL, and names that are reserved.
    ///
    /// Throws name_collision if two names are equal, or if an alias is the key of a pair of `metadata` with another
    /// value; tensor_not_found if no tensor has the first name of a group; invalid_argument for an empty group;
    /// shape_overflow if the total size does not fit in 64 bits; and for a structure document whatever opening throws.
    /// Takes time linear in all names.
    ///
    /// Example:
    ///     std::vector<safemap::AliasGroup> ties = {{"embed.weight", "lm_head.weight"}};
    ///     auto model = safemap::Checkpoint::of(tensors, {{"step", "1000"}}, ties);
    static Checkpoint of(std::span<const LazyTensor> tensors, std::map<std::string, std::string> metadata = {},
                         std::span<const AliasGroup> aliases = {});
    /// Makes a checkpoint of a nested state dict that the caller has. It is the checkpoint that a `.pt` with this tree
    /// opens as: names, parts, ties, skipped objects and notes are the same, and save() writes the structure document.
    /// So the only entry of the root that holds tensors is taken, unless `options.root` says otherwise. `root`,
    /// `root_auto`, `stored_names` and `ema` are the only options with an effect.
    ///
    /// Nodes that the root does not lead to are dropped, and so are the names that tensors of the tree have.
    /// Containers may be shared, or be in a cycle. Tensors are tied if they are copies of one LazyTensor, or have the
    /// same address in memory, dtype, shape and strides. tree() has new numbers for the nodes.
    ///
    /// Reads no tensor, copies no value, and keeps the sources of the tensors alive. LazyTensor says when the caller
    /// may change bytes. format() is Format::torch; files(), globals(), optimizer() and fingerprint() have nothing.
    ///
    /// Throws invalid_argument for a tree without nodes, and for a node that refers to a number beyond the nodes;
    /// name_collision if two tensors get the same name, because a dictionary has a key twice; and as OpenOptions::root
    /// and OpenOptions::ema say. Takes time linear in the tree, but n log n for n tensors in memory.
    static Checkpoint of(StateTree tree, const OpenOptions& options = {});

    /// Returns the format that was found: safetensors for of() of a list, and torch for of() of a tree.
    Format format() const noexcept;
    /// Returns the files of the checkpoint, as an index or the file system names them. Empty for tensors of the caller.
    const std::vector<std::string>& files() const& noexcept;
    const std::vector<std::string>& files() const&& = delete;
    /// Returns the pairs of `__metadata__`, sorted by key, without a structure document (see tree()):
    ///
    /// - of a single file: its own pairs
    /// - of a list of files: the pairs that all files agree on
    /// - of an index: the strings in the index's `metadata`, and the pairs that all shards agree on; if both have a
    /// key,
    ///   the index's value counts
    const std::vector<std::pair<std::string, std::string>>& metadata() const& noexcept;
    const std::vector<std::pair<std::string, std::string>>& metadata() const&& = delete;
    /// Returns the pairs of `__metadata__` as the files have them, sorted by key: also a structure document, the keys
    /// of safemap that metadata() lacks, and other names of tied tensors as they are stored, whatever select(),
    /// renamed() and OpenOptions::root gave.
    ///
    /// - of a single safetensors file: its own pairs
    /// - of an index: its strings, and the pairs that all shards agree on, as metadata() has them
    /// - of a list of files: the pairs that metadata() has
    /// - of tensors of the caller: `metadata` without a structure document
    /// - of a `.pt`: none
    ///
    /// A document is not kept in memory. If there was one, the header of the file is read again, or the index: throws
    /// file_changed if it has changed, and whatever reading throws.
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> raw_metadata() const;
    /// Returns true if the file, or one of several files, has a `__metadata__`, even an empty one, or if the `metadata`
    /// of an index has a string. A structure document counts, although metadata() does not list it. Returns false for
    /// `.pt`.
    bool has_metadata() const noexcept;
    /// Returns human sentences about deviations that the policy allowed, and about contents that were skipped or that
    /// only a structure document keeps, such as objects of unknown classes.
    const std::vector<std::string>& notes() const& noexcept;
    const std::vector<std::string>& notes() const&& = delete;
    /// Returns every class and function that a pickle of a `.pt` names. Those whose values are dropped are listed too,
    /// and those of a file that is embedded in the pickle as bytes. Each is listed once for each pickle, in the
    /// pickle's order, up to 16,384 in one file. Empty for safetensors.
    const std::vector<NamedGlobal>& globals() const& noexcept;
    const std::vector<NamedGlobal>& globals() const&& = delete;
    /// Returns what unpickling the files would do, as far as a reading of the files shows it. Always `ok` for
    /// safetensors.
    Verdict verdict() const noexcept { return findings().verdict; }
    /// Returns the reasons for verdict(), the worst first: each global of the pickles that is not plain data, and calls
    /// that hide what they call. Empty for safetensors.
    const Findings& findings() const& noexcept;
    const Findings& findings() const&& = delete;
    /// Returns the contents of a `.pt` that are not, or not completely, among the tensors of this checkpoint, such as:
    ///
    /// - storages that are values by themselves (torch.Storage), and objects of unknown classes
    /// - tensors without data (device "meta"), sparse tensors, and quantized tensors
    /// - of a pickled module: the tensors that its state_dict() leaves out
    /// - after below(): the tensors that had not been selected
    ///
    /// Numbers and texts are not skipped objects; notes() counts them. The parts of a sparse or quantized tensor are
    /// tensors of this checkpoint. So is a tensor whose dtype has no name in safetensors: save() skips it, and reports
    /// that, unless it writes a structure document.
    const std::vector<SkippedObject>& skipped() const& noexcept;
    const std::vector<SkippedObject>& skipped() const&& = delete;
    /// Returns the groups of names of tied tensors. In each group the stored name comes first; the other names can be
    /// looked up too. In safetensors the other names are keys of the metadata. In a `.pt`, the stored name is the one
    /// that stored_as() gives. See docs/format.md.
    const std::vector<AliasGroup>& aliases() const& noexcept;
    const std::vector<AliasGroup>& aliases() const&& = delete;

    /// Returns the parts of the checkpoint as it was opened, also those that OpenOptions::root left out. Empty for a
    /// flat state dict and for a checkpoint without a tree. below(), select() and renamed() do not change them.
    const std::vector<StatePart>& all_parts() const& noexcept;
    const std::vector<StatePart>& all_parts() const&& = delete;
    /// Returns the path of the part that the names of the tensors are relative to, such as "state_dict": of the part
    /// that OpenOptions::root or below() took. Empty if names are those of the whole checkpoint.
    const std::string& root() const& noexcept;
    const std::string& root() const&& = delete;

    /// Returns the number of stored tensors. A tied tensor counts once.
    std::size_t size() const noexcept;
    bool empty() const noexcept { return size() == 0; }
    /// Returns the size of all tensor values in bytes. A tied tensor counts once.
    std::uint64_t total_bytes() const noexcept;
    /// Returns the i-th tensor. The order is that of the source: by offset in a safetensors file, dictionary order in a
    /// `.pt`, by shard file name and then offset for an index. `i` must be below size().
    [[nodiscard]] const LazyTensor& tensor(std::size_t i) const& noexcept;
    const LazyTensor& tensor(std::size_t i) const&& = delete;
    /// Returns the tensor with this name or alias. Throws tensor_not_found; in a checkpoint of up to 4096 tensors, the
    /// error suggests similar names. Throws invalid_argument if `name` is null.
    const LazyTensor& operator[](std::string_view name) const&;
    LazyTensor operator[](std::string_view name) const&& { return (*this)[name]; }
    const LazyTensor& operator[](const char* name) const&;
    LazyTensor operator[](const char* name) const&& { return (*this)[name]; }
    /// Returns the tensor with this name or alias, or null if it is missing or `name` is null. Takes constant
    /// time and allocates nothing.
    [[nodiscard]] const LazyTensor* find(std::string_view name) const& noexcept;
    [[nodiscard]] const LazyTensor* find(const char* name) const& noexcept {
        return name == nullptr ? nullptr : find(std::string_view(name));
    }
    const LazyTensor* find(std::string_view name) const&& = delete;
    const LazyTensor* find(const char* name) const&& = delete;
    // The kernel's page cache. An empty selection stands for all tensors.
    /// Returns the sum of LazyTensor::residency() over the selected tensors. Bytes that several tensors share count
    /// once. Throws as LazyTensor::residency() does.
    [[nodiscard]] Residency residency(const Selection& selection = {}) const;
    /// Reads the bytes of the selected tensors into the page cache, and returns when they are there. Throws as
    /// LazyTensor::prefetch() does.
    void prefetch(const Selection& selection = {}, const Work& work = {}) const;
    /// Evicts the bytes of the selected tensors from the page cache. Throws as LazyTensor::evict() does.
    void evict(const Selection& selection = {}) const;

    /// Returns iterators over all tensors, in the order of tensor(i).
    const LazyTensor* begin() const& noexcept;
    const LazyTensor* end() const& noexcept;
    const LazyTensor* begin() const&& = delete;
    const LazyTensor* end() const&& = delete;
    // A span is made of begin() and end(), and would dangle.
    operator std::span<const LazyTensor>() && = delete;
    operator std::span<const LazyTensor>() const&& = delete;

    /// Returns the nested tree of a single `.pt`, or of safetensors with a structure document; null for anything else.
    /// The tree is whole, unless OpenOptions::root or below() took one of several parts.
    /// select() and renamed() do not change the tree: it has all tensors, under the names that they were opened with.
    /// The tree of a flat state dict, one without nested dicts, is built on the first call, in linear time.
    [[nodiscard]] const StateTree* tree() const&;
    const StateTree* tree() const&& = delete;
    // Checkpoints made from this one. These functions open no file and read no tensor. They change only the parts that
    // their comments name; metadata, notes, skipped objects and files stay. save() keeps ties, metadata and structure.

    /// Returns a checkpoint of the tensors that `selection` names, in order, each tensor once. A tied tensor keeps its
    /// own name if that is selected, or else gets its first selected alias. The other selected names stay in aliases(),
    /// and metadata pairs that declare a tie are adjusted to the remaining names. Takes time linear in all names.
    Checkpoint select(const Selection& selection) const;
    /// Returns a checkpoint of the same tensors under the names that `function` returns; it is called once for each
    /// name in all_names(). Aliases of tied tensors are keys of the metadata; these pairs get the new names, too.
    /// Throws name_collision if two names become equal, or if the new alias of a tied tensor is already the key of
    /// another pair. Exceptions of `function` pass through. Throws invalid_argument for an empty
    /// function. Takes linear time.
    Checkpoint renamed(const std::function<std::string(std::string_view)>& function) const;
    /// Returns a checkpoint in which each tied tensor is stored under one of `names`, if it has one of them, or else
    /// under the name that the base class of a model loads: of an input embedding rather than of an output layer, such
    /// as `model.embed_tokens.weight` rather than `lm_head.weight` (docs/format.md has the table), or else under the
    /// name that it was stored under. Metadata pairs that declare a tie follow. Throws tensor_not_found for a name that
    /// no tensor has, and invalid_argument for two names of one tensor. Takes time linear in all names.
    Checkpoint stored_as(std::span<const std::string> names = {}) const;
    /// Returns a checkpoint of the part of the tree at `path`. Its names are relative to `path`, and are those of the
    /// tree: names that renamed() gave are lost. Tensors that select() left out are in skipped(). Throws
    /// invalid_argument if there is no tree or `path` leads to nothing; the hint lists candidates. Takes time linear in
    /// the tree.
    Checkpoint below(std::string_view path) const;
    /// Returns the entries of the tree's root that hold tensors, such as "model" and "optimizer": arguments for
    /// below(), at most 16. Empty for a flat state dict and for a checkpoint without a tree.
    [[nodiscard]] std::vector<std::string> parts() const;

    /// Returns what the folder says of the training run; nothing if it is not a folder of a training framework.
    const std::optional<TrainingLayout>& layout() const& noexcept;
    const std::optional<TrainingLayout>& layout() const&& = delete;
    /// Returns how far the training had come, from the values beside the tensors: the entries and the optimizers of a
    /// `.pt` or a training folder, and `trainer_state.json`, `scheduler.pt` and `scaler.pt` beside them. A file that
    /// cannot be read says nothing. Reads those small files, and of a tensor without dimensions its one value; if they
    /// state no step or no learning rate, opens optimizer(). Does not change with select() and renamed().
    [[nodiscard]] TrainingState training() const;
    /// Returns the state of the optimizer: of a DeepSpeed checkpoint, or of files or a folder beside the model. Returns
    /// nothing if there is no such state.
    ///
    /// - DeepSpeed: tensors of a parameter are called `optimizer/state/PARAMETER/exp_avg`, and so on; all other state,
    ///   such as step counts, hyper-parameters and the loss scaler, is in the tree. Tensors that are partitioned like a
    ///   parameter have its shape.
    /// - files or a folder beside the model: a checkpoint as if that were opened alone
    ///
    /// select() and renamed() do not change it. Reads no tensor; the cost grows with the number of tensors and ranks.
    /// Throws as open() does.
    [[nodiscard]] std::optional<Checkpoint> optimizer() const;

    /// Returns a fingerprint of the one file that the checkpoint was opened from, which later shows if that file has
    /// changed. docs/format.md, "safemap.source", defines it. Returns nothing for several files. Reads up to 1.4 MiB,
    /// and throws whatever reading throws.
    [[nodiscard]] std::optional<std::string> fingerprint() const;

    /// Lists the small files that belong to the model besides its weights, for SaveOptions::extras: configuration,
    /// tokenizer, licence. Opens the files and reads none of them.
    ///
    /// - opened from the folder of a finished model, places 1 to 4 of
    ///   open(): the files beside it named `*.json` (but not
    ///   `*.index.json`), `tokenizer*`, `*.model`, `*.txt`, `*.jinja`, `LICENSE*`, `NOTICE*` or `README.md`
    /// - from a training folder (DeepSpeed, DCP, files of ranks, Hugging Face shards, `pytorch_model_fsdp.bin`): the
    ///   files that make up a model of Hugging Face by their names, such as `config.json`, `tokenizer.json`,
    ///   `generation_config.json` and `adapter_config.json`. They are beside the weights, in the folders up to the path
    ///   that was opened, in `huggingface/` (verl) or `.hf_metadata/` (NeMo) there, and in the parent of that path, if
    ///   it has the weights itself or is called after a step, such as `checkpoint-300`
    /// - from the folder of an adapter: those of a finished model, and beyond that folder those of a training folder
    /// - from a file called `model`, `pytorch_model` or `adapter_model`, a shard or an index of one, if `config.json`
    ///   or `adapter_config.json` is beside it: files of the model by their names, beside it
    /// - else: none
    ///
    /// Extras are regular files of at most 64 MiB, or symbolic links to such files in the folder; the blobs of a model
    /// hub's cache count as inside. Hidden files, weights, code and the state of a training are never extras. Of two
    /// files of one name, the nearest counts, in the order above. Notes name files that are left out though the model
    /// may need them: code, large files, links out of a folder, the second file of a name, and folders of modules.
    ///
    /// Throws file_changed if the folder of a finished model was replaced since the checkpoint was opened, or if a file
    /// disappeared while the folder was listed; and whatever opening a file throws.
    [[nodiscard]] Extras extras() const;

    /// Returns the name under which libraries look for the files of this model, for SaveOptions::stem: "adapter_model"
    /// for a model opened from the folder of `adapter_model.bin`, or with `adapter_config.json` and no `config.json`
    /// among its extras. Returns "model" for a checkpoint that has no extras, and for names that stand for the same:
    /// `pytorch_model`.
    [[nodiscard]] std::string stem() const;

private:
    struct State;
    friend struct checkpoint::Origin;
    explicit Checkpoint(std::shared_ptr<const State> state);
    std::shared_ptr<const State> state_;
};

}  // namespace safemap::SAFEMAP_ABI
