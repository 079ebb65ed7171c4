// Counts the columns of UTF-8 text by tables of wide and combining characters, wraps and shortens it.
#include "terminal.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>

#include <sys/ioctl.h>
#include <unistd.h>

namespace safemap::cli {
namespace {

struct Range {
    char32_t first, last;
};

// East_Asian_Width W and F of Unicode 15. Ranges are joined across unassigned code points.
constexpr Range wide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},   {0x23F0, 0x23F0},
    {0x23F3, 0x23F3},   {0x25FD, 0x25FE},   {0x2614, 0x2615},   {0x2648, 0x2653},   {0x267F, 0x267F},
    {0x2693, 0x2693},   {0x26A1, 0x26A1},   {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x26C4, 0x26C5},
    {0x26CE, 0x26CE},   {0x26D4, 0x26D4},   {0x26EA, 0x26EA},   {0x26F2, 0x26F3},   {0x26F5, 0x26F5},
    {0x26FA, 0x26FA},   {0x26FD, 0x26FD},   {0x2705, 0x2705},   {0x270A, 0x270B},   {0x2728, 0x2728},
    {0x274C, 0x274C},   {0x274E, 0x274E},   {0x2753, 0x2755},   {0x2757, 0x2757},   {0x2795, 0x2797},
    {0x27B0, 0x27B0},   {0x27BF, 0x27BF},   {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},   {0x2B55, 0x2B55},
    {0x2E80, 0x3029},   {0x302E, 0x303E},   {0x3041, 0x3098},   {0x309B, 0x3247},   {0x3250, 0x4DBF},
    {0x4E00, 0xA4CF},   {0xA960, 0xA97C},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE10, 0xFE19},
    {0xFE30, 0xFE6B},   {0xFF01, 0xFF60},   {0xFFE0, 0xFFE6},   {0x16FE0, 0x1B2FF}, {0x1F004, 0x1F004},
    {0x1F0CF, 0x1F0CF}, {0x1F18E, 0x1F18E}, {0x1F191, 0x1F19A}, {0x1F200, 0x1F320}, {0x1F32D, 0x1F335},
    {0x1F337, 0x1F37C}, {0x1F37E, 0x1F393}, {0x1F3A0, 0x1F3CA}, {0x1F3CF, 0x1F3D3}, {0x1F3E0, 0x1F3F0},
    {0x1F3F4, 0x1F3F4}, {0x1F3F8, 0x1F43E}, {0x1F440, 0x1F440}, {0x1F442, 0x1F4FC}, {0x1F4FF, 0x1F53D},
    {0x1F54B, 0x1F54E}, {0x1F550, 0x1F567}, {0x1F57A, 0x1F57A}, {0x1F595, 0x1F596}, {0x1F5A4, 0x1F5A4},
    {0x1F5FB, 0x1F64F}, {0x1F680, 0x1F6C5}, {0x1F6CC, 0x1F6CC}, {0x1F6D0, 0x1F6D2}, {0x1F6D5, 0x1F6DF},
    {0x1F6EB, 0x1F6EC}, {0x1F6F4, 0x1F6FC}, {0x1F7E0, 0x1F7F0}, {0x1F90C, 0x1F93A}, {0x1F93C, 0x1F945},
    {0x1F947, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD},
};

// Combining marks of common scripts, variation selectors, and the vowels and final consonants of decomposed Korean
// syllables.
constexpr Range combining[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489},   {0x0591, 0x05BD}, {0x05BF, 0x05BF}, {0x05C1, 0x05C2}, {0x05C4, 0x05C5},
    {0x0610, 0x061A}, {0x064B, 0x065F},   {0x0670, 0x0670}, {0x06D6, 0x06DC}, {0x0900, 0x0902}, {0x093C, 0x093C},
    {0x0941, 0x0948}, {0x094D, 0x094D},   {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E}, {0x1160, 0x11FF},
    {0x1AB0, 0x1ACE}, {0x1DC0, 0x1DFF},   {0x20D0, 0x20F0}, {0x302A, 0x302D}, {0x3099, 0x309A}, {0xFE00, 0xFE0F},
    {0xFE20, 0xFE2F}, {0xE0100, 0xE01EF},
};

template <std::size_t N> bool among(const Range (&ranges)[N], char32_t point) {
    const Range* const after = std::upper_bound(std::begin(ranges), std::end(ranges), point,
                                                [](char32_t p, const Range& range) { return p < range.first; });
    return after != std::begin(ranges) && point <= std::prev(after)->last;
}

char32_t code_point(std::string_view character) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
    if (character.size() == 1) return byte(0);
    char32_t point = byte(0) & (0x7FU >> character.size());
    for (std::size_t i = 1; i < character.size(); ++i) point = point << 6 | (byte(i) & 0x3FU);
    return point;
}

std::size_t width_of(std::string_view character) {
    if (character.size() < 2) return 1;
    const char32_t point = code_point(character);
    return among(combining, point) ? 0 : among(wide, point) ? 2 : 1;
}

/// Removes the first character from `text` and returns it. Invalid UTF-8 may give a character of up to four bytes.
std::string_view take_character(std::string_view& text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const std::size_t most = std::min<std::size_t>(text.size(), byte(0) < 0xC0 ? 1 : 4);
    std::size_t size = 1;
    while (size < most && (byte(size) & 0xC0U) == 0x80) ++size;
    const std::string_view character = text.substr(0, size);
    text.remove_prefix(size);
    return character;
}

/// Returns the longest beginning of `text` of at most `columns` columns.
std::string_view beginning(std::string_view text, std::size_t columns) {
    std::string_view rest = text;
    while (!rest.empty()) {
        std::string_view after = rest;
        const std::size_t width = width_of(take_character(after));
        if (width > columns) break;
        columns -= width;
        rest = after;
    }
    return text.substr(0, text.size() - rest.size());
}

/// Returns the longest end of `text` of at most `columns` columns.
std::string_view ending(std::string_view text, std::size_t columns) {
    std::size_t width = display_width(text);
    while (width > columns) width -= width_of(take_character(text));
    // A combining mark at the beginning belongs to the character that was removed.
    while (!text.empty()) {
        std::string_view after = text;
        if (width_of(take_character(after)) > 0) break;
        text = after;
    }
    return text;
}

void to_terminal(const std::string& text) {
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::size_t display_width(std::string_view text) {
    std::size_t width = 0;
    while (!text.empty()) width += width_of(take_character(text));
    return width;
}

std::string shortened(std::string_view text, std::size_t columns) {
    constexpr std::string_view gap = "...";
    // No character is wider than it has bytes, so most texts need no measuring.
    if (text.size() <= columns || display_width(text) <= columns) return std::string(text);
    if (columns <= gap.size()) return std::string(beginning(text, columns));
    const std::size_t room = columns - gap.size();
    const std::string_view head = beginning(text, room - room / 2);
    return std::string(head) + std::string(gap) + std::string(ending(text.substr(head.size()), room / 2));
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
    std::string result;
    std::size_t width = indent;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(' '), text.size());
        const std::string_view word = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::size_t more = display_width(word);
        if (!result.empty() && width + 1 + more > columns) {
            result += '\n' + std::string(indent, ' ');
            width = indent;
        } else if (!result.empty()) {
            result += ' ';
            ++width;
        }
        result += word;
        width += more;
    }
    return result;
}

std::size_t columns_of_terminal(int descriptor) {
    if (::isatty(descriptor) != 1) return unlimited_columns;
    if (const char* const text = std::getenv("COLUMNS")) {
        const std::string_view digits = text;
        std::size_t columns = 0;
        const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
        if (failed == std::errc() && end == digits.data() + digits.size() && columns > 0) return columns;
    }
    winsize size = {};
    const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 80;
}

void StatusLine::draw(std::string_view line) {
    to_terminal('\r' + std::string(line) + std::string(width_ - std::min(width_, line.size()), ' '));
    width_ = line.size();
}

void StatusLine::erase() {
    if (width_ == 0) return;
    to_terminal('\r' + std::string(width_, ' ') + '\r');
    width_ = 0;
}

}  // namespace safemap::cli
