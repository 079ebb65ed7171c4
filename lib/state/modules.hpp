// Finds modules of torch.nn among the objects of a tree, and the contents of their state_dict().
#pragma once

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// Returns true for an object with the dictionaries `_parameters`, `_buffers` and `_modules`, which every version of
/// torch.nn.Module has. The class does not matter, because each program defines its own.
bool is_module(const StateTree& tree, const StateTree::Node& node);
/// Returns true for the names of these three dictionaries.
bool is_module_part(std::string_view attribute);

/// The entries of a module's dictionaries.
struct Module {
    struct Entry {
        StateTree::NodeId dictionary;
        std::size_t place;  ///< place in the dictionary
        StateTree::NodeId key;
        StateTree::NodeId value;
    };
    std::vector<Entry> state;           ///< in the order of state_dict(): parameters, persistent buffers, modules
    std::vector<Entry> not_persistent;  ///< buffers that are not persistent
};
/// Reads the dictionaries of an object for which is_module() is true. Linear in their sizes.
Module module_of(const StateTree& tree, const StateTree::Opaque& object);

/// Returns a key as it is spelled in a dotted name: texts unescaped, other keys as key_segment() spells them.
std::string module_segment(const StateTree::Node& key, std::size_t place);

/// Returns the names that flatten() gives to tensors, by node. Returns no names for a tree without modules, where each
/// name is a path.
std::unordered_map<StateTree::NodeId, std::string> names_beside_modules(const StateTree& tree);

}  // namespace safemap::SAFEMAP_ABI::state
