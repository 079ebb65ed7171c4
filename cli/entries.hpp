// The sides of a comparison, and errors for --include and --exclude that select no tensor.
#pragma once

#include "options.hpp"

#include <safemap/checkpoint.hpp>

#include <initializer_list>
#include <string>

namespace safemap::cli {

/// The checkpoints that a selection applies to: one, or the two that are compared.
using Checkpoints = std::initializer_list<Checkpoint>;

/// Opens one of two checkpoints that are compared. If it lacks the part of --root, or averages for --ema, opens it
/// without these and says so in `lacks`: "part 'model'".
Checkpoint open_side(const std::string& path, const CommonOptions& common, std::string& lacks);

/// Returns a message that names the globs if there are tensors and `common` selects none of them; else empty.
std::string empty_selection(Checkpoints checkpoints, const CommonOptions& common);

/// Throws tensor_not_found with that message.
void require_selection(Checkpoints checkpoints, const CommonOptions& common);

}  // namespace safemap::cli
