// Names of tensors: the path from the root, RFC 6901-escaped, with "~" and a letter for what strings cannot say.
// The grammar:
//
//     name     := segment ( "/" segment )*            the root itself: "~root"
//     string   := '~' as "~0", '/' as "~1"; "~s" before it where it is empty, looks like an integer, or is
//                 "__metadata__"
//     integer, place in a list or tuple := decimal    bool: "~true", "~false"    None: "~none"
//     any other key, also a string that is no UTF-8 or holds a NUL := "~k" and the place of the entry
//     member of a set := "~k" and its place           tensor in a key := ".../~kN/~key"
#pragma once

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::state {

/// What a tensor at the root is called.
inline constexpr std::string_view root_name = "~root";
/// All names together: no header of safetensors is longer.
inline constexpr std::size_t max_name_bytes = 100'000'000;
/// The segment below the segment of a key that holds tensors itself.
inline constexpr std::string_view key_segment_below = "~key";

/// The segment of the `place`-th entry of a dictionary, whose key is `key`.
std::string key_segment(const StateTree::Node& key, std::size_t place);
/// The key that a segment spells; nothing for one that only tells the place of an entry.
std::optional<StateTree::Node> key_of(std::string_view segment);
/// The segment of the `place`-th item of a sequence.
std::string item_segment(StateTree::Sequence::Kind kind, std::size_t place);
/// The segment of the `place`-th entry whose key is no name.
std::string ordinal_segment(std::size_t place);
/// The segment of a child of an opaque object: an attribute by the rule of strings, a place as it is.
std::string child_segment(std::string_view child);
/// Whether `key` can be a name as it stands: not empty, UTF-8 without a NUL, not "__metadata__".
bool verbatim_name(std::string_view key);

/// Puts `segment` below `path`; "" is the root.
void append_segment(std::string& path, std::string_view segment);

}  // namespace safemap::SAFEMAP_ABI::state
