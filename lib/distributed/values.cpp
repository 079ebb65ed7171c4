// A value is a cell of an arena: its node, the cell of the container that it was found in, and its place there. Paths
// are spelled only for messages.
#include "distributed/values.hpp"

#include "base/text.hpp"
#include "state/walk.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Sequence = StateTree::Sequence;
using Dict = StateTree::Dict;
using Opaque = StateTree::Opaque;

bool is_set(const Sequence& sequence) {
    return sequence.kind == Sequence::Kind::set || sequence.kind == Sequence::Kind::frozenset;
}

}  // namespace

class Value::Arena {
public:
    static constexpr std::uint32_t no_cell = UINT32_MAX;

    struct Cell {
        std::uint32_t parent;  ///< no_cell where a path begins
        NodeId node;
        std::uint32_t place;  ///< number of the entry, item or part; attributes of a dictionary follow its entries
    };

    Arena(const StateTree& tree, std::string where) : tree_(tree), where_(std::move(where)) {}

    const StateTree& tree() const noexcept { return tree_; }
    const Cell& operator[](std::uint32_t cell) const { return cells_[cell]; }
    std::uint32_t add(Cell cell) {
        cells_.push_back(cell);
        return static_cast<std::uint32_t>(cells_.size() - 1);
    }

    /// Counts values that are returned, and 256 bytes of a key as one more.
    void spend(std::uint64_t values) { take(values, values_left_, 1); }
    /// Counts keys that are compared.
    void look_at(std::uint64_t keys) { take(keys, keys_left_, keys_per_value); }

    std::string path(std::uint32_t cell) const {
        constexpr std::size_t longest = 1024;
        std::vector<std::string> steps;
        for (; cells_[cell].parent != no_cell; cell = cells_[cell].parent) steps.push_back(step(cells_[cell]));
        std::string text = where_;
        for (auto each = steps.rbegin(); each != steps.rend() && text.size() <= longest; ++each)
            text += (text.empty() ? "" : "/") + each->substr(0, longest);
        return text;
    }

private:
    static constexpr std::uint64_t least = std::uint64_t{1} << 18;
    static constexpr std::uint64_t times = 4;  // readers go through a container at most three times
    static constexpr std::uint64_t keys_per_value = 32;

    void take(std::uint64_t count, std::optional<std::uint64_t>& left, std::uint64_t per_value) {
        if (!left) left = (least + times * state::places_in(tree_)) * per_value;
        if (count > *left)
            throw Error(Errc::pickle_too_large,
                        "the pickle has containers in many places; together they hold too many values for its size");
        *left -= count;
    }

    /// Returns the key or number under which the container of a cell has it.
    std::string step(const Cell& cell) const {
        const StateTree::Node& container = tree_[cells_[cell.parent].node];
        if (const auto* const object = std::get_if<Opaque>(&container); object && cell.place < object->children.size())
            return object->children[cell.place].first;
        const auto* const dict = std::get_if<Dict>(&container);
        if (dict == nullptr) return std::to_string(cell.place);
        if (cell.place >= dict->items.size()) return dict->attributes[cell.place - dict->items.size()].first;
        const StateTree::Node& key = tree_[dict->items[cell.place].first];
        if (const auto* const text = std::get_if<std::string>(&key)) return *text;
        return std::to_string(std::get<std::int64_t>(key));
    }

    const StateTree& tree_;
    std::string where_;
    std::vector<Cell> cells_ = {};
    std::optional<std::uint64_t> values_left_ = {};
    std::optional<std::uint64_t> keys_left_ = {};
};

Value::Value(const StateTree& tree, NodeId node, std::string where)
    : arena_(std::make_shared<Arena>(tree, std::move(where))), cell_(arena_->add({Arena::no_cell, node, 0})) {}

Value Value::root_at(NodeId node) const { return {arena_, arena_->add({Arena::no_cell, node, 0})}; }

Value Value::child(NodeId node, std::size_t place) const {
    return {arena_, arena_->add({cell_, node, static_cast<std::uint32_t>(place)})};
}

Value::NodeId Value::node() const noexcept { return (*arena_)[cell_].node; }
std::string Value::where() const { return arena_->path(cell_); }
const StateTree::Node& Value::read() const { return arena_->tree()[node()]; }
template <class Kind> const Kind* Value::read_as() const { return std::get_if<Kind>(&read()); }

void Value::fail(std::string_view expected) const {
    const std::string path = where();
    throw Error(Errc::field_missing,
                (path.empty() ? "the file" : "the field " + excerpt(path)) + " is not " + std::string(expected));
}

bool Value::is_none() const { return read_as<StateTree::None>() != nullptr; }
bool Value::is_dict() const { return read_as<Dict>() != nullptr; }

std::optional<Value> Value::entry(std::string_view key) const {
    if (const auto* const object = read_as<Opaque>()) {
        arena_->look_at(object->children.size());
        for (std::size_t i = 0; i < object->children.size(); ++i)
            if (object->children[i].first == key) return child(object->children[i].second, i);
        return std::nullopt;
    }
    const auto* const dict = read_as<Dict>();
    if (dict == nullptr) return std::nullopt;
    arena_->look_at(dict->items.size());
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
        const auto* const text = std::get_if<std::string>(&arena_->tree()[dict->items[i].first]);
        if (text != nullptr && *text == key) return child(dict->items[i].second, i);
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
    const auto* const dict = read_as<Dict>();
    if (dict == nullptr) return std::nullopt;
    for (std::size_t i = 0; i < dict->attributes.size(); ++i)
        if (dict->attributes[i].first == name) return child(dict->attributes[i].second, dict->items.size() + i);
    return std::nullopt;
}

Value Value::at(std::string_view key) const {
    if (auto found = find(key)) return *std::move(found);
    const std::string path = where();
    throw Error(Errc::field_missing,
                "the field " + excerpt((path.empty() ? path : path + '/') + std::string(key)) + " is missing");
}

std::optional<Value> Value::argument(std::size_t number) const {
    const auto* const object = read_as<Opaque>();
    if (object == nullptr || number >= std::min<std::size_t>(object->arguments, object->children.size()))
        return std::nullopt;
    return child(object->children[number].second, number);
}

bool Value::is_list() const {
    const auto* const sequence = read_as<Sequence>();
    return sequence != nullptr && !distributed::is_set(*sequence);
}

bool Value::is_set() const {
    const auto* const sequence = read_as<Sequence>();
    return sequence != nullptr && distributed::is_set(*sequence);
}

std::size_t Value::size() const {
    if (const auto* const sequence = read_as<Sequence>()) return sequence->items.size();
    const auto* const dict = read_as<Dict>();
    return dict == nullptr ? 0 : dict->items.size();
}

std::vector<Value> Value::items() const {
    if (!is_list()) fail("a list");
    const auto& items = read_as<Sequence>()->items;
    arena_->spend(items.size());
    std::vector<Value> found;
    found.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) found.push_back(child(items[i], i));
    return found;
}

std::vector<Value> Value::parts() const {
    std::vector<Value> found;
    if (const auto* const sequence = read_as<Sequence>()) {
        arena_->spend(sequence->items.size());
        for (std::size_t i = 0; i < sequence->items.size(); ++i) found.push_back(child(sequence->items[i], i));
    } else if (const auto* const object = read_as<Opaque>()) {
        arena_->spend(object->children.size());
        for (std::size_t i = 0; i < object->children.size(); ++i) found.push_back(child(object->children[i].second, i));
    }
    return found;
}

std::vector<std::pair<std::string, Value>> Value::entries() const {
    const auto* const dict = read_as<Dict>();
    if (dict == nullptr) fail("a dictionary");
    arena_->spend(dict->items.size());
    std::vector<std::pair<std::string, Value>> found;
    found.reserve(dict->items.size());
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
        const StateTree::Node& key = arena_->tree()[dict->items[i].first];
        if (const auto* const text = std::get_if<std::string>(&key)) {
            arena_->spend(text->size() / 256);
            found.emplace_back(*text, child(dict->items[i].second, i));
        } else if (const auto* const number = std::get_if<std::int64_t>(&key)) {
            found.emplace_back(std::to_string(*number), child(dict->items[i].second, i));
        }
    }
    return found;
}

std::vector<std::pair<std::string, LazyTensor>> Value::tensors() const {
    std::vector<std::pair<std::string, LazyTensor>> named;
    for (const auto& [name, value] : entries())
        if (const LazyTensor* const tensor = value.tensor()) named.emplace_back(name, *tensor);
    return named;
}

std::vector<std::pair<std::string, Value>> Value::text_entries() const {
    const auto* const dict = read_as<Dict>();
    const auto is_text = [&](const auto& item) {
        return std::holds_alternative<std::string>(arena_->tree()[item.first]);
    };
    if (dict == nullptr || !std::all_of(dict->items.begin(), dict->items.end(), is_text))
        fail("a dictionary with texts as keys");
    return entries();
}

std::optional<std::int64_t> Value::integer() const {
    if (const auto* const number = read_as<std::int64_t>()) return *number;
    const auto* const object = read_as<Opaque>();
    if (object == nullptr || object->arguments != 1 || object->children.size() != 1) return std::nullopt;
    const auto* const number = std::get_if<std::int64_t>(&arena_->tree()[object->children.front().second]);
    return number == nullptr ? std::nullopt : std::optional(*number);
}

std::uint64_t Value::count() const {
    const auto number = integer();
    const bool is_large = read_as<StateTree::BigInt>() != nullptr;
    if (is_large || (number && *number < 0)) fail("in the range from 0 to 2^63 - 1");
    if (!number) fail("a number");
    return static_cast<std::uint64_t>(*number);
}

std::vector<std::uint64_t> Value::counts() const {
    std::vector<std::uint64_t> numbers;
    for (const Value& each : items()) numbers.push_back(each.count());
    return numbers;
}

std::optional<double> Value::real() const {
    if (const auto* const value = read_as<double>()) return *value;
    const auto number = integer();
    return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

std::optional<bool> Value::boolean() const {
    const auto* const value = read_as<bool>();
    return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string_view> Value::text() const {
    const auto* const value = read_as<std::string>();
    return value == nullptr ? std::nullopt : std::optional<std::string_view>(*value);
}

std::optional<std::string_view> Value::global() const {
    const auto* const value = read_as<StateTree::Constant>();
    if (value == nullptr || value->kind != StateTree::Constant::Kind::other) return std::nullopt;
    return value->text;
}

std::optional<Dtype> Value::dtype() const {
    const auto* const value = read_as<StateTree::Constant>();
    if (value == nullptr || value->kind != StateTree::Constant::Kind::dtype) return std::nullopt;
    return dtype_from_torch(value->text);
}

std::string_view Value::type() const {
    const auto* const object = read_as<Opaque>();
    return object == nullptr ? std::string_view() : object->type;
}

Shape Value::shape() const {
    const auto* const sequence = read_as<Sequence>();
    if (sequence == nullptr || distributed::is_set(*sequence)) fail("a shape");
    if (sequence->items.size() > most_dimensions) fail("a shape of at most 64 dimensions");
    Shape shape;
    for (std::size_t i = 0; i < sequence->items.size(); ++i) {
        const auto* const size = std::get_if<std::int64_t>(&arena_->tree()[sequence->items[i]]);
        shape.push_back(size != nullptr && *size >= 0 ? static_cast<std::uint64_t>(*size)
                                                      : child(sequence->items[i], i).count());
    }
    return shape;
}

const LazyTensor* Value::tensor() const {
    const auto* const leaf = read_as<StateTree::Tensor>();
    return leaf == nullptr ? nullptr : &leaf->tensor;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
