// Which tensors of a checkpoint are meant.
#pragma once

#include <safemap/api.hpp>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A set of names, by pattern. A name is selected when it matches one of the includes (all names, when there are
/// none) and none of the excludes.
class SAFEMAP_API Selection {
public:
    /// Every tensor.
    Selection() = default;
    /// Names of shell patterns: `*` any characters, dots and slashes too, `?` any one byte, `[a-z]` one byte of a set,
    /// `[!a-z]` one that is not in it.
    static Selection glob(std::string pattern);
    /// Names equal to `prefix`, or with it before a '.' or '/': "model.layers.1" is not "model.layers.10.w".
    /// A prefix that ends in '.' or '/' selects what begins with it.
    static Selection prefix(std::string prefix);
    /// Exactly these names.
    static Selection names(std::vector<std::string> names);

    /// Adds a pattern to what is selected, or to what is not.
    Selection& include(std::string glob);
    Selection& exclude(std::string glob);

    bool matches(std::string_view name) const;

private:
    struct Rule {
        enum class Kind { glob, prefix } kind;
        std::string text;
    };
    static bool matches(const Rule& rule, std::string_view name);

    std::optional<std::set<std::string, std::less<>>> names_;  // an empty list means none, no list all
    std::vector<Rule> includes_;
    std::vector<Rule> excludes_;
};

}  // namespace safemap::SAFEMAP_ABI
