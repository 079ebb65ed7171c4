// Whole tensors of one model rank, in the order of its module.
#include "distributed/zero/join_data_ranks.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/values.hpp"
#include "distributed/zero/partitions.hpp"
#include "lazy/same_tensor.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Weight = ModelWeights::Weight;
using WeightKind = Weight::Kind;

/// Returns the tensor of that name, or null. Looks at number `guess` first: all ranks list names in the same order.
const LazyTensor* find(const Named& named, std::string_view name, std::size_t guess) {
    if (guess < named.size() && named[guess].first == name) return &named[guess].second;
    const auto found =
        std::find_if(named.begin(), named.end(), [name](const auto& each) { return each.first == name; });
    return found == named.end() ? nullptr : &found->second;
}

bool is_float(Dtype dtype) { return can_cast(dtype, Dtype::f32); }

/// Returns true if a tensor of the state has an element for each of the partition of `group`: then its length is that
/// of the partition, with or without the padding at its end.
bool is_per_element(const OptimizerFile& file, std::size_t group, const LazyTensor& tensor) {
    if (tensor.shape().size() != 1) return false;
    const std::uint64_t held = tensor.element_count();
    const std::uint64_t partition = file.masters[group].element_count();
    if (held == partition) return true;
    if (group < file.group_paddings.size()) return held >= partition && held - partition == file.group_paddings[group];
    return file.group_paddings.empty() && file.stage < 3 && held > partition;
}

/// A name of the state, and its place in the file that has it first.
struct StateName {
    std::string_view name;
    std::size_t place = 0;
};

/// The tensors of all ranks under one name of the state of a group.
class SeenState {
public:
    /// Adds a tensor of `length` elements of a rank; `fits` if it has one for each of the `partition`.
    void add(std::uint64_t length, std::uint64_t partition, bool fits) {
        one_length_ = one_length_ && (partition_ == 0 || length == length_);
        length_ = length;
        fits_ = fits_ || fits;
        if (partition >= partition_) fits_longest_ = fits || (partition == partition_ && fits_longest_);
        partition_ = std::max(partition_, partition);
    }
    /// Returns true if it has an element for each of a partition. What has one length in all ranks is not that if it
    /// fits a short partition only, by chance.
    bool is_per_element() const { return fits_longest_ || (fits_ && !one_length_); }

private:
    bool fits_ = false;
    bool fits_longest_ = false;  ///< fits one of the longest partitions
    bool one_length_ = true;
    std::uint64_t length_ = 0;
    std::uint64_t partition_ = 0;  ///< the longest
};

/// Returns true for Adam's moments, which have an element for each of the partition in every version.
bool is_moment(std::string_view name) { return name == "exp_avg" || name == "exp_avg_sq"; }

/// Most names of state of one group. Optimizers have less than ten; each name is a tensor for each parameter.
constexpr std::size_t most_state_names = 256;

/// Returns the names of the state of a group that has an element for each of the partitions, in any rank that has a
/// partition, and of Adam's moments, whatever their lengths. Throws pickle_too_large if ranks have more than
/// most_state_names.
std::vector<StateName> names_of_state(const ModelRankFiles& set, std::size_t group) {
    std::vector<StateName> names;
    std::vector<SeenState> seen;
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (const OptimizerFile& file : set.optimizers) {
        const std::uint64_t partition = file.masters[group].element_count();
        if (group >= file.state.size() || partition == 0) continue;
        for (std::size_t i = 0; i < file.state[group].size(); ++i) {
            const auto& [name, tensor] = file.state[group][i];
            const auto [found, is_new] = numbers.try_emplace(name, names.size());
            if (is_new) {
                if (names.size() == most_state_names)
                    throw Error(Errc::pickle_too_large, "the optimizer has more than " +
                                                            std::to_string(most_state_names) +
                                                            " tensors of state for group " + std::to_string(group))
                        .with_path(file.file);
                names.push_back({name, i});
                seen.emplace_back();
            }
            seen[found->second].add(tensor.element_count(), partition, is_per_element(file, group, tensor));
        }
    }
    std::vector<StateName> kept;
    for (std::size_t i = 0; i < names.size(); ++i)
        if (seen[i].is_per_element() || is_moment(names[i].name)) kept.push_back(names[i]);
    return kept;
}

/// Makes tensors of the runs of a parameter.
class ParameterMaker {
public:
    ParameterMaker(const ModelRankFiles& set, const PartSources& sources, bool optimizer)
        : set_(set), sources_(sources) {
        if (optimizer)
            for (std::size_t group = 0; group < set.optimizers.front().masters.size(); ++group)
                names_.push_back(names_of_state(set, group));
    }

    LazyTensor master(const Parameter& parameter, std::span<const PartitionRun> runs) const {
        const auto of = [](const OptimizerFile& file, std::uint32_t group) { return &file.masters[group]; };
        return made(parameter, runs, of);
    }

    /// Returns all state of a parameter that has its length. A parameter without elements has no state. Throws if a
    /// rank with elements of the parameter lacks what another rank has.
    Named state(const Parameter& parameter, std::span<const PartitionRun> runs) const {
        Named state;
        if (runs.empty()) return state;
        for (const auto& [name, place] : names_[runs.front().group])
            state.emplace_back(name, made(parameter, runs, [&name = name, place = place](const auto& file, auto group) {
                                   return state_of(file, group, name, place);
                               }));
        return state;
    }

private:
    static const LazyTensor* state_of(const OptimizerFile& file, std::uint32_t group, std::string_view name,
                                      std::size_t guess) {
        const LazyTensor* const found = group < file.state.size() ? find(file.state[group], name, guess) : nullptr;
        if (found == nullptr)
            throw Error(Errc::ranks_differ, "the state of group " + std::to_string(group) + " has no " + excerpt(name) +
                                                ", which other ranks have")
                .with_path(file.file);
        if (!is_per_element(file, group, *found))
            throw Error(Errc::piece_mismatch, excerpt(name) + " of group " + std::to_string(group) + " has the shape " +
                                                  to_string(found->shape()) + "; expected " +
                                                  std::to_string(file.masters[group].element_count()) +
                                                  " elements, as the fp32 weights")
                .with_path(file.file);
        return found;
    }

    template <class Of>
    LazyTensor made(const Parameter& parameter, std::span<const PartitionRun> runs, const Of& of) const {
        std::vector<FlatPart> parts;
        parts.reserve(runs.size());
        for (const PartitionRun& run : runs)
            parts.push_back({run.first, run.count, of(set_.optimizers[run.rank], run.group), run.from});
        const Dtype dtype = parts.empty() ? Dtype::f32 : parts.front().value->dtype();
        return whole(parameter.name, dtype, parameter.shape, parts, sources_);
    }

    const ModelRankFiles& set_;
    const PartSources& sources_;
    std::vector<std::vector<StateName>> names_ = {};  ///< names of the state, by group
};

/// The frozen fragments of a file, by name. All ranks list them in the same order: only if one does not, its names are
/// sorted.
class Fragments {
public:
    explicit Fragments(const ModelFile& file) : file_(&file) {}

    /// Returns the fragment of that name, or null. Looks at number `guess` first.
    const LazyTensor* find(const std::string& name, std::size_t guess) {
        const Named& named = file_->frozen;
        if (guess < named.size() && named[guess].first == name) return &named[guess].second;
        if (by_name_.empty())
            for (const auto& each : named) by_name_.emplace(each.first, &each.second);
        const auto found = by_name_.find(name);
        return found == by_name_.end() ? nullptr : found->second;
    }
    [[noreturn]] void fail_missing(const std::string& name) const {
        throw Error(Errc::field_missing, "frozen_param_fragments has no such tensor")
            .with_path(file_->file)
            .with_tensor(name);
    }

private:
    const ModelFile* file_;
    std::unordered_map<std::string_view, const LazyTensor*> by_name_ = {};
};

/// The frozen weights of stage 2, which are whole. What is listed as frozen and is no tensor is among the objects.
std::vector<Weight> whole_frozen(const ModelFile& file) {
    std::vector<Weight> frozen;
    Fragments fragments(file);
    const std::unordered_set<std::string_view> objects(file.objects.begin(), file.objects.end());
    for (std::size_t i = 0; i < file.frozen_shapes.size(); ++i) {
        const auto& [name, shape, count] = file.frozen_shapes[i];
        const LazyTensor* const tensor = fragments.find(name, i);
        if (tensor == nullptr && objects.contains(name)) continue;
        if (tensor == nullptr) fragments.fail_missing(name);
        if (tensor->shape() != shape)
            throw Error(Errc::piece_mismatch, "frozen_param_fragments has the shape " + to_string(tensor->shape()) +
                                                  ", but frozen_param_shapes says " + to_string(shape))
                .with_path(file.file)
                .with_tensor(name);
    }
    for (const auto& [name, tensor] : file.frozen)
        frozen.push_back({name, tensor.renamed(name), WeightKind::frozen, {}});
    return frozen;
}

/// Throws if a rank's share of a frozen weight does not have the length that all shares have.
void check_share(const Parameter& parameter, const LazyTensor& share, std::uint64_t ranks, const ModelFile& file) {
    const std::uint64_t wanted = parameter.count / ranks + (parameter.count % ranks > 0 ? 1 : 0);
    if (share.element_count() == wanted) return;
    throw Error(Errc::piece_mismatch, "frozen_param_fragments has " + std::to_string(share.element_count()) +
                                          " elements; expected " + std::to_string(wanted) + ", the share of " +
                                          std::to_string(ranks) + " ranks of the shape " + to_string(parameter.shape) +
                                          " of frozen_param_shapes")
        .with_path(file.file)
        .with_tensor(parameter.name);
}

/// Throws if a file has a share of a frozen weight whose shape it does not say.
void require_shapes(const ModelFile& file) {
    std::unordered_set<std::string_view> names;
    for (const Parameter& parameter : file.frozen_shapes) names.insert(parameter.name);
    for (const auto& each : file.frozen)
        if (!names.contains(each.first))
            throw Error(Errc::field_missing, "frozen_param_fragments has the tensor, and frozen_param_shapes does not")
                .with_path(file.file)
                .with_tensor(each.first);
}

/// The frozen weights: whole tensors in stage 2, a share of each rank in stage 3.
std::vector<Weight> frozen_weights(const ModelRankFiles& set, const PartSources& sources) {
    const ModelFile& first = set.models.front();
    if (set.stage() != 3) return whole_frozen(first);
    std::vector<Weight> frozen;
    require_shapes(first);
    std::vector<Fragments> fragments(set.models.begin(), set.models.end());
    for (std::size_t i = 0; i < first.frozen_shapes.size(); ++i) {
        const Parameter& parameter = first.frozen_shapes[i];
        std::vector<FlatPart> parts;
        Dtype dtype = Dtype::f32;
        for (const PartitionRun& run : shares_of(parameter.count, set.models.size())) {
            const LazyTensor* const share = fragments[run.rank].find(parameter.name, i);
            if (share == nullptr) fragments[run.rank].fail_missing(parameter.name);
            check_share(parameter, *share, set.models.size(), set.models[run.rank]);
            if (parts.empty()) dtype = share->dtype();
            parts.push_back({run.first, run.count, share, 0});
        }
        if (const LazyTensor* const share = fragments.front().find(parameter.name, i)) dtype = share->dtype();
        frozen.push_back(
            {parameter.name, whole(parameter.name, dtype, parameter.shape, parts, sources), WeightKind::frozen, {}});
    }
    return frozen;
}

/// Weights by name, each of which is taken once.
class ByName {
public:
    void add(std::vector<Weight> weights) {
        for (Weight& weight : weights) {
            if (!numbers_.try_emplace(weight.name, weights_.size()).second)
                throw Error(Errc::duplicate_name, "two parameters have this name").with_tensor(weight.name);
            weights_.push_back(std::move(weight));
            taken_.push_back(false);
        }
    }
    Weight* take(const std::string& name) {
        const auto found = numbers_.find(name);
        if (found == numbers_.end() || taken_[found->second]) return nullptr;
        taken_[found->second] = true;
        return &weights_[found->second];
    }
    /// Calls visit(weight) for those that were not taken.
    template <class Visit> void each_left(Visit&& visit) {
        for (std::size_t i = 0; i < weights_.size(); ++i)
            if (!taken_[i]) visit(weights_[i]);
    }

private:
    std::vector<Weight> weights_ = {};
    std::vector<bool> taken_ = {};
    std::unordered_map<std::string, std::size_t> numbers_ = {};
};

/// Groups of names of tied tensors, in the order of their first names.
class Ties {
public:
    void add(const std::string& stored, const std::string& alias) {
        const auto [place, is_new] = groups_.try_emplace(stored, all_.size());
        if (is_new) all_.push_back({stored});
        all_[place->second].push_back(alias);
    }
    std::vector<AliasGroup> take() { return std::move(all_); }

private:
    std::vector<AliasGroup> all_ = {};
    std::unordered_map<std::string, std::size_t> groups_ = {};
};

/// Builds the list of weights in the order of the module.
class Listing {
public:
    Listing(const ModelFile& model, int stage, bool compat)
        : model_(model), stage_(stage), compat_(compat), buffers_(model.buffers.begin(), model.buffers.end()) {
        for (const auto& [alias, source] : model.shared) {
            shared_.emplace(alias, source);
            for (const std::string& name : {alias, source}) shared_tensors_.emplace(name, nullptr);
        }
        for (const auto& [name, tensor] : model.module)
            if (const auto found = shared_tensors_.find(name); found != shared_tensors_.end()) found->second = &tensor;
        std::erase_if(shared_tensors_, [](const auto& each) { return each.second == nullptr; });
    }

    /// `one_model_rank` if the weights that are known are those of the model file's own rank, not merged ones.
    ModelWeights made(ByName known, bool one_model_rank = false) {
        one_model_rank_ = one_model_rank;
        for (const auto& [name, tensor] : model_.module) place(name, tensor, known);
        known.each_left([this](Weight& weight) { push(std::move(weight)); });
        if (compat_) replace_shared();
        for (const auto& [alias, source] : model_.shared) tie(alias, source);
        for (const auto& [name, tensor] : second_names_)
            if (!names_.contains(name)) place_plain(name, *tensor);
        for (const std::string& name : lacking_)
            if (!names_.contains(name)) not_saved_.push_back(name);
        note_not_saved();
        out_.aliases = ties_.take();
        return std::move(out_);
    }

private:
    void push(Weight weight) {
        names_.insert(weight.name);
        out_.weights.push_back(std::move(weight));
    }

    void place(const std::string& name, const LazyTensor& tensor, ByName& known) {
        if (Weight* const weight = known.take(name)) {
            if (one_model_rank_) check_shape(*weight, tensor);
            stored_.try_emplace(&tensor, name);
            return push(std::move(*weight));
        }
        if (buffers_.contains(name)) return push(buffer(name, tensor));
        if (shared_.contains(name)) return static_cast<void>(second_names_.emplace_back(name, &tensor));
        place_plain(name, tensor);
    }

    /// A tensor that only the module has. Stage 3 leaves a tensor without elements where the values are elsewhere.
    void place_plain(const std::string& name, const LazyTensor& tensor) {
        if (stage_ == 3 && tensor.element_count() == 0) return lacking_.push_back(name);
        if (compat_) return;  // zero_to_fp32 leaves it out
        if (may_be_tied(tensor))
            if (const auto same = stored_.find(&tensor); same != stored_.end()) {
                names_.insert(name);
                first_names_.emplace(name, same->second);
                return ties_.add(same->second, name);
            }
        stored_.try_emplace(&tensor, name);
        push({name, tensor.renamed(name), WeightKind::plain, {}});
    }

    /// The first name of a tensor can be one that was left out: then the second stands for itself. So does a tensor
    /// of another shape: DeepSpeed compares addresses, and all parameters without elements have the same.
    void tie(const std::string& alias, const std::string& source) {
        if (!names_.contains(source) || (!compat_ && have_other_shapes(alias, source))) return;
        if (!names_.insert(alias).second) return;
        const auto first = first_names_.find(source);
        const std::string stored = first == first_names_.end() ? source : first->second;
        first_names_.emplace(alias, stored);
        ties_.add(stored, alias);
    }

    /// Gives second names the tensors of the first ones, whatever shapes they have, as zero_to_fp32 does.
    void replace_shared() {
        std::unordered_map<std::string_view, Weight*> listed;
        for (Weight& weight : out_.weights) listed.emplace(weight.name, &weight);
        for (const auto& [alias, source] : model_.shared) {
            const auto own = listed.find(alias);
            const auto first = listed.find(source);
            if (own != listed.end() && first != listed.end())
                own->second->tensor = first->second->tensor.renamed(alias);
        }
    }

    bool have_other_shapes(const std::string& alias, const std::string& source) const {
        const auto one = shared_tensors_.find(alias);
        const auto other = shared_tensors_.find(source);
        return one != shared_tensors_.end() && other != shared_tensors_.end() &&
               one->second->shape() != other->second->shape();
    }

    Weight buffer(const std::string& name, const LazyTensor& tensor) const {
        LazyTensor value = tensor.renamed(name);
        if (compat_ && is_float(value.dtype())) value = value.cast(Dtype::f32);
        return {name, std::move(value), WeightKind::buffer, {}};
    }

    /// Throws if the module has another shape than `param_shapes`. Stage 3 has placeholders.
    void check_shape(const Weight& weight, const LazyTensor& tensor) const {
        if (stage_ == 3 || weight.kind != WeightKind::master || weight.tensor.shape() == tensor.shape()) return;
        throw Error(Errc::piece_mismatch, "param_shapes has the shape " + to_string(weight.tensor.shape()) +
                                              ", but module has " + to_string(tensor.shape()))
            .with_path(model_.file)
            .with_tensor(weight.name);
    }

    /// A module can have two names. DeepSpeed lists its parameters under the first ones only.
    void note_not_saved() {
        const Twins twins = twins_of_not_saved();
        const auto note = [&](const std::map<std::string, std::string>& pairs, std::string_view verb,
                              std::string_view why) {
            std::vector<std::string> second;
            std::vector<std::string> first;
            for (const std::string& name : not_saved_)
                if (const auto pair = pairs.find(name); pair != pairs.end()) {
                    second.push_back(name);
                    first.push_back(pair->second);
                }
            if (second.empty()) return;
            out_.notes.push_back("the values of " + names_text(second, most_listed) + std::string(verb) +
                                 names_text(first, most_listed) + std::string(why));
        };
        note(twins.certain, " are those of ", ": a parameter of a module with two names is saved under the first one");
        note(twins.likely, " may be those of ",
             ": param_shapes does not list them, as for a module with two names, and no other module has such "
             "parameters");
        std::vector<std::string> unknown;
        for (const std::string& name : not_saved_)
            if (!twins.certain.contains(name) && !twins.likely.contains(name)) unknown.push_back(name);
        if (!unknown.empty())
            out_.notes.push_back("no file has the values of " + names_text(unknown, most_listed) +
                                 (model_.without_frozen
                                      ? ": neither param_shapes nor shared_params lists them, and frozen parameters "
                                        "were excluded when the checkpoint was saved"
                                      : ": param_shapes, frozen_param_shapes and shared_params do not list them; if a "
                                        "module has two names, its values are under the first one"));
        if (!model_.objects.empty())
            out_.notes.push_back("the module also has values other than tensors, which are not read: " +
                                 names_text(model_.objects, most_listed));
        // Nothing names frozen parameters that were left out, but the modules are listed. Stages 0 and 1 record no
        // frozen parameters, so that a module without tensors may as well have none. Experts are in other files.
        if (!model_.without_frozen || (stage_ < 2 && !model_.experts.empty())) return;
        const std::vector<std::string> modules = modules_without_tensors();
        if (modules.empty()) return;
        constexpr std::size_t few = 8;
        out_.notes.push_back(stage_ < 2 ? "these modules have no tensors in the checkpoint; if they have frozen "
                                          "parameters, these were excluded when it was saved: " +
                                              names_text(modules, few)
                                        : "frozen parameters were excluded when the checkpoint was saved; these "
                                          "modules have no tensors in it: " +
                                              names_text(modules, most_listed));
    }

    /// The names under which parameters are saved, by second names.
    struct Twins {
        std::map<std::string, std::string> certain = {};
        std::map<std::string, std::string> likely = {};
    };

    /// Finds them by placeholders. torch.save writes one storage for both names, which no other parameter has. Without
    /// that, the other module is likely that has parameters of the same names and dtypes in the same order, if it is
    /// the only one.
    Twins twins_of_not_saved() const {
        Twins twins;
        if (not_saved_.empty()) return twins;
        const std::unordered_set<std::string_view> lacking(not_saved_.begin(), not_saved_.end());
        std::unordered_map<const StoredTensor*, std::vector<std::string_view>> by_storage;
        std::map<std::string_view, std::string> modules;  // the names and dtypes of the parameters of each
        for (const auto& [name, tensor] : model_.module) {
            if (tensor.element_count() > 0 || buffers_.contains(name)) continue;
            if (!lacking.contains(name)) by_storage[tensor.stored().get()].push_back(name);
            modules[module_of(name)] +=
                name.substr(name.rfind('.') + 1) + ' ' + std::string(safemap::name(tensor.dtype())) + '\n';
        }
        std::unordered_map<std::string_view, std::vector<std::string_view>> alike;
        for (const auto& [module, parameters] : modules) alike[parameters].push_back(module);
        for (const auto& [name, tensor] : model_.module) {
            if (!lacking.contains(name)) continue;
            const auto same = by_storage.find(tensor.stored().get());
            const std::string_view own = module_of(name);
            const auto& both = alike.at(modules.at(own));
            if (same != by_storage.end() && same->second.size() == 1) {
                twins.certain.emplace(name, same->second.front());
            } else if (both.size() == 2 && !model_.without_frozen && !own.empty()) {
                std::string twin(both[0] == own ? both[1] : both[0]);
                twin += name.substr(own.size());
                if (!lacking.contains(twin) && names_.contains(twin)) twins.likely.emplace(name, std::move(twin));
            }
        }
        return twins;
    }

    static std::string_view module_of(std::string_view name) {
        const std::size_t dot = name.rfind('.');
        return name.substr(0, dot == name.npos ? 0 : dot);
    }

    std::vector<std::string> modules_without_tensors() const {
        // A module in another that has no tensors is not listed on its own.
        std::vector<std::string_view> all(names_.begin(), names_.end());
        all.insert(all.end(), model_.modules.begin(), model_.modules.end());
        std::sort(all.begin(), all.end());
        std::vector<std::string> without;
        for (const std::string& name : model_.modules) {
            const std::string beginning = name + '.';
            const auto inside = std::lower_bound(all.begin(), all.end(), beginning);
            const bool is_empty = inside == all.end() || !inside->starts_with(beginning);
            if (!name.empty() && is_empty) without.push_back(name);
        }
        return without;
    }

    static constexpr std::size_t most_listed = 64;

    const ModelFile& model_;
    int stage_;
    bool compat_;
    bool one_model_rank_ = false;
    std::unordered_set<std::string> buffers_;
    std::unordered_map<std::string, std::string> shared_ = {};
    std::unordered_map<std::string, const LazyTensor*> shared_tensors_ = {};  ///< by the names in `shared`
    TensorTable<std::string> stored_ = {};  ///< names of what is listed, by the tensors of the module
    std::unordered_set<std::string> names_ = {};
    std::vector<std::pair<std::string, const LazyTensor*>> second_names_ =
        {};                                                          ///< names of shared_params, in the module
    std::unordered_map<std::string, std::string> first_names_ = {};  ///< names as stored, by second names
    std::vector<std::string> lacking_ = {};
    std::vector<std::string> not_saved_ = {};
    Ties ties_ = {};
    ModelWeights out_ = {};
};

/// Throws if the files of some ranks have the step of a group and others, with state too, do not.
void check_steps(const ModelRankFiles& set) {
    const auto has_state = [](const OptimizerFile& file, std::size_t group) {
        return group < file.state.size() && group < file.steps.size() && !file.state[group].empty() &&
               file.masters[group].element_count() > 0;
    };
    for (std::size_t group = 0; group < set.optimizers.front().masters.size(); ++group) {
        const OptimizerFile* with = nullptr;
        const OptimizerFile* without = nullptr;
        for (const OptimizerFile& file : set.optimizers)
            if (has_state(file, group)) (file.steps[group] ? with : without) = &file;
        if (with != nullptr && without != nullptr)
            throw Error(Errc::ranks_differ, "the state of group " + std::to_string(group) +
                                                " has no step that is a number, which other ranks have")
                .with_path(without->file);
    }
}

/// Notes that the files of the model and of the optimizer say different numbers of steps.
void note_steps(const ModelRankFiles& set, ModelWeights& out) {
    const ModelFile& model = set.models.front();
    const auto& steps = set.optimizers.front().steps;
    const auto step = std::find_if(steps.begin(), steps.end(), [](const auto& each) { return each.has_value(); });
    constexpr double most = 1e15;
    if (!model.steps || model.model_rank > 0 || step == steps.end() || !(**step >= 0 && **step < most)) return;
    const std::uint64_t taken = *model.steps - std::min(model.skipped.value_or(0), *model.steps);
    const auto counted = static_cast<std::uint64_t>(**step);
    if (counted == taken) return;
    out.notes.push_back("the optimizer counts " + std::to_string(counted) + " steps, and the model " +
                        std::to_string(taken) +
                        ": it began anew during the run, or its files are of another save than those of the model");
}

/// Adds the tensors in nested lists, under their paths.
void add_tensors(const std::string& path, const Value& value, int depth, std::vector<Weight>& out) {
    if (!value.is_list()) return;
    const std::vector<Value> items = value.items();
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::string below = path + '/' + std::to_string(i);
        if (const LazyTensor* const tensor = items[i].tensor())
            out.push_back({below, tensor->renamed(below), WeightKind::master, {}});
        else if (depth < 2) add_tensors(below, items[i], depth + 1, out);
    }
}

}  // namespace

ModelWeights join_data_ranks(const ModelRankFiles& ranks, const PartSources& sources, const JoinOptions& options) {
    if (ranks.stage() == 0) return list_module_weights(ranks);
    const ParameterMaker maker(ranks, sources, options.optimizer);
    if (options.optimizer) check_steps(ranks);
    std::vector<Weight> masters;
    const auto add = [&](const Parameter& parameter, std::span<const PartitionRun> runs) {
        masters.push_back({parameter.name, maker.master(parameter, runs), WeightKind::master,
                           options.optimizer ? maker.state(parameter, runs) : Named()});
    };
    // The shapes are those of the first file.
    about_file(ranks.models.front().file, [&] { each_parameter(ranks, add); });
    ByName known;
    known.add(std::move(masters));
    known.add(frozen_weights(ranks, sources));
    ModelWeights out = Listing(ranks.models.front(), ranks.stage(), options.compat).made(std::move(known), true);
    note_steps(ranks, out);
    out.state_names = state_names(ranks);
    return out;
}

std::vector<std::string> state_names(const ModelRankFiles& set) {
    std::vector<std::string> names;
    std::unordered_set<std::string_view> known;
    if (set.optimizers.empty()) return names;
    for (std::size_t group = 0; group < set.optimizers.front().masters.size(); ++group)
        for (const StateName& state : names_of_state(set, group))
            if (known.insert(state.name).second) names.emplace_back(state.name);
    return names;
}

ModelWeights list_unnamed_masters(const ModelRankFiles& set) {
    const ModelFile& model = set.models.front();
    const auto stored = model.rest.size() > 0 ? Value(model.rest).find("optimizer") : std::nullopt;
    ModelWeights out;
    std::unordered_set<std::string> buffers(model.buffers.begin(), model.buffers.end());
    if (stored && stored->is_dict())
        for (const auto& [name, groups] : stored->entries())
            if (name.starts_with("fp32_groups")) add_tensors("fp32", groups, 0, out.weights);
    if (out.weights.empty()) return list_module_weights(set);  // trained in fp32: the module is the masters
    out.notes.push_back("the fp32 masters of stage 0 have no names in the file; they are in the order of param_groups");
    for (const auto& [name, tensor] : model.module)
        if (buffers.contains(name)) out.weights.push_back({name, tensor.renamed(name), WeightKind::buffer, {}});
    return out;
}

ModelWeights list_weights(const ModelRankFiles& ranks, const PartSources& sources, std::vector<Weight> masters) {
    ByName known;
    known.add(std::move(masters));
    known.add(frozen_weights(ranks, sources));
    return Listing(ranks.models.front(), ranks.stage(), false).made(std::move(known));
}

ModelWeights list_module_weights(const ModelRankFiles& ranks) {
    return Listing(ranks.models.front(), 0, false).made(ByName());
}

void add_sources(const ModelRankFiles& ranks, PartSources& sources) {
    for (const OptimizerFile& file : ranks.optimizers) {
        for (const LazyTensor& master : file.masters) sources.add(master);
        for (const Named& group : file.state)
            for (const auto& each : group) sources.add(each.second);
    }
    for (const ModelFile& file : ranks.models)
        for (const auto& each : file.frozen) sources.add(each.second);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
