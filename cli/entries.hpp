// A selection of the user that selects nothing.
#pragma once

#include "options.hpp"

#include <safemap/checkpoint.hpp>

#include <initializer_list>
#include <string>

namespace safemap::cli {

/// What a selection is made from: one checkpoint, or the two that are compared.
using Checkpoints = std::initializer_list<Checkpoint>;

/// Where `common` selects none of the tensors that there are: which globs are to blame. Else empty.
std::string empty_selection(Checkpoints checkpoints, const CommonOptions& common);

/// For work that would come to nothing: throws tensor_not_found there.
void require_selection(Checkpoints checkpoints, const CommonOptions& common);

}  // namespace safemap::cli
