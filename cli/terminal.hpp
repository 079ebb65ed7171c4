// Text on a terminal: the width of characters and lines, and the status line that is redrawn.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace safemap::cli {

/// Returns the columns that `text` takes in a terminal: 2 for each wide character (Chinese, Japanese, Korean, emoji), 0
/// for each combining mark, 1 for all others. Does not depend on the locale, so pipes and terminals show the same
/// table.
std::size_t display_width(std::string_view text);
/// Returns `text` in at most `columns` columns: if it is wider, its beginning and end with "..." between them.
std::string shortened(std::string_view text, std::size_t columns);
/// Returns `text` wrapped at spaces into lines of at most `columns` columns; all but the first are indented. A wider
/// word has its own line.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent);

constexpr std::size_t unlimited_columns = std::numeric_limits<std::size_t>::max();

/// Returns the width of lines on `descriptor`: COLUMNS, else the size of the terminal, else 80. Unlimited if it is not
/// a terminal.
std::size_t columns_of_terminal(int descriptor);

/// A line on stderr, a terminal, that is redrawn in place. Erase it before printing anything else.
class StatusLine {
public:
    void draw(std::string_view line);
    void erase();

private:
    std::size_t width_ = 0;  // columns of the current text
};

}  // namespace safemap::cli
