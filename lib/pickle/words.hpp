// Parses tables of names that are written as text.
#pragma once

#include <safemap/api.hpp>

#include <array>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns the words of a text in rows of `width` words; commas may separate rows. Does not compile if the text has
/// more or fewer than `count` rows.
template <std::size_t width, std::size_t count> constexpr auto rows_of(std::string_view text) {
    constexpr std::string_view between = " ,\n";
    std::array<std::array<std::string_view, width>, count> rows;
    for (auto& row : rows) {
        for (std::string_view& word : row) {
            text.remove_prefix(text.find_first_not_of(between));
            word = text.substr(0, text.find_first_of(between));
            text.remove_prefix(word.size());
        }
    }
    return text.find_first_not_of(between) == text.npos ? rows : throw "more rows than declared";
}

}  // namespace safemap::SAFEMAP_ABI
