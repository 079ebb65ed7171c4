// The names of classes and functions in pickles.
#pragma once

#include "pickle/pickle.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns true if a node is the class or function `name`, such as "collections.OrderedDict".
bool is_global(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name);
/// Returns true if any node of the pickle is the class or function `name`.
bool names_global(const PickleGraph& pickle, std::string_view name);
/// Returns true if a node is a call of the class or function `name`.
bool is_call_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name);
/// Returns module and name with a dot between them: "collections.OrderedDict".
std::string dotted(const PickleGraph::Global& global);
/// Returns true if module and name with a dot between them are `name`. A global whose own name has dots never matches.
bool is_named(const PickleGraph::Global& global, std::string_view name) noexcept;
inline constexpr std::string_view load_from_bytes = "torch.storage._load_from_bytes";

/// Returns the row of a table of functions with that `name`, or null.
template <class Row, std::size_t count> const Row* row_of(const Row (&rows)[count], std::string_view name) noexcept {
    for (const Row& row : rows)
        if (row.name == name) return &row;
    return nullptr;
}

}  // namespace safemap::SAFEMAP_ABI::torch
