// Builds the nodes of a pickle's graph. Tested by tests/pickle/pickle_test.cpp.
#include "pickle/graph_builder.hpp"

#include "base/text.hpp"
#include "pickle/literals.hpp"
#include "pickle/python2_names.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace safemap::SAFEMAP_ABI {

namespace {

// Charges in bytes of memory. A vector that grows holds its items up to three times.
constexpr std::uint64_t members_cost = 128;
constexpr std::uint64_t global_cost = 96;
constexpr std::uint64_t call_cost = 64;
constexpr std::uint64_t extra_cost = 384;

bool all_digits(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

GraphBuilder::GraphBuilder(const PickleInput& input, const PickleLimits& limits)
    : input_(input), max_long_bytes_(limits.max_long_bytes) {
    if (input.size() > limits.max_bytes) {
        throw Error(Errc::pickle_too_large,
                    "the pickle has " + bytes_text(input.size()) + ", the limit is " + bytes_text(limits.max_bytes));
    }
    graph_.allowance_ = Allowance(limits.max_memory);
    allowance().spend(input.size());
    graph_.nodes_.reserve(input.size() / 8);
    small_integers_.fill(PickleGraph::nothing);
}

PickleGraph GraphBuilder::finish(Id root) {
    graph_.root_ = root;
    graph_.consumed_ = input_.at();
    return std::move(graph_);
}

GraphBuilder::Id GraphBuilder::view(Kind kind, std::string_view bytes) {
    if (bytes.size() > std::numeric_limits<std::uint32_t>::max())
        throw input_.fault(Errc::pickle_too_large, "a text of 2^32 bytes or more");
    return add({.kind = kind,
                .count = static_cast<std::uint32_t>(bytes.size()),
                .word = std::bit_cast<std::uint64_t>(bytes.data())});
}

GraphBuilder::Id GraphBuilder::integer(std::string_view bytes) {
    if (bytes.size() > max_long_bytes_)
        throw input_.fault(Errc::pickle_too_large, "an integer of " + bytes_text(bytes.size()) + " is too large");
    if (bytes.size() > 8) return view(Kind::big_integer, bytes);
    std::uint64_t value = 0;
    if (!bytes.empty() && (bytes.back() & 0x80) != 0) value = ~std::uint64_t{0};
    std::memcpy(&value, bytes.data(), bytes.size());
    return integer(static_cast<std::int64_t>(value));
}

GraphBuilder::Id GraphBuilder::decimal(std::string_view digits) {
    std::string_view unsigned_digits = digits;
    if (digits.starts_with('+') || digits.starts_with('-')) unsigned_digits.remove_prefix(1);
    if (digits.starts_with('+')) digits = unsigned_digits;
    // A number with a leading zero is octal to one of Python's readers, and an error to the other.
    const bool octal = unsigned_digits.size() > 1 && unsigned_digits.starts_with('0');
    if (!all_digits(unsigned_digits) || octal)
        throw input_.fault(Errc::pickle_bad_text, "invalid integer " + safemap::quoted(digits));
    if (digits.size() > max_long_bytes_) {
        throw input_.fault(Errc::pickle_too_large,
                           "an integer of " + std::to_string(digits.size()) + " digits is too large");
    }
    if (const auto value = number_in<std::int64_t>(digits)) return integer(*value);
    const Id id = view(Kind::big_integer, digits);
    graph_.nodes_.back().spelled = true;
    return id;
}

GraphBuilder::Id GraphBuilder::fixed(Kind kind, std::span<const Id> items, bool unhashable) {
    const auto begin = graph_.fixed_.size();
    graph_.fixed_.insert(graph_.fixed_.end(), items.begin(), items.end());
    return add(
        {.kind = kind, .unhashable = unhashable, .count = static_cast<std::uint32_t>(items.size()), .word = begin});
}
GraphBuilder::Id GraphBuilder::tuple(std::span<const Id> items) {
    return fixed(Kind::tuple, items, !std::all_of(items.begin(), items.end(), [this](Id id) { return hashable(id); }));
}
GraphBuilder::Id GraphBuilder::frozenset(std::span<const Id> items) {
    for (const Id id : items) require_hashable(id);
    return fixed(Kind::frozenset, items, false);
}

template <class Value> Value& GraphBuilder::of_node(Id id, std::vector<Value>& all, std::uint64_t cost) {
    Node& node = graph_.nodes_[id];
    if (node.count == PickleGraph::no_extra) {
        allowance().spend(cost);
        node.count = static_cast<std::uint32_t>(all.size());
        all.emplace_back();
    }
    return all[node.count];
}
std::vector<GraphBuilder::Id>& GraphBuilder::members(Id id) {
    if (graph_.is_taken(id)) throw TakenValue();
    return of_node(id, graph_.growing_, members_cost);
}
GraphBuilder::Id GraphBuilder::taken_list(std::span<const Id> nodes) {
    const Id id = growing(Kind::list);
    if (!nodes.empty()) members(id).assign(nodes.begin(), nodes.end());
    graph_.nodes_[id].taken = true;
    graph_.taken_lists_.push_back(id);
    return id;
}
GraphBuilder::Extra& GraphBuilder::extra(Id call) { return of_node(call, graph_.extras_, extra_cost); }

GraphBuilder::Id GraphBuilder::global(const PickleGraph::Global& global, unsigned protocol) {
    const std::size_t bytes = global.module.size() + global.name.size();
    if (bytes > max_global_bytes)
        throw input_.fault(Errc::pickle_too_large, "a global name of " + bytes_text(bytes) + " is too long");
    allowance().spend(global_cost + bytes);
    graph_.globals_.push_back(in_python3(global, protocol));
    return add({.kind = Kind::global, .count = static_cast<std::uint32_t>(graph_.globals_.size() - 1)});
}

GraphBuilder::Id GraphBuilder::call(Id callee, Id arguments) {
    allowance().spend(call_cost);
    graph_.calls_.push_back(callee);
    graph_.calls_.push_back(arguments);
    return add({.kind = Kind::call, .count = PickleGraph::no_extra, .word = graph_.calls_.size() - 2});
}

bool GraphBuilder::hashable(Id id) const {
    switch (graph_.kind(id)) {
        case Kind::list:
        case Kind::dict:
        case Kind::set:
        case Kind::bytearray: return false;
        case Kind::tuple: return !graph_.nodes_[id].unhashable;
        default: return true;
    }
}
void GraphBuilder::require_hashable(Id id) const {
    if (!hashable(id)) throw input_.fault(Errc::pickle_bad_key, "a list, dictionary or set cannot be a key");
}

}  // namespace safemap::SAFEMAP_ABI
