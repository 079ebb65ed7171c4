// Decides what a folder holds. The table at the end has one row per kind of checkpoint, in order of preference. A row
// looks at names only.
//
//   finished_model          an index, model.safetensors and its kind, numbered shards: model_names.cpp
//   hf_shards               safetensors shards with DCP information
//   dcp, unfinished_dcp     torch.distributed.checkpoint
//   known_and_refused       torch_checkpointing, nanotron, Megatron's zarr
//   deepspeed_root, _tag    DeepSpeed, with and without `latest`
//   megatron                the pointer, and the rank files of its older format
//   rank_files              one file per rank
//   lacking_shards          numbered shards that are not all there
//   other_weights           the only other file of weights
//
// If no row finds a checkpoint, shape_of() looks at the folders inside: first for the snapshot of a model hub's cache.
// names_in() lists the names.
#include "names/folder_shape.hpp"

#include "base/folder.hpp"
#include "base/json.hpp"
#include "names/model_names.hpp"
#include "names/rank_names.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

using MaybeShape = std::optional<FolderShape>;

template <class Wanted> FileNames matching(const FileNames& names, Wanted&& wanted) {
    FileNames found;
    std::copy_if(names.begin(), names.end(), std::back_inserter(found), std::forward<Wanted>(wanted));
    return found;
}

FileNames ending_in(const FileNames& names, std::string_view ending) {
    return matching(names, [ending](std::string_view name) { return name.ends_with(ending); });
}

FileNames of_kind(const FileNames& names, NameKind kind) {
    return matching(names, [kind](std::string_view name) { return is_kind(name, kind); });
}

/// Returns the folders for which wanted(name, names in it) is true.
template <class Wanted> FileNames folders_where(const FolderNames& names, Wanted&& wanted) {
    FileNames found;
    for (std::size_t i = 0; i < names.below.size(); ++i)
        if (wanted(names.folders[i], names.below[i])) found.push_back(names.folders[i]);
    return found;
}

void move_names(FileNames from, FileNames& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

FolderShape several(FileNames names, Several what) {
    return {.kind = ShapeKind::several, .several = what, .files = std::move(names)};
}

/// Returns the shape of these files, or nothing if there are no files.
MaybeShape shape_if_any(ShapeKind kind, FileNames files) {
    if (files.empty()) return std::nullopt;
    return FolderShape{.kind = kind, .files = std::move(files)};
}

// 1: a finished model.

/// Returns true for the index of another framework (flax, tf). Beside one of safetensors it belongs to another model.
bool is_foreign_index(std::string_view name) { return name.ends_with(".index.json") && !model_name(name); }

MaybeShape finished_model(const FolderNames& names) {
    using Kind = ModelName::Kind;
    Heads heads = find_heads(names.files);
    const bool safetensors_index = !heads.files.empty() && heads.kind == Kind::index &&
                                   heads.files.front().find(".safetensors.") != std::string::npos;
    if (!safetensors_index) {
        FileNames foreign = matching(names.files, is_foreign_index);
        if (foreign.size() > 1) return several(std::move(foreign), Several::indexes);
        if (!foreign.empty()) return shape_if_any(ShapeKind::index, std::move(foreign));
    }
    if (!heads.equals.empty()) {
        heads.equals.insert(heads.equals.begin(), heads.files.front());
        return several(std::move(heads.equals), heads.kind == Kind::index ? Several::indexes : Several::files);
    }
    const bool sharded = heads.kind == Kind::shard && heads.files.size() > 1;
    MaybeShape shape = shape_if_any(sharded                     ? ShapeKind::shards
                                    : heads.kind == Kind::index ? ShapeKind::index
                                                                : ShapeKind::file,
                                    std::move(heads.files));
    if (shape) shape->finished = true;
    return shape;
}

// 2: safetensors shards with DCP information.

MaybeShape hf_shards(const FolderNames& names) {
    return shape_if_any(ShapeKind::hf_shards,
                        matching(names.files, [](std::string_view name) { return shard_file(name).has_value(); }));
}

// 3: torch.distributed.checkpoint.

MaybeShape dcp(const FolderNames& names) {
    if (has(names.files, ".metadata")) return FolderShape{.kind = ShapeKind::dcp, .files = {".metadata"}};
    return shape_if_any(ShapeKind::dcp, of_kind(names.files, NameKind::dcp_rank_metadata));
}

MaybeShape unfinished_dcp(const FolderNames& names) {
    return shape_if_any(ShapeKind::unfinished, matching(names.files, [](std::string_view name) {
                            const bool is_items = is_kind(name, NameKind::dcp_similar) && !name.starts_with('.');
                            return is_items || is_kind(name, NameKind::dcp_unfinished);
                        }));
}

// Layouts that are known by name and refused.

MaybeShape known_and_refused(const FolderNames& names) {
    if (has(names.files, "metadata.pkl") && std::any_of(names.files.begin(), names.files.end(), is_item_of_rank))
        return FolderShape{.kind = ShapeKind::torch_checkpointing, .files = {"metadata.pkl"}};
    if (has(names.files, "checkpoint_metadata.json") && has(names.folders, "model"))
        return FolderShape{.kind = ShapeKind::nanotron, .files = {"checkpoint_metadata.json"}};
    const auto is_array = [](const auto&, const FolderNames& below) { return has(below.files, ".zarray"); };
    return shape_if_any(ShapeKind::megatron_zarr, folders_where(names, is_array));
}

// 4 and 5: DeepSpeed.

/// Returns true for a universal checkpoint. At stage 3 it has no files outside `zero`.
bool holds_universal(const FolderNames& names) {
    const auto zero = std::find(names.folders.begin(), names.folders.end(), "zero");
    if (zero == names.folders.end()) return false;
    // A folder inside: other weights in it are a better sign than a name.
    const auto is_other = [](const std::string& file) {
        return (is_weights(file) || is_dcp_metadata(file)) && !is_kind(file, NameKind::zero_similar) &&
               !zero_name(file);
    };
    if (names.below.empty()) return std::none_of(names.files.begin(), names.files.end(), is_other);
    const FolderNames& parameters = names.below[static_cast<std::size_t>(zero - names.folders.begin())];
    return !parameters.folders.empty();
}

MaybeShape deepspeed_tag(const FolderNames& names) {
    if (holds_universal(names)) return FolderShape{.kind = ShapeKind::universal, .files = {"zero"}};
    MaybeShape shape = shape_if_any(ShapeKind::deepspeed, of_kind(names.files, NameKind::zero_similar));
    if (shape && has(names.folders, "offloaded_tensors"))
        return FolderShape{.kind = ShapeKind::offloaded, .files = {"offloaded_tensors"}};
    return shape;
}

/// Returns the text with white space stripped, as deepspeed does. Returns an empty text if it is not one path segment
/// on one line.
std::string_view path_segment(std::string_view text) {
    constexpr std::string_view space = " \t\r\n\f\v";
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    text = text.substr(0, text.find_last_not_of(space) + 1);
    const bool segment = text != "." && text != ".." && text.find_first_of(std::string_view("/\n\r\0", 4)) == text.npos;
    return segment ? text : std::string_view();
}

FolderShape bad_tag(std::string_view file, std::string fault) {
    return {.kind = ShapeKind::bad_tag, .files = {std::string(file)}, .fault = std::move(fault)};
}

/// Returns the shape of the folder `tag` as seen from the folder around it.
FolderShape seen_from_root(FolderShape shape, const std::string& tag) {
    for (std::string& file : shape.files) file = tag + '/' + file;
    if (shape.kind != ShapeKind::offloaded) shape.files = {tag};
    shape.inside = true;
    return shape;
}

FolderShape named_tag(const FolderNames& names, std::string_view file, std::string_view text) {
    const std::string tag(path_segment(text));
    if (tag.empty()) return bad_tag(file, "expected one line with a tag, the name of a folder beside it");
    const auto found = std::find(names.folders.begin(), names.folders.end(), tag);
    if (found == names.folders.end())
        return bad_tag(file, "it names the tag '" + tag + "', but there is no such folder");
    auto shape = deepspeed_tag(names.below[static_cast<std::size_t>(found - names.folders.begin())]);
    if (!shape) return {.kind = ShapeKind::deepspeed, .files = {tag}, .inside = true};
    return seen_from_root(std::move(*shape), tag);
}

FolderShape one_of_tags(const FolderNames& names, const FileNames& tags) {
    if (names.latest) return named_tag(names, "latest", *names.latest);
    if (names.latest_universal) return named_tag(names, "latest_universal", *names.latest_universal);
    if (tags.size() == 1) return named_tag(names, "latest", tags.front());
    std::string what = "it is missing, and there are " + std::to_string(tags.size()) + " tags:";
    for (const std::string& tag : tags) what += ' ' + tag + (&tag == &tags.back() ? "" : ",");
    FolderShape shape = bad_tag("latest", std::move(what));
    shape.newest = newest_save(tags);
    return shape;
}

MaybeShape deepspeed_root(const FolderNames& names) {
    FileNames tags = folders_where(names, [](const std::string& name, const FolderNames& below) {
        return !name.starts_with('.') && deepspeed_tag(below);
    });
    if (tags.empty()) return std::nullopt;
    FolderShape shape = one_of_tags(names, tags);
    if (!shape.inside) return shape;
    std::erase(tags, shape.files.front());
    shape.others = std::move(tags);
    return shape;
}

// 6: Megatron.

constexpr std::string_view iteration_pointer = "latest_checkpointed_iteration.txt";

/// Returns the folder that the text of this pointer names.
FolderShape iteration(const FolderNames& names, std::string_view text) {
    const std::string named(path_segment(text));
    if (named != "release" && !is_digits(named)) return bad_tag(iteration_pointer, "expected 'release' or a number");
    const std::string zeros(named.size() < 7 ? 7 - named.size() : 0, '0');
    const FileNames candidates =
        named == "release" ? FileNames{named} : FileNames{"iter_" + zeros + named, "global_step_" + named};
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&names](const std::string& folder) { return has(names.folders, folder); });
    if (found == candidates.end())
        return bad_tag(iteration_pointer, "it names '" + named + "', but there is no folder for it");
    FolderShape shape{.kind = ShapeKind::folder, .files = {*found}};
    for (const std::string& folder : names.folders)
        if (folder != *found && is_kind(folder, NameKind::iteration)) shape.others.push_back(folder);
    return shape;
}

MaybeShape megatron(const FolderNames& names) {
    if (names.latest_checkpointed_iteration) return iteration(names, *names.latest_checkpointed_iteration);
    FileNames ranks;
    for (std::size_t i = 0; i < names.folders.size(); ++i)
        if (is_kind(names.folders[i], NameKind::megatron_rank) &&
            (names.below.empty() || has(names.below[i].files, "model_optim_rng.pt")))
            ranks.push_back(names.folders[i] + "/model_optim_rng.pt");
    return shape_if_any(ShapeKind::megatron_ranks, std::move(ranks));
}

// 7: one file per rank.

/// Returns true for files of ranks of which that of rank 0 is missing: by names that only trainers give, or because all
/// others are there.
bool lacks_rank_0(const RankSet& set) {
    const std::string_view glob = set.name.set;
    if (glob == "rank*.pt" || glob == "rank_*.pt" || glob.starts_with("pytorch_model_fsdp") ||
        glob.starts_with("optimizer_"))
        return true;
    const auto& ranks = set.by_rank;
    return ranks.size() > 1 && ranks.begin()->first == 1 && ranks.rbegin()->first == ranks.size();
}

/// Returns true if the files are those of ranks. "lora_rank8.pt" is not.
bool is_set(const RankSet& set) {
    if (set.name.world_size) return true;
    const auto& ranks = set.by_rank;
    // Epochs are numbered in the same way, but not from 0 without a gap.
    if (set.name.set.starts_with("checkpoint_"))
        return ranks.size() > 1 && ranks.begin()->first == 0 && ranks.rbegin()->first + 1 == ranks.size();
    return ranks.begin()->first == 0 || lacks_rank_0(set);
}

/// Returns the shape of files of ranks. If `listed`, the caller has named the files, so that several of one set are
/// files of ranks even without that of rank 0.
MaybeShape shape_of_ranks(const FileNames& names, bool listed) {
    std::map<std::string, RankSet> sets = rank_sets(names);
    std::erase_if(
        sets, [&](const auto& each) { return !(listed && each.second.by_rank.size() > 1) && !is_set(each.second); });
    const auto holds_state = [](const auto& each) { return is_training_state(each.second.name); };
    if (!std::all_of(sets.begin(), sets.end(), holds_state)) std::erase_if(sets, holds_state);
    if (sets.empty()) return std::nullopt;
    if (sets.size() == 1) return shape_if_any(ShapeKind::rank_files, sets.begin()->second.files());
    FileNames globs;
    for (const auto& each : sets) globs.push_back(each.first);
    const auto pair = model_and_optimizer(globs);
    if (!pair) return several(std::move(globs), Several::rank_sets);
    return FolderShape{.kind = ShapeKind::rank_files,
                       .files = sets.at(pair->model).files(),
                       .optimizer = sets.at(pair->optimizer).files()};
}

/// Returns the folder of DCP with the optimizer of a set of rank files. accelerate writes `optimizer_0/` beside
/// `pytorch_model_fsdp_rank*.bin`, whose model is a LOCAL_STATE_DICT.
std::string optimizer_beside(const FolderNames& names, const std::string& set) {
    const std::size_t rank = set.rfind("_rank*");
    if (rank == std::string::npos) return {};
    const std::string stem = set.substr(0, rank);
    for (std::size_t i = 0; i < names.below.size(); ++i) {
        const auto pair = model_and_optimizer({stem, names.folders[i]});
        if (pair && pair->optimizer == names.folders[i] && dcp(names.below[i])) return names.folders[i];
    }
    return {};
}

MaybeShape rank_files(const FolderNames& names) {
    MaybeShape shape = shape_of_ranks(names.files, false);
    if (shape && shape->kind == ShapeKind::rank_files && shape->optimizer.empty())
        shape->optimizer_inside = optimizer_beside(names, rank_file(shape->files.front())->set);
    return shape;
}

// 8: the only other file of weights.

/// Returns the files of weights without companions.
FileNames weights_in(const FolderNames& names) {
    return matching(names.files, [](std::string_view name) { return is_weights(name) && !is_companion(name); });
}

/// Returns the numbered shards of one model, if all files of weights are of it and some of it are missing.
MaybeShape lacking_shards(const FolderNames& names) {
    const std::vector<ShardSet> sets = shard_sets(names.files);
    if (sets.size() != 1 || sets.front().complete() || weights_in(names).size() != sets.front().files.size())
        return std::nullopt;
    return FolderShape{.kind = ShapeKind::shards_lack, .files = sets.front().files};
}

MaybeShape other_weights(const FolderNames& names) {
    FileNames weights = matching(names.files, is_weights);
    if (weights.empty()) return std::nullopt;
    if (std::all_of(weights.begin(), weights.end(), is_companion))
        return FolderShape{.kind = ShapeKind::companions, .files = std::move(weights)};
    std::erase_if(weights, is_companion);
    if (weights.size() > 1) {
        FolderShape shape = several(std::move(weights), Several::files);
        shape.newest = newest_save(shape.files);
        return shape;
    }
    return FolderShape{.kind = ShapeKind::file, .files = std::move(weights)};
}

/// A kind of checkpoint, and where it is looked for besides in the folder itself.
struct Row {
    MaybeShape (*find)(const FolderNames&);
    bool beside_model;  ///< beside a finished model
    bool inside;        ///< in the folders inside
};
constexpr Row rows[] = {
    {finished_model, false, true}, {hf_shards, true, true},         {dcp, true, true},
    {unfinished_dcp, true, true},  {known_and_refused, true, true}, {deepspeed_root, true, true},
    {deepspeed_tag, true, true},   {megatron, true, true},          {rank_files, false, true},
    {lacking_shards, false, true}, {other_weights, false, false},
};

/// Returns what the first of all rows finds, or of those that are looked for `where`.
FolderShape first_of(const FolderNames& names, bool Row::*where = nullptr) {
    for (const Row& row : rows) {
        if (where != nullptr && !(row.*where)) continue;
        if (auto shape = row.find(names)) return std::move(*shape);
    }
    return {};
}

// 9: the folders inside.

/// Returns true for hidden folders, for unfinished saves of other programs, and for a hub's caches of other things than
/// models.
bool passed_over(std::string_view folder) {
    return folder.starts_with('.') || folder.ends_with(".tmp") || folder.ends_with(".lock") ||
           folder.starts_with("tmp-checkpoint-") || folder.starts_with("datasets--") || folder.starts_with("spaces--");
}

/// Returns true for the folder of a repository in the cache of a model hub.
bool is_hub_cache(const FolderNames& names) {
    return has(names.folders, "snapshots") && (has(names.folders, "refs") || has(names.folders, "blobs"));
}

FolderShape shape_inside(const FolderNames& names);

/// Returns the shape of a folder inside the folder. The level below it is not listed, unless it is one of the saves of
/// a run, so a file that names a tag is enough.
FolderShape shape_of_inner(const FolderNames& names) {
    constexpr std::string_view pointers[] = {"latest", "latest_universal", iteration_pointer};
    const auto model = first_of(names, &Row::inside);
    if (model.kind != ShapeKind::nothing || names.folders.empty()) return model;
    for (const std::string_view pointer : pointers)
        if (has(names.files, pointer)) return {.kind = ShapeKind::deepspeed};
    if (is_hub_cache(names)) return {.kind = ShapeKind::folder};
    return shape_inside(names);
}

/// Returns the folders inside that hold a model of their own.
FileNames components(const FolderNames& names) {
    return folders_where(names, [](const std::string& name, const FolderNames& below) {
        return !passed_over(name) && holds_checkpoint(first_of(below));
    });
}

/// Returns the folders inside whose weights are of another framework alone, as paths of one of their files:
/// "vision/tf_model.h5". Those among `others` are no such folders.
FileNames foreign_weights(const FolderNames& names, const FileNames& others) {
    FileNames found;
    for (std::size_t i = 0; i < names.below.size(); ++i) {
        if (passed_over(names.folders[i]) || has(others, names.folders[i])) continue;
        const FileNames& files = names.below[i].files;
        const auto file = std::find_if(files.begin(), files.end(), is_foreign_weights);
        if (file != files.end()) found.push_back(names.folders[i] + '/' + *file);
    }
    return found;
}

/// The file in which diffusers lists the components of a pipeline, and that of sentence-transformers.
constexpr std::string_view pipeline_list = "model_index.json";
constexpr std::string_view module_list = "modules.json";

/// Returns the models of a pipeline of diffusers: the folder of each component, and files of weights beside them, which
/// hold the pipeline in another way.
MaybeShape pipeline(const FolderNames& names) {
    if (!has(names.files, pipeline_list)) return std::nullopt;
    FileNames models = components(names);
    if (models.empty()) return std::nullopt;
    FileNames foreign = foreign_weights(names, models);
    const auto is_lacking = [&](const std::string& name) {
        return !has(models, name) && std::none_of(foreign.begin(), foreign.end(), [&](const std::string& file) {
            return file.starts_with(name + '/');
        });
    };
    FileNames lack = matching(names.listed_components, is_lacking);
    FileNames files = weights_in(names);
    models.insert(models.end(), std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
    if (models.size() == 1 && lack.empty() && foreign.empty())
        return FolderShape{.kind = ShapeKind::folder, .files = std::move(models)};
    FolderShape shape = several(std::move(models), Several::pipeline);
    shape.others = std::move(lack);
    shape.foreign = std::move(foreign);
    return shape;
}

/// Returns the first module with a model that `modules.json` lists, if the folder is one of sentence-transformers.
MaybeShape first_module(const FolderNames& names) {
    FileNames models = names.listed_modules.empty() ? FileNames() : components(names);
    const auto first = std::find_if(names.listed_modules.begin(), names.listed_modules.end(),
                                    [&](const std::string& module) { return has(models, module); });
    if (first == names.listed_modules.end()) return std::nullopt;
    FileNames foreign = foreign_weights(names, models);
    std::erase(models, *first);
    models.insert(models.end(), std::make_move_iterator(foreign.begin()), std::make_move_iterator(foreign.end()));
    return FolderShape{.kind = ShapeKind::folder, .files = {*first}, .others = std::move(models)};
}

/// Reads a small file of JSON. Returns nothing if the folder does not have it, or if it is not JSON.
std::optional<json::Value> read_list(const Folder& folder, const FileNames& files, std::string_view name) {
    constexpr std::uint64_t longest = 1 << 20;
    const auto list = has(files, name) ? folder.open(name) : nullptr;
    if (!list) return std::nullopt;
    try {
        return json::parse(json::read_text(*list, longest, Errc::index_not_json, name), Errc::index_not_json);
    } catch (const Error& error) {
        if (error.code() != Errc::index_not_json) throw;
        return std::nullopt;
    }
}

/// Returns the folders of the modules of sentence-transformers, in their order:
/// [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}].
FileNames modules_in(const std::optional<json::Value>& root) {
    FileNames modules;
    if (!root || root->array() == nullptr) return modules;
    for (const json::Value& module : *root->array()) {
        const json::Value* const path = module.find("path");
        if (path != nullptr && path->string() != nullptr) modules.push_back(*path->string());
    }
    return modules;
}

/// Returns the components of a pipeline that have weights, by the names of their classes:
/// {"unet": ["diffusers", "UNet2DConditionModel"], "scheduler": ["diffusers", "PNDMScheduler"]}.
FileNames components_in(const std::optional<json::Value>& root) {
    // Words of classes, which a program may choose itself, and of the names that pipelines give to the components.
    constexpr std::string_view without_weights[] = {"Scheduler", "Tokenizer", "Processor", "FeatureExtractor",
                                                    "scheduler", "tokenizer", "processor", "feature_extractor"};
    const auto has_weights = [&](const std::string& name) {
        return std::none_of(std::begin(without_weights), std::end(without_weights),
                            [&](auto word) { return name.find(word) != std::string::npos; });
    };
    const auto is_class_of_weights = [&](const json::Value& value) {
        const auto* const pair = value.array();
        const std::string* const name = pair != nullptr && pair->size() == 2 ? (*pair)[1].string() : nullptr;
        return name != nullptr && has_weights(*name);
    };
    FileNames components;
    if (!root || root->object() == nullptr) return components;
    for (const json::Member& member : *root->object())
        if (!member.key.starts_with('_') && has_weights(member.key) && is_class_of_weights(member.value))
            components.push_back(member.key);
    return components;
}

/// Returns true if the shape lacks files, by their names. A save of an optimizer alone lacks its model.
bool lacks_files(const FolderShape& shape) {
    if (shape.kind == ShapeKind::shards_lack) return true;
    if (shape.kind == ShapeKind::folder && !shape.files.empty()) return names_optimizer(shape.files.front());
    const auto rank = shape.kind == ShapeKind::rank_files ? rank_file(shape.files.front()) : std::nullopt;
    return rank && ranks_in_set(*rank, shape.files) > shape.files.size();
}

/// The folders inside that hold a checkpoint, and what else is in them.
struct Inside {
    FileNames found = {};
    FileNames whole = {};  ///< folders of `found` that no name says to be unfinished
    FileNames others = {};
    FileNames unfinished = {};
    FileNames optimizer = {};
};

Inside look_inside(const FolderNames& names) {
    // The last files that DeepSpeed and the Trainer of transformers write. A save without one is unfinished where
    // others have it.
    constexpr std::string_view last_files[] = {"latest", "trainer_state.json"};
    Inside inside;
    FileNames rank_sets;
    for (std::size_t i = 0; i < names.below.size(); ++i) {
        const std::string& name = names.folders[i];
        if (passed_over(name)) continue;
        const FolderShape shape = shape_of_inner(names.below[i]);
        if (shape.kind == ShapeKind::nothing) {
            if (!weights_in(names.below[i]).empty()) inside.others.push_back(name);
            continue;
        }
        // OLMo keeps the state of each rank in train/ beside the model.
        const bool state = name == "train" && shape.kind == ShapeKind::rank_files;
        (shape.kind == ShapeKind::unfinished ? inside.unfinished : state ? rank_sets : inside.found).push_back(name);
        if (shape.kind == ShapeKind::unfinished || lacks_files(shape)) continue;
        inside.whole.push_back(name);
    }
    if (inside.found.empty()) inside.found = std::move(rank_sets);
    for (const std::string_view file : last_files) {
        const FileNames with = folders_where(names, [&](const std::string& name, const FolderNames& below) {
            return has(below.files, file) && has(inside.whole, name);
        });
        if (!with.empty()) inside.whole = with;
    }
    return inside;
}

/// Takes the states of optimizers out of what was found, if a model is left. That of the only model is its optimizer.
void take_optimizers(Inside& inside) {
    FileNames optimizers;
    FileNames models;
    for (const std::string& name : inside.found) (names_optimizer(name) ? optimizers : models).push_back(name);
    if (auto pair = model_and_optimizer(inside.found)) {  // "critic_model" and "critic_optimizer"
        models = {std::move(pair->model)};
        optimizers = {std::move(pair->optimizer)};
    }
    if (models.empty()) return;
    inside.found = std::move(models);
    for (std::string& name : optimizers) {
        const auto pair = model_and_optimizer({inside.found.front(), name});
        const bool is_its = inside.found.size() == 1 && pair && pair->optimizer == name;
        (is_its ? inside.optimizer : inside.others).push_back(std::move(name));
    }
}

/// Takes the saves of a run out of what was found, if the model of its end is beside them.
void take_saves(Inside& inside) {
    const auto is_save = [](const std::string& name) { return is_numbered_save(name); };
    FileNames saves = matching(inside.found, is_save);
    if (saves.size() + 1 != inside.found.size()) return;
    const auto model = std::find_if_not(inside.found.begin(), inside.found.end(), is_save);
    if (!names_model(*model)) return;
    inside.found = {*model};
    move_names(std::move(saves), inside.others);
}

FolderShape shape_inside(const FolderNames& names) {
    Inside inside = look_inside(names);
    take_optimizers(inside);
    take_saves(inside);
    // The model beside an optimizer is not whole, and the optimizer is not the model.
    if (!inside.unfinished.empty() && std::all_of(inside.found.begin(), inside.found.end(), names_optimizer))
        inside.found.clear();
    if (inside.found.size() > 1) {
        FolderShape shape = several(std::move(inside.found), Several::folders);
        std::erase_if(inside.whole, [&](const std::string& name) { return !has(shape.files, name); });
        shape.newest = newest_save(inside.whole);
        return shape;
    }
    if (inside.found.size() == 1) {
        FileNames known = inside.others;
        known.push_back(inside.found.front());
        known.insert(known.end(), inside.optimizer.begin(), inside.optimizer.end());
        move_names(foreign_weights(names, known), inside.others);
        return {.kind = ShapeKind::folder,
                .files = std::move(inside.found),
                .others = std::move(inside.others),
                .unfinished = std::move(inside.unfinished),
                .optimizer = std::move(inside.optimizer)};
    }
    if (inside.unfinished.empty()) return {};
    return {.kind = ShapeKind::unfinished, .files = std::move(inside.unfinished), .inside = true};
}

/// Returns the snapshot that `refs/main` names in the cache of a model hub, or the only one.
MaybeShape snapshot(const FolderNames& names) {
    constexpr std::string_view pointer = "refs/main";
    if (!is_hub_cache(names) || names.below.empty()) return std::nullopt;
    const auto at = std::find(names.folders.begin(), names.folders.end(), "snapshots") - names.folders.begin();
    FileNames snapshots = names.below[static_cast<std::size_t>(at)].folders;
    for (std::string& one : snapshots) one.insert(0, "snapshots/");
    if (!names.main_ref) {
        if (snapshots.size() > 1) return several(std::move(snapshots), Several::snapshots);
        return shape_if_any(ShapeKind::folder, std::move(snapshots));
    }
    const std::string commit(path_segment(*names.main_ref));
    if (commit.empty() || commit.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        return bad_tag(pointer, "expected one line with the hash of a commit, the name of a folder in snapshots/");
    const std::string named = "snapshots/" + commit;
    if (!has(snapshots, named))
        return FolderShape{.kind = ShapeKind::no_snapshot, .files = {named}, .others = std::move(snapshots)};
    std::erase(snapshots, named);
    return FolderShape{.kind = ShapeKind::folder, .files = {named}, .others = std::move(snapshots)};
}

/// Lists the names that are not read, for the notes: weights, indexes and DCP metadata. Other files are common beside a
/// model.
void name_others(const FolderNames& names, FolderShape& shape) {
    std::set<std::string_view> used(shape.files.begin(), shape.files.end());  // a run may have thousands of files
    used.insert(shape.optimizer.begin(), shape.optimizer.end());
    for (const std::string& name : names.files)
        if (!used.contains(name) && (is_weights(name) || name.ends_with(".index.json") || name == ".metadata"))
            shape.others.push_back(name);
    // torch leaves the shards of the ranks in this folder after it has joined them.
    if (shape.finished && has(names.folders, "sharded")) shape.others.emplace_back("sharded");
}

/// Returns the text of a marker file. A marker is one line. A file that is longer than any path names no folder, and
/// gives an empty text.
std::optional<std::string> read_marker(const Folder& folder, const FileNames& files, std::string_view name) {
    constexpr std::uint64_t longest = 4096;
    if (!has(files, name)) return std::nullopt;
    const auto source = folder.open(name);
    if (!source) return std::nullopt;
    std::string text(std::min(source->size(), longest), '\0');
    source->read_at(0, std::as_writable_bytes(std::span(text)));
    return source->size() > longest ? std::string() : text;
}

/// Takes a link to a tag as the marker of that name, and not as another tag.
void follow_link(const Folder& folder, const std::string& name, std::optional<std::string>& text, FolderNames& names) {
    if (text || !has(names.folders, name)) return;
    std::string tag = folder.link_to_folder(name);
    if (tag.empty()) return;
    std::erase(names.folders, name);
    text = std::move(tag);
}

/// Removes the text of a marker that leads out of the folder and names nothing in it: messages would show the text, and
/// the marker may be a link to somebody's secret.
void hide_foreign(const Folder& folder, std::string_view name, bool is_known, std::optional<std::string>& text) {
    if (text && !is_known && !folder.link_out(std::string(name)).empty()) text->clear();
}

FolderNames list_names(const Folder& folder) {
    FolderNames names{.files = folder.list(), .folders = folder.folders()};
    std::sort(names.files.begin(), names.files.end());
    std::sort(names.folders.begin(), names.folders.end());
    return names;
}

/// Lists the names in a folder inside the folder, and `levels` levels below it. A folder that is gone, or that may not
/// be read, is empty.
FolderNames list_names_below(const Folder& folder, const std::string& name, int levels) {
    constexpr std::size_t most_folders = 64;  // a save of a run has a few; other folders may have thousands
    if (name.starts_with('.')) return {};
    try {
        const auto below = folder.folder(name);
        if (!below) return {};
        FolderNames names = list_names(*below);
        if (levels == 0 || !is_numbered_save(name) || names.folders.size() > most_folders) return names;
        if (shape_of_inner(names).kind != ShapeKind::nothing) return names;
        for (const std::string& inner : names.folders)
            names.below.push_back(list_names_below(*below, inner, levels - 1));
        return names;
    } catch (const Error& error) {
        if (error.code() != Errc::permission_denied) throw;
        return {};
    }
}

/// Removes the folders in `zero` if they do not look as those of parameters: any folder may be called so.
void hide_other_zero(const Folder& folder, FolderNames& names) {
    constexpr std::size_t most_looked_at = 16;
    const auto zero = std::find(names.folders.begin(), names.folders.end(), "zero");
    if (zero == names.folders.end()) return;
    FolderNames& inner = names.below[static_cast<std::size_t>(zero - names.folders.begin())];
    const auto opened = inner.folders.empty() ? nullptr : folder.folder("zero");
    if (!opened) return;
    const auto end =
        inner.folders.begin() + static_cast<std::ptrdiff_t>(std::min(inner.folders.size(), most_looked_at));
    const bool any = std::any_of(inner.folders.begin(), end, [&](const std::string& name) {
        return !ending_in(list_names_below(*opened, name, 0).files, ".pt").empty();
    });
    if (!any) inner.folders.clear();
}

}  // namespace

FileNames safetensors_heads(const FileNames& files, std::string_view stem) {
    FileNames heads = ending_in(files, ".safetensors.index.json");
    std::string single = std::string(stem) + ".safetensors";
    if (heads.empty() && has(files, single)) heads.push_back(std::move(single));
    return heads;
}

FolderShape shape_of_dcp(const FolderNames& names, std::string_view file) {
    if (file == ".metadata") return {.kind = ShapeKind::dcp, .files = {".metadata"}};
    return {.kind = ShapeKind::dcp, .files = of_kind(names.files, NameKind::dcp_rank_metadata)};
}

FolderShape shape_of_files(const FileNames& files) {
    FolderNames names{.files = files};
    std::sort(names.files.begin(), names.files.end());
    const auto is_rank_file = [](const std::string& file) { return rank_file(file).has_value(); };
    if (std::all_of(files.begin(), files.end(), is_rank_file))
        return shape_of_ranks(names.files, true).value_or(FolderShape());
    auto shape = hf_shards(names);
    return shape && shape->files.size() == files.size() ? std::move(*shape) : FolderShape();
}

FolderShape shape_of_folder(const FolderNames& names) {
    FolderShape shape = first_of(names);
    name_others(names, shape);
    if (!shape.finished || names.below.empty()) return shape;
    if (has(names.files, module_list)) {
        FileNames modules = components(names);
        shape.others.insert(shape.others.end(), modules.begin(), modules.end());
    }
    const FolderShape beside = shape_beside_model(names);
    if (beside.kind == ShapeKind::deepspeed || beside.kind == ShapeKind::universal)
        shape.others.insert(shape.others.end(), beside.files.begin(), beside.files.end());
    return shape;
}

FolderShape shape_of(const FolderNames& names) {
    if (MaybeShape parts = pipeline(names)) return *std::move(parts);
    FolderShape shape = shape_of_folder(names);
    if (holds_checkpoint(shape)) return shape;
    if (MaybeShape module = first_module(names)) return *std::move(module);
    if (MaybeShape cached = snapshot(names)) return *std::move(cached);
    FolderShape inside = shape_inside(names);
    if (inside.kind != ShapeKind::nothing) return inside;
    // DeepSpeed's marker tells what the folder is, even if no tag is left.
    if (names.latest) return named_tag(names, "latest", *names.latest);
    // Alone, such a file is what its reader wants. Beside folders of folders it is not: a model may be deeper in them.
    const bool alone = std::all_of(names.below.begin(), names.below.end(),
                                   [](const FolderNames& below) { return below.folders.empty(); });
    if (shape.files.size() == 1 && alone) shape.kind = ShapeKind::file;
    return shape;
}

FolderShape shape_beside_model(const FolderNames& names) { return first_of(names, &Row::beside_model); }

FolderNames names_in(const Folder& folder) {
    FolderNames names = list_names(folder);
    names.latest = read_marker(folder, names.files, "latest");
    names.latest_universal = read_marker(folder, names.files, "latest_universal");
    for (auto* const marker : {&names.latest, &names.latest_universal})
        hide_foreign(folder, marker == &names.latest ? "latest" : "latest_universal",
                     *marker && has(names.folders, path_segment(**marker)), *marker);
    follow_link(folder, "latest", names.latest, names);
    follow_link(folder, "latest_universal", names.latest_universal, names);
    names.latest_checkpointed_iteration = read_marker(folder, names.files, iteration_pointer);
    const auto& at = names.latest_checkpointed_iteration;
    hide_foreign(folder, iteration_pointer, at && iteration(names, *at).kind == ShapeKind::folder,
                 names.latest_checkpointed_iteration);
    names.listed_components = components_in(read_list(folder, names.files, pipeline_list));
    names.listed_modules = modules_in(read_list(folder, names.files, module_list));
    const bool listed = names.latest || has(names.files, pipeline_list) || has(names.files, module_list);
    if (finished_model(names) && !listed) return names;
    names.below.reserve(names.folders.size());
    for (const std::string& name : names.folders) names.below.push_back(list_names_below(folder, name, 1));
    hide_other_zero(folder, names);
    if (!is_hub_cache(names)) return names;
    if (const auto refs = has(names.folders, "refs") ? folder.folder("refs") : nullptr)
        names.main_ref = read_marker(*refs, refs->list(), "main");
    return names;
}

}  // namespace safemap::SAFEMAP_ABI::names
