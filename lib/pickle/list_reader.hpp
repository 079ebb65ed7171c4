// Reads lists of a pickle from its bytes, without a node for each value in them: lists that are long, whose form is
// known, and that many files repeat.
#pragma once

#include "pickle/pickle.hpp"
#include "pickle/stack.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// A reader that the machine asks at each EMPTY_LIST after a text, which may be the key of the list.
///
/// A list that it takes is a node without the items that are no nodes of their own. Who asks for its items, changes it,
/// or gets a value inside it from the memo causes a TakenValue. The caller then reads the pickle without this reader.
/// So a pickle that uses such values in any way has the value that it has without the reader.
class ListReader {
public:
    struct Place {
        std::string_view key;      ///< the text before the list
        std::string_view bytes;    ///< from the byte after EMPTY_LIST to the end of the pickle
        std::uint64_t last_entry;  ///< the last entry of the memo that the list may set
        std::uint64_t memory;      ///< the most that the reader may take for it: a longer list is left to the machine
        const PickleGraph& graph;
        const PickleMemo& memo;
    };
    /// Says what a list takes. The list sets the entries of the memo from `first_entry`, which is the list itself, up
    /// to `end_entry`, each once.
    struct Taken {
        std::size_t bytes;
        std::uint64_t first_entry;
        std::uint64_t end_entry;
        std::uint64_t memory;                         ///< memory that the reader keeps for the list
        std::span<const PickleGraph::Id> nodes = {};  ///< items that are nodes, until the next call
    };

    ListReader() = default;
    ListReader(const ListReader&) = delete;
    ListReader& operator=(const ListReader&) = delete;
    virtual ~ListReader() = default;

    /// Takes the list, or returns nothing. It must only take what the machine would read without a fault, and all
    /// globals that are called in it must be called outside of it too, so that lists of globals are complete.
    virtual std::optional<Taken> take(const Place& place) = 0;
};

}  // namespace safemap::SAFEMAP_ABI
