// Writes JSON, lays out tables for the width of the terminal, and prints results and errors.
#include "output.hpp"

#include <safemap/advanced/text.hpp>

#include "signals.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace safemap::cli {
namespace {

void write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(descriptor, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<std::size_t>(written));
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EPIPE) throw ReaderGone{};
        const Errc code = errno == ENOSPC ? Errc::no_space : Errc::io_error;
        throw Error(code, fmt::format("writing to stdout: {}", std::strerror(errno)));
    }
}

/// Writes to stderr. Errors are ignored, because there is nowhere to report them.
void to_stderr(std::string_view text) noexcept {
    try {
        write_all(STDERR_FILENO, text);
    } catch (...) {
    }
}

bool has_colours(int descriptor) {
    const char* const no_color = std::getenv("NO_COLOR");
    if (no_color != nullptr && *no_color != '\0') return false;
    const char* const term = std::getenv("TERM");
    return ::isatty(descriptor) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace

std::string warned(std::string_view text) {
    return has_colours(STDOUT_FILENO) ? fmt::format("\x1b[33m{}\x1b[0m", text) : std::string(text);
}

std::string alarmed(std::string_view text) {
    return has_colours(STDOUT_FILENO) ? fmt::format("\x1b[31m{}\x1b[0m", text) : std::string(text);
}

std::string shell_line(std::span<const std::string> words) {
    std::string line;
    for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
    return line;
}

std::string bytes_text(std::uint64_t bytes) {
    if (bytes < 1000) return fmt::format("{} B", bytes);
    constexpr std::array units{"kB", "MB", "GB", "TB", "PB", "EB"};
    double value = static_cast<double>(bytes) / 1000;
    std::size_t unit = 0;
    while (value >= 999.95 && unit + 1 < units.size()) {
        value /= 1000;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string duration_text(double seconds) {
    if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
    const double whole = std::min(std::round(seconds), 3.2e9);  // at most a century, so that the cast is safe
    const auto total = static_cast<std::uint64_t>(whole);
    if (total < 60) return fmt::format("{} s", total);
    if (total < 3600) return fmt::format("{} min {} s", total / 60, total % 60);
    return fmt::format("{} h {} min", total / 3600, total % 3600 / 60);
}

std::string count_text(std::uint64_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

JsonWriter& JsonWriter::key(std::string_view name) {
    value(name);
    block() += ": ";
    after_key_ = true;
    return *this;
}

JsonWriter& JsonWriter::value(double number) {
    return raw(std::isfinite(number) ? fmt::format("{}", number) : std::string("null"));
}

JsonWriter& JsonWriter::open(char bracket) {
    separate();
    block() += bracket;
    first_ = true;
    return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
    block() += bracket;
    first_ = false;
    return *this;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
    separate();
    block() += text;
    return *this;
}

void JsonWriter::separate() {
    if (!first_ && !after_key_) block() += ", ";
    first_ = false;
    after_key_ = false;
}

std::string& JsonWriter::block() {
    constexpr std::size_t full = 1U << 20;
    if (blocks_.empty() || blocks_.back().size() >= full) blocks_.emplace_back();
    return blocks_.back();
}

void write_error_members(JsonWriter& json, const Error& error) {
    json.member("code", name(error.code())).member("message", error.message());
    if (!error.path().empty()) json.member("path", error.path());
    if (!error.tensor().empty()) json.member("tensor", error.tensor());
    if (!error.hint().empty()) json.member("hint", error.hint());
}

std::vector<std::size_t> Table::widths(std::size_t columns) const {
    constexpr std::size_t widest = 80;
    constexpr std::size_t narrowest = 12;
    const bool limited = columns != unlimited_columns;
    std::vector<std::size_t> widths(columns_.size(), 0);
    for (const auto& cells : rows_)
        for (std::size_t i = 0; i < cells.size(); ++i)
            if (const std::size_t width = display_width(cells[i]); limited || width <= widest)
                widths[i] = std::max(widths[i], width);
    if (!limited) return widths;

    std::size_t total = 0;
    for (const std::size_t width : widths) total += 2 + width;
    while (total > columns) {
        std::size_t at = widths.size();  // the widest left-aligned column
        for (std::size_t i = 0; i < widths.size(); ++i)
            if (columns_[i] == Align::left && (at == widths.size() || widths[i] > widths[at])) at = i;
        if (at == widths.size() || widths[at] <= narrowest) break;
        const std::size_t less = std::min(total - columns, widths[at] - narrowest);
        widths[at] -= less;
        total -= less;
    }
    return widths;
}

std::string Table::text() const { return text(columns_of_terminal(STDOUT_FILENO)); }

std::string Table::text(std::size_t columns) const {
    const std::vector<std::size_t> widths = this->widths(columns);
    std::string result;
    for (const auto& cells : rows_) {
        for (std::size_t i = 0; i < cells.size(); ++i) {
            const bool cut = columns != unlimited_columns && columns_[i] == Align::left;
            const std::string cell = cut ? shortened(cells[i], widths[i]) : cells[i];
            const std::size_t padding = widths[i] - std::min(widths[i], display_width(cell));
            result += "  ";
            if (columns_[i] == Align::right) result.append(padding, ' ');
            result += cell;
            if (columns_[i] == Align::left) result.append(padding, ' ');
        }
        result.erase(result.find_last_not_of(' ') + 1);
        result += '\n';
    }
    return result;
}

void Console::silence(bool silent) noexcept {
    silent_ = silent;
    output_begins(silent);  // a signal prints nothing either
}

bool Console::shows_progress() const { return !quiet_ && !silent_ && ::isatty(STDERR_FILENO) == 1; }

bool Console::has_reader() const { return !quiet_ && !silent_ && ::isatty(STDOUT_FILENO) == 1; }

void Console::result(std::string_view text) {
    if (!quiet_) print(text);
}

void Console::announce(std::string_view text) {
    // If stdout fails here, the work continues: printing the result will report it.
    try {
        result(text);
    } catch (const ReaderGone&) {
    } catch (const Error&) {
    }
}

void Console::result(const JsonWriter& object) {
    for (const std::string& block : object.blocks()) print(block);
    print("\n");
}

void Console::print(std::string_view text) {
    if (silent_) return;
    status_->erase();
    output_begins();
    stdout_works_ = false;  // until everything is written
    write_all(STDOUT_FILENO, text);
    stdout_works_ = true;
}

void Console::error(const Error& error) {
    if (!json_ || !stdout_works_) return complain(error);
    JsonWriter json;
    json.begin_object().key("error").begin_object();
    write_error_members(json, error);
    json.end_object().end_object();
    result(json);
}

void Console::complain(const Error& error) {
    if (silent_) return;
    status_->erase();
    output_begins();
    const bool colours = has_colours(STDERR_FILENO);
    const std::string_view red = colours ? "\x1b[1;31m" : "";
    const std::string_view cyan = colours ? "\x1b[36m" : "";
    const std::string_view plain = colours ? "\x1b[0m" : "";
    std::string text = fmt::format("safemap: {}error:{} {}\n", red, plain, printable(error.what()));
    // The terminal has echoed ^C where the cursor was.
    if (error.code() == Errc::cancelled && ::isatty(STDERR_FILENO) == 1) text.insert(0, 1, '\n');
    if (!error.hint().empty()) text += fmt::format("{}hint:{} {}\n", cyan, plain, printable(error.hint()));
    to_stderr(text);
}

}  // namespace safemap::cli
