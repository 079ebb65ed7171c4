// Reads a pattern by recursive descent into a machine of states, and follows all states that can be active at once, so
// that no pattern makes matching slow.
#include "distributed/parallel/pattern.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

constexpr std::size_t longest_pattern = 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// Returns the only name that the pattern matches; nothing if it may match others. A name has no line breaks.
std::optional<std::string> only_name(std::string_view text) {
    if (text.size() > longest_pattern || !text.ends_with('$')) return std::nullopt;
    text.remove_suffix(1);
    if (text.starts_with('^')) text.remove_prefix(1);
    std::string name;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const bool escaped = text[at] == '\\';
        if (escaped && ++at == text.size()) return std::nullopt;
        const char c = text[at];
        const bool plain = is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '/';
        if (!is_ascii(c) || (escaped ? is_letter(c) || is_digit(c) : !plain)) return std::nullopt;
        name += c;
    }
    return name;
}

/// A piece of the machine: it is entered at `start`, and left at the empty state `end`.
struct Fragment {
    std::uint32_t start = 0;
    std::uint32_t end = 0;
};

}  // namespace

/// Reads one pattern. Every function returns nothing for a pattern that is not understood.
class PatternParser {
public:
    explicit PatternParser(std::string_view text) : text_(text) {}

    std::optional<Pattern> parse() {
        const auto all = alternatives();
        if (!all || at_ != text_.size()) return std::nullopt;  // a `)` too many
        made_.states_[all->end].next = add({.kind = Kind::match});
        made_.start_ = all->start;
        return std::move(made_);
    }

private:
    using Kind = Pattern::State::Kind;
    using Set = Pattern::Set;

    bool done() const { return at_ == text_.size(); }
    char peek() const { return text_[at_]; }
    bool take(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }

    std::uint32_t add(Pattern::State state) {
        made_.states_.push_back(state);
        return static_cast<std::uint32_t>(made_.states_.size() - 1);
    }
    void link(std::uint32_t from, std::uint32_t to) { made_.states_[from].next = to; }

    std::optional<Fragment> alternatives() {
        auto all = sequence();
        while (all && take("|")) {
            const auto other = sequence();
            if (!other) return std::nullopt;
            const std::uint32_t end = add({});
            link(all->end, end);
            link(other->end, end);
            all = Fragment{add({.kind = Kind::split, .next = all->start, .also = other->start}), end};
        }
        return all;
    }

    std::optional<Fragment> sequence() {
        const std::uint32_t start = add({});
        Fragment all = {start, start};
        while (!done() && peek() != '|' && peek() != ')') {
            const auto next = repeated();
            if (!next) return std::nullopt;
            link(all.end, next->start);
            all.end = next->end;
        }
        return all;
    }

    std::optional<Fragment> repeated() {
        const bool anchor = peek() == '^' || peek() == '$';
        const std::size_t begin = at_;
        const auto one = atom();
        if (!one || done() || !is_repeat(peek())) return one;
        const std::string_view read = text_.substr(begin, at_ - begin);
        if (anchor || read == "\\A" || read == "\\Z") return std::nullopt;  // nothing to repeat
        const char repeat = text_[at_++];
        if (!done() && peek() == '?') ++at_;                    // lazy: the same names match
        if (!done() && is_repeat(peek())) return std::nullopt;  // possessive, or a repeat of a repeat
        return repeat_of(*one, repeat);
    }

    static bool is_repeat(char c) { return c == '*' || c == '+' || c == '?'; }

    Fragment repeat_of(Fragment one, char repeat) {
        const std::uint32_t end = add({});
        const std::uint32_t choice = add({.kind = Kind::split, .next = one.start, .also = end});
        link(one.end, repeat == '?' ? end : choice);
        return {repeat == '+' ? one.start : choice, end};
    }

    std::optional<Fragment> atom() {
        const char c = text_[at_++];
        switch (c) {
            case '(': return group();
            case '[': return class_of_characters();
            case '.': return set(without({1ULL << '\n', 0}));
            case '^': return place(Kind::begin);
            case '$': return place(Kind::line_end);
            case '\\': return escape();
            case '*':
            case '+':
            case '?':
            case '{': return std::nullopt;
            default: return is_ascii(c) ? std::optional(set(only(c))) : std::nullopt;
        }
    }

    std::optional<Fragment> group() {
        if (!done() && peek() == '?' && !take("?:")) return std::nullopt;
        const auto inner = alternatives();
        if (!inner || !take(")")) return std::nullopt;
        return inner;
    }

    std::optional<Fragment> escape() {
        if (take("A")) return place(Kind::begin);
        if (take("Z")) return place(Kind::end);
        const auto characters = escaped();
        if (!characters) return std::nullopt;
        return set(*characters);
    }

    /// Reads what follows a backslash: one character, or a class of them.
    std::optional<Set> escaped() {
        if (done() || !is_ascii(peek()) || is_digit(peek())) return std::nullopt;
        const char c = text_[at_++];
        if (!is_letter(c)) return only(c);
        switch (c) {
            case 'd': return digits();
            case 'D': return without(digits());
            case 's': return spaces();
            case 'S': return without(spaces());
            case 'w': return words();
            case 'W': return without(words());
            case 't': return only('\t');
            case 'n': return only('\n');
            case 'r': return only('\r');
            case 'f': return only('\f');
            case 'v': return only('\v');
            case 'a': return only('\a');
            default: return std::nullopt;
        }
    }

    std::optional<Fragment> class_of_characters() {
        const bool complement = take("^");
        Set all;
        for (bool first = true; first || done() || peek() != ']'; first = false) {
            if (done() || !add_member(all)) return std::nullopt;
        }
        ++at_;
        return set(complement ? without(all) : all);
    }

    /// Reads a character, a range or an escape of a class.
    bool add_member(Set& all) {
        char low = 0;
        if (!member(all, low)) return false;
        if (text_.substr(at_, 1) != "-" || text_.substr(at_, 2) == "-]") return true;
        ++at_;
        char high = 0;
        Set end;
        if (low == 0 || done() || !member(end, high) || high == 0 || high < low) return false;
        for (int c = low; c <= high; ++c) unite(all, only(static_cast<char>(c)));
        return true;
    }

    /// Reads one member, and sets `one` to its character, or to 0 if it is a class.
    bool member(Set& all, char& one) {
        const char c = text_[at_++];
        if (!is_ascii(c) || c == 0) return false;
        if (c != '\\') {
            one = c;
            unite(all, only(c));
            return true;
        }
        const bool single = !done() && !is_letter(peek());
        if (single) one = peek();
        const auto characters = escaped();
        if (!characters) return false;
        unite(all, *characters);
        return true;
    }

    Fragment set(Set characters) {
        made_.sets_.push_back(characters);
        const std::uint32_t end = add({});
        const auto number = static_cast<std::uint32_t>(made_.sets_.size() - 1);
        return {add({.kind = Kind::set, .set = number, .next = end}), end};
    }
    Fragment place(Kind kind) {
        const std::uint32_t end = add({});
        return {add({.kind = kind, .next = end}), end};
    }

    static Set only(char c) {
        const auto bit = static_cast<unsigned char>(c);
        return bit < 64 ? Set{1ULL << bit, 0} : Set{0, 1ULL << (bit - 64)};
    }
    static Set without(Set set) { return {~set.low, ~set.high}; }
    static void unite(Set& all, Set more) {
        all.low |= more.low;
        all.high |= more.high;
    }
    static Set range(char low, char high) {
        Set all;
        for (char c = low; c <= high; ++c) unite(all, only(c));
        return all;
    }
    static Set digits() { return range('0', '9'); }
    static Set spaces() {
        Set all = range('\t', '\r');
        unite(all, range('\x1c', ' '));
        return all;
    }
    static Set words() {
        Set all = digits();
        unite(all, range('a', 'z'));
        unite(all, range('A', 'Z'));
        unite(all, only('_'));
        return all;
    }

    std::string_view text_;
    std::size_t at_ = 0;
    Pattern made_ = {};
};

std::optional<Pattern> Pattern::parse(std::string_view text) {
    if (text.size() > longest_pattern) return std::nullopt;
    return PatternParser(text).parse();
}

bool Pattern::matches(std::string_view name, std::uint64_t& steps, Scratch& scratch) const {
    std::vector<std::uint32_t>& active = scratch.active_;
    std::vector<std::uint32_t>& following = scratch.following_;
    active.assign(1, start_);
    // A new mark for each position, so that nothing is cleared for the next pattern.
    if (scratch.seen_.size() < states_.size()) scratch.seen_.resize(states_.size(), 0);
    for (std::size_t at = 0; at <= name.size() && !active.empty(); ++at) {
        following.clear();
        ++scratch.mark_;
        while (!active.empty()) {
            const std::uint32_t number = active.back();
            active.pop_back();
            if (std::exchange(scratch.seen_[number], scratch.mark_) == scratch.mark_) continue;
            if (steps == 0)
                throw Error(Errc::unsupported_layout,
                            "the patterns of universal_checkpoint_info are too many, or too long, for the names");
            --steps;
            const State& state = states_[number];
            const bool last_line = at == name.size() || (at + 1 == name.size() && name[at] == '\n');
            switch (state.kind) {
                case State::Kind::match: return true;
                case State::Kind::split: active.push_back(state.also); [[fallthrough]];
                case State::Kind::empty: active.push_back(state.next); break;
                case State::Kind::begin:
                    if (at == 0) active.push_back(state.next);
                    break;
                case State::Kind::end:
                    if (at == name.size()) active.push_back(state.next);
                    break;
                case State::Kind::line_end:
                    if (last_line) active.push_back(state.next);
                    break;
                case State::Kind::set:
                    if (at < name.size() && accepts(sets_[state.set], name[at])) following.push_back(state.next);
                    break;
            }
        }
        active.swap(following);
    }
    return false;
}

bool PatternList::add(const std::string& text) {
    if (known_.contains(text)) return true;
    const std::size_t number = texts_.size();
    if (const auto name = only_name(text); name && exact_.emplace(*name, number).second) {
        // Nothing else matches it.
    } else {
        auto pattern = Pattern::parse(text);
        if (!pattern) return false;
        patterns_.emplace_back(number, std::move(*pattern));
    }
    texts_.push_back(text);
    known_.emplace(text, number);
    return true;
}

PatternList::Found PatternList::find(const std::string& name, std::uint64_t& steps) const {
    Found found;
    const auto add = [&found](std::size_t number) {
        found.first = found.count == 0 ? number : std::min(found.first, number);
        ++found.count;
    };
    if (const auto exact = exact_.find(name); exact != exact_.end()) add(exact->second);
    Pattern::Scratch scratch;
    for (const auto& [number, pattern] : patterns_)
        if (pattern.matches(name, steps, scratch)) add(number);
    return found;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
