// Writes the structure document of a checkpoint anew.
#include "checkpoint/structure.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/structure.hpp>

#include "checkpoint/origin.hpp"
#include "state/structure.hpp"

#include <optional>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using checkpoint::Origin;

/// Returns the tree that unflatten() would give for a file of tensors without a document.
StateTree flat_tree(const Checkpoint& checkpoint) {
    StateTree tree;
    StateTree::Dict dict;
    for (const NamedTensor& named : all_names(checkpoint)) {
        const StateTree::NodeId key = tree.add(std::string(named.name));
        dict.items.emplace_back(key, tree.add(StateTree::Tensor{.tensor = checkpoint.tensor(named.tensor)}));
    }
    tree.set_root(tree.add(std::move(dict)));
    return tree;
}

}  // namespace

std::string checkpoint::document_of(const Checkpoint& checkpoint, const std::function<void(const LazyTensor&)>& named) {
    const state::StoredName stored_name = [&](const std::string& name) -> std::optional<std::string> {
        const LazyTensor* const tensor = Origin::find(checkpoint, name);
        if (tensor == nullptr) return std::nullopt;
        named(*tensor);
        return tensor->name();
    };
    if (checkpoint.tree() != nullptr) return state::structure_of(*checkpoint.tree(), stored_name);
    return state::structure_of(flat_tree(Origin::of(checkpoint)), stored_name);
}

const std::vector<std::string>& lost_without_structure(const Checkpoint& checkpoint) noexcept {
    return Origin::lost_without_structure(checkpoint);
}

std::string structure_of(const Checkpoint& checkpoint) {
    return checkpoint::document_of(checkpoint, [](const LazyTensor&) {});
}

}  // namespace safemap::SAFEMAP_ABI
