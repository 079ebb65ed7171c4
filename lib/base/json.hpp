// JSON both ways: small documents (indexes) as a tree of values, and strings as other writers escape them.
// Headers, which can be large, are read without a tree: safetensors/header.cpp.
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

/// Arrays and objects within each other; one more is refused. serde_json's limit.
inline constexpr unsigned max_depth = 127;

struct Member;

/// One value of a parsed document. Immutable; owns what is below it.
class Value {
public:
    using Array = std::vector<Value>;
    /// In the order of the document, repeated keys included.
    using Object = std::vector<Member>;
    using Content = std::variant<std::monostate, bool, std::uint64_t, std::int64_t, double, std::string, Array, Object>;

    explicit Value(Content content);

    /// Each gives nothing where the value is of another kind. Integers are exact; a number written with a fraction
    /// or an exponent is no integer.
    bool is_null() const noexcept;
    std::optional<bool> boolean() const noexcept;
    std::optional<std::uint64_t> unsigned_integer() const noexcept;
    std::optional<std::int64_t> integer() const noexcept;
    std::optional<double> number() const noexcept;
    const std::string* string() const noexcept;
    const Array* array() const noexcept;
    const Object* object() const noexcept;

    /// The member of that name, the last where a key is repeated; null where there is none or this is no object.
    const Value* find(std::string_view key) const noexcept;

private:
    Content content_;
};

struct Member {
    std::string key;
    Value value;
};

// Here, because Clang 14 wants Member complete wherever a Content is made or looked at.
inline Value::Value(Content content) : content_(std::move(content)) {}
inline bool Value::is_null() const noexcept { return std::holds_alternative<std::monostate>(content_); }
inline const std::string* Value::string() const noexcept { return std::get_if<std::string>(&content_); }
inline const Value::Array* Value::array() const noexcept { return std::get_if<Array>(&content_); }
inline const Value::Object* Value::object() const noexcept { return std::get_if<Object>(&content_); }

/// All of `source`. Throws Error(code) where that is more than `most` bytes, "too many for " what.
std::string read_text(const Source& source, std::uint64_t most, Errc code, std::string_view what);
/// Parses and validates all of `text`: UTF-8, strings, numbers, depth, nothing behind the value. Throws Error(code)
/// that says what is wrong.
Value parse(std::string_view text, Errc code, unsigned deepest = max_depth);

/// A member of an object that is too large for a tree; `text` is nothing where the value is no string. Both last until
/// the call returns.
using OnMember = std::function<void(std::string_view key, std::optional<std::string_view> text)>;
/// As parse(), but where the root's member `large` is an object, its members go to `on_member` one after the other, and
/// an empty object stands in its place. Where `large` is repeated, that is so of the last one.
Value parse(std::string_view text, Errc code, std::string_view large, const OnMember& on_member);

/// The same of a root that is an object itself; throws where it is none.
void parse_members(std::string_view text, Errc code, const OnMember& on_member);

/// How characters beyond ASCII are written.
enum class Charset : std::uint8_t {
    utf8,   ///< as they are, and DEL too: serde_json
    shown,  ///< as they are, and what printable() escapes as \uXXXX: for what people look at too
    ascii,  ///< as \uXXXX, in surrogate pairs where needed: Python's json.dump
};

/// Appends `text` in quotes, escaped as that writer escapes it. Bytes that are not UTF-8 are U+FFFD, but for utf8,
/// which copies them.
void append_string(std::string& out, std::string_view text, Charset charset);
/// Appends the shortest text that reads back as the same finite number, and as no integer.
void append_real(std::string& out, double number);
/// Appends a decimal number.
void append_number(std::string& out, std::uint64_t number);

}  // namespace safemap::SAFEMAP_ABI::json
