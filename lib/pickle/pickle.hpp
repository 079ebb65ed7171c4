// The inert pickle machine: decodes the opcodes of protocols 0 to 5 into a graph. Nothing is imported and nothing
// is called: a global is a pair of names, a call is a node that says what would be called with what.
#pragma once

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// What a pickle may need. Memory is counted, not measured: each value, slot and copied text is charged a little more
/// than it takes in the graph and in all that is made of it, so that the peak stays below max_memory and the names
/// of the tensors, which flatten bounds. A value is charged about 180 bytes: an optimizer's pickle comes to 40 for
/// each byte of its own, a list of integers of two bytes to 60.
struct PickleLimits {
    static constexpr std::uint64_t least_bytes = std::uint64_t{64} << 20;
    static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
    static constexpr std::uint64_t inflation = 32;  ///< those of torch deflate to a quarter
    static constexpr std::uint64_t least_memory = std::uint64_t{512} << 20;
    static constexpr std::uint64_t memory_per_byte = 64;

    std::uint64_t max_bytes = most_bytes;
    std::uint64_t max_memory = least_memory;
    std::size_t max_long_bytes = 65'536;  ///< of one integer
    /// Bytes of the file that follow those of the pickle that are there. Where it may go on in them, it is
    /// pickle_truncated, and not wrong; past them it is file_truncated. Nothing: all of the pickle is there.
    std::optional<std::uint64_t> follows = {};

    /// Those of a pickle that takes `packed` bytes of its file: what a file may need is bounded by its size, also
    /// where it is deflated.
    static PickleLimits of_packed(std::uint64_t packed) noexcept;
};

/// Counts down the memory that a pickle may still take.
class Allowance {
public:
    explicit Allowance(std::uint64_t bytes) noexcept : all_(bytes), left_(bytes) {}
    /// Throws pickle_too_large where less is left; then nothing is.
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

/// What a pickle says, as nodes that refer to each other by number. Shared objects are shared nodes, and cycles
/// are cycles; None, True, False, () and small integers are one node each, as they are one object in Python. Texts are
/// views into the pickle's bytes, which must live as long as the graph.
class PickleGraph {
public:
    using Id = std::uint32_t;
    static constexpr Id nothing = 0xFFFF'FFFF;

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
        std::string_view module;  ///< in Python 3's names
        std::string_view name;    ///< dotted for nested classes
    };
    /// What would be called, and what was then done to the result.
    struct Call {
        Id callee;
        Id arguments;                     ///< a tuple
        Id keywords = nothing;            ///< a dict, or nothing
        std::span<const Id> states = {};  ///< of BUILD
        std::span<const Id> items = {};   ///< of SETITEM(S): key, value, key, value, …
        std::span<const Id> appends = {};
    };

    Id root() const noexcept { return root_; }
    std::size_t size() const noexcept { return nodes_.size(); }
    /// Bytes up to and with STOP.
    std::size_t consumed() const noexcept { return consumed_; }
    /// What is left for whatever is made of the graph.
    const Allowance& allowance() const noexcept { return allowance_; }

    Kind kind(Id id) const { return nodes_[id].kind; }
    bool boolean(Id id) const { return nodes_[id].word != 0; }
    std::int64_t integer(Id id) const { return static_cast<std::int64_t>(nodes_[id].word); }
    double real(Id id) const;
    /// Of text, bytes, bytearray.
    std::string_view text(Id id) const;
    /// Of a big integer; costs the square of its length.
    std::string decimal(Id id) const;
    /// Of list, tuple, set, frozenset; of dict: key, value, key, value, …; nothing of what has no members.
    std::span<const Id> items(Id id) const;
    Global global(Id id) const { return globals_[nodes_[id].count]; }
    /// Those of all nodes that are globals: few, where the pickler has a memo.
    std::span<const Global> globals() const noexcept { return globals_; }
    Call call(Id id) const;
    /// What a persistent id says.
    Id persistent(Id id) const { return nodes_[id].count; }

private:
    friend class GraphBuilder;

    /// Sixteen bytes; what `count` and `word` mean depends on the kind.
    struct Node {
        Kind kind = Kind::none;
        bool unhashable = false;  ///< of a tuple: something in it is
        bool spelled = false;     ///< of a big integer: decimal digits, not bytes
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
    std::vector<Id> calls_;  ///< callee and arguments
    std::vector<Extra> extras_;
    std::deque<std::string> owned_;  ///< texts that do not stand in the pickle as they are
};

/// Reads one pickle from the front of `bytes`; what follows STOP is left (see consumed()). Throws the pickle_* faults.
PickleGraph read_pickle(std::span<const char> bytes, const PickleLimits& limits = {});

/// How far bytes run as a pickle that may be another format.
struct PickleTrial {
    bool names_global = false;  ///< a class or function is named before STOP or the first fault
    bool goes_on = false;       ///< at the end of the bytes neither STOP nor a fault has come
};
/// Runs `bytes`, the beginning of a file in which `follow` more bytes come. A fault is a result and is not thrown.
PickleTrial try_pickle(std::span<const char> bytes, std::uint64_t follow);

}  // namespace safemap::SAFEMAP_ABI
