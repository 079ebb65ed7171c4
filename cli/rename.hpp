// Renames tensors: --clean, --strip-prefix, --strip-suffix and --rename.
#pragma once

#include <safemap/checkpoint.hpp>

#include <CLI/App.hpp>

#include <cstddef>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <unordered_map>
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

/// The options that rename tensors.
struct RenameOptions {
    bool clean = false;
    std::vector<std::string> prefixes = {};
    std::vector<std::string> suffixes = {};
    std::vector<std::string> rules = {};

    /// Declares them. `tensors` says whose names they change: "tensors", or "tensors of A and B".
    void declare(CLI::App& app, const std::string& tensors);
    bool empty() const noexcept { return !clean && prefixes.empty() && suffixes.empty() && rules.empty(); }
};

/// The renaming of the command line, in order: --clean, all prefixes, all suffixes, all rules.
class Renaming {
public:
    /// Throws whatever RenameRule throws.
    explicit Renaming(const RenameOptions& options);

    bool empty() const noexcept { return empty_; }
    /// Returns the new name. Throws invalid_argument if it would be empty, and whatever RenameRule throws.
    std::string apply(std::string_view name);
    /// Returns the checkpoint with the new names. Throws name_collision if two of them are equal.
    Checkpoint apply(const Checkpoint& checkpoint);
    /// Returns a note for each wrapper that --clean removed, and for each prefix, suffix and rule that has not changed
    /// any name.
    std::vector<std::string> notes() const;

private:
    /// A wrapper's part of names that --clean has removed.
    struct Cleaned {
        std::size_t names = 0;
        std::string example = {};
    };

    std::string cleaned(std::string_view name);

    template <class Change> struct Step {
        Change change;
        bool used = false;
    };
    std::vector<Step<std::string>> prefixes_;
    std::vector<Step<std::string>> suffixes_;
    std::vector<Step<RenameRule>> rules_;
    bool clean_;
    bool empty_;
    std::map<std::string_view, Cleaned> cleaned_ = {};
};

/// Renames the names of two sides that are compared. A rule may fit one side only: a name that the other side has
/// already, as it is or renamed, need not change.
///
/// | side | a name stays if |
/// | --- | --- |
/// | A | the new name is on no side of B, and the old name is |
/// | B | A has it now, or the new name is another name of B |
class RenamedSides {
public:
    RenamedSides(Renaming& renaming, const std::vector<std::string>& a, const std::vector<std::string>& b);

    /// Return the new name of a name of A or B.
    const std::string& a(std::string_view name) const { return a_.at(std::string(name)); }
    const std::string& b(std::string_view name) const { return b_.at(std::string(name)); }

private:
    using Names = std::unordered_map<std::string, std::string>;

    Names a_ = {};
    Names b_ = {};
};

}  // namespace safemap::cli
