// Output to stdout and stderr: results as text or as one JSON object, errors, and the writers that format them.
#pragma once

#include "terminal.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace safemap::cli {

/// Returns the text in yellow if stdout is a terminal with colours, for what a user should not overlook.
std::string warned(std::string_view text);
/// Returns the text in red likewise, for what is dangerous.
std::string alarmed(std::string_view text);
/// Returns "48 B", "1.5 kB" or "14.5 GB": powers of ten, as in the sizes that users type.
std::string bytes_text(std::uint64_t bytes);
/// Returns "0.25 s", "12 s", "3 min 20 s" or "2 h 5 min".
std::string duration_text(double seconds);
/// Returns "1 tensor" or "12 tensors".
std::string count_text(std::uint64_t count, std::string_view noun);

/// Returns words as one line that a shell reads as these words: "safemap convert 'my model' out". A word with
/// characters that printable() escapes is in $'...', which bash and zsh know.
std::string shell_line(std::span<const std::string> words);

/// A writer of JSON that adds commas, colons and escapes. The caller pairs begin and end.
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
    /// Writes the shortest text that reads back as the same number; null for NaN and infinity.
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

    /// Writes text that is already JSON.
    JsonWriter& json(std::string_view text) { return raw(text); }

    template <class T> JsonWriter& member(std::string_view name, const T& of) { return key(name).value(of); }

    /// Returns the text in blocks: one that grows would be in memory three times while it is copied.
    const std::vector<std::string>& blocks() const& noexcept { return blocks_; }
    const std::vector<std::string>& blocks() const&& = delete;

private:
    JsonWriter& open(char bracket);
    JsonWriter& close(char bracket);
    JsonWriter& raw(std::string_view text);
    void separate();
    /// Returns the block to append to.
    std::string& block();

    std::vector<std::string> blocks_;
    bool first_ = true;  // true until the innermost object or array has a member
    bool after_key_ = false;
};

/// Writes the members "code" and "message", and "path", "tensor" and "hint" if they are not empty.
void write_error_members(JsonWriter& json, const Error& error);

/// A table with aligned columns. On a terminal, the widest texts are shortened until the rows fit. Elsewhere every cell
/// is printed whole, and a cell wider than 80 columns does not widen the other rows.
class Table {
public:
    enum class Align : std::uint8_t { left, right };

    explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}
    /// Adds a row. It must have as many cells as there are columns.
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    bool empty() const noexcept { return rows_.empty(); }
    /// Returns one line for each row, indented by two spaces, without trailing spaces, and no wider than stdout.
    std::string text() const;
    std::string text(std::size_t columns) const;

private:
    std::vector<std::size_t> widths(std::size_t columns) const;

    std::vector<Align> columns_;
    std::vector<std::vector<std::string>> rows_;
};

/// stdout and stderr, with the choices of --json and --quiet.
class Console {
public:
    explicit Console(bool json) : json_(json) {}

    bool json() const noexcept { return json_; }
    bool quiet() const noexcept { return quiet_; }
    void set_quiet(bool quiet) noexcept { quiet_ = quiet; }
    /// Prints nothing from now on if `silent`: another process speaks for this one.
    void silence(bool silent) noexcept;
    /// Returns true if progress may be shown: stderr is a terminal, and --quiet is not given.
    bool shows_progress() const;
    /// Returns true if a person reads what is printed: stdout is a terminal, and --quiet is not given.
    bool has_reader() const;
    /// Returns the line for progress. It is erased before anything else is printed.
    StatusLine& status() const noexcept { return *status_; }

    /// Prints a result as text, unless --quiet is given.
    void result(std::string_view text);
    /// Prints text before a result. Ignores errors, because printing the result will report them.
    void announce(std::string_view text);
    /// Prints the one JSON object of this run.
    void result(const JsonWriter& object);
    /// Prints the help or the version, whatever --quiet and --json say.
    void print(std::string_view text);
    /// Prints an error: with --json as an object on stdout, else as text on stderr. If stdout has failed, always as
    /// text.
    void error(const Error& error);
    /// Prints an error as text on stderr, whatever --quiet and --json say.
    void complain(const Error& error);

private:
    bool json_;
    bool quiet_ = false;
    bool silent_ = false;
    bool stdout_works_ = true;
    std::unique_ptr<StatusLine> status_ = std::make_unique<StatusLine>();
};

/// Thrown if the reader of stdout has closed the pipe. It is not reported.
struct ReaderGone {};

}  // namespace safemap::cli
