// What a terminal makes of text: how wide characters are, how wide lines may be, and the one line that is redrawn.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace safemap::cli {

/// The columns that `text` takes in a terminal: 2 for each wide character (Chinese, Japanese, Korean, emoji), 0 for
/// each combining mark, 1 for all others. Does not depend on the locale, so pipes and terminals show the same table.
std::size_t display_width(std::string_view text);
/// `text` in at most `columns` columns: its beginning and its end with "..." between them, where it is wider.
std::string shortened(std::string_view text, std::size_t columns);
/// The words of `text` in lines of at most `columns` columns. A word that is wider has a line of its own.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent);

constexpr std::size_t unlimited_columns = std::numeric_limits<std::size_t>::max();

/// How wide lines on `descriptor` may be: COLUMNS, else the size of the terminal, else 80. Unlimited where it is not a
/// terminal.
std::size_t columns_of_terminal(int descriptor);

/// The line of a terminal's stderr that is redrawn in place. Whoever prints something else erases it first.
class StatusLine {
public:
    void draw(std::string_view line);
    void erase();

private:
    std::size_t width_ = 0;  // of what is on the line now
};

}  // namespace safemap::cli
