// Reads the files of all parameters, checks that none lacks a moment, and lists them by what the models say.
#include "distributed/zero/universal.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/parallel/merge.hpp"
#include "distributed/values.hpp"
#include "distributed/zero/join_data_ranks.hpp"
#include "distributed/zero/keys.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Weight = ModelWeights::Weight;
using WeightKind = Weight::Kind;

constexpr std::string_view ending = ".pt";

/// A file of a parameter: `zero/PARAMETER/STATE.pt`.
struct StateFile {
    std::string parameter;
    std::string state;  ///< "fp32", "exp_avg", "step"
    std::string path;
};

/// The content of such a file.
struct StateValue {
    std::optional<LazyTensor> tensor = {};
    std::optional<StateTree> other = {};  ///< set for a step that is a number
    bool in_dict = false;                 ///< false for a bare tensor, as ds_to_universal writes them of stage 3
    bool vocabulary = false;              ///< `vocab_tensor`
};

/// Lists the files of all parameters. Throws if one has no `fp32.pt`.
std::vector<StateFile> state_files(const Folder& tag) {
    const std::shared_ptr<const Folder> zero = tag.folder("zero");
    if (!zero || zero->folders().empty())
        throw Error(Errc::not_a_checkpoint, "the folder zero has no folders of parameters");
    std::vector<StateFile> files;
    for (const std::string& parameter : zero->folders()) {
        const std::shared_ptr<const Folder> folder = zero->folder(parameter);
        bool has_weights = false;
        for (const std::string& file : folder ? folder->list() : std::vector<std::string>()) {
            if (!file.ends_with(ending) || file.starts_with('.')) continue;
            std::string state = file.substr(0, file.size() - ending.size());
            has_weights = has_weights || state == "fp32";
            std::string path = "zero/";
            path += parameter + '/' + file;
            files.push_back({parameter, std::move(state), std::move(path)});
        }
        if (!has_weights)
            throw Error(Errc::unfinished_checkpoint, "the file zero/" + excerpt(parameter) + "/fp32.pt is missing")
                .with_tensor(parameter);
    }
    return files;
}

/// Reads a tensor, or a dictionary with the tensor under `param`. A step may be a number.
StateValue read_state(const std::shared_ptr<const Source>& source, const StateFile& file,
                      torch::NamedGlobals& globals) {
    torch::Parts parts = torch::read_whole(source, &globals);
    const Value root(parts.tree);
    StateValue value;
    if (const LazyTensor* const tensor = root.tensor()) {
        value.tensor = *tensor;
        return value;
    }
    if (root.is_dict()) {
        value.in_dict = true;
        const Value param = root.at("param");
        if (param.tensor() == nullptr)
            throw Error(Errc::piece_mismatch, "the field param is not a tensor").with_tensor(file.parameter);
        value.tensor = *param.tensor();
        if (const auto flag = root.find("vocab_tensor")) value.vocabulary = flag->boolean().value_or(false);
        return value;
    }
    // Nodes with children would refer to this tree, and the step becomes a part of another.
    const StateTree::Node& node = parts.tree[parts.tree.root()];
    const bool is_number = std::holds_alternative<std::int64_t>(node) || std::holds_alternative<double>(node);
    if (file.state != "step" || !is_number)
        throw Error(Errc::piece_mismatch, "the file holds no tensor").with_tensor(file.parameter);
    value.other = std::move(parts.tree);
    return value;
}

/// Gives tensors the shape of their parameter.
class Shaper {
public:
    Shaper(const std::vector<ModelRankFiles>& sets, const UniversalInfo* info) : info_(info) {
        // With tensor parallelism, param_shapes has the shapes of slices, and the files are whole.
        if (sets.size() > 1) return;
        for (const Group& group : sets.front().models.front().groups)
            for (const Parameter& parameter : group) shapes_.emplace(parameter.name, parameter.shape);
    }

    LazyTensor shaped(const std::string& parameter, const StateValue& value) const {
        const LazyTensor& tensor = *value.tensor;
        if (value.vocabulary && info_ != nullptr && info_->vocabulary && !tensor.shape().empty() &&
            tensor.shape()[0] > *info_->vocabulary)
            return tensor.slice({{.stop = static_cast<std::int64_t>(*info_->vocabulary)}}).renamed(parameter);
        const auto wanted = shapes_.find(parameter);
        if (wanted == shapes_.end() || tensor.shape() == wanted->second) return tensor.renamed(parameter);
        if (tensor.shape().size() != 1 || tensor.element_count() != element_count(wanted->second))
            throw Error(Errc::piece_mismatch, "the file of a parameter holds the shape " + to_string(tensor.shape()) +
                                                  "; param_shapes has " + to_string(wanted->second))
                .with_tensor(parameter);
        PartSources sources;
        sources.add(tensor);
        const FlatPart part{0, tensor.element_count(), &tensor, 0};
        return whole(parameter, tensor.dtype(), wanted->second, {&part, 1}, sources);
    }

private:
    const UniversalInfo* info_;
    std::unordered_map<std::string, Shape> shapes_ = {};
};

/// All values, by parameter and then by state.
using Values = std::map<std::string, std::map<std::string, StateValue>>;

Values read_values(const Folder& tag, const std::vector<StateFile>& files, const UniversalOptions& options) {
    std::vector<std::string> paths;
    for (const StateFile& file : files) paths.push_back(file.path);
    std::vector<StateValue> values(files.size());
    for_each_pickle(tag, paths, options.work, options.globals, [&](std::size_t i, const auto& source, auto& globals) {
        values[i] = read_state(source, files[i], globals);
    });
    Values found;
    for (std::size_t i = 0; i < files.size(); ++i) found[files[i].parameter][files[i].state] = std::move(values[i]);
    return found;
}

/// Throws unless each parameter has the moments that it must have. For a parameter with gradients ds_to_universal
/// writes all of fp32.pt, exp_avg.pt and exp_avg_sq.pt, of stages 1 and 2 also step.pt. Without gradients it writes
/// fp32.pt alone, of stages 1 and 2: a dictionary, as of frozen weights and buffers.
void require_moments(const Values& values) {
    std::vector<const char*> written;
    for (const char* const moment : {"exp_avg", "exp_avg_sq"})
        if (std::any_of(values.begin(), values.end(), [&](const auto& each) { return each.second.contains(moment); }))
            written.push_back(moment);
    for (const auto& [parameter, states] : values) {
        const bool has_state = !states.at("fp32").in_dict || states.size() > 1;
        for (const char* const moment : written)
            if (has_state && !states.contains(moment))
                throw Error(Errc::unfinished_checkpoint,
                            "the file zero/" + excerpt(parameter) + '/' + moment + ".pt is missing")
                    .with_tensor(parameter);
    }
}

/// Returns the weight of a parameter with its state.
Weight weight_of(const std::string& parameter, const std::map<std::string, StateValue>& states, const Shaper* shaper) {
    const auto shaped = [&](const StateValue& value) {
        return shaper != nullptr ? shaper->shaped(parameter, value) : value.tensor->renamed(parameter);
    };
    const StateValue& fp32 = states.at("fp32");
    Weight weight{parameter, shaped(fp32), WeightKind::master, {}};
    for (const auto& [state, value] : states) {
        if (state == "fp32" || state == "step") continue;
        if (value.tensor->element_count() != fp32.tensor->element_count())
            throw Error(Errc::piece_mismatch,
                        excerpt(state) + ".pt holds " + std::to_string(value.tensor->element_count()) +
                            " elements; fp32.pt holds " + std::to_string(fp32.tensor->element_count()))
                .with_tensor(parameter);
        weight.state.emplace_back(state, shaped(value));
    }
    return weight;
}

/// The names of the parameters that were trained, in order.
std::vector<std::string> trained(const std::vector<ModelRankFiles>& sets) {
    std::vector<std::string> names;
    std::unordered_set<std::string> known;
    for (const ModelRankFiles& set : sets)
        for (const Group& group : set.models.front().groups)
            for (const Parameter& parameter : group)
                if (known.insert(parameter.name).second) names.push_back(parameter.name);
    return names;
}

/// Lists masters, and what the files of model states have besides them.
ModelWeights list_weights(const std::vector<ModelRankFiles>& sets, std::vector<Weight> masters,
                          const UniversalInfo* info) {
    PartSources sources;
    for (const ModelRankFiles& set : sets) add_sources(set, sources);
    if (sets.size() == 1) return list_weights(sets.front(), sources, std::move(masters));
    // The masters are whole already; the rest is in slices.
    std::unordered_set<std::string> names;
    for (const Weight& weight : masters) names.insert(weight.name);
    std::vector<ModelRank> ranks;
    for (const ModelRankFiles& set : sets) {
        ModelWeights rest = list_weights(set, sources, {});
        std::erase_if(rest.weights, [&](const Weight& weight) { return names.contains(weight.name); });
        ranks.push_back({set.models.front().model_rank, set.models.front().file, std::move(rest)});
    }
    ModelWeights out = merge(std::move(ranks), info);
    std::move(out.weights.begin(), out.weights.end(), std::back_inserter(masters));
    out.weights = std::move(masters);
    return out;
}

/// Adds what only the folder `zero` has: F32 copies of weights that are in no file of model states.
void add_unlisted(ModelWeights& out, const Values& values, bool has_models) {
    std::unordered_set<std::string> names;
    for (const Weight& weight : out.weights) names.insert(weight.name);
    for (const AliasGroup& group : out.aliases) names.insert(group.begin(), group.end());
    std::size_t added = 0;
    for (const auto& [parameter, states] : values)
        if (!names.contains(parameter)) {
            out.weights.push_back(weight_of(parameter, states, nullptr));
            ++added;
        }
    if (added > 0)
        out.notes.push_back(!has_models ? "there are no files of model states: weights, buffers among them, are as "
                                          "fp32.pt has them, and which are frozen or tied is not known"
                                        : counted(added, "weight is", "weights are") +
                                              " only in fp32.pt, with its shapes and dtypes");
}

/// Throws if a weight is flat, as ds_to_universal writes those of stage 3, bare: without files of model states, nothing
/// has its shape.
void require_shapes(const Values& values) {
    for (const auto& [parameter, states] : values) {
        const StateValue& fp32 = states.at("fp32");
        if (fp32.in_dict || fp32.tensor->shape().size() != 1) continue;
        Error error(Errc::rank_missing,
                    "the shape of a parameter is in the files of model states, such as "
                    "zero_pp_rank_0_mp_rank_00_model_states.pt, and none is there; fp32.pt of stage 3 is flat");
        throw error.with_tensor(parameter).with_hint(
            "copy *_model_states.pt of the run into the folder; --deepspeed-compat gives the tensors as fp32.pt has "
            "them");
    }
}

/// Returns `optimizer_state.pt` with the steps of the parameters, or nothing if there is neither.
std::optional<StateTree> other_state(const Folder& tag, const Values& values, const UniversalOptions& options,
                                     std::vector<std::string>& files) {
    StateTree tree;
    const std::string file = "zero/optimizer_state.pt";
    if (const auto source = tag.open(file)) {
        const bool strict = options.globals != nullptr && options.globals->strict();
        torch::NamedGlobals globals(strict);
        tree = about_file(source->name(), [&] { return torch::read_whole(source, &globals).tree; });
        if (options.globals != nullptr) options.globals->add(globals, file);
        files.push_back(file);
        if (!Value(tree).is_dict())
            throw Error(Errc::field_missing, "the file holds no dictionary").with_path(source->name());
    }
    StateTree::Dict steps;
    if (tree.size() == 0) tree.set_root(tree.add(StateTree::Dict()));
    for (const auto& [parameter, states] : values) {
        const auto step = states.find("step");
        if (step == states.end()) continue;
        const StateTree::NodeId key = tree.add(parameter);
        if (step->second.tensor)
            steps.items.emplace_back(key, tree.add(StateTree::Tensor{.tensor = *step->second.tensor}));
        else steps.items.emplace_back(key, tree.add((*step->second.other)[step->second.other->root()]));
    }
    if (!steps.items.empty()) tree.put("step", tree.add(std::move(steps)));
    if (tree.size() <= 1) return std::nullopt;
    return tree;
}

void add_state_names(ModelWeights& out) {
    std::unordered_set<std::string> known(out.state_names.begin(), out.state_names.end());
    for (const Weight& weight : out.weights)
        for (const auto& each : weight.state)
            if (known.insert(each.first).second) out.state_names.push_back(each.first);
}

}  // namespace

Universal read_universal(const Folder& tag, const std::vector<ModelRankFiles>& sets, const UniversalInfo* info,
                         const UniversalOptions& options) {
    std::vector<StateFile> files = state_files(tag);
    if (!options.optimizer) std::erase_if(files, [](const StateFile& file) { return file.state != "fp32"; });
    const Values values = read_values(tag, files, options);
    if (options.optimizer) require_moments(values);
    if (sets.empty() && !options.as_stored) require_shapes(values);
    Universal read;
    for (const StateFile& file : files) read.files.push_back(file.path);
    if (options.optimizer) read.rest = other_state(tag, values, options, read.files);
    if (!sets.empty()) {
        const ModelFile& model = sets.front().models.front();
        read.data_ranks = model.data_ranks;
        if (model.config_stage) read.stage = static_cast<int>(*model.config_stage % 4);
    }
    if (read.rest)
        if (const auto stage = Value(*read.rest).find("zero_stage"))
            read.stage = about_file(tag.name() + "/zero/optimizer_state.pt", [&] { return zero_stage(*stage); });

    std::vector<Weight> masters;
    if (!options.as_stored && !sets.empty()) {
        const Shaper shaper(sets, info);
        for (const std::string& parameter : trained(sets)) {
            const auto found = values.find(parameter);
            if (found == values.end())
                throw Error(Errc::unfinished_checkpoint, "the folder zero/" + excerpt(parameter) + " is missing")
                    .with_tensor(parameter);
            masters.push_back(weight_of(parameter, found->second, &shaper));
        }
        read.joined = list_weights(sets, std::move(masters), info);
    }
    add_unlisted(read.joined, values, !sets.empty());
    if (options.as_stored) read.joined.notes.clear();
    add_state_names(read.joined);
    std::sort(read.files.begin(), read.files.end());
    return read;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
