// Selection: a set of tensor names, given by patterns, a prefix or a list.
#pragma once

#include <safemap/api.hpp>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace checkpoint {
class SortedNames;
}  // namespace checkpoint

/// A set of tensor names. A name is selected if it matches at least one include, or if no include exists, and if it
/// matches no exclude. Owns its patterns. Const members may be called from several threads at once.
///
/// Example:
///     auto attention = safemap::Selection::glob("model.layers.*.attn.*").exclude("*.bias");
///     safemap::Checkpoint part = checkpoint.select(attention);
///     bool has_bias = attention.matches("model.layers.0.attn.q.bias");  // false
class [[nodiscard]] SAFEMAP_API Selection {
public:
    /// Selects every name.
    Selection() = default;
    /// Returns the selection of a shell pattern:
    ///
    /// - `*` matches any characters, including dots and slashes
    /// - `?` matches any one byte
    /// - `[a-z]` matches one byte of a set, `[!a-z]` one byte outside it
    static Selection glob(std::string pattern);
    /// Returns the selection of `prefix` itself and of all names that continue it with '.' or '/': "model.layers.1"
    /// does not select "model.layers.10.w". If `prefix` ends in '.' or '/', it selects all names that begin with it.
    static Selection prefix(std::string prefix);
    /// Returns the selection of exactly these names. An empty list selects nothing.
    static Selection names(std::vector<std::string> names);

    /// Add a pattern to the includes, or to the excludes. Return *this.
    Selection& include(std::string glob);
    Selection& exclude(std::string glob);

    /// Returns true if `name` is selected.
    [[nodiscard]] bool matches(std::string_view name) const;

private:
    friend class checkpoint::SortedNames;
    struct Rule {
        enum class Kind { glob, prefix } kind;
        std::string text;
    };
    static bool matches(const Rule& rule, std::string_view name);

    std::optional<std::set<std::string, std::less<>>> names_;  // empty list: no name; unset: all names
    std::vector<Rule> includes_;
    std::vector<Rule> excludes_;
};

}  // namespace safemap::SAFEMAP_ABI
