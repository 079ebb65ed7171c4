// Judges classes and functions by their names alone: the table of dangers, and the table of harmless classes.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/verdict.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// The uses for which a judgement holds. A global that is used otherwise is unknown.
enum class Use : std::uint8_t {
    any,    ///< every use: also a call with arguments of the file's choice
    empty,  ///< as a value, by a call without arguments, and as an object that is made without its constructor
    made,   ///< as `empty`, but not as a value: its constructor evaluates text or loads files
    value   ///< as a value that is not called
};

/// A severity and its reason.
struct Judgement {
    Verdict severity = Verdict::unknown;
    std::string_view why = {};  ///< a sentence without a subject; lives as long as the program
    Use use = Use::any;
};

inline constexpr std::string_view hides_function = "hides which function it calls";

/// Judges a global that safemap does not read as data. `functools.partial` is harmless by its name: its argument
/// counts.
Judgement judge(const PickleGraph::Global& global);
/// Returns the judgement of a global that safemap does not know.
Judgement unknown_global();

/// Returns true if Python's own picklers may write the name: words of ASCII letters, digits and underscores.
bool is_plain_global(const PickleGraph::Global& global);
/// Returns true for a name between double underscores: "__class__".
bool is_dunder(std::string_view name) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
