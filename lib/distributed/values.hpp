// Typed access to the Python values in the tree of a file. A value of another type than expected is a fault that names
// the field.
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

/// A node of a tree, which must outlive it and may grow meanwhile. A value is a number in a list of the nodes that were
/// come to, so that it costs little, and knows the path to it in the file, for messages.
///
/// A pickle may have one container in many places, so that a small file may seem to hold many values. What all calls of
/// items() and entries() on a value and on the values below it return, and the keys that all look-ups compare, are
/// bounded by the size of the tree: they throw pickle_too_large beyond a few times as many values as it holds.
///
/// A value and those below it must not be used from several threads at once.
class Value {
public:
    using NodeId = StateTree::NodeId;

    /// A node of a tree. `where` begins the paths in messages.
    Value(const StateTree& tree, NodeId node, std::string where = {});
    /// The root of a tree.
    explicit Value(const StateTree& tree) : Value(tree, tree.root()) {}
    /// Returns another node of the tree, where paths in messages begin. It shares the bounds of this value.
    Value root_at(NodeId node) const;

    NodeId node() const noexcept;
    /// Returns the path, "optimizer_state_dict/zero_stage", cut after some length.
    std::string where() const;
    bool is_none() const;
    bool is_dict() const;

    /// Returns the value of a text key of a dictionary, or of an attribute or argument of an object. Returns nothing
    /// for other values, if the key is missing, and if None is there.
    std::optional<Value> find(std::string_view key) const;
    /// Returns true if there is such a key, even if it has None there.
    bool has(std::string_view key) const;
    /// Returns an attribute of a dictionary, such as `_metadata`, or nothing.
    std::optional<Value> attribute(std::string_view name) const;
    /// Returns what find() returns. Throws field_missing if that is nothing.
    Value at(std::string_view key) const;
    /// Returns an argument of the class of an object by its number, or nothing.
    std::optional<Value> argument(std::size_t number) const;
    /// Returns the items of a list, tuple or torch.Size. Throws field_missing for anything else.
    std::vector<Value> items() const;
    /// Returns the items of a list, tuple, torch.Size or set, or the arguments and attributes of an object: a named
    /// tuple may be either. Returns nothing for other values.
    std::vector<Value> parts() const;
    /// Returns true for a list, tuple or torch.Size.
    bool is_list() const;
    bool is_set() const;
    /// Returns the number of items of a list or set, or of entries of a dictionary; 0 for other values.
    std::size_t size() const;
    /// Returns the entries of a dictionary whose keys are texts or integers; integers are given as decimal text. Skips
    /// other keys. Throws field_missing if this is not a dictionary.
    std::vector<std::pair<std::string, Value>> entries() const;
    /// Returns those of the entries that are tensors.
    std::vector<std::pair<std::string, LazyTensor>> tensors() const;
    /// Returns the entries of a dictionary all of whose keys are texts. Throws field_missing for anything else.
    std::vector<std::pair<std::string, Value>> text_entries() const;

    /// Returns an integer, also that of an enumeration: an object of one argument, which is an integer. Returns nothing
    /// for anything else.
    std::optional<std::int64_t> integer() const;
    /// Returns an integer from 0 to 2^63 - 1. Throws field_missing.
    std::uint64_t count() const;
    /// Returns the integers of a list, each as count() does.
    std::vector<std::uint64_t> counts() const;
    /// Returns an integer or a floating-point number.
    std::optional<double> real() const;
    std::optional<bool> boolean() const;
    std::optional<std::string_view> text() const;
    /// Returns the dotted name of a class, a function or a member of an enumeration that the pickle names as a value.
    std::optional<std::string_view> global() const;
    /// Returns the dtype that a torch.dtype is, or nothing, also for one that safemap does not know.
    std::optional<Dtype> dtype() const;
    /// Returns the dotted name of the class of an object; empty for other values.
    std::string_view type() const;
    /// Returns the sizes of a torch.Size, tuple or list. Throws field_missing.
    Shape shape() const;
    /// Returns the tensor, or null.
    const LazyTensor* tensor() const;

private:
    class Arena;

    Value(std::shared_ptr<Arena> arena, std::uint32_t cell) : arena_(std::move(arena)), cell_(cell) {}

    const StateTree::Node& read() const;
    template <class Kind> const Kind* read_as() const;
    std::optional<Value> entry(std::string_view key) const;
    Value child(NodeId node, std::size_t place) const;
    [[noreturn]] void fail(std::string_view expected) const;

    std::shared_ptr<Arena> arena_;
    std::uint32_t cell_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
