// Modules of torch.nn among the objects of a tree, and what their state_dict() holds.
#pragma once

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// Returns true for an object with the dictionaries `_parameters`, `_buffers` and `_modules`, which every version of
/// torch.nn.Module has. The class is not asked: it is the program's own.
bool is_module(const StateTree& tree, const StateTree::Node& node);
/// Returns true for the names of these three dictionaries.
bool is_module_part(std::string_view attribute);

/// The entries of a module's dictionaries.
struct Module {
    struct Entry {
        StateTree::NodeId dictionary;
        std::size_t place;  ///< in the dictionary
        StateTree::NodeId key;
        StateTree::NodeId value;
    };
    std::vector<Entry> state;           ///< in the order of state_dict(): parameters, persistent buffers, modules
    std::vector<Entry> not_persistent;  ///< buffers
};
/// Reads the dictionaries of an object for which is_module() is true. Linear in their sizes.
Module module_of(const StateTree& tree, const StateTree::Opaque& object);

/// Returns a key as it stands in a dotted name: texts unescaped, all else as key_segment() spells it.
std::string module_segment(const StateTree::Node& key, std::size_t place);

/// Returns the names of the tensors that flatten() gives one, by node; nothing for a tree without modules, in which
/// a name is a path.
std::unordered_map<StateTree::NodeId, std::string> names_beside_modules(const StateTree& tree);

}  // namespace safemap::SAFEMAP_ABI::state
