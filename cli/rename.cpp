// Translates each rule to an expression of std::regex, with limits on its length and on that of names.
#include "rename.hpp"

#include "output.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>

#include <cctype>
#include <utility>

namespace safemap::cli {
namespace {

// For each byte of a name, std::regex takes 250 bytes of stack with the simplest expression, several times that with
// nested groups, and more again with sanitizers.
constexpr std::size_t longest_name = 1024;
// The parser of std::regex recurses once for each level of nested groups.
constexpr std::size_t longest_rule = 4096;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse_rule(std::string_view rule, std::string_view why) {
    constexpr std::size_t shown = 80;
    const std::string text = printable(rule.substr(0, shown)) + (rule.size() > shown ? "..." : "");
    throw Error(Errc::invalid_argument, fmt::format("--rename: '{}' {}", text, why))
        .with_hint("a rule is s/RE/TEXT/, or s/RE/TEXT/g for every match");
}

/// Returns the text before the next unescaped `delimiter`, and removes it and the delimiter from `rest`.
std::string_view take_part(std::string_view& rest, char delimiter, std::string_view rule) {
    for (std::size_t i = 0; i < rest.size(); ++i) {
        if (rest[i] == '\\') {
            ++i;
        } else if (rest[i] == delimiter) {
            const std::string_view part = rest.substr(0, i);
            rest.remove_prefix(i + 1);
            return part;
        }
    }
    refuse_rule(rule, fmt::format("has too few '{}'", delimiter));
}

/// Returns TEXT in the notation of std::regex. Groups get two digits, so that a digit after one does not join it.
std::string replacement_of(std::string_view text, char delimiter, unsigned groups, std::string_view rule) {
    std::string result;
    const auto add_group = [&](unsigned group) {
        if (group > groups) refuse_rule(rule, fmt::format("uses group {}, but its expression has {}", group, groups));
        result += fmt::format("${:02}", group);
    };
    const auto add_literal = [&](char c) { result += c == '$' ? "$$" : std::string(1, c); };
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char next = i + 1 < text.size() ? text[i + 1] : '\0';
        if (text[i] == '$' && (next == '&' || next == '$')) {
            result += text.substr(i++, 2);
        } else if (text[i] == '$' && is_digit(next)) {
            unsigned group = static_cast<unsigned>(next - '0');
            ++i;
            // As in ECMAScript: two digits, if there are that many groups.
            if (i + 1 < text.size() && is_digit(text[i + 1])) {
                const unsigned wider = group * 10 + static_cast<unsigned>(text[i + 1] - '0');
                if (wider <= groups) {
                    group = wider;
                    ++i;
                }
            }
            add_group(group);
        } else if (text[i] == '\\') {
            if (is_digit(next)) add_group(static_cast<unsigned>(next - '0'));
            else if (next != '\0' && (next == delimiter || next == '\\')) add_literal(next);
            else
                refuse_rule(
                    rule, fmt::format("has an invalid escape in its text; expected a digit, '{}' or backslash after \\",
                                      delimiter));
            ++i;
        } else {
            add_literal(text[i]);
        }
    }
    return result;
}

std::regex expression_of(std::string_view text, std::string_view rule) {
    try {
        return std::regex(text.begin(), text.end(), std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
        refuse_rule(rule, fmt::format("has an invalid regular expression: {}", error.what()));
    }
}

}  // namespace

RenameRule::RenameRule(std::string_view rule) : rule_(rule) {
    if (rule.size() > longest_rule) refuse_rule(rule, fmt::format("has more than {} bytes", longest_rule));
    if (rule.size() < 2 || rule[0] != 's' || !std::ispunct(static_cast<unsigned char>(rule[1])) || rule[1] == '\\')
        refuse_rule(rule, "does not begin with s and a slash");
    const char delimiter = rule[1];
    std::string_view rest = rule.substr(2);
    const std::string_view expression = take_part(rest, delimiter, rule);
    const std::string_view text = take_part(rest, delimiter, rule);
    if (!rest.empty() && rest != "g")
        refuse_rule(rule,
                    fmt::format("has '{}' after the last '{}'; expected nothing or g", printable(rest), delimiter));
    if (expression.empty()) refuse_rule(rule, "has no regular expression");
    everywhere_ = rest == "g";
    expression_ = expression_of(expression, rule);
    replacement_ = replacement_of(text, delimiter, static_cast<unsigned>(expression_.mark_count()), rule);
}

std::string RenameRule::apply(const std::string& name) const {
    if (name.size() > longest_name)
        throw Error(Errc::invalid_argument, fmt::format("--rename: a name has {} bytes, but a rule takes at most {}; "
                                                        "it begins with '{}'",
                                                        name.size(), longest_name, printable(name.substr(0, 80))));
    using std::regex_constants::format_default;
    using std::regex_constants::format_first_only;
    try {
        return std::regex_replace(name, expression_, replacement_, everywhere_ ? format_default : format_first_only);
    } catch (const std::regex_error& error) {
        refuse_rule(rule_, fmt::format("is too complex for '{}': {}", printable(name), error.what()));
    }
}

Renaming::Renaming(const std::vector<std::string>& prefixes, const std::vector<std::string>& rules) {
    for (const std::string& prefix : prefixes) prefixes_.push_back({prefix});
    for (const std::string& rule : rules) rules_.push_back({RenameRule(rule)});
}

std::string Renaming::apply(std::string_view name) {
    std::string after(name);
    for (auto& [prefix, used] : prefixes_) {
        if (!after.starts_with(prefix)) continue;
        used = true;
        after.erase(0, prefix.size());
    }
    for (auto& [rule, used] : rules_) {
        std::string changed = rule.apply(after);
        used = used || changed != after;
        after = std::move(changed);
    }
    if (after.empty() && !name.empty())
        throw Error(Errc::invalid_argument, fmt::format("the name '{}' would become empty", printable(name)));
    return after;
}

std::vector<std::string> Renaming::notes() const {
    std::vector<std::string> notes;
    for (const auto& [prefix, used] : prefixes_)
        if (!used) notes.push_back(fmt::format("--strip-prefix '{}': no name begins with it", prefix));
    for (const auto& [rule, used] : rules_)
        if (!used) notes.push_back(fmt::format("--rename '{}': it changes no name", rule.text()));
    return notes;
}

}  // namespace safemap::cli
