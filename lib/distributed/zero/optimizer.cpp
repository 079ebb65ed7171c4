// The state of the optimizer as one tree: tensors of the parameters under their names, and everything else as the first
// rank has it.
#include "distributed/parallel/merge.hpp"
#include "distributed/zero/keys.hpp"
#include "distributed/zero/partitions.hpp"
#include "distributed/zero/run.hpp"
#include "state/path_tree.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;
using Entries = std::vector<std::pair<std::string, NodeId>>;

/// Adds a dictionary. Of keys that are equal, all but the first get "_" at their ends: a file can have both 5 and "5",
/// or a field with the name of an entry that is added here.
NodeId add_dict(state::PathTree& tree, const Entries& entries) {
    const NodeId dict = tree.add(StateTree::Dict{});
    for (const auto& [name, value] : entries)
        for (std::string key = name; !tree.put(dict, key, value);) key += '_';
    return dict;
}

/// Replaces the value of a key of a dictionary that a file holds, or adds it.
void set_entry(state::PathTree& tree, NodeId dict, std::string_view key, NodeId value) {
    auto& items = std::get<StateTree::Dict>(tree.tree()[dict]).items;
    for (auto& [name, old] : items)
        if (const auto* const text = std::get_if<std::string>(&tree.tree()[name]); text != nullptr && *text == key) {
            old = value;
            return;
        }
    const NodeId name = tree.key(key);  // the tree grows
    std::get<StateTree::Dict>(tree.tree()[dict]).items.emplace_back(name, value);
}

/// Fields that describe the partitions, which the whole tensors do not have.
constexpr std::array<std::string_view, 12> partition_fields{"single_partition_of_fp32_groups",
                                                            "fp32_flat_groups",
                                                            "base_optimizer_state",
                                                            "optimizer_state_dict",
                                                            "zero_stage",
                                                            "partition_count",
                                                            "group_paddings",
                                                            "param_alignment_paddings",
                                                            "param_slice_mappings",
                                                            "ds_zero_partition_groups",
                                                            "param_groups",
                                                            "universal_checkpoint_info"};

bool is_partition_field(std::string_view name) {
    return std::find(partition_fields.begin(), partition_fields.end(), name) != partition_fields.end();
}

/// Returns true for an array. One that does not have an element for each of the partition belongs to the partition of
/// one rank, such as the scales of 8-bit optimizers.
bool is_of_partition(const LazyTensor* tensor) {
    return tensor != nullptr && !tensor->shape().empty() && tensor->element_count() > 1;
}

/// The names under which the weights are listed: those of a model rank begin with its number if they are not merged.
class ListedNames {
public:
    explicit ListedNames(const ModelWeights& joined) {
        for (const ModelWeights::Weight& weight : joined.weights)
            if (weight.kind == ModelWeights::Weight::Kind::master) all_.insert(weight.name);
    }
    std::string of(const ModelRankFiles& set, std::string name) const {
        std::string own = rank_prefix(set.models.front().model_rank) + name;
        return all_.contains(own) ? own : name;
    }

private:
    std::unordered_set<std::string_view> all_ = {};
};

/// The `optimizer_state_dict` of the first file of each model rank.
using Inners = std::vector<Value>;

/// The state of a parameter besides its tensors of the parameter's shape, such as its step.
class OtherState {
public:
    OtherState(const ZeroRun& run, const Inners& inners, const ListedNames& listed) {
        for (std::size_t i = 0; i < run.sets.size(); ++i) add(run.sets[i], inners[i], listed);
    }

    /// Calls add(name, node) for the values that `state` does not have.
    template <class Add> void each(const std::string& parameter, const Named& state, Add&& add) const {
        const auto group = groups_.find(parameter);
        if (group == groups_.end()) return;
        for (const auto& [name, node] : values_[group->second]) {
            const auto known = [&key = name](const auto& tensor) { return tensor.first == key; };
            if (std::none_of(state.begin(), state.end(), known)) add(name, node);
        }
    }

private:
    void add(const ModelRankFiles& set, const Value& inner, const ListedNames& listed) {
        const std::size_t groups = set.models.front().groups.size();
        const auto states = states_of(inner, set.stage(), set.optimizers.front().masters.size());
        const std::vector<std::string> names = state_names(set);
        const std::unordered_set<std::string_view> known(names.begin(), names.end());
        for (std::size_t group = 0; group < groups && group < states.size(); ++group) {
            if (!states[group] || !states[group]->is_dict()) continue;
            for (std::string& name : names_of_group(set, group))
                groups_.emplace(listed.of(set, std::move(name)), values_.size());
            values_.push_back(entries_of(*states[group]));
            // A parameter without elements has none of these.
            std::erase_if(values_.back(), [&](const auto& entry) { return known.contains(entry.first); });
        }
    }
    static Entries entries_of(const Value& state) {
        Entries entries;
        for (const auto& [name, value] : state.entries())
            if (!is_of_partition(value.tensor())) entries.emplace_back(name, value.node());
        return entries;
    }

    std::unordered_map<std::string, std::size_t> groups_ = {};  ///< places in `values_`, by parameter
    std::vector<Entries> values_ = {};
};

/// Returns a dictionary of the state of all parameters.
template <class Others> NodeId state_dict(state::PathTree& tree, const ModelWeights& joined, const Others& others) {
    Entries parameters;
    for (const ModelWeights::Weight& weight : joined.weights) {
        Entries entries;
        for (const auto& [name, tensor] : weight.state) entries.emplace_back(name, tree.add_tensor(tensor));
        others(weight, [&](const std::string& name, NodeId node) { entries.emplace_back(name, node); });
        if (!entries.empty()) parameters.emplace_back(weight.name, add_dict(tree, entries));
    }
    return add_dict(tree, parameters);
}

/// Returns the names of the parameters of a group, over all model ranks.
std::vector<NodeId> names_in_group(state::PathTree& tree, const ZeroRun& run, const ListedNames& listed,
                                   std::size_t group) {
    std::unordered_set<std::string> known;
    std::vector<NodeId> names;
    for (const ModelRankFiles& set : run.sets) {
        if (group >= set.models.front().groups.size()) continue;
        for (std::string& name : names_of_group(set, group))
            if (const auto [found, is_new] = known.insert(listed.of(set, std::move(name))); is_new)
                names.push_back(tree.add(*found));
    }
    return names;
}

/// Returns the list of groups with the names of their parameters, where it has as many groups as `param_shapes`.
NodeId parameter_groups(state::PathTree& tree, const Value& groups, const ZeroRun& run, const ListedNames& listed) {
    const std::vector<Value> items = groups.is_list() ? groups.items() : std::vector<Value>();
    if (items.size() != run.first_model().groups.size()) return groups.node();
    for (std::size_t i = 0; i < items.size(); ++i)
        if (items[i].is_dict())
            set_entry(
                tree, items[i].node(), "params",
                tree.add(StateTree::Sequence{StateTree::Sequence::Kind::list, names_in_group(tree, run, listed, i)}));
    return groups.node();
}

/// Returns the root: everything is below "optimizer", and the state of the training below "optimizer/training".
StateTree finish(state::PathTree& tree, Entries optimizer, const StateTree& training) {
    if (training.size() > 0) {
        const NodeId base = tree.graft(training);
        for (auto& entry : optimizer)
            if (entry.first == "training") entry.first += '_';
        optimizer.emplace_back("training", training.root() + base);
    }
    const NodeId root = add_dict(tree, {{"optimizer", add_dict(tree, optimizer)}});
    return tree.tree().subtree(root);
}

/// The optimizer of stage 0, which is in the file of the model, as it is there. Parameters have numbers and no names,
/// so that nothing is merged over model ranks: each has its own state.
StateTree unpartitioned(const ZeroRun& run) {
    state::PathTree tree;
    Entries optimizer;
    for (const ModelRankFiles& set : run.sets) {
        const ModelFile& model = set.models.front();
        const auto stored = model.rest.size() > 0 ? Value(model.rest).find("optimizer") : std::nullopt;
        if (!stored || !stored->is_dict()) continue;
        const NodeId base = tree.graft(model.rest);
        Entries own;
        for (const auto& [name, value] : stored->entries()) own.emplace_back(name, value.node() + base);
        const std::string rank = rank_prefix(model.model_rank);
        if (run.sets.size() == 1) optimizer = std::move(own);
        else optimizer.emplace_back(rank.substr(0, rank.size() - 1), add_dict(tree, own));
    }
    return finish(tree, std::move(optimizer), training_state(run.first_model()));
}

}  // namespace

StateTree optimizer_tree(const ZeroRun& run, const ModelWeights& joined) {
    const ModelFile& model = run.first_model();
    if (run.stage() == 0) return unpartitioned(run);
    const OptimizerFile& first = run.sets.front().optimizers.front();
    state::PathTree tree;
    std::vector<NodeId> roots;
    for (const ModelRankFiles& set : run.sets) {
        const StateTree& rest = set.optimizers.front().rest;
        const NodeId base = tree.graft(rest);
        roots.push_back(rest.root() + base);
    }
    Inners inners{Value(tree.tree(), roots.front())};
    for (std::size_t i = 1; i < roots.size(); ++i) inners.push_back(inners.front().root_at(roots[i]));
    const Value& inner = inners.front();
    const ListedNames listed(joined);
    const OtherState others(run, inners, listed);
    Entries optimizer;
    optimizer.emplace_back("state", state_dict(tree, joined, [&](const ModelWeights::Weight& weight, const auto& add) {
                               if (weight.kind == ModelWeights::Weight::Kind::master)
                                   others.each(weight.name, weight.state, add);
                           }));
    const auto state = inner.find(first.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    if (const auto groups = state ? state->find("param_groups") : std::nullopt)
        optimizer.emplace_back("param_groups", parameter_groups(tree, *groups, run, listed));
    for (const auto& [name, value] : inner.entries())
        if (!is_partition_field(name)) optimizer.emplace_back(name, value.node());
    return finish(tree, std::move(optimizer), training_state(model));
}

StateTree optimizer_tree(const ZeroRun& run, const std::vector<std::string>& files,
                         const std::vector<StateTree>& states) {
    constexpr std::string_view ending = "_optim_states.pt";
    state::PathTree tree;
    Entries optimizer;
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (states[i].size() == 0) continue;
        const NodeId base = tree.graft(states[i]);
        optimizer.emplace_back(files[i].substr(0, files[i].size() - ending.size()), states[i].root() + base);
    }
    return finish(tree, std::move(optimizer), training_state(run.first_model()));
}

StateTree optimizer_tree(const ModelWeights& joined, const std::optional<StateTree>& rest, const StateTree& training) {
    state::PathTree tree;
    Entries optimizer;
    std::unordered_map<std::string, NodeId> steps;
    Entries fields;
    if (rest) {
        const NodeId base = tree.graft(*rest);
        const Value root(*rest);
        if (const auto step = root.find("step"); step && step->is_dict())
            for (const auto& [name, value] : step->entries()) steps.emplace(name, value.node() + base);
        for (const auto& [name, value] : root.entries())
            if (name == "param_groups" || (name != "step" && !is_partition_field(name)))
                fields.emplace_back(name, value.node() + base);
    }
    optimizer.emplace_back("state", state_dict(tree, joined, [&](const ModelWeights::Weight& weight, const auto& add) {
                               if (const auto step = steps.find(weight.name); step != steps.end())
                                   add("step", step->second);
                           }));
    optimizer.insert(optimizer.end(), fields.begin(), fields.end());
    return finish(tree, std::move(optimizer), training);
}

std::vector<std::string> unnamed_state_names(const ZeroRun& run) {
    constexpr std::size_t most = 64;
    std::vector<std::string> names;
    for (const ModelRankFiles& set : run.sets) {
        const StateTree& rest = set.models.front().rest;
        auto state = rest.size() > 0 ? Value(rest).find("optimizer") : std::nullopt;
        if (const auto inner = state ? state->find("optimizer_state_dict") : std::nullopt) state = inner;
        if (state) state = state->find("state");
        if (!state || !state->is_dict()) continue;
        for (const auto& parameter : state->entries()) {
            if (!parameter.second.is_dict()) continue;
            for (const auto& [name, value] : parameter.second.entries()) {
                const LazyTensor* const tensor = value.tensor();
                if (tensor != nullptr && !tensor->shape().empty() && names.size() < most &&
                    std::find(names.begin(), names.end(), name) == names.end())
                    names.push_back(name);
            }
        }
    }
    return names;
}

std::vector<std::string> unread_state(const ZeroRun& run) {
    std::vector<std::string> names;
    for (const ModelRankFiles& set : run.sets) {
        const std::vector<std::string> listed = state_names(set);
        const std::unordered_set<std::string_view> known(listed.begin(), listed.end());
        const auto is_in = [](const std::vector<std::string>& list, const std::string& name) {
            return std::find(list.begin(), list.end(), name) != list.end();
        };
        if (set.optimizers.empty()) continue;
        for (const Named& group : set.optimizers.front().state)
            for (const auto& [name, tensor] : group)
                if (is_of_partition(&tensor) && names.size() < 64 && !known.contains(name) && !is_in(names, name))
                    names.push_back(name);
    }
    return names;
}

std::uint64_t optimizer_bytes(const ZeroRun& run) {
    if (run.stage() == 0) return tensor_bytes(unpartitioned(run)) - tensor_bytes(training_state(run.first_model()));
    std::uint64_t bytes = 0;
    for (const ModelRankFiles& set : run.sets)
        for (const OptimizerFile& file : set.optimizers)
            for (const Named& group : file.state)
                for (const auto& each : group)
                    if (each.second.shape().size() == 1) bytes += each.second.nbytes();
    return bytes;
}

StateTree training_state(const ModelFile& model) {
    if (model.rest.size() == 0) return {};
    StateTree training = model.rest;
    training.erase("optimizer");
    return training.subtree(training.root());
}

std::uint64_t tensor_bytes(const StateTree& tree) {
    std::uint64_t bytes = 0;
    for (StateTree::NodeId id = 0; id < tree.size(); ++id)
        if (const auto* const leaf = std::get_if<StateTree::Tensor>(&tree[id])) bytes += leaf->tensor.nbytes();
    return bytes;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
