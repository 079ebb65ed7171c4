// The names of classes and functions in pickles.
#pragma once

#include "pickle/pickle.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Whether a node is that class or function, "collections.OrderedDict".
bool is_global(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name);
/// Whether any node is that class or function.
bool names_global(const PickleGraph& pickle, std::string_view name);
/// Whether a node is a call of that function.
bool is_call_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name);
/// "collections.OrderedDict".
std::string dotted(const PickleGraph::Global& global);
/// Returns whether the global is spelled like `name`. A name with dots of its own is another.
bool is_named(const PickleGraph::Global& global, std::string_view name) noexcept;
inline constexpr std::string_view load_from_bytes = "torch.storage._load_from_bytes";

/// The row of a table of functions, each by its `name`; null where there is none.
template <class Row, std::size_t count> const Row* row_of(const Row (&rows)[count], std::string_view name) noexcept {
    for (const Row& row : rows)
        if (row.name == name) return &row;
    return nullptr;
}

}  // namespace safemap::SAFEMAP_ABI::torch
