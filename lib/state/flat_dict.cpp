// Finds tied tensors and notes of a flat state dict, and builds its tree on demand. Tested by
// tests/torch/flat_test.cpp, which compares with set_tree().
#include "state/flat_dict.hpp"

#include <safemap/advanced/flatten.hpp>

#include "lazy/same_tensor.hpp"

#include <map>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::state {

namespace {

/// Removes the items that are tied to an earlier item, and groups their names.
std::vector<LateTree::Tied> take_tied(std::vector<LazyTensor>& items, std::vector<AliasGroup>& aliases) {
    std::vector<LateTree::Tied> tied;
    TensorTable<std::uint32_t> known;
    std::map<std::uint32_t, AliasGroup> groups;  // by number of the tensor
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (!may_be_tied(items[i])) continue;
        const auto number = static_cast<std::uint32_t>(i - tied.size());
        const auto [first, fresh] = known.try_emplace(&items[i], number);
        if (fresh) continue;
        AliasGroup& group = groups[first->second];
        if (group.empty()) group.push_back(first->first->name());
        group.push_back(items[i].name());
        tied.push_back({.place = i, .tensor = first->second, .key = items[i].name()});
    }
    for (auto& [number, group] : groups) aliases.push_back(std::move(group));
    if (tied.empty()) return tied;
    std::size_t kept = 0;
    auto next = tied.begin();
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (next != tied.end() && next->place == i) ++next;
        else if (kept++ != i) items[kept - 1] = std::move(items[i]);
    }
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(kept), items.end());
    return tied;
}

}  // namespace

StateTree LateTree::tree(std::span<const LazyTensor> tensors) const {
    StateTree tree = rest;
    auto& items = std::get<StateTree::Dict>(tree[tree.root()]).items;
    std::vector<std::pair<StateTree::NodeId, StateTree::NodeId>> all = std::move(items);
    const std::size_t count = tensors.size() + tied.size();
    tree.reserve(tree.size() + 2 * count);
    all.reserve(count);
    auto next = tied.begin();
    for (std::size_t place = 0, stored = 0; place < count; ++place) {
        const bool is_tied = next != tied.end() && next->place == place;
        const LazyTensor& tensor = tensors[is_tied ? next->tensor : stored];
        const auto key = tree.add(is_tied ? next->key : tensor.name());
        all.emplace_back(key, tree.add(StateTree::Tensor{.tensor = tensor.renamed({})}));
        if (is_tied) ++next;
        else ++stored;
    }
    std::get<StateTree::Dict>(tree[tree.root()]).items = std::move(all);
    return tree;
}

void set_flat(Contents& contents, FlatDict dict) {
    // The dictionary has no items here, so all notes are about its attributes.
    FlatState flat = flatten(dict.rest);
    contents.aliases.clear();
    auto tied = take_tied(dict.items, contents.aliases);
    contents.tensors = std::move(dict.items);
    contents.skipped = std::move(flat.skipped);
    contents.lost_without_structure = std::move(flat.lost_without_structure);
    contents.tree = std::make_shared<const LateTree>(LateTree{std::move(dict.rest), std::move(tied)});
    move_to_end(flat.notes, contents.notes);
}

}  // namespace safemap::SAFEMAP_ABI::state
