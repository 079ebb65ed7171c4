// Recognises the state of an optimizer that cannot be joined. Tested by tests/distributed/flat_params_test.cpp.
#include "distributed/flat/unnamed_optimizer.hpp"

#include "base/text.hpp"
#include "distributed/ranks/sharded_nodes.hpp"
#include "distributed/values.hpp"
#include "state/names.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

constexpr std::string_view state_key = "state";

/// Returns the dictionary of the state, if the node is an optimizer.
std::optional<NodeId> state_of(const Value& value) {
    if (!value.is_dict()) return std::nullopt;
    const auto state = value.find(state_key);
    const auto groups = value.find("param_groups");
    if (!state || !state->is_dict() || !groups || !groups->is_list()) return std::nullopt;
    return state->node();
}

/// Returns true if the tensors of the parameters are local parts: plain ones, and all with one dimension, but for those
/// without any. Whole tensors would have the shapes of the parameters.
bool holds_local_parts(const StateTree& tree, NodeId state) {
    bool found = false;
    for (const auto& parameter : std::get<StateTree::Dict>(tree[state]).items) {
        const auto* const dict = std::get_if<StateTree::Dict>(&tree[parameter.second]);
        if (dict == nullptr) continue;
        for (const auto& entry : dict->items) {
            if (distributed_kind(tree[entry.second])) return false;
            const auto* const leaf = std::get_if<StateTree::Tensor>(&tree[entry.second]);
            if (leaf == nullptr || leaf->numpy || leaf->tensor.shape().empty()) continue;
            if (leaf->tensor.shape().size() > 1) return false;
            found = true;
        }
    }
    return found;
}

/// Returns true if parameters have keys that no name can spell, such as a tuple of an address and a shape.
bool has_unnamed_keys(const StateTree& tree, NodeId state) {
    const auto& items = std::get<StateTree::Dict>(tree[state]).items;
    return std::any_of(items.begin(), items.end(),
                       [&](const auto& item) { return !state::key_of(state::key_segment(tree[item.first], 0)); });
}

}  // namespace

std::vector<std::string> local_states(const StateTree& tree) {
    constexpr std::size_t most_levels = 4;
    std::vector<std::string> found;
    std::vector<bool> met(tree.size());
    std::vector<std::pair<std::string, NodeId>> level{{"", tree.root()}};
    const Value root(tree);  // the values share its bounds
    for (std::size_t depth = 0; depth < most_levels && !level.empty(); ++depth) {
        std::vector<std::pair<std::string, NodeId>> below;
        for (const auto& [path, node] : level) {
            if (met[node]) continue;
            met[node] = true;
            if (const auto state = state_of(root.root_at(node))) {
                if (holds_local_parts(tree, *state)) found.push_back(path);
                continue;
            }
            const auto* const dict = std::get_if<StateTree::Dict>(&tree[node]);
            if (dict == nullptr) continue;
            for (std::size_t i = 0; i < dict->items.size(); ++i) {
                if (!std::holds_alternative<StateTree::Dict>(tree[dict->items[i].second])) continue;
                std::string inner = path;
                state::append_segment(inner, state::key_segment(tree[dict->items[i].first], i));
                below.emplace_back(std::move(inner), dict->items[i].second);
            }
        }
        level = std::move(below);
    }
    return found;
}

std::optional<std::string> optimizer_around(const StateTree& tree, std::string_view tensor) {
    constexpr std::string_view inside = "state/";
    const Value root(tree);
    for (std::size_t begin = 0; begin < tensor.size(); begin = tensor.find('/', begin) + 1) {
        const std::string_view path = tensor.substr(0, begin == 0 ? 0 : begin - 1);
        const auto node = tree.find(path);
        const auto state = node ? state_of(root.root_at(*node)) : std::nullopt;
        if (state && tensor.substr(begin).starts_with(inside)) {
            const bool unnamed = holds_local_parts(tree, *state) || has_unnamed_keys(tree, *state);
            return unnamed ? std::optional(std::string(path)) : std::nullopt;
        }
        if (tensor.find('/', begin) == tensor.npos) break;
    }
    return std::nullopt;
}

std::string state_path(const std::string& optimizer) {
    return optimizer.empty() ? std::string(state_key) : optimizer + '/' + std::string(state_key);
}

Error unnamed_state(const std::string& optimizer, bool named) {
    Error error(Errc::optimizer_unnamed, excerpt(state_path(optimizer)) +
                                             " holds what each rank has of the state of the optimizer, under numbers "
                                             "or addresses: no file says of which parameters, and which of their "
                                             "elements");
    if (named)
        return error.with_hint(
            "param_names has the names; if the run is one of OLMo, give the folder that also has model/rankN.pt");
    return error.with_hint(
        "FSDP.optim_state_dict(model, optimizer), or get_optimizer_state_dict() of torch.distributed.checkpoint, gives "
        "a state with names: load the run and save that");
}

}  // namespace safemap::SAFEMAP_ABI::distributed
