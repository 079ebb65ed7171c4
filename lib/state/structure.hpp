// The structure document: everything in a nested state dict other than its tensors, as JSON in the metadata of
// safetensors.
#pragma once

#include "base/checksum.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/state_tree.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::state {

/// The key of `__metadata__` that holds the document.
inline constexpr std::string_view structure_key = "safemap.structure";
/// The key of `__metadata__` that says that the names of the file are final, beside a document: the path of the part
/// that they are relative to, or nothing. Without it, names that are paths are those of an earlier version.
inline constexpr std::string_view root_key = "safemap.root";
/// The U8 tensor that holds the document if it is longer than `longest_inline_structure` bytes.
inline constexpr std::string_view structure_tensor = "~structure";
inline constexpr std::size_t longest_inline_structure = 1U << 20;
/// Most arrays and objects inside each other in a document: common readers of JSON accept this many.
inline constexpr unsigned deepest_structure = 500;

// Tags of a document, in the order of StateTree::Sequence::Kind, StateTree::Constant::Kind and StateTree::Opaque::Form.
inline constexpr std::array<std::string_view, 5> sequence_tags{"l", "t", "set", "fset", "size"};
inline constexpr std::array<std::string_view, 5> constant_tags{"dtype", "device", "layout", "npdtype", "g"};
inline constexpr std::array<std::string_view, 4> opaque_tags{"o", "q", "sp", "nt"};

/// Returns the metadata for a document that is stored in the tensor `~structure`.
std::string structure_apart(const Digest& document);
/// Returns true if the metadata says that the document is stored in the tensor `~structure`.
bool is_structure_apart(std::string_view metadata) noexcept;
/// Returns the digest of the document as 32 hex digits. If the metadata holds the document, computes its digest. If the
/// document is in a tensor, returns the digest that the metadata gives, or nothing if the metadata is not as
/// structure_apart() writes it.
std::optional<std::string> structure_digest(std::string_view metadata);

/// Returns XXH3-128 of a document, as hex digits.
std::string digest_of_structure(std::string_view document);

/// A function that returns the name under which a tensor is stored, or nothing if it is not stored. It gets the
/// tensor's own name or, if the tensor has none, the name that flatten() gives it.
using StoredName = std::function<std::optional<std::string>(const std::string& name)>;
/// A function that returns the tensor stored under a name, or null.
using FindTensor = std::function<const LazyTensor*(const std::string& name)>;

/// Returns true if flatten() keeps the keys of this tree as names: a flat dict or OrderedDict of tensors that are not
/// NumPy arrays. A document would then only add the order, the kind of dictionary, attributes, and which tensors are
/// Parameters.
bool is_flat(const StateTree& tree);
/// Returns the same of a part of the tree.
bool is_flat(const StateTree& tree, StateTree::NodeId part);
/// Returns true if is_flat(), and each tensor that has a name of its own has the key as its name: a plain file then
/// holds all of the tree but what is_flat() says.
bool has_keys_as_names(const StateTree& tree);

/// Names of tensors and objects, by node.
using NodeNames = std::unordered_map<StateTree::NodeId, std::string>;
/// Flattens the tree as flatten() does, but takes the given names for the nodes that have one: a tensor gets the name
/// itself, and the tensors below an object get the name of the object and their path in it. Gives each tensor in the
/// tree its name. Given names must differ; a path that is the same as one of them gets a number.
FlatState flatten_named(StateTree& tree, const NodeNames& given);

/// Returns the name that StoredName gets for each tensor, by node.
NodeNames names_of_tensors(const StateTree& tree);

/// Returns the path of each tensor that has one, by node: of a tied tensor, the first one.
NodeNames paths_of_tensors(const StateTree& tree);

/// Returns the object that a document has in place of a tensor that is not stored.
const StateTree::Opaque& unstored_tensor();

/// Returns the document of a tree; docs/format.md is its specification. Refers to tensors by name. A tensor that is not
/// stored becomes an opaque object. Linear in the size of the tree and of the document. Throws structure_too_large if
/// the document is nested deeper than `deepest_structure`, or longer than a safetensors header can be.
std::string structure_of(const StateTree& tree, const StoredName& stored_name);

/// Returns the tree of a document, with the tensors that `find` returns. Throws bad_structure if the document is
/// not as structure_of() writes it, or if a tensor is missing.
StateTree unflatten(std::string_view document, const FindTensor& find);

}  // namespace safemap::SAFEMAP_ABI::state
