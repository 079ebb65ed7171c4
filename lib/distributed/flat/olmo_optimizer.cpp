// Joins the state of an optimizer that LocalShardedCheckpointer of OLMo writes to optim/rankN.pt. Tested by
// tests/distributed/olmo_ranks_test.cpp.
#include "distributed/flat/olmo_optimizer.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "distributed/values.hpp"
#include "lazy/whole.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

std::string path_of(std::int64_t parameter, std::string_view key) {
    return "state/" + std::to_string(parameter) + '/' + std::string(key);
}

/// Returns the name of a parameter without the parts that FSDP puts between.
std::string without_wrappers(std::string_view name) {
    constexpr std::string_view wrapper = "_fsdp_wrapped_module.";
    std::string out(name);
    for (auto at = out.find(wrapper); at != out.npos; at = out.find(wrapper, at)) out.erase(at, wrapper.size());
    return out;
}

/// Returns the number that a key of `state` is.
std::int64_t number_of(const std::string& key) {
    const auto number = decimal<std::int64_t>(key);
    if (!number)
        throw Error(Errc::field_missing, "the key " + excerpt(key) + " of state is not the number of a parameter");
    return *number;
}

/// A parameter of the optimizer: its number, and its place in the list of the model.
struct OlmoListed {
    std::int64_t number = 0;
    std::uint32_t parameter = 0;
};

/// Returns the parameters in the order of the groups.
std::vector<OlmoListed> listed_parameters(const StateTree& tree, const std::vector<OlmoParameter>& parameters) {
    std::unordered_map<std::string_view, std::uint32_t> known;
    for (std::uint32_t i = 0; i < parameters.size(); ++i) known.emplace(parameters[i].name, i);
    std::vector<OlmoListed> listed;
    std::unordered_set<std::int64_t> numbers;
    for (const Value& group : Value(tree).at("param_groups").items()) {
        const auto names = group.at("param_names").items();
        const auto params = group.at("params").items();
        if (names.size() != params.size())
            throw Error(Errc::field_missing, "param_names of a group lists " + std::to_string(names.size()) +
                                                 " parameters, and params " + std::to_string(params.size()));
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto name = names[i].text();
            const auto number = params[i].integer();
            if (!name || !number)
                throw Error(Errc::field_missing, "the field " + excerpt((name ? params : names)[i].where()) +
                                                     (name ? " is not an integer" : " is not a text"));
            const auto found = known.find(without_wrappers(*name));
            if (found == known.end())
                throw Error(Errc::field_missing, "param_names lists " + excerpt(*name) +
                                                     ", and the files of the model have no such parameter");
            if (!numbers.insert(*number).second)
                throw Error(Errc::field_missing, "params lists " + std::to_string(*number) + " twice");
            listed.push_back({*number, found->second});
        }
    }
    return listed;
}

/// The elements of a parameter that each rank has.
class Slices {
public:
    explicit Slices(const OlmoRank& rank) {
        for (const OlmoHandle& handle : rank.handles)
            for (const OlmoSlice& one : handle.slices) slices_.emplace(one.parameter, &one);
    }
    const OlmoSlice* of(std::uint32_t parameter) const {
        const auto found = slices_.find(parameter);
        return found == slices_.end() ? nullptr : found->second;
    }

private:
    std::unordered_map<std::uint32_t, const OlmoSlice*> slices_ = {};
};

/// A tensor of the state, whole or as it becomes whole.
struct Joining {
    std::string key = {};
    const OlmoState::Entry* first = nullptr;
    const OlmoState* first_rank = nullptr;
    std::vector<FlatPart> parts = {};
};

class Joiner {
public:
    Joiner(const std::vector<OlmoState>& ranks, const std::vector<OlmoRank>& model,
           std::vector<state::Replica>& replicas)
        : ranks_(ranks), model_(model), replicas_(replicas) {}

    void join(std::vector<OlmoListed> listed) {
        listed_ = std::move(listed);
        for (std::size_t i = 0; i < listed_.size(); ++i) places_.emplace(listed_[i].number, i);
        joining_.resize(listed_.size());
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            about_file(ranks_[rank].file, [&] { add_rank(ranks_[rank], Slices(model_[rank])); });
    }

    NodeId add_to(StateTree& tree) const {
        StateTree::Dict state;
        for (std::size_t i = 0; i < listed_.size(); ++i) {
            StateTree::Dict of_parameter;
            for (const Joining& one : joining_[i])
                of_parameter.items.emplace_back(
                    tree.add(one.key), tree.add(StateTree::Tensor{.tensor = made(listed_[i], one).renamed({})}));
            if (of_parameter.items.empty()) continue;
            const NodeId number = tree.add(listed_[i].number);
            state.items.emplace_back(number, tree.add(std::move(of_parameter)));
        }
        return tree.add(std::move(state));
    }

private:
    void add_rank(const OlmoState& rank, const Slices& slices) {
        bool compared = false;
        for (const OlmoState::Entry& entry : rank.entries) {
            const std::string path = path_of(entry.parameter, entry.key);
            about_tensor(path, [&] {
                const auto place = places_.find(entry.parameter);
                if (place == places_.end())
                    throw Error(Errc::field_missing, "no group lists the parameter " + std::to_string(entry.parameter));
                const OlmoListed& listed = listed_[place->second];
                Joining& joining = joining_of(joining_[place->second], rank, entry);
                if (!entry.tensor.shape().empty())
                    return add_part(joining, entry, listed.parameter, slices.of(listed.parameter));
                if (joining.first != &entry) compared = add_replica(joining, rank, entry, path, compared);
            });
        }
    }

    /// Returns the tensor that an entry is of, and throws if other ranks have another kind of value there.
    static Joining& joining_of(std::vector<Joining>& all, const OlmoState& rank, const OlmoState::Entry& entry) {
        auto found = std::find_if(all.begin(), all.end(), [&](const Joining& one) { return one.key == entry.key; });
        if (found == all.end())
            found = all.insert(all.end(), Joining{.key = entry.key, .first = &entry, .first_rank = &rank});
        const LazyTensor& first = found->first->tensor;
        const Agreement agree(found->first_rank->file);
        agree("the dtype", first.dtype(), entry.tensor.dtype());
        if (first.shape().empty() != entry.tensor.shape().empty())
            agree("the shape", first.shape(), entry.tensor.shape());
        return *found;
    }

    void add_part(Joining& joining, const OlmoState::Entry& entry, std::uint32_t parameter, const OlmoSlice* slice) {
        const std::uint64_t count = entry.tensor.element_count();
        if (slice == nullptr && count == 0) return;
        const std::string& name = model_.front().parameters[parameter].name;
        if (slice == nullptr)
            throw Error(Errc::ranks_differ, "it has " + std::to_string(count) + " elements of " + excerpt(name) +
                                                ", of which the rank's file of the model has none");
        if (count != slice->count)
            throw Error(Errc::piece_mismatch, "it has " + std::to_string(count) + " elements; the rank has " +
                                                  std::to_string(slice->count) + " of " + excerpt(name));
        joining.parts.push_back({slice->first, slice->count, &entry.tensor, 0});
        sources_.add(entry.tensor);
    }

    /// Compares one value of each rank: a file of an older save counts other steps.
    bool add_replica(const Joining& joining, const OlmoState& rank, const OlmoState::Entry& entry,
                     const std::string& path, bool compared) {
        if (!compared && !have_equal_bytes(joining.first->tensor, entry.tensor, compared_bytes))
            throw Error(Errc::ranks_differ, "the value is not that in " + excerpt(joining.first_rank->file) +
                                                ": the files may be of different saves");
        replicas_.push_back({path, joining.first->tensor, entry.tensor, joining.first_rank->file, rank.file});
        return true;
    }

    LazyTensor made(const OlmoListed& listed, const Joining& joining) const {
        if (joining.first->tensor.shape().empty()) return joining.first->tensor;
        const OlmoParameter& parameter = model_.front().parameters[listed.parameter];
        return whole(path_of(listed.number, joining.key), joining.first->tensor.dtype(), parameter.shape, joining.parts,
                     sources_);
    }

    const std::vector<OlmoState>& ranks_;
    const std::vector<OlmoRank>& model_;
    std::vector<state::Replica>& replicas_;
    std::vector<OlmoListed> listed_ = {};
    std::unordered_map<std::int64_t, std::size_t> places_ = {};  ///< places in `listed_`, by number
    std::vector<std::vector<Joining>> joining_ = {};             ///< for each of `listed_`
    PartSources sources_ = {};
};

/// Takes the wrappers of FSDP out of the names in the groups.
void clean_names(StateTree& tree) {
    std::vector<NodeId> lists;
    for (const Value& group : Value(tree).at("param_groups").items()) lists.push_back(group.at("param_names").node());
    for (const NodeId list : lists) {
        std::vector<NodeId> items = std::get<StateTree::Sequence>(tree[list]).items;
        for (NodeId& item : items) item = tree.add(without_wrappers(std::get<std::string>(tree[item])));
        std::get<StateTree::Sequence>(tree[list]).items = std::move(items);
    }
}

}  // namespace

bool is_named_optimizer(const StateTree& tree) {
    if (tree.size() == 0) return false;
    const auto state = Value(tree).find("state");
    const auto groups = Value(tree).find("param_groups");
    if (!state || !state->is_dict() || !groups || !groups->is_list()) return false;
    const auto items = groups->items();
    return !items.empty() && std::all_of(items.begin(), items.end(), [](const Value& group) {
        const auto names = group.find("param_names");
        return names && names->is_list();
    });
}

OlmoState read_olmo_state(const StateTree& tree, std::string file) {
    OlmoState out{.file = std::move(file)};
    for (const auto& [number, state] : Value(tree).at("state").entries())
        for (const auto& [key, value] : state.entries()) {
            if (value.tensor() == nullptr)
                throw Error(Errc::field_missing, "the field " + excerpt(value.where()) + " is not a tensor");
            out.entries.push_back({number_of(number), key, *value.tensor()});
        }
    return out;
}

void compare_groups(const StateTree& first, const std::string& first_file, const StateTree& other) {
    const NodeId there = Value(first).at("param_groups").node();
    if (!TreeComparison(first, other).same(there, Value(other).at("param_groups").node()))
        throw Error(Errc::ranks_differ, "param_groups are not those in " + excerpt(first_file));
}

StateTree optimizer_of_olmo(StateTree first, const std::vector<OlmoState>& ranks, const std::vector<OlmoRank>& model,
                            std::vector<state::Replica>& replicas) {
    Joiner joiner(ranks, model, replicas);
    about_file(ranks.front().file, [&] { joiner.join(listed_parameters(first, model.front().parameters)); });
    first.put("state", joiner.add_to(first));
    clean_names(first);
    return first.subtree(first.root());
}

}  // namespace safemap::SAFEMAP_ABI::distributed
