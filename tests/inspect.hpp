// Tells bytes and names of tensors, and notes, in a form that tests can compare.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

std::string text_of(std::span<const std::byte> bytes);
std::string bytes_of(const safemap::LazyTensor& tensor);

/// Returns the names of tensors, or of anything that has a name, in their order.
template <class List> std::vector<std::string> names_of(const List& list) {
    std::vector<std::string> names;
    for (const auto& each : list) {
        if constexpr (requires { each.name(); }) names.push_back(each.name());
        else names.push_back(each.name);
    }
    return names;
}

/// Returns the only text of a list. If there is another number of them, returns how many, which is no text of a note.
std::string only_of(const std::vector<std::string>& texts);

/// Returns true if a note of a checkpoint, or of anything that has notes, has these words.
template <class Noted> bool has_note(const Noted& noted, std::string_view words) {
    const auto has = [words](const std::string& note) { return note.find(words) != std::string::npos; };
    if constexpr (requires { noted.notes(); }) return std::any_of(noted.notes().begin(), noted.notes().end(), has);
    else return std::any_of(noted.notes.begin(), noted.notes.end(), has);
}
