// Matches names against the rules of a selection.
#include <safemap/selection.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Returns true if `c` is in the set whose text is between the brackets: "a-z", "!a-z". A '-' at either end stands for
/// itself.
bool in_set(std::string_view set, char c) {
    const bool negated = !set.empty() && (set.front() == '!' || set.front() == '^');
    if (negated) set.remove_prefix(1);
    bool found = false;
    for (std::size_t i = 0; i < set.size(); ++i) {
        if (i + 2 < set.size() && set[i + 1] == '-') {
            found = found || (static_cast<unsigned char>(set[i]) <= static_cast<unsigned char>(c) &&
                              static_cast<unsigned char>(c) <= static_cast<unsigned char>(set[i + 2]));
            i += 2;
        } else {
            found = found || set[i] == c;
        }
    }
    return found != negated;
}

/// Returns the end of the set that begins at pattern[at] == '['. Returns npos if the set has no end; then the bracket
/// is an ordinary character. A ']' in first place belongs to the set.
std::size_t set_end(std::string_view pattern, std::size_t at) {
    std::size_t first = at + 1;
    if (first < pattern.size() && (pattern[first] == '!' || pattern[first] == '^')) ++first;
    return pattern.find(']', first + 1);
}

/// Matches one character of `name` with the piece of `pattern` at `at`, and moves `at` behind the piece.
bool match_one(std::string_view pattern, std::size_t& at, char c) {
    if (pattern[at] == '?') return ++at, true;
    if (pattern[at] == '[') {
        if (const std::size_t end = set_end(pattern, at); end != std::string_view::npos) {
            const std::string_view set = pattern.substr(at + 1, end - at - 1);
            at = end + 1;
            return in_set(set, c);
        }
    }
    return pattern[at++] == c;
}

/// Returns true if the glob matches the whole name. Backtracks to the last star only, which suffices: going back to an
/// earlier one cannot help. So it takes at most pattern × name steps.
bool glob_matches(std::string_view pattern, std::string_view name) {
    std::size_t p = 0;
    std::size_t n = 0;
    std::size_t star = std::string_view::npos;  // position behind the last star
    std::size_t star_name = 0;                  // end of the text that the last star matches
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = ++p;
            star_name = n;
            continue;
        }
        if (p < pattern.size() && match_one(pattern, p, name[n])) {
            ++n;
            continue;
        }
        if (star == std::string_view::npos) return false;
        p = star;
        n = ++star_name;
    }
    return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool prefix_matches(std::string_view prefix, std::string_view name) {
    if (!name.starts_with(prefix)) return false;
    if (prefix.empty() || prefix.back() == '.' || prefix.back() == '/') return true;
    return name.size() == prefix.size() || name[prefix.size()] == '.' || name[prefix.size()] == '/';
}

}  // namespace

Selection Selection::glob(std::string pattern) {
    Selection selection;
    selection.include(std::move(pattern));
    return selection;
}

Selection Selection::prefix(std::string prefix) {
    Selection selection;
    selection.includes_.push_back({Rule::Kind::prefix, std::move(prefix)});
    return selection;
}

Selection Selection::names(std::vector<std::string> names) {
    Selection selection;
    selection.names_.emplace(std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
    return selection;
}

Selection& Selection::include(std::string glob) {
    includes_.push_back({Rule::Kind::glob, std::move(glob)});
    return *this;
}

Selection& Selection::exclude(std::string glob) {
    excludes_.push_back({Rule::Kind::glob, std::move(glob)});
    return *this;
}

bool Selection::matches(const Rule& rule, std::string_view name) {
    switch (rule.kind) {
        case Rule::Kind::glob: return glob_matches(rule.text, name);
        case Rule::Kind::prefix: return prefix_matches(rule.text, name);
    }
    return false;
}

bool Selection::matches(std::string_view name) const {
    const auto hit = [&](const Rule& rule) { return matches(rule, name); };
    const bool all = includes_.empty() && !names_;
    const bool named = names_ && names_->find(name) != names_->end();
    if (!all && !named && std::none_of(includes_.begin(), includes_.end(), hit)) return false;
    return std::none_of(excludes_.begin(), excludes_.end(), hit);
}

}  // namespace safemap::SAFEMAP_ABI
