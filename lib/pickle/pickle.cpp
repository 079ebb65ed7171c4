// The opcodes, one small function each. The reference is CPython's Lib/pickletools.py; where it and Modules/_pickle.c
// leave room, the stricter reading is taken. Tested by tests/pickle/pickle_test.cpp.
#include "pickle/pickle.hpp"

#include "base/text.hpp"
#include "pickle/python2_names.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

namespace safemap::SAFEMAP_ABI {

namespace {

enum Opcode : std::uint8_t {
    op_mark = '(',
    op_stop = '.',
    op_pop = '0',
    op_pop_mark = '1',
    op_dup = '2',
    op_none = 'N',
    op_newtrue = 0x88,
    op_newfalse = 0x89,
    op_int = 'I',
    op_long = 'L',
    op_binint = 'J',
    op_binint1 = 'K',
    op_binint2 = 'M',
    op_long1 = 0x8a,
    op_long4 = 0x8b,
    op_float = 'F',
    op_binfloat = 'G',
    op_string = 'S',
    op_binstring = 'T',
    op_short_binstring = 'U',
    op_unicode = 'V',
    op_binunicode = 'X',
    op_short_binunicode = 0x8c,
    op_binunicode8 = 0x8d,
    op_binbytes = 'B',
    op_short_binbytes = 'C',
    op_binbytes8 = 0x8e,
    op_bytearray8 = 0x96,
    op_empty_list = ']',
    op_list = 'l',
    op_append = 'a',
    op_appends = 'e',
    op_empty_tuple = ')',
    op_tuple = 't',
    op_tuple1 = 0x85,
    op_tuple2 = 0x86,
    op_tuple3 = 0x87,
    op_empty_dict = '}',
    op_dict = 'd',
    op_setitem = 's',
    op_setitems = 'u',
    op_empty_set = 0x8f,
    op_additems = 0x90,
    op_frozenset = 0x91,
    op_get = 'g',
    op_binget = 'h',
    op_long_binget = 'j',
    op_put = 'p',
    op_binput = 'q',
    op_long_binput = 'r',
    op_memoize = 0x94,
    op_global = 'c',
    op_stack_global = 0x93,
    op_reduce = 'R',
    op_build = 'b',
    op_inst = 'i',
    op_obj = 'o',
    op_newobj = 0x81,
    op_newobj_ex = 0x92,
    op_persid = 'P',
    op_binpersid = 'Q',
    op_proto = 0x80,
    op_frame = 0x95,
    op_ext1 = 0x82,
    op_ext2 = 0x83,
    op_ext4 = 0x84,
    op_next_buffer = 0x97,
    op_readonly_buffer = 0x98,
};

constexpr std::uint8_t newest_protocol = 5;
/// Of a global, module and name: each object of a class gets a copy, and each fold of a chain of getattr is longer.
constexpr std::size_t max_global_bytes = 1024;

// What is charged for, in bytes of memory. A vector that grows holds its items up to three times.
/// A node, and its node in the tree with all that is noted by node on the way to names.
constexpr std::uint64_t node_cost = 160;
/// A place on the stack, which may become a member of a container here and in the tree.
constexpr std::uint64_t slot_cost = 16;
constexpr std::uint64_t mark_cost = 24;
constexpr std::uint64_t memo_cost = 12;
constexpr std::uint64_t far_memo_cost = 64;
constexpr std::uint64_t members_cost = 128;
constexpr std::uint64_t global_cost = 96;
constexpr std::uint64_t call_cost = 64;
constexpr std::uint64_t extra_cost = 384;

/// UTF-8 that may hold lone surrogates, as Python writes them ("surrogatepass").
bool is_python_text(std::string_view text) {
    if (is_utf8(text)) return true;
    std::string without;
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
        if (byte(i) == 0xED && byte(i + 1) >= 0xA0 && byte(i + 1) <= 0xBF && (byte(i + 2) & 0xC0) == 0x80) {
            without += '?';  // a character of its own, so that its neighbours do not join
            i += 3;
        } else {
            without += text[i++];
        }
    }
    return is_utf8(without);
}

std::optional<std::uint32_t> hex_digits(std::string_view digits) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
}

Error bad_text(std::string what) { return {Errc::pickle_bad_text, std::move(what)}; }

/// Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX.
std::string raw_unicode_escape(std::string_view line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        const char next = i + 1 < line.size() ? line[i + 1] : '\0';
        if (c != '\\' || (next != 'u' && next != 'U')) {
            append_utf8(out, static_cast<unsigned char>(c));
            if (c == '\\' && i + 1 < line.size()) append_utf8(out, static_cast<unsigned char>(line[++i]));
            continue;
        }
        const std::size_t digits = next == 'u' ? 4 : 8;
        const std::string_view hex = line.substr(i + 2, digits);
        const auto code = hex.size() == digits ? hex_digits(hex) : std::nullopt;
        if (!code || *code > 0x10FFFF) throw bad_text("an escape that is none in " + safemap::quoted(line));
        append_utf8(out, *code);
        i += 1 + digits;
    }
    return out;
}

/// The value of one octal escape at `at`; moves `at` to its last digit.
char octal_escape(std::string_view body, std::size_t& at) {
    unsigned value = 0;
    const std::size_t end = std::min(at + 3, body.size());
    std::size_t i = at;
    for (; i < end && body[i] >= '0' && body[i] <= '7'; ++i) value = value * 8 + static_cast<unsigned>(body[i] - '0');
    at = i - 1;
    return static_cast<char>(static_cast<unsigned char>(value & 0xFF));
}

/// The inside of a Python 2 string literal.
std::string string_escape(std::string_view body) {
    constexpr std::string_view letters = "abtnvfr\\'\"";
    constexpr std::string_view values = "\a\b\t\n\v\f\r\\'\"";
    std::string out;
    for (std::size_t i = 0; i < body.size(); ++i) {
        if (body[i] != '\\') {
            out += body[i];
            continue;
        }
        if (++i == body.size()) throw bad_text("a string that ends in a backslash");
        const char c = body[i];
        if (const auto known = letters.find(c); known != letters.npos) {
            out += values[known];
        } else if (c == 'x') {
            const auto hex = body.substr(i + 1, 2);
            const auto code = hex.size() == 2 ? hex_digits(hex) : std::nullopt;
            if (!code) throw bad_text("an escape that is none in " + safemap::quoted(body));
            out += static_cast<char>(static_cast<unsigned char>(*code));
            i += 2;
        } else if (c >= '0' && c <= '7') {
            out += octal_escape(body, i);
        } else {
            out += '\\';
            out += c;
        }
    }
    return out;
}

bool all_digits(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

/// Runs the opcodes. One object reads one pickle.
class PickleMachine {
public:
    PickleMachine(std::span<const char> bytes, const PickleLimits& limits)
        : bytes_(bytes.data(), bytes.size()), limits_(limits) {
        if (bytes.size() > limits.max_bytes) {
            throw Error(Errc::pickle_too_large, "a pickle of " + bytes_text(bytes.size()) + "; at most " +
                                                    bytes_text(limits.max_bytes) + " are read");
        }
        graph_.allowance_ = Allowance(limits.max_memory);
        spend(bytes.size());
        graph_.nodes_.reserve(bytes.size() / 8);
        small_integers_.fill(PickleGraph::nothing);
    }

    PickleGraph run() {
        while (opcode()) {
        }
        if (at_ < frame_end_) throw bad_frame("STOP is not at the end of its frame");
        graph_.consumed_ = at_;
        return std::move(graph_);
    }

    PickleTrial try_out() {
        try {
            return {.names_global = !run().globals_.empty()};
        } catch (const Error& error) {
            return {.names_global = !graph_.globals_.empty(), .goes_on = error.code() == Errc::pickle_truncated};
        }
    }

private:
    using Id = PickleGraph::Id;
    using Kind = PickleGraph::Kind;
    using Node = PickleGraph::Node;

    /// Runs one opcode with its argument; false after STOP. Python's readers of a frame drop what is left of it, go on
    /// behind it or refuse it where an argument crosses its end: each would run another pickle.
    bool opcode() {
        const bool framed = at_ < frame_end_;
        const bool more = step(static_cast<Opcode>(number<std::uint8_t>()));
        if (framed && at_ > frame_end_) throw bad_frame("the argument of an opcode crosses the end of its frame");
        return more;
    }
    bool step(Opcode opcode) {
        switch (opcode) {
            case op_stop: graph_.root_ = pop(); return false;
            case op_proto: protocol(); break;
            case op_frame: frame(); break;

            case op_mark: push_mark(); break;
            case op_pop: pop_or_mark(); break;
            case op_pop_mark: stack_.resize(pop_mark()); break;
            case op_dup: push(top()); break;

            case op_none: push_shared(none_, {.kind = Kind::none}); break;
            case op_newtrue: push_boolean(true); break;
            case op_newfalse: push_boolean(false); break;

            case op_int: int_line(); break;
            case op_long: long_line(); break;
            case op_binint: push_integer(number<std::int32_t>()); break;
            case op_binint1: push_integer(number<std::uint8_t>()); break;
            case op_binint2: push_integer(number<std::uint16_t>()); break;
            case op_long1: push_long(take(number<std::uint8_t>())); break;
            case op_long4: push_long(take(signed_count())); break;
            case op_float: float_line(); break;
            case op_binfloat: push_real(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))); break;

            case op_string: string_line(); break;
            case op_short_binstring: push_string(take(number<std::uint8_t>())); break;
            case op_binstring: push_string(take(signed_count())); break;
            case op_unicode: unicode_line(); break;
            case op_short_binunicode: push_text(take(number<std::uint8_t>())); break;
            case op_binunicode: push_text(take(number<std::uint32_t>())); break;
            case op_binunicode8: push_text(take(number<std::uint64_t>())); break;
            case op_short_binbytes: push_view(Kind::bytes, take(number<std::uint8_t>())); break;
            case op_binbytes: push_view(Kind::bytes, take(number<std::uint32_t>())); break;
            case op_binbytes8: push_view(Kind::bytes, take(number<std::uint64_t>())); break;
            case op_bytearray8: push_view(Kind::bytearray, take(number<std::uint64_t>())); break;

            case op_empty_tuple: push_shared(empty_tuple_, {.kind = Kind::tuple}); break;
            case op_tuple: tuple(pop_mark()); break;
            case op_tuple1: tuple(operands(1)); break;
            case op_tuple2: tuple(operands(2)); break;
            case op_tuple3: tuple(operands(3)); break;
            case op_frozenset: frozenset(pop_mark()); break;
            case op_empty_list: push_growing(Kind::list); break;
            case op_empty_dict: push_growing(Kind::dict); break;
            case op_empty_set: push_growing(Kind::set); break;
            case op_list: list(pop_mark()); break;
            case op_dict: dict(pop_mark()); break;
            case op_append: append(operands(1)); break;
            case op_appends: append(pop_mark()); break;
            case op_setitem: set_items(operands(2)); break;
            case op_setitems: set_items(pop_mark()); break;
            case op_additems: add_items(pop_mark()); break;

            case op_get: get(line_number()); break;
            case op_binget: get(number<std::uint8_t>()); break;
            case op_long_binget: get(number<std::uint32_t>()); break;
            case op_put: put(line_number()); break;
            case op_binput: put(number<std::uint8_t>()); break;
            case op_long_binput: put(number<std::uint32_t>()); break;
            case op_memoize: put(memoized_); break;

            case op_global: global_lines(); break;
            case op_stack_global: stack_global(); break;
            case op_reduce: reduce(); break;
            case op_newobj: newobj(); break;
            case op_newobj_ex: newobj_ex(); break;
            case op_inst: inst(); break;
            case op_obj: obj(pop_mark()); break;
            case op_build: build(); break;
            case op_binpersid: push_node({.kind = Kind::persistent, .count = pop()}); break;

            case op_persid: throw unsupported("a persistent id as text");
            case op_ext1:
            case op_ext2:
            case op_ext4: throw unsupported("a code of the extension registry");
            case op_next_buffer:
            case op_readonly_buffer: throw unsupported("a buffer outside the pickle");
            default: throw fault(Errc::pickle_bad_opcode, "byte " + std::to_string(opcode) + " is no opcode");
        }
        return true;
    }

    // What went wrong, and where.

    Error fault(Errc code, const std::string& what) const {
        return {code, "byte " + std::to_string(at_) + " of the pickle: " + what};
    }
    Error bad_stack(const std::string& what) const { return fault(Errc::pickle_bad_stack, what); }
    Error bad_frame(const std::string& what) const { return fault(Errc::pickle_bad_count, what); }
    Error unsupported(const std::string& what) const { return fault(Errc::pickle_unsupported, what); }

    // Input.

    template <class T> T number() {
        if (bytes_.size() - at_ < sizeof(T)) throw fault(Errc::pickle_truncated, "the pickle ends before STOP");
        T value;
        std::memcpy(&value, bytes_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }

    /// More bytes are wanted than are left.
    Error beyond(std::uint64_t count) const {
        const std::uint64_t left = bytes_.size() - at_;
        Errc code = Errc::pickle_bad_count;
        if (limits_.follows) code = count - left <= *limits_.follows ? Errc::pickle_truncated : Errc::file_truncated;
        return fault(code,
                     bytes_text(count) + " wanted, " + bytes_text(left + limits_.follows.value_or(0)) + " are left");
    }

    std::string_view take(std::uint64_t count) {
        if (count > bytes_.size() - at_) throw beyond(count);
        const std::string_view taken = bytes_.substr(at_, count);
        at_ += count;
        return taken;
    }

    std::uint64_t signed_count() {
        const auto count = number<std::int32_t>();
        if (count < 0) throw fault(Errc::pickle_bad_count, "a length of " + std::to_string(count));
        return static_cast<std::uint64_t>(count);
    }

    std::string_view line() {
        const std::size_t end = bytes_.find('\n', at_);
        if (end == bytes_.npos) throw fault(Errc::pickle_truncated, "a line without an end");
        const std::string_view taken = bytes_.substr(at_, end - at_);
        at_ = end + 1;
        return taken;
    }

    std::string_view text_line() {
        const std::string_view taken = line();
        if (!is_utf8(taken)) throw bad_text("a name that is not UTF-8: " + safemap::quoted(taken));
        return taken;
    }

    std::uint64_t line_number() {
        const std::string_view digits = line();
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc() || end != digits.data() + digits.size()) {
            throw fault(Errc::pickle_bad_memo, safemap::quoted(digits) + " is no memo entry");
        }
        return value;
    }

    void protocol() {
        protocol_ = number<std::uint8_t>();
        if (protocol_ <= newest_protocol) return;
        throw fault(Errc::pickle_bad_opcode, "protocol " + std::to_string(protocol_) + "; 0 to 5 are known");
    }

    /// Frames only say how much to read ahead. Picklers end each before the next begins.
    void frame() {
        const bool framed = at_ <= frame_end_;
        const auto size = number<std::uint64_t>();
        if (framed) throw bad_frame("a frame inside a frame");
        if (size > bytes_.size() - at_) throw beyond(size);
        frame_end_ = at_ + size;
    }

    void spend(std::uint64_t bytes) { graph_.allowance_.spend(bytes); }

    // The stack. What is below the last mark is out of reach.

    void push(Id id) {
        spend(slot_cost);
        stack_.push_back(id);
    }
    void push_mark() {
        spend(mark_cost);
        marks_.push_back(stack_.size());
    }
    Id push_node(Node node) {
        spend(node_cost);
        const auto id = static_cast<Id>(graph_.nodes_.size());
        graph_.nodes_.push_back(node);
        push(id);
        return id;
    }
    /// A value of which one node is enough; `known` is its place once it has one.
    void push_shared(Id& known, Node node) {
        if (known == PickleGraph::nothing) known = push_node(node);
        else push(known);
    }
    std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
    Id top() const {
        if (stack_.size() <= fence()) throw bad_stack("the stack is empty");
        return stack_.back();
    }
    Id pop() {
        const Id id = top();
        stack_.pop_back();
        return id;
    }
    void pop_or_mark() {
        if (!marks_.empty() && marks_.back() == stack_.size()) marks_.pop_back();
        else pop();
    }
    /// Where the values above the last mark begin.
    std::size_t pop_mark() {
        if (marks_.empty()) throw bad_stack("no mark on the stack");
        const std::size_t begin = marks_.back();
        marks_.pop_back();
        return begin;
    }
    /// Where the last `count` values begin.
    std::size_t operands(std::size_t count) const {
        if (stack_.size() - fence() < count) throw bad_stack("fewer values on the stack than the opcode takes");
        return stack_.size() - count;
    }
    std::span<const Id> above(std::size_t begin) const { return std::span(stack_).subspan(begin); }

    // Numbers and texts.

    void push_boolean(bool value) {
        push_shared(value ? true_ : false_, {.kind = Kind::boolean, .word = value ? 1U : 0U});
    }
    void push_integer(std::int64_t value) {
        const Node node{.kind = Kind::integer, .word = static_cast<std::uint64_t>(value)};
        if (node.word < small_integers_.size()) push_shared(small_integers_[node.word], node);
        else push_node(node);
    }
    void push_real(double value) { push_node({.kind = Kind::real, .word = std::bit_cast<std::uint64_t>(value)}); }

    void push_view(Kind kind, std::string_view view) {
        if (view.size() > std::numeric_limits<std::uint32_t>::max()) throw fault(Errc::pickle_too_large, "a long text");
        push_node({.kind = kind,
                   .count = static_cast<std::uint32_t>(view.size()),
                   .word = std::bit_cast<std::uint64_t>(view.data())});
    }
    std::string_view keep(std::string text) { return graph_.owned_.emplace_back(std::move(text)); }

    void push_text(std::string_view text) {
        if (!is_python_text(text))
            throw fault(Errc::pickle_bad_text, "a text that is not UTF-8: " + safemap::quoted(text));
        push_view(Kind::text, text);
    }
    /// Of Python 2: text where it can be, as torch.load reads it.
    void push_string(std::string_view text) { push_view(is_utf8(text) ? Kind::text : Kind::bytes, text); }

    /// Two's complement, little-endian.
    void push_long(std::string_view bytes) {
        if (bytes.size() > limits_.max_long_bytes) {
            throw fault(Errc::pickle_too_large, "an integer of " + bytes_text(bytes.size()));
        }
        if (bytes.size() > 8) return push_view(Kind::big_integer, bytes);
        std::uint64_t value = 0;
        if (!bytes.empty() && (bytes.back() & 0x80) != 0) value = ~std::uint64_t{0};
        std::memcpy(&value, bytes.data(), bytes.size());
        push_integer(static_cast<std::int64_t>(value));
    }

    void push_decimal(std::string_view digits) {
        std::string_view unsigned_digits = digits;
        if (digits.starts_with('+') || digits.starts_with('-')) unsigned_digits.remove_prefix(1);
        if (digits.starts_with('+')) digits = unsigned_digits;
        // A number with a zero before it is octal to one reader of Python's, and an error to the other.
        const bool octal = unsigned_digits.size() > 1 && unsigned_digits.starts_with('0');
        if (!all_digits(unsigned_digits) || octal)
            throw fault(Errc::pickle_bad_text, safemap::quoted(digits) + " is no integer");
        if (digits.size() > limits_.max_long_bytes) {
            throw fault(Errc::pickle_too_large, "an integer of " + std::to_string(digits.size()) + " digits");
        }
        std::int64_t value = 0;
        if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc()) {
            return push_integer(value);
        }
        push_view(Kind::big_integer, digits);
        graph_.nodes_.back().spelled = true;
    }

    void int_line() {
        const std::string_view digits = line();
        if (digits == "00" || digits == "01") {
            push_boolean(digits == "01");
        } else {
            push_decimal(digits);
        }
    }
    void long_line() {
        std::string_view digits = line();
        if (digits.ends_with('L')) digits.remove_suffix(1);
        push_decimal(digits);
    }
    void float_line() {
        std::string_view digits = line();
        if (digits.starts_with('+')) digits.remove_prefix(1);
        double value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc() || end != digits.data() + digits.size())
            throw fault(Errc::pickle_bad_text, safemap::quoted(digits) + " is no float of 64 bits");
        push_real(value);
    }
    void string_line() {
        std::string_view literal = line();
        while (!literal.empty() && (literal.back() == ' ' || literal.back() == '\r')) literal.remove_suffix(1);
        const bool in_quotes = literal.size() >= 2 && literal.front() == literal.back() &&
                               (literal.front() == '\'' || literal.front() == '"');
        if (!in_quotes)
            throw fault(Errc::pickle_bad_text, "a string that is not in quotes: " + safemap::quoted(literal));
        literal = literal.substr(1, literal.size() - 2);
        push_string(literal.find('\\') == literal.npos ? literal : keep(string_escape(literal)));
    }
    void unicode_line() {
        const std::string_view text = line();
        const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c != '\\' && (c & 0x80) == 0; });
        push_view(Kind::text, plain ? text : keep(raw_unicode_escape(text)));
    }

    // Containers. Tuples and frozensets never change; the others get a place to grow when the first member comes.

    void push_fixed(Kind kind, std::size_t begin, bool unhashable) {
        const auto items = above(begin);
        const Node node{.kind = kind,
                        .unhashable = unhashable,
                        .count = static_cast<std::uint32_t>(items.size()),
                        .word = graph_.fixed_.size()};
        graph_.fixed_.insert(graph_.fixed_.end(), items.begin(), items.end());
        stack_.resize(begin);
        push_node(node);
    }
    void tuple(std::size_t begin) {
        const auto items = above(begin);
        push_fixed(Kind::tuple, begin,
                   !std::all_of(items.begin(), items.end(), [this](Id id) { return hashable(id); }));
    }
    void frozenset(std::size_t begin) {
        for (const Id id : above(begin)) require_hashable(id);
        push_fixed(Kind::frozenset, begin, false);
    }

    Id push_growing(Kind kind) { return push_node({.kind = kind, .count = PickleGraph::no_extra}); }
    std::vector<Id>& members(Id id) {
        Node& node = graph_.nodes_[id];
        if (node.count == PickleGraph::no_extra) {
            spend(members_cost);
            node.count = static_cast<std::uint32_t>(graph_.growing_.size());
            graph_.growing_.emplace_back();
        }
        return graph_.growing_[node.count];
    }
    /// Moves what is above `begin` to the end of `into`.
    void move_to(std::vector<Id>& into, std::size_t begin) {
        const auto items = above(begin);
        into.insert(into.end(), items.begin(), items.end());
        stack_.resize(begin);
    }
    /// The container below `begin`, which an opcode is to change.
    Id target(std::size_t begin) const {
        if (begin <= fence()) throw bad_stack("no value to put the items into");
        return stack_[begin - 1];
    }

    void list(std::size_t begin) {
        const auto items = above(begin);
        std::vector<Id> taken(items.begin(), items.end());
        stack_.resize(begin);
        const Id id = push_growing(Kind::list);
        if (!taken.empty()) members(id) = std::move(taken);
    }
    void dict(std::size_t begin) {
        check_pairs(begin);
        const auto items = above(begin);
        std::vector<Id> taken(items.begin(), items.end());
        stack_.resize(begin);
        const Id id = push_growing(Kind::dict);
        if (!taken.empty()) members(id) = std::move(taken);
    }
    void append(std::size_t begin) {
        const Id id = target(begin);
        if (graph_.kind(id) == Kind::list) {
            if (begin < stack_.size()) move_to(members(id), begin);
        } else if (graph_.kind(id) == Kind::call) {
            move_to(extra(id).appends, begin);
        } else {
            throw bad_stack("items for something that is no list");
        }
    }
    void set_items(std::size_t begin) {
        const Id id = target(begin);
        check_pairs(begin);
        if (graph_.kind(id) == Kind::dict) {
            if (begin < stack_.size()) move_to(members(id), begin);
        } else if (graph_.kind(id) == Kind::call) {
            move_to(extra(id).items, begin);
        } else {
            throw bad_stack("keys and values for something that is no dictionary");
        }
    }
    void add_items(std::size_t begin) {
        const Id id = target(begin);
        if (graph_.kind(id) == Kind::set) {
            for (const Id item : above(begin)) require_hashable(item);
            if (begin < stack_.size()) move_to(members(id), begin);
        } else if (graph_.kind(id) == Kind::call) {
            move_to(extra(id).appends, begin);
        } else {
            throw bad_stack("members for something that is no set");
        }
    }

    void check_pairs(std::size_t begin) const {
        const auto items = above(begin);
        if (items.size() % 2 != 0) throw bad_stack("a key without a value");
        for (std::size_t i = 0; i < items.size(); i += 2) require_hashable(items[i]);
    }
    bool hashable(Id id) const {
        switch (graph_.kind(id)) {
            case Kind::list:
            case Kind::dict:
            case Kind::set:
            case Kind::bytearray: return false;
            case Kind::tuple: return !graph_.nodes_[id].unhashable;
            default: return true;
        }
    }
    void require_hashable(Id id) const {
        if (!hashable(id)) throw fault(Errc::pickle_bad_key, "a list, dictionary or set as a key");
    }

    // The memo. A pickler numbers its entries from 0 on, and each costs at least a byte. One that writes several
    // pickles with one memo goes on numbering: indices above the pickle's length are rare.

    Id& memo_entry(std::uint64_t index) {
        if (index > bytes_.size()) {
            // CPython holds an array of all entries up to the last.
            if (index > limits_.max_memory / memo_cost)
                throw fault(Errc::pickle_bad_memo, "memo entry " + std::to_string(index));
            const auto [entry, fresh] = far_memo_.try_emplace(index, PickleGraph::nothing);
            if (fresh) spend(far_memo_cost);
            return entry->second;
        }
        if (index >= memo_.size()) {
            const std::size_t size = std::max<std::size_t>(index + 1, memo_.size() * 2);
            spend(memo_cost * (size - memo_.size()));
            memo_.resize(size, PickleGraph::nothing);
        }
        return memo_[index];
    }
    void put(std::uint64_t index) {
        const Id id = top();
        Id& entry = memo_entry(index);
        if (entry == PickleGraph::nothing) ++memoized_;
        entry = id;
    }
    Id memo_at(std::uint64_t index) const {
        if (index < memo_.size()) return memo_[index];
        const auto far = far_memo_.find(index);
        return far == far_memo_.end() ? PickleGraph::nothing : far->second;
    }
    void get(std::uint64_t index) {
        const Id id = memo_at(index);
        if (id == PickleGraph::nothing) {
            throw fault(Errc::pickle_bad_memo, "memo entry " + std::to_string(index) + " was never put");
        }
        push(id);
    }

    // Globals and calls.

    Id push_global(PickleGraph::Global global) {
        const std::size_t bytes = global.module.size() + global.name.size();
        if (bytes > max_global_bytes) throw fault(Errc::pickle_too_large, "a global's name of " + bytes_text(bytes));
        spend(global_cost + bytes);
        graph_.globals_.push_back(in_python3(global, protocol_));
        return push_node({.kind = Kind::global, .count = static_cast<std::uint32_t>(graph_.globals_.size() - 1)});
    }
    void global_lines() {
        const std::string_view module = text_line();
        push_global({module, text_line()});
    }
    void stack_global() {
        const std::size_t begin = operands(2);
        const Id module = stack_[begin];
        const Id name = stack_[begin + 1];
        if (graph_.kind(module) != Kind::text || graph_.kind(name) != Kind::text) {
            throw bad_stack("a global whose names are no texts");
        }
        stack_.resize(begin);
        push_global({graph_.text(module), graph_.text(name)});
    }

    PickleGraph::Extra& extra(Id call) {
        Node& node = graph_.nodes_[call];
        if (node.count == PickleGraph::no_extra) {
            spend(extra_cost);
            node.count = static_cast<std::uint32_t>(graph_.extras_.size());
            graph_.extras_.emplace_back();
        }
        return graph_.extras_[node.count];
    }
    Id push_call(Id callee, Id arguments) {
        spend(call_cost);
        graph_.calls_.push_back(callee);
        graph_.calls_.push_back(arguments);
        return push_node({.kind = Kind::call, .count = PickleGraph::no_extra, .word = graph_.calls_.size() - 2});
    }
    void check_call(Id callee, Id arguments) const {
        const Kind kind = graph_.kind(callee);
        if (kind != Kind::global && kind != Kind::call && kind != Kind::persistent) {
            throw bad_stack("a call of something that is no function");
        }
        if (graph_.kind(arguments) != Kind::tuple) throw bad_stack("a call whose arguments are no tuple");
    }
    void reduce() {
        const std::size_t begin = operands(2);
        const Id callee = stack_[begin];
        const Id arguments = stack_[begin + 1];
        check_call(callee, arguments);
        stack_.resize(begin);
        if (!fold_getattr(callee, arguments)) push_call(callee, arguments);
    }
    /// Nested classes are spelled getattr(Outer, "Inner") before protocol 4: that is a name, not a call.
    bool fold_getattr(Id callee, Id arguments) {
        if (graph_.kind(callee) != Kind::global) return false;
        const auto function = graph_.global(callee);
        if (function.module != "builtins" || function.name != "getattr") return false;
        const auto items = graph_.items(arguments);
        if (items.size() != 2 || graph_.kind(items[0]) != Kind::global || graph_.kind(items[1]) != Kind::text)
            return false;
        const auto outer = graph_.global(items[0]);
        const std::string_view inner = graph_.text(items[1]);
        const std::size_t bytes = outer.module.size() + outer.name.size() + inner.size();
        if (inner.starts_with("__") || bytes >= max_global_bytes) return false;
        push_global({outer.module, keep(std::string(outer.name) + "." + std::string(inner))});
        return true;
    }
    void newobj() {
        const std::size_t begin = operands(2);
        const Id callee = stack_[begin];
        const Id arguments = stack_[begin + 1];
        check_call(callee, arguments);
        stack_.resize(begin);
        push_call(callee, arguments);
    }
    void newobj_ex() {
        const std::size_t begin = operands(3);
        const Id callee = stack_[begin];
        const Id arguments = stack_[begin + 1];
        const Id keywords = stack_[begin + 2];
        check_call(callee, arguments);
        if (graph_.kind(keywords) != Kind::dict) throw bad_stack("keyword arguments that are no dictionary");
        stack_.resize(begin);
        extra(push_call(callee, arguments)).keywords = keywords;
    }
    void inst() {
        const std::string_view module = text_line();
        const std::string_view name = text_line();
        tuple(pop_mark());
        const Id arguments = pop();
        push_global({module, name});
        push_call(pop(), arguments);
    }
    void obj(std::size_t begin) {
        if (begin == stack_.size()) throw bad_stack("an object without a class");
        const Id callee = stack_[begin];
        tuple(begin + 1);
        const Id arguments = stack_.back();
        check_call(callee, arguments);
        stack_.resize(begin);
        push_call(callee, arguments);
    }
    void build() {
        const std::size_t begin = operands(2);
        const Id state = stack_[begin + 1];
        stack_.resize(begin + 1);
        if (graph_.kind(stack_[begin]) == Kind::global) {
            const Id callee = pop();
            push_shared(empty_tuple_, {.kind = Kind::tuple});
            push_call(callee, pop());
        }
        if (graph_.kind(stack_[begin]) != Kind::call) throw bad_stack("a state for something that is no object");
        extra(stack_[begin]).states.push_back(state);
    }

    std::string_view bytes_;
    PickleLimits limits_;
    std::size_t at_ = 0;
    std::size_t frame_end_ = 0;
    unsigned protocol_ = 0;  ///< where no opcode says which
    PickleGraph graph_;
    std::vector<Id> stack_;
    std::vector<std::size_t> marks_;
    std::vector<Id> memo_;
    std::map<std::uint64_t, Id> far_memo_;  ///< entries above the pickle's length
    std::uint64_t memoized_ = 0;
    Id none_ = PickleGraph::nothing;
    Id true_ = PickleGraph::nothing;
    Id false_ = PickleGraph::nothing;
    Id empty_tuple_ = PickleGraph::nothing;
    std::array<Id, 256> small_integers_;
};

PickleLimits PickleLimits::of_packed(std::uint64_t packed) noexcept {
    const std::uint64_t bytes = std::min(packed, most_bytes);  // no product below wraps
    return {.max_bytes = std::min(std::max(least_bytes, inflation * bytes), most_bytes),
            .max_memory = std::max(least_memory, memory_per_byte * bytes)};
}

void Allowance::exhausted() {
    left_ = 0;
    throw Error(Errc::pickle_too_large, "a pickle that needs more memory than " + bytes_text(all_) +
                                            ", which is what one of its size may take");
}

double PickleGraph::real(Id id) const { return std::bit_cast<double>(nodes_[id].word); }

std::string_view PickleGraph::text(Id id) const {
    const Node& node = nodes_[id];
    return {std::bit_cast<const char*>(node.word), node.count};
}

std::span<const PickleGraph::Id> PickleGraph::items(Id id) const {
    const Node& node = nodes_[id];
    if (node.kind == Kind::tuple || node.kind == Kind::frozenset)
        return std::span(fixed_).subspan(node.word, node.count);
    if (node.count == no_extra) return {};
    return growing_[node.count];
}

std::span<const PickleGraph::Id> PickleGraph::items_or_nothing(Id id) const {
    switch (nodes_[id].kind) {
        case Kind::list:
        case Kind::tuple:
        case Kind::dict:
        case Kind::set:
        case Kind::frozenset: return items(id);
        default: return {};
    }
}

PickleGraph::Call PickleGraph::call(Id id) const {
    const Node& node = nodes_[id];
    Call call{.callee = calls_[node.word], .arguments = calls_[node.word + 1]};
    if (node.count == no_extra) return call;
    const Extra& extra = extras_[node.count];
    call.keywords = extra.keywords;
    call.states = extra.states;
    call.items = extra.items;
    call.appends = extra.appends;
    return call;
}

std::string PickleGraph::decimal(Id id) const {
    const std::string_view bytes = text(id);
    if (nodes_[id].spelled) return std::string(bytes);
    const bool negative = (bytes.back() & 0x80) != 0;
    std::vector<std::uint32_t> words((bytes.size() + 3) / 4, negative ? 0xFFFF'FFFFU : 0U);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    if (negative) {
        bool carry = true;
        for (std::uint32_t& word : words) {
            word = ~word + (carry ? 1U : 0U);
            carry = carry && word == 0;
        }
    }
    // Nine digits at a time, from the lowest.
    constexpr std::uint64_t billion = 1'000'000'000;
    std::string reversed;
    while (!words.empty()) {
        std::uint64_t rest = 0;
        for (auto word = words.rbegin(); word != words.rend(); ++word) {
            const std::uint64_t value = rest << 32 | *word;
            *word = static_cast<std::uint32_t>(value / billion);
            rest = value % billion;
        }
        while (!words.empty() && words.back() == 0) words.pop_back();
        for (int digit = 0; digit < 9; ++digit, rest /= 10) reversed += static_cast<char>('0' + rest % 10);
    }
    while (reversed.size() > 1 && reversed.back() == '0') reversed.pop_back();
    if (reversed.empty()) reversed = "0";
    if (negative) reversed += '-';
    return {reversed.rbegin(), reversed.rend()};
}

PickleGraph read_pickle(std::span<const char> bytes, const PickleLimits& limits) {
    return PickleMachine(bytes, limits).run();
}

PickleTrial try_pickle(std::span<const char> bytes, std::uint64_t follow) {
    PickleLimits limits = PickleLimits::of_packed(bytes.size());
    limits.follows = follow;
    return PickleMachine(bytes, limits).try_out();
}

}  // namespace safemap::SAFEMAP_ABI
