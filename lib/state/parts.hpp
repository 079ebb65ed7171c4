// The parts of a nested state dict: which one gives the tensors of a checkpoint, and the names that they have in it.
#pragma once

#include "state/contents.hpp"

#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::state {

/// Returns true if an entry of a tree is a part, and not a single tensor, which may have parts as a sparse tensor has.
bool is_part(const StateTree::Node& node);

/// Throws invalid_argument: there is no part at `path`. The hint lists the parts that there are.
[[noreturn]] void throw_no_part(std::string_view path, std::span<const std::string> parts);

/// Makes contents of the part of a tree at `path`. `subtree` is the part. Keeps the notes.
void take_below(Contents& contents, StateTree subtree, std::string_view path);

/// Sets the parts of the contents that a reader has returned, and gives the tensors of the part that
/// OpenOptions::root and `root_auto` choose. Throws as those say.
void take_root(Contents& contents, const OpenOptions& options);

/// Puts averages of weights in the places of the weights, as OpenOptions::ema says. `averages` has them under the names
/// of the weights, if they are a checkpoint of their own; null if they are among the contents.
void take_averages(Contents& contents, const Contents* averages);
/// Adds a note if averages of weights are among other tensors.
void note_averages(Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::state
