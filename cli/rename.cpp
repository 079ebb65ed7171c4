// Removes prefixes, suffixes and what wrappers add to names. Translates each rule to an expression of std::regex, with
// limits on its length and on that of names.
#include "rename.hpp"

#include "options.hpp"
#include "output.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>

#include <array>
#include <cctype>
#include <unordered_set>
#include <utility>

namespace safemap::cli {
namespace {

// For each byte of a name, std::regex takes 250 bytes of stack with the simplest expression, several times that with
// nested groups, and more again with sanitizers.
constexpr std::size_t longest_name = 1024;
// The parser of std::regex recurses once for each level of nested groups.
constexpr std::size_t longest_rule = 4096;

/// A part of names that a wrapper of modules adds. docs/convert.md has the same table.
struct Wrapper {
    std::string_view part;
    std::string_view writer;
};

constexpr std::array wrappers{
    Wrapper{"_orig_mod.", "torch.compile"},
    Wrapper{"_forward_module.", "Lightning"},
    Wrapper{"_fsdp_wrapped_module.", "FSDP"},
    Wrapper{"_fpw_module.", "FairScale"},
    Wrapper{"_checkpoint_wrapped_module.", "activation checkpointing"},
    Wrapper{"base_model.model.", "PEFT"},
    Wrapper{"module.", "DistributedDataParallel and its kind"},
};

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

void RenameOptions::declare(CLI::App& app, const std::string& tensors) {
    app.add_flag("--clean", clean,
                 "remove what wrappers add to names of " + tensors + ", anywhere: module., _orig_mod., ...");
    add_repeatable(app, "--strip-prefix", prefixes,
                   "remove the prefix P from names of " + tensors + " that begin with it (repeatable)")
        ->type_name("P");
    add_repeatable(app, "--strip-suffix", suffixes,
                   "remove the suffix S from names of " + tensors + " that end with it (repeatable)")
        ->type_name("S");
    add_repeatable(app, "--rename", rules, "rename " + tensors + ", after the options above: 's/RE/TEXT/' (repeatable)")
        ->type_name("RULE");
}

Renaming::Renaming(const RenameOptions& options) : clean_(options.clean), empty_(options.empty()) {
    for (const std::string& prefix : options.prefixes) prefixes_.push_back({prefix});
    for (const std::string& suffix : options.suffixes) suffixes_.push_back({suffix});
    for (const std::string& rule : options.rules) rules_.push_back({RenameRule(rule)});
}

std::string Renaming::cleaned(std::string_view name) {
    std::string after(name);
    for (const Wrapper& wrapper : wrappers) {
        bool found = false;
        for (std::size_t at = 0; (at = after.find(wrapper.part, at)) != after.npos;) {
            const bool begins = at == 0 || after[at - 1] == '.' || after[at - 1] == '/';
            if (begins) after.erase(at, wrapper.part.size());
            else ++at;
            found = found || begins;
        }
        if (!found) continue;
        Cleaned& cleaned = cleaned_[wrapper.part];
        if (cleaned.names++ == 0) cleaned.example = name;
    }
    return after;
}

std::string Renaming::apply(std::string_view name) {
    std::string after = clean_ ? cleaned(name) : std::string(name);
    for (auto& [prefix, used] : prefixes_) {
        if (!after.starts_with(prefix)) continue;
        used = true;
        after.erase(0, prefix.size());
    }
    for (auto& [suffix, used] : suffixes_) {
        if (!after.ends_with(suffix)) continue;
        used = true;
        after.erase(after.size() - suffix.size());
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

Checkpoint Renaming::apply(const Checkpoint& checkpoint) {
    return empty() ? checkpoint : checkpoint.renamed([this](std::string_view name) { return apply(name); });
}

std::vector<std::string> Renaming::notes() const {
    std::vector<std::string> notes;
    for (const Wrapper& wrapper : wrappers)
        if (const auto found = cleaned_.find(wrapper.part); found != cleaned_.end())
            notes.push_back(fmt::format("--clean: '{}' of {} removed from {}, such as '{}'", wrapper.part,
                                        wrapper.writer, count_text(found->second.names, "name"),
                                        printable(found->second.example)));
    if (clean_ && cleaned_.empty()) notes.emplace_back("--clean: no name has a part that a wrapper adds");
    for (const auto& [prefix, used] : prefixes_)
        if (!used) notes.push_back(fmt::format("--strip-prefix '{}': no name begins with it", prefix));
    for (const auto& [suffix, used] : suffixes_)
        if (!used) notes.push_back(fmt::format("--strip-suffix '{}': no name ends with it", suffix));
    for (const auto& [rule, used] : rules_)
        if (!used) notes.push_back(fmt::format("--rename '{}': it changes no name", rule.text()));
    return notes;
}

RenamedSides::RenamedSides(Renaming& renaming, const std::vector<std::string>& a, const std::vector<std::string>& b) {
    for (const std::string& name : a) a_.emplace(name, renaming.apply(name));
    for (const std::string& name : b) b_.emplace(name, renaming.apply(name));
    std::unordered_set<std::string_view> on_b;
    for (const auto& [before, after] : b_) {
        on_b.insert(before);
        on_b.insert(after);
    }
    for (auto& [before, after] : a_)
        if (!on_b.contains(after) && on_b.contains(before)) after = before;
    std::unordered_set<std::string_view> on_a;
    for (const auto& [before, after] : a_) on_a.insert(after);
    std::vector<Names::value_type*> stay;
    for (auto& entry : b_) {
        const bool taken = entry.second != entry.first && b_.contains(entry.second);
        if (on_a.contains(entry.first) || taken) stay.push_back(&entry);
    }
    for (Names::value_type* const entry : stay) entry->second = entry->first;
}

}  // namespace safemap::cli
