// Typed access to the values of a rank's tree. A value of another type than expected is a fault that names the field.
#pragma once

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The most dimensions of a tensor or a device mesh, as in torch.
inline constexpr std::size_t most_dimensions = 64;

/// A node of a tree, which must outlive it. `where` is its path in the file, for messages.
///
/// A pickle may have one container in many places, so that a small file may seem to hold many values. What all calls of
/// items() and entries() on a value and on the values below it return is bounded by the size of the tree: they throw
/// pickle_too_large beyond a few times as many values as it holds.
class Value {
public:
    Value(const StateTree& tree, StateTree::NodeId node, std::string where = {});
    /// The root of a tree.
    explicit Value(const StateTree& tree) : Value(tree, tree.root()) {}

    StateTree::NodeId node() const noexcept { return node_; }
    const std::string& where() const noexcept { return where_; }
    bool is_none() const;
    bool is_dict() const;

    /// Returns the value of a text key of a dictionary, or nothing if this is not a dictionary, lacks the key, or has
    /// None there.
    std::optional<Value> find(std::string_view key) const;
    /// Returns true if this is a dictionary with the key, even if it has None there.
    bool has(std::string_view key) const;
    /// Returns an attribute of a dictionary, such as `_metadata`, or nothing.
    std::optional<Value> attribute(std::string_view name) const;
    /// Returns the value of a text key. Throws field_missing.
    Value at(std::string_view key) const;
    /// Returns the items of a list or tuple. Throws field_missing for anything else.
    std::vector<Value> items() const;
    /// Returns true for a list or tuple.
    bool is_list() const;
    /// Returns the entries of a dictionary whose keys are texts or integers; integers are given as decimal text. Skips
    /// other keys. Throws field_missing if this is not a dictionary.
    std::vector<std::pair<std::string, Value>> entries() const;

    /// Returns an integer, also that of an enumeration: an object of one argument, which is an integer. Returns nothing
    /// for anything else.
    std::optional<std::int64_t> integer() const;
    /// Returns an integer from 0 to 2^63 - 1. Throws field_missing.
    std::uint64_t count() const;
    /// Returns an integer or a floating-point number.
    std::optional<double> real() const;
    std::optional<bool> boolean() const;
    std::optional<std::string_view> text() const;
    /// Returns the dotted name of a class, a function or a member of an enumeration that the pickle names as a value.
    std::optional<std::string_view> global() const;
    /// Returns the sizes of a torch.Size, tuple or list. Throws field_missing.
    Shape shape() const;
    /// Returns the tensor, or null.
    const LazyTensor* tensor() const;

private:
    class Budget;

    Value(const Value& parent, StateTree::NodeId node, std::string where);

    std::optional<Value> entry(std::string_view key) const;
    [[noreturn]] void fail(std::string_view expected) const;
    Value child(StateTree::NodeId node, std::string_view step) const;

    const StateTree* tree_;
    StateTree::NodeId node_;
    std::string where_;
    std::shared_ptr<Budget> budget_;  ///< shared with all values below
};

}  // namespace safemap::SAFEMAP_ABI::distributed
