// Reads and writes JSON: small documents (indexes) as a tree of values; strings with the escapes of other writers.
// Headers can be large and are read without a tree: safetensors/header.cpp.
#pragma once

#include <safemap/error.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::json {

/// The maximum nesting of arrays and objects, the limit of serde_json.
inline constexpr unsigned max_depth = 127;

struct Member;

/// One value of a parsed document. Immutable; owns its members.
class Value {
public:
    using Array = std::vector<Value>;
    /// Members in the order of the document, with repeated keys.
    using Object = std::vector<Member>;
    using Content = std::variant<std::monostate, bool, std::uint64_t, std::int64_t, double, std::string, Array, Object>;

    explicit Value(Content content);

    /// Each accessor returns nothing or null if the value is of another kind. Integers are exact; a number with a
    /// fraction or an exponent is not an integer.
    bool is_null() const noexcept;
    std::optional<bool> boolean() const noexcept;
    std::optional<std::uint64_t> unsigned_integer() const noexcept;
    std::optional<std::int64_t> integer() const noexcept;
    std::optional<double> number() const noexcept;
    const std::string* string() const noexcept;
    const Array* array() const noexcept;
    const Object* object() const noexcept;

    /// Returns the member with that key, the last one if the key is repeated; null if the key is missing, or if this is
    /// not an object.
    const Value* find(std::string_view key) const noexcept;

private:
    Content content_;
};

struct Member {
    std::string key;
    Value value;
};

// Defined here because Clang 14 requires that Member is complete wherever a Content is used.
inline Value::Value(Content content) : content_(std::move(content)) {}
inline bool Value::is_null() const noexcept { return std::holds_alternative<std::monostate>(content_); }
inline const std::string* Value::string() const noexcept { return std::get_if<std::string>(&content_); }
inline const Value::Array* Value::array() const noexcept { return std::get_if<Array>(&content_); }
inline const Value::Object* Value::object() const noexcept { return std::get_if<Object>(&content_); }

/// Returns the integers of an array. Calls fail(place, item), which throws, for the first item that is no integer from
/// 0 on.
template <class Numbers, class Fail> Numbers unsigned_integers(const Value::Array& items, Fail&& fail) {
    Numbers numbers;
    for (const Value& item : items) {
        const auto number = item.unsigned_integer();
        if (!number) fail(numbers.size(), item);
        numbers.push_back(*number);
    }
    return numbers;
}

/// Returns all of `source`, which messages call `what`. Throws Error(code) if it has more than `most` bytes.
std::string read_text(const Source& source, std::uint64_t most, Errc code, std::string_view what);
/// Parses `text` and validates all of it: UTF-8, strings, numbers, depth, nothing after the value. Throws Error(code)
/// that says what is wrong.
Value parse(std::string_view text, Errc code, unsigned deepest = max_depth);

/// A callback for the members of an object that is too large for a tree. `text` is nullopt if the value is not a
/// string. Both arguments are valid until the call returns.
using OnMember = std::function<void(std::string_view key, std::optional<std::string_view> text)>;
/// Parses as parse() does. If the member `large` of the root is an object, passes its members to `on_member` one by
/// one, and puts an empty object in its place. If `large` is repeated, this applies to the last one.
Value parse(std::string_view text, Errc code, std::string_view large, const OnMember& on_member);

/// Passes the members of the root, which is an object, to `on_member`. Throws Error(code) if the root is not an object.
void parse_members(std::string_view text, Errc code, const OnMember& on_member);

/// A callback for the members of an object whose values are small. The key is valid until the call returns.
using OnEntry = std::function<void(std::string_view key, const Value& value)>;
/// Does the same with members of any kind. Only one value at a time is in memory as a tree.
void parse_entries(std::string_view text, Errc code, const OnEntry& on_entry);

/// How characters beyond ASCII are written.
enum class Charset : std::uint8_t {
    utf8,   ///< unchanged, also DEL: as serde_json
    shown,  ///< unchanged, except \uXXXX for characters that printable() escapes: safe to display
    ascii,  ///< as \uXXXX, surrogate pairs if needed: as Python's json.dump
};

/// Appends `text` in quotes, with the escapes of that writer. Bytes that are not UTF-8 become U+FFFD, except for utf8,
/// which copies them.
void append_string(std::string& out, std::string_view text, Charset charset);
/// Appends the shortest text that reads back as the same finite number, and not as an integer.
void append_real(std::string& out, double number);
/// Appends a decimal number.
void append_number(std::string& out, std::uint64_t number);

}  // namespace safemap::SAFEMAP_ABI::json
