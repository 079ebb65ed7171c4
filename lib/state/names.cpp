// Turns keys and places into segments of names, and segments back into keys. Tested by tests/state/flatten_test.cpp.
#include "state/names.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <cstdint>
#include <variant>

namespace safemap::SAFEMAP_ABI::state {

namespace {

constexpr std::string_view reserved = "__metadata__";

bool looks_like_integer(std::string_view text) {
    if (text.starts_with('-')) text.remove_prefix(1);
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string escaped(std::string_view text) {
    if (text.find('~') == text.npos && text.find('/') == text.npos) return std::string(text);
    std::string out;
    out.reserve(text.size());
    for (const char c : text) {
        if (c == '~') out += "~0";
        else if (c == '/') out += "~1";
        else out += c;
    }
    return out;
}

std::string string_segment(std::string_view key) {
    const bool marked = key.empty() || key == reserved || looks_like_integer(key);
    return marked ? "~s" + escaped(key) : escaped(key);
}

/// Returns true if a name can spell the string.
bool nameable(std::string_view key) { return key.find('\0') == key.npos && is_utf8(key); }

struct KeySegment {
    std::size_t place;

    std::string operator()(StateTree::None) const { return "~none"; }
    std::string operator()(bool value) const { return value ? "~true" : "~false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(const StateTree::BigInt& value) const {
        return looks_like_integer(value.decimal) ? value.decimal : ordinal_segment(place);
    }
    std::string operator()(const std::string& value) const {
        return nameable(value) ? string_segment(value) : ordinal_segment(place);
    }
    template <class Other> std::string operator()(const Other&) const { return ordinal_segment(place); }
};

}  // namespace

std::string ordinal_segment(std::size_t place) { return "~k" + std::to_string(place); }

std::string item_segment(StateTree::Sequence::Kind kind, std::size_t place) {
    using Kind = StateTree::Sequence::Kind;
    return kind == Kind::set || kind == Kind::frozenset ? ordinal_segment(place) : std::to_string(place);
}

std::string key_segment(const StateTree::Node& key, std::size_t place) { return std::visit(KeySegment{place}, key); }

std::string child_segment(std::string_view child) {
    return looks_like_integer(child) ? std::string(child) : string_segment(child);
}

std::optional<StateTree::Node> key_of(std::string_view segment) {
    if (segment == "~none") return StateTree::None{};
    if (segment == "~true") return true;
    if (segment == "~false") return false;
    if (looks_like_integer(segment)) {
        if (const auto number = decimal<std::int64_t>(segment)) return *number;
        return StateTree::BigInt{std::string(segment)};
    }
    if (segment.starts_with("~s")) segment.remove_prefix(2);
    std::string text;
    for (std::size_t i = 0; i < segment.size(); ++i) {
        if (segment[i] != '~') {
            text += segment[i];
            continue;
        }
        if (++i == segment.size() || (segment[i] != '0' && segment[i] != '1')) return std::nullopt;
        text += segment[i] == '0' ? '~' : '/';
    }
    return text;
}

bool verbatim_name(std::string_view key) { return !key.empty() && key != reserved && nameable(key); }

void append_segment(std::string& path, std::string_view segment) {
    if (!path.empty()) path += '/';
    path += segment;
}

}  // namespace safemap::SAFEMAP_ABI::state
