// Regular expressions of Python, of the kind that DeepSpeed and its users write to select parameters by their names.
// Patterns and names come from files, so that the time for each match is bounded: states times characters.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A regular expression that matches as Python's re.match does: from the first character on, not necessarily to the
/// last. Known are literals, `.`, classes, `\d`, `\w` and `\s` with their complements, `\A`, `\Z`, `^`, `$`, groups,
/// `|`, and the greedy and lazy forms of `*`, `+` and `?`.
class Pattern {
public:
    /// Returns the pattern, or nothing if Python refuses it or it has anything else: counted repeats, references, word
    /// boundaries, look-around, flags, or characters beyond ASCII. Also if it is longer than 1,024 characters.
    static std::optional<Pattern> parse(std::string_view text);

    /// Memory for matching, which many matches can share.
    class Scratch {
        friend class Pattern;
        std::vector<std::uint32_t> active_ = {};
        std::vector<std::uint32_t> following_ = {};
        std::vector<std::uint64_t> seen_ = {};  ///< by state: the last mark with which it was looked at
        std::uint64_t mark_ = 0;
    };

    /// Returns true if the beginning of `name`, which must be ASCII, matches. Takes one of `steps` for each state and
    /// character that is looked at. Throws unsupported_layout if it has none left.
    bool matches(std::string_view name, std::uint64_t& steps, Scratch& scratch) const;
    bool matches(std::string_view name, std::uint64_t& steps) const {
        Scratch scratch;
        return matches(name, steps, scratch);
    }

private:
    friend class PatternParser;

    struct State {
        enum class Kind : std::uint8_t { set, split, empty, begin, end, line_end, match } kind = Kind::empty;
        std::uint32_t set = 0;   ///< number in sets_
        std::uint32_t next = 0;  ///< the state that follows
        std::uint32_t also = 0;  ///< the other state that follows a split
    };
    /// The ASCII characters that a state accepts.
    struct Set {
        std::uint64_t low = 0;
        std::uint64_t high = 0;
    };
    static bool accepts(const Set& set, char c) {
        const auto bit = static_cast<unsigned char>(c);
        return bit < 64 ? (set.low >> bit & 1) != 0 : bit < 128 && (set.high >> (bit - 64) & 1) != 0;
    }

    std::vector<State> states_;
    std::vector<Set> sets_;
    std::uint32_t start_ = 0;
};

/// A list of patterns. Those that match one name only, as tools write one for each parameter, are found at once.
class PatternList {
public:
    /// Adds a pattern; one that is there already is passed by. Returns false if Pattern::parse() does not know it.
    bool add(const std::string& text);

    std::size_t size() const noexcept { return texts_.size(); }
    const std::string& text(std::size_t number) const noexcept { return texts_[number]; }

    /// How many patterns match, and the number of the first.
    struct Found {
        std::size_t count = 0;
        std::size_t first = 0;
    };
    /// Returns which patterns match the beginning of `name`, as Pattern::matches() does.
    Found find(const std::string& name, std::uint64_t& steps) const;

private:
    std::vector<std::string> texts_ = {};
    std::vector<std::pair<std::size_t, Pattern>> patterns_ = {};  ///< with their numbers
    std::unordered_map<std::string, std::size_t> exact_ = {};     ///< numbers by the only name
    std::unordered_map<std::string, std::size_t> known_ = {};     ///< numbers by text
};

}  // namespace safemap::SAFEMAP_ABI::distributed
