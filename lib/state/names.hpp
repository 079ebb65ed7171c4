// Spells the names of tensors: the path from the root, escaped as in RFC 6901, with "~" and a letter for keys that
// strings cannot spell. The grammar:
//
//     name     := segment ( "/" segment )*            the root itself: "~root"
//     string   := '~' as "~0", '/' as "~1"; preceded by "~s" if it is empty, looks like an integer, or is
//                 "__metadata__"
//     integer, place in a list or tuple := decimal    bool: "~true", "~false"    None: "~none"
//     any other key, also a string that is not UTF-8 or holds a NUL := "~k" and the place of the entry
//     member of a set := "~k" and its place           tensor in a key := ".../~kN/~key"
#pragma once

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::state {

/// The name of a tensor at the root.
inline constexpr std::string_view root_name = "~root";
/// Most bytes of all names together: no safetensors header is longer.
inline constexpr std::size_t max_name_bytes = 100'000'000;
/// The segment below the segment of a key that holds tensors itself.
inline constexpr std::string_view key_segment_below = "~key";

/// Returns the segment of the `place`-th entry of a dictionary, whose key is `key`.
std::string key_segment(const StateTree::Node& key, std::size_t place);
/// Returns the key that a segment spells, or nothing if the segment only gives the place of an entry.
std::optional<StateTree::Node> key_of(std::string_view segment);
/// Returns the segment of the `place`-th item of a sequence.
std::string item_segment(StateTree::Sequence::Kind kind, std::size_t place);
/// Returns the segment of the `place`-th entry, for a key that a name cannot spell.
std::string ordinal_segment(std::size_t place);
/// Returns the segment of a child of an opaque object: an attribute is spelled as a string, a place unchanged.
std::string child_segment(std::string_view child);
/// Returns true if `key` can be a name without escapes: not empty, UTF-8 without a NUL, not "__metadata__".
bool verbatim_name(std::string_view key);

/// Appends `segment` to `path`; "" is the path of the root.
void append_segment(std::string& path, std::string_view segment);

}  // namespace safemap::SAFEMAP_ABI::state
