// Compares the weights that several ranks of a training run hold whole, and that should be equal.
#pragma once

#include "base/watch.hpp"
#include "state/contents.hpp"

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

/// Returns a note for each pair of replicas that differs, and how many more there are after the first thousand. Reads
/// both tensors a block at a time, up to their first difference. A tensor that cannot be read is not compared: its file
/// has a fault. Throws cancelled.
std::vector<std::string> compare_replicas(const state::Contents& contents, Watch& watch);

}  // namespace safemap::SAFEMAP_ABI::check
