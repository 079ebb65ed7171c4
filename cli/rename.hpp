// Renames tensors: --strip-prefix and --rename.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// A rule `s/RE/TEXT/` or `s/RE/TEXT/g`, as in sed; any punctuation may replace the slash. RE is an ECMAScript
/// expression over the bytes of a name. In TEXT, `$1` or `\1` is a group, `$&` the whole match and `$$` a dollar; a
/// backslash escapes the slash and the backslash.
class RenameRule {
public:
    /// Throws invalid_argument if the rule is invalid.
    explicit RenameRule(std::string_view rule);

    /// Returns the new name: replaces the first match, or all with `g`. Throws invalid_argument for a name of more than
    /// 1024 bytes, for which std::regex would need too much stack.
    std::string apply(const std::string& name) const;
    const std::string& text() const noexcept { return rule_; }

private:
    std::string rule_;
    std::regex expression_;
    std::string replacement_;  // in the notation of std::regex
    bool everywhere_ = false;
};

/// The prefixes and rules of the command line, applied in order: first all prefixes, then all rules.
class Renaming {
public:
    Renaming() = default;
    /// Throws whatever RenameRule throws.
    Renaming(const std::vector<std::string>& prefixes, const std::vector<std::string>& rules);

    bool empty() const noexcept { return prefixes_.empty() && rules_.empty(); }
    /// Returns the new name. Throws invalid_argument if it would be empty, and whatever RenameRule throws.
    std::string apply(std::string_view name);
    /// Returns a note for each prefix and rule that has not changed any name.
    std::vector<std::string> notes() const;

private:
    template <class Change> struct Step {
        Change change;
        bool used = false;
    };
    std::vector<Step<std::string>> prefixes_;
    std::vector<Step<RenameRule>> rules_;
};

}  // namespace safemap::cli
