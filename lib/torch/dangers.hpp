// Judges classes and functions by their names alone.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/verdict.hpp>

#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// A severity and its reason.
struct Judgement {
    Verdict severity = Verdict::unknown;
    std::string_view why = {};  ///< a sentence without a subject; lives as long as the program
};

/// Judges a global that safemap does not read as data.
Judgement judge(const PickleGraph::Global& global) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
