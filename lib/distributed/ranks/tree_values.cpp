// Walks two trees side by side, without recursion. Tested by tests/distributed/tree_values_test.cpp.
#include "distributed/ranks/tree_values.hpp"

#include "state/walk.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

bool same_tensor(const StateTree::Tensor& a, const StateTree::Tensor& b) {
    const LazyTensor& x = a.tensor;
    const LazyTensor& y = b.tensor;
    if (a.numpy != b.numpy || x.dtype() != y.dtype() || x.shape() != y.shape()) return false;
    return x.nbytes() > compared_bytes || have_equal_bytes(x, y, compared_bytes);
}

}  // namespace

bool have_equal_bytes(const LazyTensor& a, const LazyTensor& b, std::uint64_t most) {
    // Elements that are smaller than a byte are read whole or not at all.
    std::uint64_t size = std::min(most, a.nbytes());
    if (size < a.nbytes() && whole_bytes(a.dtype())) size -= size % element_size(a.dtype());
    if (size == 0) return true;
    std::vector<std::byte> x(static_cast<std::size_t>(size));
    std::vector<std::byte> y(x.size());
    a.read(0, x);
    b.read(0, y);
    return x == y;
}

TreeComparison::TreeComparison(const StateTree& first, const StateTree& other) : first_(first), other_(other) {
    constexpr std::uint64_t least = std::uint64_t{1} << 16;
    constexpr std::uint64_t times = 8;
    left_ = least + times * (state::places_in(first) + state::places_in(other));
}

void TreeComparison::spend(std::uint64_t steps) {
    if (steps > left_)
        throw Error(Errc::pickle_too_large,
                    "the pickle has containers in many places; together they hold too many values for its size");
    left_ -= steps;
}

bool TreeComparison::same(NodeId first, NodeId other) {
    open_.assign(1, {first, other});
    while (!open_.empty()) {
        const Pair pair = open_.back();
        open_.pop_back();
        spend(1);
        if (!met_.insert(std::uint64_t{pair.first} << 32 | pair.second).second) continue;
        if (same_node(pair.first, pair.second)) continue;
        met_.clear();  // pairs around this one were taken as equal
        return false;
    }
    return true;
}

bool TreeComparison::open_items(const std::vector<NodeId>& first, const std::vector<NodeId>& other) {
    if (first.size() != other.size()) return false;
    spend(first.size());
    for (std::size_t i = first.size(); i-- > 0;) open_.emplace_back(first[i], other[i]);
    return true;
}

template <class Named> bool TreeComparison::open_named(const Named& first, const Named& other) {
    if (first.size() != other.size()) return false;
    spend(first.size());
    for (std::size_t i = first.size(); i-- > 0;) {
        if (first[i].first != other[i].first) return false;
        open_.emplace_back(first[i].second, other[i].second);
    }
    return true;
}

bool TreeComparison::same_node(NodeId first, NodeId other) {
    const StateTree::Node& a = first_[first];
    const StateTree::Node& b = other_[other];
    if (a.index() != b.index()) return false;
    return std::visit(
        [&](const auto& x) {
            using Type = std::decay_t<decltype(x)>;
            const auto& y = std::get<Type>(b);
            if constexpr (std::is_same_v<Type, StateTree::None>) return true;
            else if constexpr (std::is_same_v<Type, double>) return same_bits(x, y);
            else if constexpr (std::is_same_v<Type, StateTree::Complex>)
                return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
            else if constexpr (std::is_same_v<Type, StateTree::BigInt>) return x.decimal == y.decimal;
            else if constexpr (std::is_same_v<Type, StateTree::Bytes>)
                return x.bytes == y.bytes && x.mutable_array == y.mutable_array;
            else if constexpr (std::is_same_v<Type, StateTree::Constant>) return x.kind == y.kind && x.text == y.text;
            else if constexpr (std::is_same_v<Type, StateTree::Sequence>)
                return x.kind == y.kind && open_items(x.items, y.items);
            else if constexpr (std::is_same_v<Type, StateTree::NumpyScalar>) {
                open_.emplace_back(x.value, y.value);
                return x.dtype == y.dtype;
            } else if constexpr (std::is_same_v<Type, StateTree::Dict>) {
                if (x.ordered != y.ordered || x.items.size() != y.items.size()) return false;
                spend(2 * x.items.size());
                for (std::size_t i = 0; i < x.items.size(); ++i) {
                    open_.emplace_back(x.items[i].first, y.items[i].first);
                    open_.emplace_back(x.items[i].second, y.items[i].second);
                }
                return open_named(x.attributes, y.attributes);
            } else if constexpr (std::is_same_v<Type, StateTree::Tensor>) return same_tensor(x, y);
            else if constexpr (std::is_same_v<Type, StateTree::Opaque>)
                return x.type == y.type && x.arguments == y.arguments && open_named(x.children, y.children);
            else return x == y;  // bool, integer, text
        },
        a);
}

NodeId TreeCopy::number_of(NodeId node) {
    const auto [found, fresh] = numbers_.try_emplace(node, StateTree::no_node);
    if (fresh) {
        found->second = to_.add(StateTree::None());
        open_.push_back(node);
    }
    return found->second;
}

NodeId TreeCopy::copy(NodeId node) {
    const NodeId root = number_of(node);
    while (!open_.empty()) {
        const NodeId next = open_.back();
        open_.pop_back();
        StateTree::Node copied = from_[next];
        state::for_each_child(copied, [this](NodeId& child) { child = number_of(child); });
        to_[numbers_.at(next)] = std::move(copied);
    }
    return root;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
