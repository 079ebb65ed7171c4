// What calls of Python's and torch's own functions give where they give plain values, and which keys of a dictionary
// Python takes for the same.
#pragma once

#include "base/name_index.hpp"
#include "pickle/pickle.hpp"

#include <safemap/state_tree.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::torch {

/// The arguments of _codecs.encode(text, 'latin1'), which is how protocol 2 spells bytes: each character is one.
/// Nothing where they are others. Throws pickle_too_large where `allowance` has no room for the bytes.
std::optional<std::string> encoded_text(const PickleGraph& pickle, std::span<const PickleGraph::Id> arguments,
                                        Allowance& allowance);
/// The bytes that a node is, as they are or encoded; nothing where it is something else.
std::optional<std::string> bytes_of(const PickleGraph& pickle, PickleGraph::Id id, Allowance& allowance);

/// What `function(arguments)` is: complex numbers, bytes and bytearrays, torch.device and layouts. Nothing where it is
/// another function, or the arguments are others than these are pickled with.
std::optional<StateTree::Node> python_value(const PickleGraph& pickle, std::string_view function,
                                            std::span<const PickleGraph::Id> arguments, Allowance& allowance);
/// Whether python_value() knows the function.
bool is_value_function(std::string_view function) noexcept;

/// The keys of one dictionary: 1, 1.0 and True are the same.
class SeenKeys {
public:
    explicit SeenKeys(Allowance& allowance) : allowance_(allowance) {}

    /// Where the key was put before, or `place`, which it has from now on.
    std::size_t place_of(const PickleGraph& pickle, PickleGraph::Id key, std::size_t place);

private:
    using Texts = std::unordered_map<std::string_view, std::size_t, NameHash>;
    static constexpr std::size_t unset = std::numeric_limits<std::size_t>::max();

    std::size_t text(Texts& texts, const PickleGraph& pickle, PickleGraph::Id key, std::size_t place);
    std::size_t big_integer(const PickleGraph& pickle, PickleGraph::Id key, std::size_t place);
    std::size_t real(double value, std::size_t place);

    Allowance& allowance_;
    std::unordered_map<PickleGraph::Id, std::size_t> nodes_;  ///< of long texts and bytes
    Texts texts_;
    Texts bytes_;
    std::unordered_map<std::string, std::size_t, NameHash> longs_;  ///< integers of more than 64 bits, in decimal
    std::map<std::int64_t, std::size_t> integers_;  ///< ordered: hashes of integers can be made to collide
    std::size_t none_ = unset;
};

/// Memory that an entry of a dictionary takes; see PickleLimits.
inline constexpr std::uint64_t entry_cost = 64;

}  // namespace safemap::SAFEMAP_ABI::torch
