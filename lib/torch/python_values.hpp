// Reads calls of Python's and torch's own functions that make plain values.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/state_tree.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns the bytes that _codecs.encode(text, 'latin1') makes, from its arguments. Protocol 2 spells bytes in this
/// way: each character is a byte. Returns nothing for other arguments. Throws pickle_too_large if `allowance` has no
/// room for the bytes.
std::optional<std::string> encoded_text(const PickleGraph& pickle, std::span<const PickleGraph::Id> arguments,
                                        Allowance& allowance);
/// Returns the bytes of a node, plain or encoded, or nothing if the node is not bytes.
std::optional<std::string> bytes_of(const PickleGraph& pickle, PickleGraph::Id id, Allowance& allowance);

/// Returns the value of `function(arguments)`: a complex number, bytes, a bytearray, a torch.device or a layout.
/// Returns nothing for another function, or for arguments that these functions are not pickled with.
std::optional<StateTree::Node> python_value(const PickleGraph& pickle, std::string_view function,
                                            std::span<const PickleGraph::Id> arguments, Allowance& allowance);
/// Returns true if python_value() knows the function.
bool is_value_function(std::string_view function) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
