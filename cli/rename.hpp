// Other names for tensors: --strip-prefix and --rename.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// `s/RE/TEXT/` or `s/RE/TEXT/g`, as sed writes it; any punctuation may stand for the slash. RE is an ECMAScript
/// expression over the bytes of a name. In TEXT, `$1` or `\1` is a group, `$&` all that matched, `$$` a dollar; behind
/// a backslash, the slash or another backslash is itself.
class RenameRule {
public:
    /// Throws invalid_argument, with what is wrong with it.
    explicit RenameRule(std::string_view rule);

    /// What becomes of a name: the first match is replaced, with `g` each. Throws invalid_argument for a name of more
    /// than 1024 bytes, which the machine of std::regex would need too much stack for.
    std::string apply(const std::string& name) const;
    const std::string& text() const noexcept { return rule_; }

private:
    std::string rule_;
    std::regex expression_;
    std::string replacement_;  // in the notation of std::regex
    bool everywhere_ = false;
};

/// What was asked for on the command line: the prefixes first, then the rules, each on what the one before left.
class Renaming {
public:
    Renaming() = default;
    /// Throws what RenameRule throws.
    Renaming(const std::vector<std::string>& prefixes, const std::vector<std::string>& rules);

    bool empty() const noexcept { return prefixes_.empty() && rules_.empty(); }
    /// Returns the new name. Throws invalid_argument if nothing would be left of it, and what RenameRule throws.
    std::string apply(std::string_view name);
    /// Returns a note on each prefix and rule that has changed no name so far.
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
