// The inert pickle machine: decodes the opcodes of protocols 0 to 5 into a graph. Nothing is imported and nothing
// is called: a global is a pair of names, a call is a node that says what would be called with what.
#pragma once

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::torch {

/// What a pickle may need. One value or opcode takes at least one byte of input, so memory is bounded by a multiple
/// of the pickle's size anyway; these bound the multiple.
struct PickleLimits {
    std::uint64_t max_bytes = std::uint64_t{1} << 30;
    std::size_t max_nodes = 100'000'000;
    std::size_t max_long_bytes = 65'536;  ///< of one integer
};

/// What a pickle says, as nodes that refer to each other by number. Shared objects are shared nodes, and cycles
/// are cycles. Texts are views into the pickle's bytes, which must live as long as the graph.
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

    Kind kind(Id id) const { return nodes_[id].kind; }
    bool boolean(Id id) const { return nodes_[id].word != 0; }
    std::int64_t integer(Id id) const { return static_cast<std::int64_t>(nodes_[id].word); }
    double real(Id id) const;
    /// Of text, bytes, bytearray.
    std::string_view text(Id id) const;
    /// Of a big integer; costs the square of its length.
    std::string decimal(Id id) const;
    /// Of list, tuple, set, frozenset; of dict: key, value, key, value, …
    std::span<const Id> items(Id id) const;
    /// The same of any kind; nothing where it has no members.
    std::span<const Id> items_or_nothing(Id id) const;
    Global global(Id id) const { return globals_[nodes_[id].count]; }
    Call call(Id id) const;
    /// What a persistent id says.
    Id persistent(Id id) const { return nodes_[id].count; }

private:
    friend class PickleMachine;

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

}  // namespace safemap::torch
