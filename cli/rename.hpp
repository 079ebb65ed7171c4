// Other names for tensors: --strip-prefix and --rename.
#pragma once

#include <cstddef>
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
struct Renaming {
    std::vector<std::string> prefixes = {};
    std::vector<RenameRule> rules = {};

    bool empty() const noexcept { return prefixes.empty() && rules.empty(); }
};

struct Renamed {
    std::vector<std::string> names;  ///< in the order of those before
    std::vector<std::string> notes;  ///< prefixes and rules that changed no name
};

/// Throws name_collision where two of `names` would become one, with both and the result, and what RenameRule throws.
Renamed rename_all(const Renaming& renaming, std::vector<std::string> names);

}  // namespace safemap::cli
