// The inert pickle machine: decodes the opcodes of protocols 0 to 5 into a graph. Nothing is imported and nothing is
// called: a global is a pair of names, and a call is a node that holds its callee and its arguments.
#pragma once

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

class ListReader;

/// Thrown when a value is asked for that a ListReader took. It is not an Error: no file causes it that is read without
/// a ListReader, and the caller reads the file again that way.
struct TakenValue : std::exception {
    const char* what() const noexcept override { return "a value that has no nodes"; }
};

/// The limits for one pickle. Memory is counted, not measured: each value, slot and copied text is charged a little
/// more than it takes in the graph and in everything that is made from the graph. The peak is thus below max_memory
/// plus the names of the tensors, which flatten() limits. A value is charged about 180 bytes: an optimizer's pickle
/// needs 40 bytes per byte, a list of two-byte integers 60.
struct PickleLimits {
    static constexpr std::uint64_t least_bytes = std::uint64_t{64} << 20;
    static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
    static constexpr std::uint64_t inflation = 32;  ///< pickles of torch deflate to a quarter
    static constexpr std::uint64_t least_memory = std::uint64_t{512} << 20;
    static constexpr std::uint64_t memory_per_byte = 64;

    std::uint64_t max_bytes = most_bytes;
    std::uint64_t max_memory = least_memory;
    std::size_t max_long_bytes = 65'536;  ///< longest integer
    /// Number of bytes in the file after the bytes at hand. If the pickle needs some of these, the error is
    /// pickle_truncated: reading more of the file helps. If it needs bytes after these, the error is file_truncated.
    /// Nothing: the whole pickle is at hand.
    std::optional<std::uint64_t> follows = {};
    /// Reads the lists that it knows without nodes, if not null.
    ListReader* lists = nullptr;

    /// Returns the limits of a pickle that takes `packed` bytes of its file. The size of a file thus limits the memory
    /// that it may need, also if the pickle is deflated. A thread with a MemoryShare has lower limits.
    static PickleLimits of_packed(std::uint64_t packed) noexcept;
};

/// The memory that a pickle may still take.
class Allowance {
public:
    explicit Allowance(std::uint64_t bytes) noexcept : all_(bytes), left_(bytes) {}
    /// Takes memory off the rest. Throws pickle_too_large if less is left; then nothing is left.
    void spend(std::uint64_t bytes) {
        if (bytes > left_) exhausted();
        left_ -= bytes;
    }
    std::uint64_t left() const noexcept { return left_; }

private:
    [[noreturn]] void exhausted();

    std::uint64_t all_;
    std::uint64_t left_;
};

/// The value of a pickle: nodes that refer to each other by number. Shared objects are shared nodes, and cycles are
/// cycles. None, True, False, () and small integers are one node each, as they are one object in Python. Texts are
/// views into the pickle's bytes, which must live as long as the graph.
class PickleGraph {
public:
    using Id = std::uint32_t;
    static constexpr Id nothing = 0xFFFF'FFFF;
    static constexpr Id taken = 0xFFFF'FFFE;  ///< in the memo: a value inside a list that a ListReader took

    enum class Kind : std::uint8_t {
        none,
        boolean,
        integer,
        big_integer,
        real,
        text,  ///< UTF-8, with lone surrogates as three bytes
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
        global,
        call,        ///< REDUCE, NEWOBJ, NEWOBJ_EX, INST, OBJ, or BUILD on a class
        persistent,  ///< a persistent id
    };

    struct Global {
        std::string_view module;  ///< as Python 3 names it
        std::string_view name;    ///< dotted for nested classes
    };
    /// The callee and arguments of a call, and what the pickle then does to the result.
    struct Call {
        Id callee;
        Id arguments;                     ///< a tuple
        bool constructs = true;           ///< false for NEWOBJ and NEWOBJ_EX, which call no constructor
        bool of_class = false;            ///< true for BUILD on a class itself, which calls nothing
        Id keywords = nothing;            ///< a dict, or nothing
        std::span<const Id> states = {};  ///< set by BUILD
        std::span<const Id> items = {};   ///< set by SETITEM and SETITEMS: key, value, key, value, …
        std::span<const Id> appends = {};
    };

    Id root() const noexcept { return root_; }
    std::size_t size() const noexcept { return nodes_.size(); }
    /// Returns the number of bytes up to and including STOP.
    std::size_t consumed() const noexcept { return consumed_; }
    /// Returns the memory that is left for everything made from the graph.
    const Allowance& allowance() const noexcept { return allowance_; }

    Kind kind(Id id) const { return nodes_[id].kind; }
    bool boolean(Id id) const { return nodes_[id].word != 0; }
    std::int64_t integer(Id id) const { return static_cast<std::int64_t>(nodes_[id].word); }
    double real(Id id) const;
    /// Returns the text of a node that is text, bytes or a bytearray.
    std::string_view text(Id id) const;
    /// Returns the digits of a big integer. Costs the square of its length.
    std::string decimal(Id id) const;
    /// Returns the items of a list, tuple, set or frozenset, or those of a dict: key, value, key, value, … Other nodes
    /// have no items. Throws TakenValue for a list that a ListReader took.
    std::span<const Id> items(Id id) const;
    /// Returns the items as items() does. Of a list that a ListReader took, returns those that are nodes.
    std::span<const Id> nodes_in(Id id) const;
    /// Returns the lists that a ListReader took, in the order in which it took them.
    std::span<const Id> taken_lists() const noexcept { return taken_lists_; }
    bool is_taken(Id id) const { return nodes_[id].taken; }
    /// Returns true if a call of that callee is in the pickle.
    bool calls_any(Id callee) const;
    Global global(Id id) const { return globals_[nodes_[id].count]; }
    /// Returns all nodes that are globals. They are few if the pickler uses a memo.
    std::span<const Global> globals() const noexcept { return globals_; }
    Call call(Id id) const;
    /// Returns the value of a persistent id.
    Id persistent(Id id) const { return nodes_[id].count; }

private:
    friend class GraphBuilder;

    /// A node, of sixteen bytes. The meaning of `count` and `word` depends on the kind.
    struct Node {
        Kind kind = Kind::none;
        bool unhashable : 1 = false;  ///< a tuple with an unhashable item
        bool spelled : 1 = false;     ///< a big integer in decimal digits, not in bytes
        bool taken : 1 = false;       ///< a list that a ListReader took
        bool bare : 1 = false;        ///< a call without the constructor
        bool of_class : 1 = false;    ///< BUILD on a class
        std::uint32_t count = 0;
        std::uint64_t word = 0;
    };
    struct Extra {
        Id keywords = nothing;
        std::vector<Id> states = {};
        std::vector<Id> items = {};
        std::vector<Id> appends = {};
    };
    static constexpr std::uint32_t no_extra = 0xFFFF'FFFF;

    Id root_ = nothing;
    std::size_t consumed_ = 0;
    Allowance allowance_{0};
    std::vector<Node> nodes_;
    std::vector<Id> fixed_;                 ///< members of tuples and frozensets
    std::vector<std::vector<Id>> growing_;  ///< members of lists, dicts and sets that have any
    std::vector<Global> globals_;
    std::vector<Id> calls_;  ///< callee and arguments of each call
    std::vector<Extra> extras_;
    std::vector<Id> taken_lists_;
    std::deque<std::string> owned_;  ///< texts that the pickle does not hold in this form
};

/// Reads one pickle from the front of `bytes`; bytes after STOP are ignored (see consumed()). Throws the pickle_*
/// faults.
PickleGraph read_pickle(std::span<const char> bytes, const PickleLimits& limits = {});

/// A pickle that may be damaged, up to its damage.
struct PartialPickle {
    PickleGraph graph;                ///< root() is `nothing` if STOP was not reached
    std::optional<Error> fault = {};  ///< the first fault
    bool cut = false;                 ///< true if the bytes at hand end before STOP, and the file goes on
};
/// Reads a pickle as far as any unpickler may get, for callers that look for the globals in it. Goes on after faults
/// that some unpicklers do not see, with a value without meaning in place of the faulty one. Also reads forms that
/// read_pickle() refuses: a global whose name is computed is `STACK_GLOBAL.<computed>`, and a code of the extension
/// registry `copyreg.<extension>`. Throws pickle_too_large if there are more bytes than `limits` allow.
PartialPickle read_damaged_pickle(std::span<const char> bytes, const PickleLimits& limits = {});

/// The result of reading bytes as a pickle that may be of another format.
struct PickleTrial {
    bool names_global = false;  ///< true if a class or function is named before STOP or the first fault
    bool goes_on = false;       ///< true if the bytes end before STOP and without a fault
    bool too_large = false;     ///< true if it needs more memory than it may take, and was not read to its end
};
/// Reads `bytes`, the beginning of a file with `follow` more bytes. Returns a fault instead of throwing it.
PickleTrial try_pickle(std::span<const char> bytes, std::uint64_t follow);

}  // namespace safemap::SAFEMAP_ABI
