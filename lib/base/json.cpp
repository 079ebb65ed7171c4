// Reads and writes JSON. Parsing uses simdjson's DOM, which validates everything. Its tape is copied into our own tree,
// so that no other code depends on simdjson.
#include "base/json.hpp"

#include <safemap/advanced/text.hpp>

#include "base/text.hpp"

#include <simdjson.h>

#include <charconv>
#include <new>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::json {

std::optional<bool> Value::boolean() const noexcept {
    if (const auto* value = std::get_if<bool>(&content_)) return *value;
    return std::nullopt;
}

std::optional<std::uint64_t> Value::unsigned_integer() const noexcept {
    if (const auto* value = std::get_if<std::uint64_t>(&content_)) return *value;
    return std::nullopt;
}

std::optional<std::int64_t> Value::integer() const noexcept {
    if (const auto* value = std::get_if<std::int64_t>(&content_)) return *value;
    if (const auto* value = std::get_if<std::uint64_t>(&content_);
        value != nullptr && std::in_range<std::int64_t>(*value))
        return static_cast<std::int64_t>(*value);
    return std::nullopt;
}

std::optional<double> Value::number() const noexcept {
    if (const auto* value = std::get_if<double>(&content_)) return *value;
    if (const auto* value = std::get_if<std::uint64_t>(&content_)) return static_cast<double>(*value);
    if (const auto* value = std::get_if<std::int64_t>(&content_)) return static_cast<double>(*value);
    return std::nullopt;
}

const Value* Value::find(std::string_view key) const noexcept {
    const Object* members = object();
    if (members == nullptr) return nullptr;
    for (auto member = members->rbegin(); member != members->rend(); ++member)
        if (member->key == key) return &member->value;
    return nullptr;
}

namespace {

namespace dom = simdjson::dom;

/// Copies an element into a Value. `left` is the number of containers that may still be entered.
Value copy(const dom::element& element, unsigned left, Errc code) {
    if (left == 0 && (element.is_array() || element.is_object()))
        throw Error(code, "not JSON: arrays and objects are nested too deep");
    switch (element.type()) {
        case dom::element_type::NULL_VALUE: return Value(std::monostate{});
        case dom::element_type::BOOL: return Value(element.get_bool().value_unsafe());
        case dom::element_type::DOUBLE: return Value(element.get_double().value_unsafe());
        case dom::element_type::UINT64: return Value(element.get_uint64().value_unsafe());
        case dom::element_type::INT64: {
            const std::int64_t number = element.get_int64().value_unsafe();
            // Store every non-negative integer as the same kind.
            if (number >= 0) return Value(static_cast<std::uint64_t>(number));
            return Value(number);
        }
        case dom::element_type::STRING: return Value(std::string(element.get_string().value_unsafe()));
        case dom::element_type::ARRAY: {
            Value::Array items;
            const dom::array array = element.get_array().value_unsafe();
            for (const dom::element item : array) items.push_back(copy(item, left - 1, code));
            return Value(std::move(items));
        }
        case dom::element_type::OBJECT: {
            Value::Object members;
            const dom::object object = element.get_object().value_unsafe();
            for (const dom::key_value_pair member : object)
                members.push_back({std::string(member.key), copy(member.value, left - 1, code)});
            return Value(std::move(members));
        }
    }
    return Value(std::monostate{});
}

constexpr char hex[] = "0123456789abcdef";

void append_unit(std::string& out, std::uint32_t unit) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += hex[unit >> shift & 15];
}

void append_code_point(std::string& out, std::uint32_t code_point) {
    if (code_point < 0x10000) return append_unit(out, code_point);
    code_point -= 0x10000;
    append_unit(out, 0xd800 + (code_point >> 10));
    append_unit(out, 0xdc00 + (code_point & 0x3ff));
}

/// Returns the root, which lives in `parser`.
dom::element parsed(dom::parser& parser, std::string_view text, Errc code, unsigned deepest = max_depth) {
    // simdjson does not count empty containers, so copy() checks the depth.
    auto error = parser.allocate(text.size() + simdjson::SIMDJSON_PADDING, deepest + 2);
    dom::element root;
    if (!error) error = parser.parse(text.data(), text.size()).get(root);
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error) throw Error(code, "not JSON: " + std::string(simdjson::error_message(error)));
    return root;
}

/// Returns the members of the root, which live in `parser`.
dom::object root_object(dom::parser& parser, std::string_view text, Errc code) {
    dom::object members;
    if (parsed(parser, text, code).get_object().get(members)) throw Error(code, "the JSON is not an object");
    return members;
}

/// Passes members to `on_member`. `left` as for copy(), for the members.
void hand_out(const dom::object& members, unsigned left, Errc code, const OnMember& on_member) {
    for (const dom::key_value_pair member : members) {
        std::string_view text;
        if (!member.value.get_string().get(text)) {
            on_member(member.key, text);
            continue;
        }
        copy(member.value, left, code);  // checks the depth
        on_member(member.key, std::nullopt);
    }
}

/// Returns true if the byte cannot simply be copied.
constexpr bool special(unsigned char byte, Charset charset) {
    return byte < 0x20 || byte == '"' || byte == '\\' || (charset != Charset::utf8 && byte >= 0x7f);
}

}  // namespace

std::string read_text(const Source& source, std::uint64_t most, Errc code, std::string_view what) {
    if (source.size() > most)
        throw Error(code, std::string(what) + " of " + bytes_text(source.size()) + " is too large; the limit is " +
                              bytes_text(most));
    std::string text(source.size(), '\0');
    source.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
    return text;
}

Value parse(std::string_view text, Errc code, unsigned deepest) {
    dom::parser parser;
    return copy(parsed(parser, text, code, deepest), deepest, code);
}

Value parse(std::string_view text, Errc code, std::string_view large, const OnMember& on_member) {
    dom::parser parser;
    const dom::element root = parsed(parser, text, code);
    dom::object members;
    if (root.get_object().get(members)) return copy(root, max_depth, code);

    std::size_t last = SIZE_MAX;
    std::size_t at = 0;
    for (const dom::key_value_pair member : members) {
        if (member.key == large) last = at;
        ++at;
    }
    Value::Object kept;
    at = 0;
    for (const dom::key_value_pair member : members) {
        dom::object inner;
        const bool apart = at++ == last && !member.value.get_object().get(inner);
        kept.push_back(
            {std::string(member.key), apart ? Value(Value::Object()) : copy(member.value, max_depth - 1, code)});
        if (apart) hand_out(inner, max_depth - 2, code, on_member);
    }
    return Value(std::move(kept));
}

void parse_members(std::string_view text, Errc code, const OnMember& on_member) {
    dom::parser parser;
    hand_out(root_object(parser, text, code), max_depth - 1, code, on_member);
}

void parse_entries(std::string_view text, Errc code, const OnEntry& on_entry) {
    dom::parser parser;
    for (const dom::key_value_pair member : root_object(parser, text, code))
        on_entry(member.key, copy(member.value, max_depth - 1, code));
}

void append_string(std::string& out, std::string_view text, Charset charset) {
    constexpr std::uint32_t replacement = 0xfffd;
    out += '"';
    while (!text.empty()) {
        std::size_t plain = 0;
        while (plain < text.size() && !special(static_cast<unsigned char>(text[plain]), charset)) ++plain;
        out += text.substr(0, plain);
        text.remove_prefix(plain);
        if (text.empty()) break;
        switch (const std::uint32_t code_point = take_character(text).value_or(replacement)) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\b': out += "\\b"; break;
            case '\f': out += "\\f"; break;
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            default:
                if (charset == Charset::ascii || is_control(code_point)) append_code_point(out, code_point);
                else append_utf8(out, code_point);
        }
    }
    out += '"';
}

void append_real(std::string& out, double number) {
    char digits[32];
    const std::string_view text(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    out += text;
    if (text.find_first_of(".e") == text.npos) out += ".0";
}

void append_number(std::string& out, std::uint64_t number) {
    char digits[20];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

}  // namespace safemap::SAFEMAP_ABI::json

std::string safemap::json_quoted(std::string_view text) {
    std::string out;
    json::append_string(out, text, json::Charset::shown);
    return out;
}
