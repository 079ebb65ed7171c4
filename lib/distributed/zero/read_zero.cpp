// From the names of a tag's files to the contents of a checkpoint. The order of the steps:
//
//   read_files        all files of all ranks, in parallel, compared with those of the first rank
//   weights_of        the modules, or the masters (join_all_ranks) and what has none, merged over model ranks
//   set_weights       tensors, ties and notes
//   set_optimizer     what is read on request
#include "distributed/zero/read_zero.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"
#include "distributed/parallel/experts.hpp"
#include "distributed/parallel/pipeline.hpp"
#include "distributed/pickles.hpp"
#include "distributed/zero/keys.hpp"
#include "distributed/zero/layers.hpp"
#include "distributed/zero/one_run.hpp"
#include "distributed/zero/run.hpp"
#include "distributed/zero/universal.hpp"
#include "state/training.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using state::Contents;

[[noreturn]] void refuse_call(std::string message, std::string_view hint = {}) {
    Error error(Errc::invalid_argument, std::move(message));
    if (!hint.empty()) error.with_hint(hint);
    throw error;
}

std::vector<std::string> names_of(const std::vector<ZeroFile>& files) {
    std::vector<std::string> names;
    for (const ZeroFile& file : files) names.push_back(file.file);
    return names;
}

// Reading.

/// Reads files of one kind into `out`, which has a place for each. The first file of each model rank is read before the
/// others, which are compared with it.
template <class File, class Read>
void read_kind(const ZeroTag& tag, const OpenOptions& options, const std::vector<ZeroFile>& files, FoundGlobals& found,
               std::vector<File>& out, const Read& read) {
    out.resize(files.size());
    std::vector<std::size_t> group(files.size());  // number of the file's model rank among those that have files
    std::vector<std::size_t> order[2];
    for (std::size_t i = 0; i < files.size(); ++i) {
        const bool begins = i == 0 || files[i].name.model_rank != files[i - 1].name.model_rank;
        order[begins ? 0 : 1].push_back(i);
        group[i] = order[0].size() - 1;
    }
    std::vector<FoundGlobals> globals[2] = {std::vector<FoundGlobals>(order[0].size(), found.another()),
                                            std::vector<FoundGlobals>(order[1].size(), found.another())};
    std::vector<GlobalKeys> listed(order[0].size());
    for (const std::size_t round : {std::size_t{0}, std::size_t{1}}) {
        std::vector<std::string> names;
        for (const std::size_t i : order[round]) names.push_back(files[i].file);
        for_each_file(*tag.folder, names, options.work, [&](std::size_t number, const auto& source) {
            const std::size_t i = order[round][number];
            torch::NamedGlobals own(options.strict_globals);
            out[i] = read(source, files[i], round == 0 ? Detail::all : Detail::share, own);
            if (round == 1) compare_and_drop(out[order[0][group[i]]], out[i]);
            globals[round][number] = found.another(own, files[i].file, listed[group[i]]);
            if (round == 0) listed[number] = keys_of(own);
        });
    }
    for (std::vector<FoundGlobals>& of_round : globals)
        for (FoundGlobals& of_file : of_round) found.add(std::move(of_file));
}

/// Moves the files to the sets of their model ranks.
void fill_sets(ZeroRun& run, std::vector<ModelFile> models, std::vector<OptimizerFile> optimizers) {
    run.sets.resize(run.files.model_ranks);
    for (ModelFile& file : models) run.sets[file.model_rank].models.push_back(std::move(file));
    for (OptimizerFile& file : optimizers) run.sets[file.model_rank].optimizers.push_back(std::move(file));
    for (ModelRankFiles& set : run.sets) set.data_first = set.models.front().data_first;
}

/// Returns how many ranks of tensor parallelism the files of layers are of.
std::uint64_t layer_ranks(const ZeroFiles& files) {
    std::uint64_t ranks = 1;
    for (const ZeroFile& file : files.layers) ranks = std::max(ranks, file.name.model_rank + 1);
    return ranks;
}

/// Reads how slices of tensor parallelism are merged, from the first file of model states.
void read_info(ZeroRun& run) {
    const StateTree& rest = run.first_model().rest;
    if (rest.size() == 0) return;
    if (const auto info = Value(rest).find("universal_checkpoint_info")) run.info = read_universal_info(*info);
}

/// Reads the number of ranks of tensor parallelism, from the first file of model states, or the names of layers.
void read_parallelism(ZeroRun& run) {
    run.tensor_ranks = parallel_degrees(run.first_model()).tensor_ranks.value_or(0);
    if (run.tensor_ranks == 0) run.tensor_ranks = run.is_pipeline() ? layer_ranks(run.files) : run.sets.size();
    if (run.is_pipeline() && run.sets.size() % run.tensor_ranks != 0)
        throw Error(Errc::world_mismatch, "tp_degree, or the files of layers, say that there are " +
                                              std::to_string(run.tensor_ranks) +
                                              " ranks of tensor parallelism; there are files of " +
                                              std::to_string(run.sets.size()) + " model ranks")
            .with_path(run.first_model().file);
}

/// Throws if the weights are in optimizer files, and these are missing.
void require_optimizers(const ZeroRun& run) {
    if (run.stage() == 0 || !run.files.optimizers.empty()) return;
    const ModelFile& model = run.first_model();
    const names::RankedName like{.kind = names::NameKind::zero_optimizer,
                                 .prefix = model.dtype == "bf16" ? "bf16_" : ""};
    Error error(Errc::rank_missing, "the file is of ZeRO stage " + std::to_string(run.stage()) +
                                        ", and no file of optimizer states is there: missing are " +
                                        optimizer_names(like, 0, model.data_ranks.value_or(1)));
    if (run.stage() < 3) error.with_hint("--weights module gives the 16-bit weights, which are all there");
    throw error.with_path(model.file);
}

/// Returns true if the weights are those of the modules: if options ask for them, and if the files have no masters.
bool wants_module(const ZeroRun& run, const OpenOptions& options) {
    return options.weights == Weights::module || (run.stage() == 0 && options.weights != Weights::fp32);
}

/// Without ZeRO, ranks of experts have the state of their optimizer in files of their own, which are not read. With
/// ZeRO, older versions write these files too, with nothing in them. Throws unsupported_layout if they are needed.
void check_expert_optimizers(const ZeroTag& tag, const ZeroRun& run, const OpenOptions& options, FoundGlobals& found) {
    const std::vector<std::string> files = names_of(run.files.expert_optimizers);
    if (files.empty() || wants_module(run, options)) return;
    for_each_pickle(*tag.folder, files, options.work, &found, [](std::size_t, const auto& source, auto& globals) {
        constexpr std::array<std::string_view, 1> wanted{"optimizer"};
        const torch::Parts parts = torch::read_parts(source, wanted, &globals);
        if (Value(parts.tree).find("optimizer"))
            throw Error(Errc::unsupported_layout,
                        "optimizer states of experts in files of their own are not read; --weights module needs none");
    });
}

std::shared_ptr<ZeroRun> read_files(const ZeroTag& tag, const OpenOptions& options, FoundGlobals& found) {
    auto run = std::make_shared<ZeroRun>();
    run->files = names::zero_files(*tag.folder);
    std::vector<ModelFile> models;
    std::vector<OptimizerFile> optimizers;
    read_kind(tag, options, run->files.models, found, models, read_model_file);
    read_kind(tag, options, run->files.optimizers, found, optimizers, read_optimizer_file);
    fill_sets(*run, std::move(models), std::move(optimizers));
    require_model_ranks(run->first_model(), run->files);
    for (const ModelRankFiles& set : run->sets) check_ranks(set);
    for (const ModelRankFiles& set : run->sets) compare_sets(run->sets.front(), set);
    check_expert_optimizers(tag, *run, options, found);
    if (options.weights != Weights::module) require_optimizers(*run);
    read_info(*run);
    if (run->first_model().rest.size() > 0) read_parallelism(*run);
    for (const ModelRankFiles& set : run->sets) add_sources(set, run->sources);
    static_cast<void>(run->sources.table());  // made before threads share the run
    return run;
}

// Options.

void check_options(const OpenOptions& options) {
    if (options.deepspeed_compat && options.weights == Weights::module)
        refuse_call("the 16-bit weights of the module are not what zero_to_fp32 gives",
                    "leave out --deepspeed-compat or --weights module");
}

/// Throws if DeepSpeed's zero_to_fp32 refuses the folder.
void check_compat(const ZeroRun& run) {
    const auto refuse = [](std::string_view what) {
        refuse_call("zero_to_fp32 refuses " + std::string(what) + ", so there is nothing to be compatible with",
                    "leave out --deepspeed-compat: safemap reads this folder without it");
    };
    if (run.stage() == 0) refuse("a checkpoint without ZeRO (stage 0)");
    const ModelFile& model = run.first_model();
    const std::vector<OptimizerFile>& optimizers = run.sets.front().optimizers;
    if (run.sets.front().optimizers.front().bf16_optimizer) refuse("a checkpoint of BF16_Optimizer");
    if (run.is_pipeline()) refuse("a checkpoint with pipeline parallelism");
    if (run.sets.size() > 1) refuse("a checkpoint with tensor parallelism");
    if (!run.files.experts.empty()) refuse("a checkpoint with files of experts");
    if (model.one_group) refuse("the files of old versions, whose param_shapes is one dictionary");
    if (!model.lists_buffers) refuse("files without buffer_names");
    if (!model.lists_shared) refuse("files without shared_params");
    if (optimizers.front().partition_count.empty()) refuse("files without partition_count");
    if (!std::all_of(optimizers.begin(), optimizers.end(), [](const auto& file) { return file.is_zip; }))
        refuse("optimizer files in the legacy container");
}

void check_module(int stage) {
    if (stage != 3) return;
    refuse_call("files of stage 3 have no 16-bit weights, only the fp32 masters",
                "open the masters and cast them: --dtype bf16");
}

// Weights.

/// Returns the modules of all model ranks, merged like the masters. add(model, module) adds what is not in them.
template <class Add> ModelWeights join_modules(const ZeroRun& run, Add&& add) {
    std::vector<ModelRank> ranks;
    for (const ModelRankFiles& set : run.sets) {
        const ModelFile& model = set.models.front();
        ModelWeights module = list_module_weights(set);
        add(model, module);
        ranks.push_back({model.model_rank, model.file, std::move(module)});
    }
    return merge(std::move(ranks), run.info ? &*run.info : nullptr);
}

/// Returns the weights that files hold as the engine computes with them: the layers of a pipeline, or the modules with
/// their experts.
ModelWeights module_weights(const ZeroTag& tag, const ZeroRun& run, const OpenOptions& options, LayerWeights wanted,
                            FoundGlobals& found, std::vector<std::string>& files) {
    if (run.is_pipeline()) return pipeline_layers(*tag.folder, run, wanted, options.work, found, files);
    return join_modules(run, [&](const ModelFile& model, ModelWeights& module) {
        if (run.files.experts.empty() && model.experts.empty()) return;
        ExpertFiles experts = read_experts(*tag.folder, model.model_rank, model.experts, options.work, &found);
        for (auto& [name, tensor] : experts.weights) module.weights.push_back({name, std::move(tensor), {}, {}});
        state::move_to_end(experts.files, files);
    });
}

std::vector<std::string> buffers_of(const ZeroRun& run) {
    std::vector<std::string> names;
    for (const ModelRankFiles& set : run.sets)
        names.insert(names.end(), set.models.front().buffers.begin(), set.models.front().buffers.end());
    return names;
}

ModelWeights unnamed_masters(const ZeroRun& run) {
    if (run.sets.size() > 1)
        refuse_call("the fp32 masters of stage 0 have no names in the files, so those of " +
                        std::to_string(run.sets.size()) + " model ranks cannot be joined",
                    "--weights module gives the weights of all model ranks");
    return list_unnamed_masters(run.sets.front());
}

/// Adds the weights without masters, which only the files of layers or of experts have: frozen ones and buffers.
void add_without_masters(const ZeroRun& run, ModelWeights others, ModelWeights& out) {
    Named named;
    for (ModelWeights::Weight& weight : others.weights) named.emplace_back(weight.name, std::move(weight.tensor));
    add_layers(out, named, buffers_of(run));
    if (!run.is_pipeline()) return;
    for (std::string& note : others.notes)
        if (std::find(out.notes.begin(), out.notes.end(), note) == out.notes.end())
            out.notes.push_back(std::move(note));
    state::move_to_end(others.replicas, out.replicas);
}

ModelWeights weights_of(const ZeroTag& tag, const ZeroRun& run, const OpenOptions& options, FoundGlobals& found,
                        std::vector<std::string>& files) {
    if (wants_module(run, options)) {
        check_module(run.stage());
        return module_weights(tag, run, options, LayerWeights::all, found, files);
    }
    if (run.stage() == 0 && !run.is_pipeline()) return unnamed_masters(run);
    ModelWeights others;  // only the files of layers or of experts have them
    if (run.is_pipeline() || !run.files.experts.empty())
        others = module_weights(tag, run, options, LayerWeights::untrained, found, files);
    ModelWeights out = join_all_ranks(run, {.compat = options.deepspeed_compat});
    add_without_masters(run, std::move(others), out);
    return out;
}

// Contents.

void set_weights(Contents& contents, const ModelWeights& joined) {
    std::unordered_set<std::string_view> names;
    for (const ModelWeights::Weight& weight : joined.weights) {
        if (!names.insert(weight.name).second)
            throw Error(Errc::duplicate_name, "two tensors have this name").with_tensor(weight.name);
        contents.tensors.push_back(weight.tensor.renamed(weight.name));
    }
    contents.aliases = joined.aliases;
    contents.replicas.assign(joined.replicas.begin(), joined.replicas.end());
    contents.notes.insert(contents.notes.end(), joined.notes.begin(), joined.notes.end());
}

void skip_optimizer(Contents& contents, const std::vector<std::string>& names, std::uint64_t bytes,
                    std::uint64_t training = 0) {
    std::string why = names.empty() ? std::string("its state") : names_text(names, names.size());
    if (bytes > 0) why += ", " + bytes_text(bytes);
    if (training > 0) why += "; tensors of the client state, " + bytes_text(training);
    contents.skipped.push_back({.name = "optimizer",
                                .type = "the state of the optimizer",
                                .why = why + "; Checkpoint::optimizer() gives it, --optimizer converts it"});
}

/// Without an optimizer, nothing gives the tensors of the client state.
void skip_training(Contents& contents, const ModelFile& model) {
    if (const std::uint64_t bytes = tensor_bytes(training_state(model)); bytes > 0)
        contents.skipped.push_back(
            {.name = "client_state",
             .type = "the state of the training",
             .why = "tensors, " + bytes_text(bytes) + "; opening " + excerpt(model.file) + " gives them"});
}

Contents optimizer_contents(StateTree tree, const Contents& weights) {
    Contents contents;
    contents.format = Format::zero;
    contents.layout = weights.layout;
    contents.files = weights.files;
    state::set_tree(contents, std::move(tree));
    return contents;
}

std::string trained_dtype(const ZeroRun& run) {
    const ModelFile& model = run.first_model();
    if (!model.dtype.empty()) return model.dtype;
    if (!run.files.optimizers.empty() && run.files.optimizers.front().name.prefix == "bf16_") return "bf16";
    return {};
}

/// Returns the number of ranks of a run, of data, tensor and pipeline parallelism.
std::uint64_t all_ranks(std::uint64_t data_ranks, std::uint64_t model_ranks) {
    return checked_mul(data_ranks, model_ranks).value_or(data_ranks);
}

Contents begin_contents(const ZeroTag& tag, std::string_view kind) {
    Contents contents;
    contents.format = Format::zero;
    contents.layout = TrainingLayout{.kind = std::string(kind)};
    contents.layout->tag = tag.tag;
    if (!tag.tag.empty()) contents.notes.push_back("read the tag " + safemap::quoted(tag.tag));
    return contents;
}

void add_files(Contents& contents, const ZeroTag& tag, const std::vector<std::string>& files) {
    for (const std::string& file : files) contents.files.push_back(tag.prefix + file);
}

/// Returns what the contents of an optimizer have in common with those of its weights.
Contents files_and_layout(const Contents& weights) {
    Contents contents;
    contents.files = weights.files;
    contents.layout = weights.layout;
    return contents;
}

/// Notes how many parameters have no state, where others have.
void note_stateless(const ModelWeights& joined, Contents& optimizer) {
    std::size_t without = 0;
    std::size_t with = 0;
    for (const ModelWeights::Weight& weight : joined.weights)
        if (weight.kind == ModelWeights::Weight::Kind::master && weight.tensor.element_count() > 0)
            ++(weight.state.empty() ? without : with);
    if (with == 0 || without == 0) return;
    optimizer.notes.push_back("no file has the state of " + std::to_string(without) + " of " +
                              std::to_string(with + without) +
                              " parameters; DeepSpeed saves none of what its offloading keeps on the GPU");
}

bool has_optimizer(const ZeroRun& run) {
    if (run.stage() > 0) return !run.files.optimizers.empty();
    return run.first_model().rest.size() > 0 && Value(run.first_model().rest).find("optimizer").has_value();
}

/// Reads the states of the optimizer that the ranks of experts have without ZeRO, each in a file of its own. The
/// numbers of their parameters differ, and nothing is merged.
Contents expert_optimizers(const ZeroTag& tag, const ZeroRun& run, const OpenOptions& options,
                           const Contents& described) {
    const std::vector<std::string> files = names_of(run.files.expert_optimizers);
    FoundGlobals globals(options.strict_globals, tag.prefix);
    std::vector<StateTree> states(files.size());
    for_each_pickle(*tag.folder, files, options.work, &globals, [&](std::size_t i, const auto& source, auto& named) {
        constexpr std::array<std::string_view, 1> wanted{"optimizer"};
        StateTree tree = torch::read_parts(source, wanted, &named).tree;
        if (const auto found = Value(tree).find("optimizer")) states[i] = tree.subtree(found->node());
    });
    Contents contents = optimizer_contents(optimizer_tree(run, files, states), described);
    add_files(contents, tag, files);
    globals.move_to(contents);
    contents.notes.emplace_back(
        "without ZeRO, the state has no names of parameters: that of each rank of experts is listed by itself, below "
        "expp_rank_N_mp_rank_NN");
    return contents;
}

/// Describes the run. Universal checkpoints say some of it themselves.
void describe(const ZeroRun& run, TrainingLayout& layout) {
    const ModelFile& model = run.first_model();
    layout.stage = run.stage();
    layout.world_size =
        all_ranks(model.data_ranks.value_or(std::max<std::size_t>(1, run.files.ranks)), run.sets.size());
    layout.version = model.version;
    layout.dtype = trained_dtype(run);
}
void describe(const ZeroRun& run, const Universal& read, TrainingLayout& layout) {
    layout.stage = read.stage;
    if (read.data_ranks) layout.world_size = all_ranks(*read.data_ranks, run.files.model_ranks);
    layout.optimizer = read.joined.state_names;
    if (run.sets.empty()) return;
    layout.version = run.first_model().version;
    layout.dtype = run.first_model().dtype;
}

/// Returns how far the training had come, by the first files.
TrainingState training_of(const ZeroRun& run) {
    TrainingState training;
    if (run.sets.empty()) return training;
    state::add_training(run.first_model().rest, training);
    const auto& optimizers = run.sets.front().optimizers;
    if (!optimizers.empty()) state::add_training(optimizers.front().rest, training);
    if (!optimizers.empty() && !training.learning_rate && !optimizers.front().rates.empty())
        training.learning_rate = optimizers.front().rates.front();
    return training;
}

/// Returns the contents of the optimizer: its tree, and what the notes say of it.
Contents read_optimizer(const ZeroRun& run, const Contents& described) {
    const ModelWeights joined = join_all_ranks(run, {.optimizer = true});
    Contents optimizer = optimizer_contents(optimizer_tree(run, joined), described);
    note_stateless(joined, optimizer);
    if (run.stage() == 0 && run.sets.size() > 1)
        optimizer.notes.push_back(
            "without ZeRO, the state has no names of parameters: that of each model rank is "
            "listed by itself, below mp_rank_NN");
    if (const auto unread = unread_state(run); run.stage() > 0 && !unread.empty())
        optimizer.notes.push_back("not read: " + names_text(unread, unread.size()) +
                                  ", which the optimizer has for the partition of each rank, not for parameters");
    return optimizer;
}

void set_optimizer(Contents& contents, const ZeroTag& tag, const OpenOptions& options,
                   const std::shared_ptr<const ZeroRun>& run) {
    std::vector<std::string>& names = contents.layout->optimizer;
    names = run->stage() == 0 ? unnamed_state_names(*run) : state_names(run->sets.front());
    const bool of_experts = run->stage() == 0 && !run->files.expert_optimizers.empty();
    skip_optimizer(contents, names, of_experts ? 0 : optimizer_bytes(*run),
                   tensor_bytes(training_state(run->first_model())));
    contents.optimizer = [tag, options, run, of_experts, described = files_and_layout(contents)] {
        return of_experts ? expert_optimizers(tag, *run, options, described) : read_optimizer(*run, described);
    };
}

// Universal checkpoints.

/// Returns true if the folder has a file of model states, or something else with the name of the first one.
bool has_models(const Folder& folder) {
    constexpr names::NameKind kinds[] = {names::NameKind::zero_model, names::NameKind::zero_ranked_model};
    const auto files = folder.list();
    return std::any_of(std::begin(kinds), std::end(kinds), [&](names::NameKind kind) {
        return std::any_of(files.begin(), files.end(),
                           [kind](const std::string& file) { return names::is_kind(file, kind); }) ||
               !folder.other_kind(names::spelled({.kind = kind})).empty();
    });
}

/// Reads the files of model states, all of which may be missing: a folder may be copied without them.
void read_models_beside(const ZeroTag& tag, const OpenOptions& options, FoundGlobals& found, ZeroRun& run) {
    if (!has_models(*tag.folder)) return;
    run.files = names::zero_files(*tag.folder);
    std::vector<ModelFile> models;
    read_kind(tag, options, run.files.models, found, models, read_model_file);
    fill_sets(run, std::move(models), {});
    require_model_ranks(run.first_model(), run.files);
    require_ranked_models(run.first_model(), run.files);
    read_info(run);
}

void require_module(const ZeroRun& run) {
    if (run.sets.empty() || run.is_pipeline())
        refuse_call("the universal checkpoint has no 16-bit weights, only fp32 ones", "cast them: --dtype bf16");
    check_module(run.stage());
}

/// Sets the optimizer of a universal checkpoint, if the folder has any of its state.
void set_optimizer(Contents& contents, const std::shared_ptr<const ZeroRun>& run,
                   const std::shared_ptr<const Universal>& read) {
    std::uint64_t bytes = 0;
    for (const ModelWeights::Weight& weight : read->joined.weights)
        for (const auto& each : weight.state) bytes += each.second.nbytes();
    if (bytes == 0 && !read->rest) {
        if (!run->sets.empty()) skip_training(contents, run->first_model());
        return;
    }
    StateTree training = run->sets.empty() ? StateTree() : training_state(run->first_model());
    skip_optimizer(contents, contents.layout->optimizer, bytes, tensor_bytes(training));
    contents.optimizer = [read, training = std::move(training), described = files_and_layout(contents)] {
        return optimizer_contents(optimizer_tree(read->joined, read->rest, training), described);
    };
}

}  // namespace

ModelWeights join_all_ranks(const ZeroRun& run, const JoinOptions& options) {
    std::vector<ModelRank> ranks;
    for (const ModelRankFiles& set : run.sets)
        ranks.push_back(
            {set.models.front().model_rank, set.models.front().file, join_data_ranks(set, run.sources, options)});
    const UniversalInfo* const info = run.info ? &*run.info : nullptr;
    if (run.is_pipeline()) return join_model_ranks(std::move(ranks), run.tensor_ranks, info);
    return merge(std::move(ranks), info);
}

Contents read_zero(const ZeroTag& tag, const OpenOptions& options) {
    check_options(options);
    FoundGlobals globals(options.strict_globals, tag.prefix);
    const std::shared_ptr<const ZeroRun> run = read_files(tag, options, globals);
    if (options.deepspeed_compat) check_compat(*run);
    Contents contents = begin_contents(tag, "deepspeed");
    add_files(contents, tag, names_of(run->files.models));
    add_files(contents, tag, names_of(run->files.optimizers));
    std::vector<std::string> others;
    set_weights(contents, weights_of(tag, *run, options, globals, others));
    add_files(contents, tag, others);
    globals.move_to(contents);
    describe(*run, *contents.layout);
    contents.training = training_of(*run);
    if (has_optimizer(*run)) set_optimizer(contents, tag, options, run);
    else skip_training(contents, run->first_model());
    return contents;
}

Contents read_universal_tag(const ZeroTag& tag, const OpenOptions& options) {
    check_options(options);
    FoundGlobals globals(options.strict_globals, tag.prefix);
    const auto run = std::make_shared<ZeroRun>();
    read_models_beside(tag, options, globals, *run);
    const bool module = options.weights == Weights::module;
    if (module) require_module(*run);
    const auto read = std::make_shared<const Universal>(read_universal(
        *tag.folder, run->sets, run->info ? &*run->info : nullptr,
        {.as_stored = options.deepspeed_compat, .optimizer = true, .work = options.work, .globals = &globals}));
    Contents contents = begin_contents(tag, "universal");
    add_files(contents, tag, names_of(run->files.models));
    add_files(contents, tag, read->files);
    set_weights(contents, module ? join_modules(*run, [](const ModelFile&, ModelWeights&) {}) : read->joined);
    globals.move_to(contents);
    describe(*run, *read, *contents.layout);
    contents.training = training_of(*run);
    set_optimizer(contents, run, read);
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
