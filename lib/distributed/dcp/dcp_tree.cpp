// Puts tensors and objects at their paths. The reference is set_element() in
// torch/distributed/checkpoint/_traverse.py, 2.13. Tested by tests/distributed/dcp_tree_test.cpp.
#include "distributed/dcp/dcp_tree.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "state/walk.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

/// Places of lists that are nobody's. Python has a list grow to the place that is set; of real ones, only items that
/// are empty dictionaries are lost.
constexpr std::uint64_t least_places = std::uint64_t{1} << 20;
constexpr std::uint64_t places_per_step = 64;

[[noreturn]] void refuse_step(const std::string& step, std::string_view found) {
    throw Error(Errc::field_missing, "the path of planner_data has the step " + step + " into " + std::string(found));
}

}  // namespace

std::size_t DcpTree::KeyHash::operator()(const Key& key) const noexcept {
    const std::uint32_t numbers[] = {key.dict, key.text};
    return name_hash({reinterpret_cast<const char*>(numbers), sizeof(numbers)});
}

DcpTree::DcpTree(const DcpMetadata& metadata)
    : metadata_(metadata), places_left_(least_places + places_per_step * metadata.steps.size()) {
    tree_.set_root(tree_.add(StateTree::Dict{}));
    none_ = tree_.add(StateTree::None{});
}

bool DcpTree::is_container(NodeId id) const {
    return !names_.contains(id) && (std::holds_alternative<StateTree::Dict>(tree_[id]) ||
                                    std::holds_alternative<StateTree::Sequence>(tree_[id]));
}

void DcpTree::add(const DcpEntry& entry, LazyTensor tensor) {
    about_tensor(entry.name, [&] { place(entry, tree_.add(StateTree::Tensor{.tensor = std::move(tensor)})); });
}

void DcpTree::add(const DcpEntry& entry, std::uint32_t object, std::vector<StateTree>& objects) {
    const auto [known, unmet] = objects_.try_emplace(object, NodeId{});
    if (unmet) known->second = moved(std::exchange(objects[object], StateTree()));
    const NodeId node = known->second;
    about_tensor(entry.name, [&] { place(entry, node); });
}

/// Moves all nodes of a tree to this one, and returns the number of its root.
NodeId DcpTree::moved(StateTree tree) {
    const auto base = static_cast<NodeId>(tree_.size());
    for (NodeId id = 0; id < tree.size(); ++id) {
        state::for_each_child(tree[id], [base](NodeId& child) { child += base; });
        tree_.add(std::move(tree[id]));
    }
    return base + tree.root();
}

void DcpTree::place(const DcpEntry& entry, NodeId leaf) {
    // An object that is in two places is named after the first.
    names_.try_emplace(leaf, entry.name);
    const auto path = metadata_.path(entry);
    if (path.empty()) return put(tree_.root(), {.text = number_of(entry.name)}, leaf);
    NodeId container = tree_.root();
    for (std::size_t i = 0; i + 1 < path.size(); ++i) container = container_below(container, path[i], path[i + 1]);
    put(container, path.back(), leaf);
}

/// Returns the container at a step, and makes it if it is not there: a dictionary if the next step is a key, else a
/// list.
NodeId DcpTree::container_below(NodeId container, const DcpStep& step, const DcpStep& next) {
    const auto made = [&] {
        if (next.text != DcpStep::no_text) return tree_.add(StateTree::Dict{});
        return tree_.add(StateTree::Sequence{.kind = StateTree::Sequence::Kind::list});
    };
    if (require_kind(container, step) == Kind::list) {
        if (const NodeId found = item(container, step.place); found != none_) return found;
        const NodeId below = made();
        return item(container, step.place) = below;
    }
    const auto [known, unmet] = values_.try_emplace(Key{container, step.text}, none_);
    if (unmet) {
        const NodeId below = made();
        known->second = below;
        add_entry(container, text_of(step.text), below);
    }
    return known->second;
}

/// Returns the kind of a container. Throws if it is a value, or if the step is not one into its kind.
DcpTree::Kind DcpTree::require_kind(NodeId container, const DcpStep& step) const {
    const std::string text =
        step.text == DcpStep::no_text ? std::to_string(step.place) : safemap::quoted(text_of(step.text));
    if (!is_container(container)) refuse_step(text, "a value");
    const bool in_list = std::holds_alternative<StateTree::Sequence>(tree_[container]);
    if (in_list != (step.text == DcpStep::no_text)) refuse_step(text, in_list ? "a list" : "a dictionary");
    return in_list ? Kind::list : Kind::dictionary;
}

void DcpTree::put(NodeId container, const DcpStep& step, NodeId leaf) {
    const auto refuse = [] {
        throw Error(Errc::duplicate_name, "planner_data has two values at the path of this one");
    };
    if (require_kind(container, step) == Kind::list) {
        NodeId& place = item(container, step.place);
        if (place != none_) refuse();
        place = leaf;
        return;
    }
    if (!values_.try_emplace(Key{container, step.text}, leaf).second) refuse();
    add_entry(container, text_of(step.text), leaf);
}

/// Returns the item at a place of a list, which grows with None.
NodeId& DcpTree::item(NodeId list, std::int64_t place) {
    auto& items = std::get<StateTree::Sequence>(tree_[list]).items;
    if (place < 0) refuse_step(std::to_string(place), "a list");
    const auto index = static_cast<std::uint64_t>(place);
    if (index >= items.size()) {
        if (index - items.size() >= places_left_)
            throw Error(Errc::pickle_too_large, "the path of planner_data has the place " + std::to_string(place) +
                                                    " in a list, which is too large for the number of paths");
        places_left_ -= index - items.size() + 1;
        items.resize(index + 1, none_);
    }
    return items[index];
}

void DcpTree::add_entry(NodeId dict, std::string_view key, NodeId value) {
    const NodeId name = tree_.add(std::string(key));
    std::get<StateTree::Dict>(tree_[dict]).items.emplace_back(name, value);
}

/// Returns the number of a text that is a key of the root without being a step.
std::uint32_t DcpTree::number_of(std::string_view text) {
    if (texts_.empty())
        for (std::uint32_t i = 0; i < metadata_.texts.size(); ++i) texts_.emplace(metadata_.texts[i], i);
    const auto next = static_cast<std::uint32_t>(metadata_.texts.size() + more_texts_.size());
    const auto [known, unmet] = texts_.try_emplace(text, next);
    if (unmet) more_texts_.push_back(text);
    return known->second;
}

std::string_view DcpTree::text_of(std::uint32_t number) const {
    const std::size_t own = metadata_.texts.size();
    return number < own ? std::string_view(metadata_.texts[number]) : more_texts_[number - own];
}

std::string DcpTree::add(std::string_view key, StateTree tree) {
    const auto& items = std::get<StateTree::Dict>(tree_[tree_.root()]).items;
    const auto is_taken = [&](const std::string& name) {
        return std::any_of(items.begin(), items.end(),
                           [&](const auto& item) { return std::get<std::string>(tree_[item.first]) == name; });
    };
    std::string free(key);
    for (int number = 2; is_taken(free); ++number) free = std::string(key) + '.' + std::to_string(number);
    const NodeId root = moved(std::move(tree));
    add_entry(tree_.root(), free, root);
    names_.try_emplace(root, free);
    return free;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
