// The structure document: what a nested state dict is besides its tensors, as JSON in the metadata of safetensors.
#pragma once

#include "base/checksum.hpp"

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::state {

/// The key of `__metadata__` that it stands under.
inline constexpr std::string_view structure_key = "safemap.structure";
/// The U8 tensor that it stands in where it is longer than `longest_inline_structure` bytes.
inline constexpr std::string_view structure_tensor = "~structure";
inline constexpr std::size_t longest_inline_structure = 1U << 20;
/// Arrays and objects within each other in a document, at most: what common readers of JSON take.
inline constexpr unsigned deepest_structure = 500;

/// What the metadata says of a document that stands in the tensor `~structure`.
std::string structure_apart(const Digest& document);
/// Whether it says so.
bool is_structure_apart(std::string_view metadata) noexcept;
/// The digest of the document that the metadata has, or of the one that stands apart, as the metadata gives it: 32 hex
/// digits. Nothing where the metadata is not as structure_apart() writes it.
std::optional<std::string> structure_digest(std::string_view metadata);

/// XXH3-128 of a document, as hex digits.
std::string digest_of_structure(std::string_view document);

/// The name that a tensor is stored under, told its own, or where it has none, the one that flatten() gives it; nothing
/// where it is not stored.
using StoredName = std::function<std::optional<std::string>(const std::string& name)>;
/// The tensor stored under a name, null for none.
using FindTensor = std::function<const LazyTensor*(const std::string& name)>;

/// Whether flatten() keeps the keys of this tree as names, so that a document would only tell of the order, of the
/// kind of dictionary, of attributes, and which tensors are Parameters: a flat dict or OrderedDict of tensors.
bool is_flat(const StateTree& tree);

/// Returns the name of each tensor, by node, that StoredName is told.
std::unordered_map<StateTree::NodeId, std::string> names_of_tensors(const StateTree& tree);

/// Returns what stands in a document for a tensor that is not stored.
const StateTree::Opaque& unstored_tensor();

/// The document of a tree; docs/format.md is its specification. Tensors are referred to by name; one that is not
/// stored becomes an opaque object. Linear in the tree and in what it gives. Throws structure_too_large: deeper than
/// `deepest_structure`, or longer than a safetensors header can be.
std::string structure_of(const StateTree& tree, const StoredName& stored_name);

/// The tree of a document, its tensors those that `find` gives. Throws bad_structure: for what structure_of() does not
/// write, and for a tensor that is not there.
StateTree unflatten(std::string_view document, const FindTensor& find);

}  // namespace safemap::SAFEMAP_ABI::state
