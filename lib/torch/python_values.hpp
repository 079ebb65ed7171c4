// What calls of Python's and torch's own functions give where they give plain values.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/state_tree.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// The arguments of _codecs.encode(text, 'latin1'), which is how protocol 2 spells bytes: each character is one.
/// Nothing where they are others. Throws pickle_too_large where `allowance` has no room for the bytes.
std::optional<std::string> encoded_text(const PickleGraph& pickle, std::span<const PickleGraph::Id> arguments,
                                        Allowance& allowance);
/// The bytes that a node is, as they are or encoded; nothing where it is something else.
std::optional<std::string> bytes_of(const PickleGraph& pickle, PickleGraph::Id id, Allowance& allowance);

/// What `function(arguments)` is: complex numbers, bytes and bytearrays, torch.device and layouts. Nothing where it is
/// another function, or the arguments are others than these are pickled with.
std::optional<StateTree::Node> python_value(const PickleGraph& pickle, std::string_view function,
                                            std::span<const PickleGraph::Id> arguments, Allowance& allowance);
/// Whether python_value() knows the function.
bool is_value_function(std::string_view function) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
