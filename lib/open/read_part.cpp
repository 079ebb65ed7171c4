// Opens one file of a run of several ranks by itself: as whole tensors if it holds them, or not at all. Read as a plain
// file, it would give local parts under the names of whole tensors.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "distributed/flat/flat_params.hpp"
#include "distributed/ranks/rank_meshes.hpp"
#include "distributed/ranks/read_rank_files.hpp"
#include "distributed/values.hpp"
#include "names/file_names.hpp"
#include "open/layouts.hpp"
#include "open/read.hpp"

#include <safemap/advanced/text.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using distributed::Value;

/// The folder of one file that is open.
class FolderOfOne final : public Folder {
public:
    explicit FolderOfOne(std::shared_ptr<const Source> source)
        : source_(std::move(source)),
          path_(source_->name()),
          name_(path_.has_parent_path() ? path_.parent_path().native() : ".") {}

    const std::string& name() const noexcept override { return name_; }
    std::vector<std::string> list() const override { return {path_.filename().native()}; }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        return file == path_.filename().native() ? source_ : nullptr;
    }

private:
    std::shared_ptr<const Source> source_;
    std::filesystem::path path_;
    std::string name_;
};

std::string hint_for(const std::filesystem::path& path, const std::optional<names::RankedName>& rank) {
    constexpr std::string_view parts = "; --as-parts (OpenOptions::as_parts) gives the local parts in this file";
    const std::string file = path.filename().native();
    const bool is_known = names::zero_name(file) || file == "model_optim_rng.pt";
    if (!rank && is_known) return "give the folder, or the files of all ranks together" + std::string(parts);
    if (!rank)
        return std::string(names_of_ranks) + "the files of all ranks, and give their folder" + std::string(parts);
    return "give the files of all ranks, in quotes: " + shell_word((path.parent_path() / rank->set).native()) +
           std::string(parts);
}

[[noreturn]] void refuse(std::string what, const std::filesystem::path& path,
                         const std::optional<names::RankedName>& rank) {
    throw Error(Errc::rank_missing, std::move(what)).with_hint(hint_for(path, rank));
}

std::string ranks_text(std::int64_t count) { return std::to_string(count) + " ranks"; }

/// Returns the largest number in a field that is one number, or one for each group.
std::int64_t largest(const std::optional<Value>& field) {
    if (!field) return 0;
    if (!field->is_list()) return field->integer().value_or(0);
    std::int64_t most = 0;
    for (const Value& one : field->items()) most = std::max(most, one.integer().value_or(0));
    return most;
}

/// Returns how a file of DeepSpeed is only a part; an empty text if it is not one, or is whole.
std::string zero_part(const StateTree& tree, const std::string& file) {
    using Kind = names::NameKind;
    const auto name = names::zero_name(file);
    if (!name) return {};
    const Value root(tree);
    if (name->kind == Kind::zero_optimizer) {
        const auto state = root.find("optimizer_state_dict");
        const std::int64_t ranks = state ? largest(state->find("partition_count")) : 0;
        return ranks > 1 ? "partition_count says that the tensors are cut over " + ranks_text(ranks) : std::string();
    }
    if (name->kind == Kind::zero_ranked_model) {
        const std::int64_t ranks = largest(root.find("dp_world_size"));
        return ranks > 1 ? "dp_world_size says that the weights of stage 3 are cut over " + ranks_text(ranks)
                         : std::string();
    }
    const std::int64_t ranks = name->kind == Kind::zero_model ? largest(root.find("mp_world_size")) : 0;
    return ranks > 1 ? "mp_world_size says that the weights are cut over " + ranks_text(ranks) : std::string();
}

/// Returns the same for a file of Megatron's older format, mp_rank_00/model_optim_rng.pt.
std::string megatron_part(const StateTree& tree, const std::filesystem::path& path) {
    if (path.filename() != "model_optim_rng.pt") return {};
    const auto args = Value(tree).find("args");
    if (!args) return {};
    std::int64_t ranks = 1;
    for (const std::string_view field : {"tensor_model_parallel_size", "pipeline_model_parallel_size"})
        if (const auto found = args->find(field))
            ranks *= std::clamp<std::int64_t>(found->integer().value_or(1), 1, 1 << 20);
    return ranks > 1 ? "its args say that the weights are cut over " + ranks_text(ranks) : std::string();
}

Contents read_alone(const std::shared_ptr<const Source>& source, const std::filesystem::path& path,
                    const OpenOptions& options) {
    std::shared_ptr<const Source> manifest;
    if (!options.manifest.empty()) manifest = open_file(options.manifest, mapping_of(options.access));
    const auto folder = std::make_shared<FolderOfOne>(source);
    const auto rank = names::rank_file(path.filename().native());
    try {
        Contents contents = distributed::read_rank_files({folder, folder->list(), std::move(manifest), true}, options);
        contents.folder = folder;
        return contents;
    } catch (Error& error) {
        if (error.code() == Errc::manifest_missing)
            refuse("the file holds flat parameters, each cut over all ranks", path, rank);
        if (error.code() == Errc::rank_missing) error.with_hint(hint_for(path, rank));
        throw;
    }
}

}  // namespace

std::optional<Contents> read_part(const std::shared_ptr<const Source>& source, const Contents& plain,
                                  const OpenOptions& options) {
    const std::filesystem::path path = source->name();
    const std::string file = path.filename().native();
    if (plain.tree && plain.tree->size() > 0) {
        if (distributed::holds_parts(*plain.tree)) return read_alone(source, path, options);
        std::string what = zero_part(*plain.tree, file);
        if (what.empty()) what = megatron_part(*plain.tree, path);
        if (!what.empty()) refuse("this is the file of one rank: " + what, path, std::nullopt);
    }
    // A flat state dict has no tree yet.
    const auto is_flat = [](const LazyTensor& tensor) { return distributed::is_flat_key(tensor.name()); };
    if (!plain.tree && std::any_of(plain.tensors.begin(), plain.tensors.end(), is_flat))
        return read_alone(source, path, options);
    // Local parts of FSDP1 are plain tensors. The state of a run is not a part of anything.
    const auto rank = names::rank_file(file);
    if (rank && rank->world_size.value_or(1) > 1 && !names::is_training_state(*rank))
        refuse("the name says that this is the file of rank " + std::to_string(rank->rank) + " of " +
                   std::to_string(*rank->world_size),
               path, rank);
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::open
