// What goes to stdout and stderr: results as text or as one JSON object, errors, and the small writers that make them.
#pragma once

#include "terminal.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace safemap::cli {

/// "48 B", "1.5 kB", "14.5 GB": powers of ten, as sizes are typed.
std::string bytes_text(std::uint64_t bytes);
/// "0.25 s", "12 s", "3 min 20 s", "2 h 5 min".
std::string duration_text(double seconds);
/// "1 tensor", "12 tensors".
std::string count_text(std::uint64_t count, std::string_view noun);

/// Writes JSON: commas, colons and escapes. The caller keeps begin and end in pairs.
class JsonWriter {
public:
    JsonWriter& begin_object() { return open('{'); }
    JsonWriter& end_object() { return close('}'); }
    JsonWriter& begin_array() { return open('['); }
    JsonWriter& end_array() { return close(']'); }
    JsonWriter& key(std::string_view name);

    JsonWriter& value(std::string_view text) { return raw(json_quoted(text)); }
    JsonWriter& value(const char* text) { return value(std::string_view(text)); }
    JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
    /// Shortest text that reads back as the same number; null where JSON has none.
    JsonWriter& value(double number);
    template <std::integral T> JsonWriter& value(T number) {
        if constexpr (std::is_same_v<T, bool>) return raw(number ? "true" : "false");
        else return raw(std::to_string(number));
    }
    template <class T> JsonWriter& value(const std::vector<T>& items) {
        begin_array();
        for (const T& item : items) value(item);
        return end_array();
    }

    /// Of text that is JSON already.
    JsonWriter& json(std::string_view text) { return raw(text); }

    template <class T> JsonWriter& member(std::string_view name, const T& of) { return key(name).value(of); }

    const std::string& text() const& noexcept { return text_; }
    const std::string& text() const&& = delete;

private:
    JsonWriter& open(char bracket);
    JsonWriter& close(char bracket);
    JsonWriter& raw(std::string_view text);
    void separate();

    std::string text_;
    bool first_ = true;  // nothing yet in the innermost object or array
    bool after_key_ = false;
};

/// Writes the members "code", "message" and, where there are any, "path", "tensor" and "hint".
void write_error_members(JsonWriter& json, const Error& error);

/// Columns that line up. On a terminal, the widest texts are shortened until rows fit; elsewhere every cell is whole,
/// and one of more than 80 columns sticks out and makes no other row longer.
class Table {
public:
    enum class Align : std::uint8_t { left, right };

    explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}
    /// As many cells as there are columns.
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    bool empty() const noexcept { return rows_.empty(); }
    /// Every row on its line, indented by two spaces; nothing trails. As wide as stdout allows.
    std::string text() const;
    std::string text(std::size_t columns) const;

private:
    std::vector<std::size_t> widths(std::size_t columns) const;

    std::vector<Align> columns_;
    std::vector<std::vector<std::string>> rows_;
};

/// stdout and stderr, and what the user wants to see there.
class Console {
public:
    explicit Console(bool json) : json_(json) {}

    bool json() const noexcept { return json_; }
    bool quiet() const noexcept { return quiet_; }
    void set_quiet(bool quiet) noexcept { quiet_ = quiet; }
    /// Whether progress may be shown: stderr is a terminal and nobody asked for quiet.
    bool shows_progress() const;
    /// Where progress is shown. It is erased before anything else is printed.
    StatusLine& status() const noexcept { return *status_; }

    /// A result as text; --quiet drops it.
    void result(std::string_view text);
    /// Text that a result will follow. Where it cannot be printed, that is for the result to say.
    void announce(std::string_view text);
    /// The one JSON object of this run.
    void result(const JsonWriter& object);
    /// What the user asked to read: help and version. Neither --quiet nor --json change it.
    void print(std::string_view text);
    /// As an object on stdout with --json, else as text on stderr; there too where stdout failed before.
    void error(const Error& error);
    /// Text on stderr whatever the mode: a fault that --quiet still shows.
    void complain(const Error& error);

private:
    bool json_;
    bool quiet_ = false;
    bool stdout_works_ = true;
    std::unique_ptr<StatusLine> status_ = std::make_unique<StatusLine>();
};

/// Thrown where nobody reads stdout any more. There is nobody to tell.
struct ReaderGone {};

}  // namespace safemap::cli
