// Parses tables of names that are written as text.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <unordered_set>

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

/// Calls visit() with each word of a text.
template <class Visit> void each_word(std::string_view text, Visit&& visit) {
    constexpr std::string_view between = " \n";
    for (std::size_t begin = text.find_first_not_of(between); begin != text.npos;) {
        const std::size_t end = std::min(text.find_first_of(between, begin), text.size());
        visit(text.substr(begin, end - begin));
        begin = text.find_first_not_of(between, end);
    }
}

using WordSet = std::unordered_set<std::string_view>;

/// Returns the words of a text, which must live as long as the set.
inline WordSet words_of(std::string_view text) {
    WordSet words;
    each_word(text, [&](std::string_view word) { words.insert(word); });
    return words;
}

}  // namespace safemap::SAFEMAP_ABI
