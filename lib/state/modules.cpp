// Reads the layout of torch.nn.Module.__dict__. The reference is torch/nn/modules/module.py. Tested by
// tests/state/modules_test.cpp.
#include "state/modules.hpp"

#include "base/name_index.hpp"
#include "state/names.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <variant>

namespace safemap::SAFEMAP_ABI::state {

namespace {

using NodeId = StateTree::NodeId;

constexpr std::array<std::string_view, 3> dictionaries{"_parameters", "_buffers", "_modules"};
constexpr std::string_view not_persistent_names = "_non_persistent_buffers_set";  // since torch 1.6

/// Returns the attribute of that name, or no_node if it is missing.
NodeId attribute(const StateTree::Opaque& object, std::string_view name) {
    const auto found = std::find_if(object.children.begin(), object.children.end(),
                                    [name](const auto& child) { return child.first == name; });
    return found == object.children.end() ? StateTree::no_node : found->second;
}

std::unordered_set<std::string_view, NameHash> not_persistent(const StateTree& tree, const StateTree::Opaque& object) {
    std::unordered_set<std::string_view, NameHash> names;
    const NodeId id = attribute(object, not_persistent_names);
    const auto* const set = id == StateTree::no_node ? nullptr : std::get_if<StateTree::Sequence>(&tree[id]);
    if (set == nullptr) return names;
    for (const NodeId item : set->items)
        if (const auto* const text = std::get_if<std::string>(&tree[item])) names.insert(*text);
    return names;
}

}  // namespace

bool is_module(const StateTree& tree, const StateTree::Node& node) {
    const auto* const object = std::get_if<StateTree::Opaque>(&node);
    if (object == nullptr || object->form != StateTree::Opaque::Form::object) return false;
    return std::all_of(dictionaries.begin(), dictionaries.end(), [&](std::string_view name) {
        const NodeId id = attribute(*object, name);
        return id != StateTree::no_node && std::holds_alternative<StateTree::Dict>(tree[id]);
    });
}

bool is_module_part(std::string_view attribute) {
    return std::find(dictionaries.begin(), dictionaries.end(), attribute) != dictionaries.end();
}

Module module_of(const StateTree& tree, const StateTree::Opaque& object) {
    Module module;
    const auto left_out = not_persistent(tree, object);
    for (const std::string_view name : dictionaries) {
        const NodeId dictionary = attribute(object, name);
        const auto& items = std::get<StateTree::Dict>(tree[dictionary]).items;
        for (std::size_t place = 0; place < items.size(); ++place) {
            const auto& [key, value] = items[place];
            const auto* const text = std::get_if<std::string>(&tree[key]);
            const bool persistent = name != "_buffers" || text == nullptr || !left_out.contains(*text);
            (persistent ? module.state : module.not_persistent).push_back({dictionary, place, key, value});
        }
    }
    return module;
}

std::string module_segment(const StateTree::Node& key, std::size_t place) {
    const auto* const text = std::get_if<std::string>(&key);
    return text != nullptr && verbatim_name(*text) ? *text : key_segment(key, place);
}

}  // namespace safemap::SAFEMAP_ABI::state
