#include "distributed/values.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

/// Counts the values that are returned, and 256 bytes of a key as one more.
class Value::Budget {
public:
    void spend(const StateTree& tree, std::uint64_t values) {
        if (!left_) left_ = least + times * size_of(tree);
        if (values > *left_)
            throw Error(Errc::pickle_too_large,
                        "the pickle has containers in many places; together they hold too many values for its size");
        *left_ -= values;
    }

private:
    static constexpr std::uint64_t least = std::uint64_t{1} << 18;
    static constexpr std::uint64_t times = 4;  // readers go through a container at most three times

    /// Returns the number of nodes, and of places where containers have them.
    static std::uint64_t size_of(const StateTree& tree) {
        std::uint64_t size = tree.size();
        for (StateTree::NodeId id = 0; id < tree.size(); ++id) {
            if (const auto* const sequence = std::get_if<StateTree::Sequence>(&tree[id]))
                size += sequence->items.size();
            else if (const auto* const dict = std::get_if<StateTree::Dict>(&tree[id])) size += dict->items.size();
        }
        return size;
    }

    std::optional<std::uint64_t> left_ = {};
};

Value::Value(const StateTree& tree, StateTree::NodeId node, std::string where)
    : tree_(&tree), node_(node), where_(std::move(where)), budget_(std::make_shared<Budget>()) {}

Value::Value(const Value& parent, StateTree::NodeId node, std::string where)
    : tree_(parent.tree_), node_(node), where_(std::move(where)), budget_(parent.budget_) {}

void Value::fail(std::string_view expected) const {
    throw Error(Errc::field_missing,
                (where_.empty() ? "the file" : "the field " + excerpt(where_)) + " is not " + std::string(expected));
}

Value Value::child(StateTree::NodeId node, std::string_view step) const {
    constexpr std::size_t longest = 1024;  // paths are copied for each item
    if (where_.size() > longest) return {*this, node, where_};
    step = step.substr(0, longest);
    return {*this, node, where_.empty() ? std::string(step) : where_ + '/' + std::string(step)};
}

bool Value::is_none() const { return std::holds_alternative<StateTree::None>((*tree_)[node_]); }
bool Value::is_dict() const { return std::holds_alternative<StateTree::Dict>((*tree_)[node_]); }

std::optional<Value> Value::entry(std::string_view key) const {
    const auto* const dict = std::get_if<StateTree::Dict>(&(*tree_)[node_]);
    if (dict == nullptr) return std::nullopt;
    for (const auto& [name, value] : dict->items) {
        const auto* const text = std::get_if<std::string>(&(*tree_)[name]);
        if (text != nullptr && *text == key) return child(value, key);
    }
    return std::nullopt;
}

bool Value::has(std::string_view key) const { return entry(key).has_value(); }

std::optional<Value> Value::find(std::string_view key) const {
    auto found = entry(key);
    if (found && found->is_none()) return std::nullopt;
    return found;
}

std::optional<Value> Value::attribute(std::string_view name) const {
    const auto* const dict = std::get_if<StateTree::Dict>(&(*tree_)[node_]);
    if (dict == nullptr) return std::nullopt;
    for (const auto& [key, value] : dict->attributes)
        if (key == name) return child(value, name);
    return std::nullopt;
}

Value Value::at(std::string_view key) const {
    if (auto found = find(key)) return *std::move(found);
    throw Error(
        Errc::field_missing,
        "the field " + excerpt(where_.empty() ? std::string(key) : where_ + '/' + std::string(key)) + " is missing");
}

bool Value::is_list() const {
    const auto* const sequence = std::get_if<StateTree::Sequence>(&(*tree_)[node_]);
    using Kind = StateTree::Sequence::Kind;
    return sequence != nullptr && (sequence->kind == Kind::list || sequence->kind == Kind::tuple);
}

std::vector<Value> Value::items() const {
    if (!is_list()) fail("a list");
    const auto& items = std::get<StateTree::Sequence>((*tree_)[node_]).items;
    budget_->spend(*tree_, items.size());
    std::vector<Value> found;
    for (const auto item : items) found.push_back(child(item, std::to_string(found.size())));
    return found;
}

std::vector<std::pair<std::string, Value>> Value::entries() const {
    const auto* const dict = std::get_if<StateTree::Dict>(&(*tree_)[node_]);
    if (dict == nullptr) fail("a dictionary");
    budget_->spend(*tree_, dict->items.size());
    std::vector<std::pair<std::string, Value>> found;
    found.reserve(dict->items.size());
    for (const auto& [name, value] : dict->items) {
        const StateTree::Node& key = (*tree_)[name];
        if (const auto* const text = std::get_if<std::string>(&key)) {
            budget_->spend(*tree_, text->size() / 256);
            found.emplace_back(*text, child(value, *text));
        } else if (const auto* const number = std::get_if<std::int64_t>(&key)) {
            const std::string decimal = std::to_string(*number);
            found.emplace_back(decimal, child(value, decimal));
        }
    }
    return found;
}

std::optional<std::int64_t> Value::integer() const {
    const StateTree::Node& node = (*tree_)[node_];
    if (const auto* const number = std::get_if<std::int64_t>(&node)) return *number;
    const auto* const object = std::get_if<StateTree::Opaque>(&node);
    if (object == nullptr || object->arguments != 1 || object->children.size() != 1) return std::nullopt;
    const auto* const number = std::get_if<std::int64_t>(&(*tree_)[object->children.front().second]);
    return number == nullptr ? std::nullopt : std::optional(*number);
}

std::uint64_t Value::count() const {
    const auto number = integer();
    const bool is_large = std::holds_alternative<StateTree::BigInt>((*tree_)[node_]);
    if (is_large || (number && *number < 0)) fail("in the range from 0 to 2^63 - 1");
    if (!number) fail("a number");
    return static_cast<std::uint64_t>(*number);
}

std::optional<double> Value::real() const {
    if (const auto* const value = std::get_if<double>(&(*tree_)[node_])) return *value;
    const auto number = integer();
    return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

std::optional<bool> Value::boolean() const {
    const auto* const value = std::get_if<bool>(&(*tree_)[node_]);
    return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string_view> Value::text() const {
    const auto* const value = std::get_if<std::string>(&(*tree_)[node_]);
    return value == nullptr ? std::nullopt : std::optional<std::string_view>(*value);
}

std::optional<std::string_view> Value::global() const {
    const auto* const value = std::get_if<StateTree::Constant>(&(*tree_)[node_]);
    if (value == nullptr || value->kind != StateTree::Constant::Kind::other) return std::nullopt;
    return value->text;
}

Shape Value::shape() const {
    const auto* const sequence = std::get_if<StateTree::Sequence>(&(*tree_)[node_]);
    if (sequence == nullptr || sequence->kind == StateTree::Sequence::Kind::set ||
        sequence->kind == StateTree::Sequence::Kind::frozenset)
        fail("a shape");
    if (sequence->items.size() > most_dimensions) fail("a shape of at most 64 dimensions");
    Shape shape;
    for (const auto item : sequence->items) shape.push_back(child(item, "size").count());
    return shape;
}

const LazyTensor* Value::tensor() const {
    const auto* const leaf = std::get_if<StateTree::Tensor>(&(*tree_)[node_]);
    return leaf == nullptr ? nullptr : &leaf->tensor;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
