// Puts tensors and objects at their paths. The reference is set_element() in
// torch/distributed/checkpoint/_traverse.py, 2.13. Tested by tests/distributed/dcp_tree_test.cpp.
#include "distributed/dcp/dcp_tree.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"

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

[[noreturn]] void refuse_repeated() {
    throw Error(Errc::duplicate_name, "planner_data has two values at the path of this one");
}

}  // namespace

DcpTree::DcpTree(const DcpMetadata& metadata)
    : metadata_(metadata),
      none_(tree_.add(StateTree::None{})),
      keys_(metadata.texts.size(), StateTree::no_node),
      places_left_(least_places + places_per_step * metadata.steps.size()) {}

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
    const NodeId root = tree.root();
    return root + tree_.graft(std::move(tree));
}

void DcpTree::place(const DcpEntry& entry, NodeId leaf) {
    // An object that is in two places is named after the first.
    names_.try_emplace(leaf, entry.name);
    const auto path = metadata_.path(entry);
    if (path.empty()) return tree_.put(tree_.root(), entry.name, leaf) ? void() : refuse_repeated();
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
    const NodeId name = key(step);
    NodeId below = tree_.find(container, name);
    if (below == StateTree::no_node) tree_.put(container, name, below = made());
    return below;
}

/// Returns the kind of a container. Throws if it is a value, or if the step is not one into its kind.
DcpTree::Kind DcpTree::require_kind(NodeId container, const DcpStep& step) const {
    const bool is_place = step.text == DcpStep::no_text;
    const std::string text = is_place ? std::to_string(step.place) : safemap::quoted(metadata_.texts[step.text]);
    const StateTree::Node& node = tree_.tree()[container];
    const bool in_list = std::holds_alternative<StateTree::Sequence>(node);
    if (names_.contains(container) || !(in_list || std::holds_alternative<StateTree::Dict>(node)))
        refuse_step(text, "a value");
    if (in_list != is_place) refuse_step(text, in_list ? "a list" : "a dictionary");
    return in_list ? Kind::list : Kind::dictionary;
}

void DcpTree::put(NodeId container, const DcpStep& step, NodeId leaf) {
    if (require_kind(container, step) == Kind::list) {
        NodeId& place = item(container, step.place);
        if (place != none_) refuse_repeated();
        place = leaf;
        return;
    }
    if (!tree_.put(container, key(step), leaf)) refuse_repeated();
}

/// Returns the item at a place of a list, which grows with None.
NodeId& DcpTree::item(NodeId list, std::int64_t place) {
    auto& items = std::get<StateTree::Sequence>(tree_.tree()[list]).items;
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

NodeId DcpTree::key(const DcpStep& step) {
    NodeId& known = keys_[step.text];
    if (known == StateTree::no_node) known = tree_.key(metadata_.texts[step.text]);
    return known;
}

std::string DcpTree::add(std::string_view key, StateTree tree) {
    std::string free(key);
    const auto is_taken = [&] { return tree_.find(tree_.root(), tree_.key(free)) != StateTree::no_node; };
    for (int number = 2; is_taken(); ++number) free = std::string(key) + '.' + std::to_string(number);
    const NodeId root = moved(std::move(tree));
    tree_.put(tree_.root(), free, root);
    names_.try_emplace(root, free);
    return free;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
