// Errors for --include and --exclude that select no tensor.
#pragma once

#include "options.hpp"

#include <safemap/checkpoint.hpp>

#include <initializer_list>
#include <string>

namespace safemap::cli {

/// The checkpoints that a selection applies to: one, or the two that are compared.
using Checkpoints = std::initializer_list<Checkpoint>;

/// Returns a message that names the globs if there are tensors and `common` selects none of them; else empty.
std::string empty_selection(Checkpoints checkpoints, const CommonOptions& common);

/// Throws tensor_not_found with that message.
void require_selection(Checkpoints checkpoints, const CommonOptions& common);

}  // namespace safemap::cli
