// The classes and functions that files of training libraries need, and that run no code that a file chooses.
#pragma once

#include "torch/dangers.hpp"

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Judges a class or function by its dotted name, if it is listed by that name.
std::optional<Judgement> harmless_name(std::string_view name);
/// Judges a class by its package, or one that is nested in a harmless class.
std::optional<Judgement> harmless_class(const PickleGraph::Global& global);
/// Returns true for what is called as a class, in a module that is neither Python's own nor of a library that safemap
/// knows: a class of the project that wrote the file.
bool is_project_class(const PickleGraph::Global& global);

/// Returns true if a class is an enumeration, as far as its name tells.
bool names_enumeration(std::string_view name);

}  // namespace safemap::SAFEMAP_ABI::torch
