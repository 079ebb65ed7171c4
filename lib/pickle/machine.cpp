// The inert machine: a table of the opcodes in step(), and below it a small function for each opcode that does more
// than one thing: numbers and texts, containers, globals and calls. The machine has three parts:
//
//   input.hpp          numbers, counted bytes, lines and frames; where in the pickle a fault is
//   stack.hpp          the stack with its marks, and the memo
//   graph_builder.hpp  the nodes of the graph
//
// Each part charges the pickle's Allowance for the memory that it takes. literals.hpp reads the texts of old protocols.
// The reference is CPython's Lib/pickletools.py. If it and Modules/_pickle.c allow several readings, the machine takes
// the strictest one. Tested by tests/pickle/pickle_test.cpp.
#include "base/text.hpp"
#include "pickle/graph_builder.hpp"
#include "pickle/input.hpp"
#include "pickle/list_reader.hpp"
#include "pickle/literals.hpp"
#include "pickle/pickle.hpp"
#include "pickle/python2_names.hpp"
#include "pickle/stack.hpp"

#include <algorithm>
#include <bit>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint8_t newest_protocol = 5;

/// A machine that reads one pickle.
class PickleMachine {
public:
    PickleMachine(std::span<const char> bytes, const PickleLimits& limits, bool lenient = false)
        : lenient_(lenient),
          input_({bytes.data(), bytes.size()}, limits.follows),
          nodes_(input_, limits),
          stack_(input_, nodes_.allowance()),
          memo_(input_, nodes_.allowance(), limits.max_memory),
          lists_(limits.lists) {}

    PickleGraph run() {
        run_all();
        return nodes_.finish(root_);
    }
    PartialPickle run_damaged() {
        bool cut = false;
        try {
            run_all();
        } catch (const Error& error) {
            cut = error.code() == Errc::pickle_truncated;
            if (!fault_) fault_ = error;
        }
        return {nodes_.finish(root_), std::move(fault_), cut};
    }
    PickleTrial try_out() {
        try {
            run_all();
            return {.names_global = nodes_.has_globals()};
        } catch (const Error& error) {
            return {.names_global = nodes_.has_globals(),
                    .goes_on = error.code() == Errc::pickle_truncated,
                    .too_large = nodes_.allowance().left() == 0};
        }
    }

private:
    using Id = PickleGraph::Id;
    using Kind = PickleGraph::Kind;
    using Extra = GraphBuilder::Extra;

    void run_all() {
        for (bool more = true; more && lenient_;) more = step_leniently();
        for (bool more = !lenient_; more;) {
            const bool framed = input_.in_frame();
            more = step(input_.number<std::uint8_t>());
            input_.end_opcode(framed);
        }
        if (input_.in_frame() && !lenient_) throw input_.bad_frame("STOP is not at the end of its frame");
    }

    /// Runs one opcode. If it is at fault, notes that, and leaves as many values on the stack as the opcode would.
    bool step_leniently() {
        const auto opcode = input_.number<std::uint8_t>();
        const std::size_t before = stack_.size();
        const std::size_t mark = stack_.last_mark();
        try {
            return step(opcode);
        } catch (const Error& error) {
            if (!is_passable(error.code())) throw;
            if (!fault_) fault_ = error;
            stack_.settle(size_after(opcode, before, mark), nodes_.persistent(nodes_.none()));
            return opcode != '.';
        }
    }
    /// Returns true for faults of one opcode that some unpickler may not see: also for an integer that is only too
    /// long.
    bool is_passable(Errc code) noexcept {
        if (code == Errc::pickle_too_large) return nodes_.allowance().left() > 0;
        return code == Errc::pickle_bad_stack || code == Errc::pickle_bad_memo || code == Errc::pickle_bad_text ||
               code == Errc::pickle_bad_key || code == Errc::pickle_unsupported;
    }
    /// Returns the number of values after an opcode, which begins with `before` values, `mark` of them below the mark.
    static std::size_t size_after(std::uint8_t opcode, std::size_t before, std::size_t mark) noexcept {
        const auto without = [=](std::size_t popped) { return before - std::min(before, popped); };
        switch (opcode) {
            case '.':
            case '0':
            case 'a':
            case 'b': return without(1);
            case 's': return without(2);
            case 'R':
            case 0x81:
            case 0x93: return without(2) + 1;
            case 0x92: return without(3) + 1;
            case 'e':
            case 'u':
            case 0x90:
            case '1': return mark;
            case 't':
            case 'l':
            case 'd':
            case 0x91:
            case 'o':
            case 'i': return mark + 1;
            case 'p':
            case 'q':
            case 'r':
            case 0x94:
            case 0x80:
            case 0x98: return before;
            default: return before + 1;
        }
    }

    /// Runs one opcode with its argument. Returns false after STOP. The names on the right are those of pickletools.
    bool step(std::uint8_t opcode) {
        switch (opcode) {
            case '.': root_ = stack_.pop(); return false;  // STOP
            case 0x80: protocol(); break;                  // PROTO
            case 0x95: frame(); break;                     // FRAME

            case '(': stack_.push_mark(); break;             // MARK
            case '0': stack_.pop_or_mark(); break;           // POP
            case '1': stack_.cut(stack_.pop_mark()); break;  // POP_MARK
            case '2': push(stack_.top()); break;             // DUP

            case 'N': push(nodes_.none()); break;           // NONE
            case 0x88: push(nodes_.boolean(true)); break;   // NEWTRUE
            case 0x89: push(nodes_.boolean(false)); break;  // NEWFALSE

            case 'I': int_line(); break;                                             // INT
            case 'L': long_line(); break;                                            // LONG
            case 'J': push(nodes_.integer(input_.number<std::int32_t>())); break;    // BININT
            case 'K': push(nodes_.integer(input_.number<std::uint8_t>())); break;    // BININT1
            case 'M': push(nodes_.integer(input_.number<std::uint16_t>())); break;   // BININT2
            case 0x8a: push(nodes_.integer(input_.counted<std::uint8_t>())); break;  // LONG1
            case 0x8b: push(nodes_.integer(input_.counted<std::int32_t>())); break;  // LONG4
            case 'F': float_line(); break;                                           // FLOAT
            case 'G': big_endian_real(input_.number<std::uint64_t>()); break;        // BINFLOAT

            case 'S': string_line(); break;                                                 // STRING
            case 'U': string(input_.counted<std::uint8_t>()); break;                        // SHORT_BINSTRING
            case 'T': string(input_.counted<std::int32_t>()); break;                        // BINSTRING
            case 'V': unicode_line(); break;                                                // UNICODE
            case 0x8c: text(input_.counted<std::uint8_t>()); break;                         // SHORT_BINUNICODE
            case 'X': text(input_.counted<std::uint32_t>()); break;                         // BINUNICODE
            case 0x8d: text(input_.counted<std::uint64_t>()); break;                        // BINUNICODE8
            case 'C': push_view(Kind::bytes, input_.counted<std::uint8_t>()); break;        // SHORT_BINBYTES
            case 'B': push_view(Kind::bytes, input_.counted<std::uint32_t>()); break;       // BINBYTES
            case 0x8e: push_view(Kind::bytes, input_.counted<std::uint64_t>()); break;      // BINBYTES8
            case 0x96: push_view(Kind::bytearray, input_.counted<std::uint64_t>()); break;  // BYTEARRAY8

            case ')': push(nodes_.empty_tuple()); break;                // EMPTY_TUPLE
            case 't': tuple(stack_.pop_mark()); break;                  // TUPLE
            case 0x85: tuple(stack_.operands(1)); break;                // TUPLE1
            case 0x86: tuple(stack_.operands(2)); break;                // TUPLE2
            case 0x87: tuple(stack_.operands(3)); break;                // TUPLE3
            case 0x91: frozenset(stack_.pop_mark()); break;             // FROZENSET
            case ']': empty_list(); break;                              // EMPTY_LIST
            case '}': push(nodes_.growing(Kind::dict)); break;          // EMPTY_DICT
            case 0x8f: push(nodes_.growing(Kind::set)); break;          // EMPTY_SET
            case 'l': container(Kind::list, stack_.pop_mark()); break;  // LIST
            case 'd': dict(stack_.pop_mark()); break;                   // DICT
            case 'a': append(stack_.operands(1)); break;                // APPEND
            case 'e': append(stack_.pop_mark()); break;                 // APPENDS
            case 's': set_items(stack_.operands(2)); break;             // SETITEM
            case 'u': set_items(stack_.pop_mark()); break;              // SETITEMS
            case 0x90: add_items(stack_.pop_mark()); break;             // ADDITEMS

            case 'g': push(memo_.get(input_.memo_line())); break;              // GET
            case 'h': push(memo_.get(input_.number<std::uint8_t>())); break;   // BINGET
            case 'j': push(memo_.get(input_.number<std::uint32_t>())); break;  // LONG_BINGET
            case 'p': put(input_.memo_line()); break;                          // PUT
            case 'q': put(input_.number<std::uint8_t>()); break;               // BINPUT
            case 'r': put(input_.number<std::uint32_t>()); break;              // LONG_BINPUT
            case 0x94: memo_.put_next(stack_.top()); break;                    // MEMOIZE

            case 'c': push_global(global_lines()); break;            // GLOBAL
            case 0x93: stack_global(); break;                        // STACK_GLOBAL
            case 'R': reduce(); break;                               // REDUCE
            case 0x81: newobj(); break;                              // NEWOBJ
            case 0x92: newobj_ex(); break;                           // NEWOBJ_EX
            case 'i': inst(); break;                                 // INST
            case 'o': obj(stack_.pop_mark()); break;                 // OBJ
            case 'b': build(); break;                                // BUILD
            case 'Q': push(nodes_.persistent(stack_.pop())); break;  // BINPERSID

            case 'P': persistent_line(); break;                                            // PERSID
            case 0x82: extension<std::uint8_t>(); break;                                   // EXT1
            case 0x83: extension<std::uint16_t>(); break;                                  // EXT2
            case 0x84: extension<std::uint32_t>(); break;                                  // EXT4
            case 0x97:                                                                     // NEXT_BUFFER
            case 0x98: throw unsupported("a buffer outside the pickle is not supported");  // READONLY_BUFFER
            default: throw input_.fault(Errc::pickle_bad_opcode, "unknown opcode " + std::to_string(opcode));
        }
        return true;
    }

    Error unsupported(const std::string& what) const { return input_.fault(Errc::pickle_unsupported, what); }
    Error bad_text(const std::string& what) const { return input_.fault(Errc::pickle_bad_text, what); }
    Kind kind(Id id) const { return nodes_.graph().kind(id); }

    void push(Id id) { stack_.push(id); }
    void push_view(Kind kind, std::string_view view) { push(nodes_.view(kind, view)); }

    void frame() {
        if (lenient_) input_.number<std::uint64_t>();
        else input_.begin_frame();
    }
    void put(std::uint64_t index) { memo_.put(index, stack_.top()); }

    void protocol() {
        protocol_ = input_.number<std::uint8_t>();
        if (protocol_ <= newest_protocol) return;
        throw input_.fault(Errc::pickle_bad_opcode,
                           "unknown protocol " + std::to_string(protocol_) + "; expected 0 to 5");
    }

    // Numbers and texts.

    void int_line() {
        const std::string_view digits = input_.line();
        const bool boolean = digits == "00" || digits == "01";
        push(boolean ? nodes_.boolean(digits == "01") : nodes_.decimal(digits));
    }
    void long_line() {
        std::string_view digits = input_.line();
        if (digits.ends_with('L')) digits.remove_suffix(1);
        push(nodes_.decimal(digits));
    }
    void float_line() {
        std::string_view digits = input_.line();
        if (digits.starts_with('+')) digits.remove_prefix(1);
        const auto value = number_in<double>(digits);
        if (!value) throw bad_text("invalid 64-bit float " + safemap::quoted(digits));
        push(nodes_.real(*value));
    }
    void big_endian_real(std::uint64_t bits) { push(nodes_.real(std::bit_cast<double>(__builtin_bswap64(bits)))); }

    void text(std::string_view text) {
        if (!is_python_text(text)) throw bad_text("text is not UTF-8: " + safemap::quoted(text));
        push_view(Kind::text, text);
    }
    /// Pushes a string of Python 2: a text if it is valid UTF-8, as torch.load reads it, else bytes.
    void string(std::string_view text) { push_view(is_utf8(text) ? Kind::text : Kind::bytes, text); }
    void string_line() {
        std::string_view literal = input_.line();
        while (!literal.empty() && (literal.back() == ' ' || literal.back() == '\r')) literal.remove_suffix(1);
        const bool in_quotes = literal.size() >= 2 && literal.front() == literal.back() &&
                               (literal.front() == '\'' || literal.front() == '"');
        if (!in_quotes) throw bad_text("a string is not in quotes: " + safemap::quoted(literal));
        literal = literal.substr(1, literal.size() - 2);
        string(literal.find('\\') == literal.npos ? literal : nodes_.keep(string_escape(literal)));
    }
    void unicode_line() {
        const std::string_view text = input_.line();
        const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c != '\\' && (c & 0x80) == 0; });
        push_view(Kind::text, plain ? text : nodes_.keep(raw_unicode_escape(text)));
    }

    // Containers.

    void replace(std::size_t begin, Id id) {
        stack_.cut(begin);
        push(id);
    }
    void tuple(std::size_t begin) { replace(begin, nodes_.tuple(stack_.above(begin))); }
    void frozenset(std::size_t begin) { replace(begin, nodes_.frozenset(stack_.above(begin))); }
    void container(Kind kind, std::size_t begin) {
        const Id id = nodes_.growing(kind);
        if (!stack_.above(begin).empty()) stack_.move_to(nodes_.members(id), begin);
        push(id);
    }
    void empty_list() {
        if (lists_ == nullptr || !take_list()) push(nodes_.growing(Kind::list));
    }
    /// Lets the ListReader take the list that begins here. In a frame, it gets none.
    bool take_list() {
        const Id key = stack_.top_or_nothing();
        if (key == PickleGraph::nothing || kind(key) != Kind::text || input_.in_frame()) return false;
        const PickleGraph& graph = nodes_.graph();
        const auto taken =
            lists_->take({graph.text(key), input_.rest(), input_.size(), nodes_.allowance().left(), graph, memo_});
        if (!taken) return false;
        nodes_.allowance().spend(taken->memory);
        input_.skip(taken->bytes);
        push(nodes_.taken_list(taken->nodes));
        put(taken->first_entry);
        memo_.put_taken(taken->first_entry + 1, taken->end_entry);
        return true;
    }
    void dict(std::size_t begin) {
        check_pairs(begin);
        container(Kind::dict, begin);
    }
    void append(std::size_t begin) {
        extend(stack_.below(begin), begin, Kind::list, &Extra::appends, "items for a value that is not a list");
    }
    void set_items(std::size_t begin) {
        const Id id = stack_.below(begin);
        check_pairs(begin);
        extend(id, begin, Kind::dict, &Extra::items, "keys and values for a value that is not a dictionary");
    }
    void add_items(std::size_t begin) {
        const Id id = stack_.below(begin);
        if (kind(id) == Kind::set)
            for (const Id item : stack_.above(begin)) nodes_.require_hashable(item);
        extend(id, begin, Kind::set, &Extra::appends, "members for a value that is not a set");
    }
    /// Moves the values above `begin` into a container, which must be of the kind that the opcode is for. If the target
    /// is the result of a call, adds them to that call instead.
    void extend(Id id, std::size_t begin, Kind wanted, std::vector<Id> Extra::*of_object, const char* wrong) {
        if (kind(id) == Kind::call) return stack_.move_to(nodes_.extra(id).*of_object, begin);
        if (kind(id) != wanted) throw stack_.bad(wrong);
        if (!stack_.above(begin).empty()) stack_.move_to(nodes_.members(id), begin);
    }
    void check_pairs(std::size_t begin) const {
        const auto items = stack_.above(begin);
        if (items.size() % 2 != 0) throw stack_.bad("a key without a value");
        for (std::size_t i = 0; i < items.size(); i += 2) nodes_.require_hashable(items[i]);
    }

    // Globals and calls.

    PickleGraph::Global global_lines() {
        const std::string_view module = input_.utf8_line();
        return {module, input_.utf8_line()};
    }
    void push_global(const PickleGraph::Global& global) { push(nodes_.global(global, protocol_)); }
    void stack_global() {
        const auto [module, name] = stack_.pop_last<2>();
        if (kind(module) != Kind::text || kind(name) != Kind::text) {
            const auto fault = stack_.bad("the module or the name of a global is not text");
            return push_or_throw({"STACK_GLOBAL", "<computed>"}, fault);
        }
        push_global({nodes_.graph().text(module), nodes_.graph().text(name)});
    }

    /// Pushes a global in place of one that no reader knows; throws the fault unless the machine is lenient.
    void push_or_throw(const PickleGraph::Global& instead, const Error& fault) {
        if (!lenient_) throw fault;
        push(nodes_.global(instead, first_of_python3));
    }
    template <class Code> void extension() {
        const Error fault = unsupported("a code of the extension registry is not supported");
        if (lenient_) input_.number<Code>();
        push_or_throw({"copyreg", "<extension>"}, fault);
    }
    void persistent_line() {
        if (!lenient_) throw unsupported("a persistent id as text is not supported");
        push(nodes_.persistent(nodes_.view(Kind::bytes, input_.line())));
    }

    /// Adds a call of a global, of the result of another call, or of a persistent id.
    Id call(Id callee, Id arguments) {
        if (kind(callee) != Kind::global && kind(callee) != Kind::call && kind(callee) != Kind::persistent)
            throw stack_.bad("a call of a value that is not a function");
        if (kind(arguments) != Kind::tuple) throw stack_.bad("the arguments of a call are not a tuple");
        return nodes_.call(callee, arguments);
    }
    void reduce() {
        const auto [callee, arguments] = stack_.pop_last<2>();
        if (const auto nested = nested_class(callee, arguments)) push_global(*nested);
        else push(call(callee, arguments));
    }
    /// Returns the name of a nested class if the call is a getattr that spells one, else nothing. Before protocol 4,
    /// nested classes are spelled getattr(Outer, "Inner"): that is a name, not a call.
    std::optional<PickleGraph::Global> nested_class(Id callee, Id arguments) {
        const PickleGraph& graph = nodes_.graph();
        if (kind(callee) != Kind::global || kind(arguments) != Kind::tuple) return std::nullopt;
        const auto function = graph.global(callee);
        if (function.module != "builtins" || function.name != "getattr") return std::nullopt;
        const auto items = graph.items(arguments);
        if (items.size() != 2 || kind(items[0]) != Kind::global || kind(items[1]) != Kind::text) return std::nullopt;
        const auto outer = graph.global(items[0]);
        const std::string_view inner = graph.text(items[1]);
        const std::size_t bytes = outer.module.size() + outer.name.size() + inner.size();
        if (inner.starts_with("__") || bytes >= GraphBuilder::max_global_bytes) return std::nullopt;
        return PickleGraph::Global{outer.module, nodes_.keep(std::string(outer.name) + "." + std::string(inner))};
    }
    void newobj() {
        const auto [callee, arguments] = stack_.pop_last<2>();
        const Id id = call(callee, arguments);
        nodes_.set_bare(id);
        push(id);
    }
    void newobj_ex() {
        const auto [callee, arguments, keywords] = stack_.pop_last<3>();
        const Id id = call(callee, arguments);
        if (kind(keywords) != Kind::dict) throw stack_.bad("keyword arguments are not a dictionary");
        nodes_.extra(id).keywords = keywords;
        nodes_.set_bare(id);
        push(id);
    }
    void inst() {
        const auto named = global_lines();
        tuple(stack_.pop_mark());
        const Id arguments = stack_.pop();
        push(nodes_.call(nodes_.global(named, protocol_), arguments));
    }
    void obj(std::size_t begin) {
        if (stack_.above(begin).empty()) throw stack_.bad("an object without a class");
        replace(begin, call(stack_.above(begin)[0], nodes_.tuple(stack_.above(begin + 1))));
    }
    void build() {
        const std::size_t begin = stack_.operands(2);
        const Id state = stack_.above(begin)[1];
        stack_.cut(begin + 1);
        Id& object = stack_.top_place();
        if (kind(object) == Kind::global) {
            object = nodes_.call(object, nodes_.empty_tuple());
            nodes_.set_of_class(object);
        }
        if (kind(object) != Kind::call) throw stack_.bad("a state for a value that is not an object");
        nodes_.extra(object).states.push_back(state);
    }

    bool lenient_;
    std::optional<Error> fault_ = {};  ///< the first fault, of a lenient machine
    PickleInput input_;
    GraphBuilder nodes_;
    PickleStack stack_;
    PickleMemo memo_;
    ListReader* lists_;
    unsigned protocol_ = 0;  ///< 0 if no opcode gives it
    Id root_ = PickleGraph::nothing;
};

}  // namespace

PickleGraph read_pickle(std::span<const char> bytes, const PickleLimits& limits) {
    return PickleMachine(bytes, limits).run();
}

PartialPickle read_damaged_pickle(std::span<const char> bytes, const PickleLimits& limits) {
    return PickleMachine(bytes, limits, true).run_damaged();
}

PickleTrial try_pickle(std::span<const char> bytes, std::uint64_t follow) {
    PickleLimits limits = PickleLimits::of_packed(bytes.size());
    limits.follows = follow;
    return PickleMachine(bytes, limits).try_out();
}

}  // namespace safemap::SAFEMAP_ABI
