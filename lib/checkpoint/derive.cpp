// Makes checkpoints from a checkpoint: some of its tensors, other names, a part of its tree. Writes its structure
// document anew.
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/structure.hpp>

#include "base/text.hpp"
#include "checkpoint/all_names.hpp"
#include "checkpoint/origin.hpp"
#include "checkpoint/state.hpp"
#include "state/modules.hpp"
#include "state/parts.hpp"
#include "state/structure.hpp"
#include "state/walk.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI {

using checkpoint::Origin;
using state::Contents;

namespace {

using Names = std::vector<NamedTensor>;

constexpr std::size_t most_parts = 16;  // a hint with the thousands of parts of a list does not help

/// Searches the parts of a tree for tensors. Looks at each node once: a container in several places belongs to the
/// first.
class PartSearch {
public:
    explicit PartSearch(const StateTree& tree) : tree_(tree), searched_(tree.size()) {}

    /// Returns true if a node below, or the node itself, fits.
    template <class Fits> bool any(StateTree::NodeId from, Fits&& fits) {
        std::vector<StateTree::NodeId> open{from};
        bool found = false;
        while (!open.empty()) {
            const StateTree::NodeId id = open.back();
            open.pop_back();
            if (searched_[id]) continue;
            searched_[id] = true;
            found = found || fits(id);
            state::for_each_child(tree_[id], [&](StateTree::NodeId child) { open.push_back(child); });
        }
        return found;
    }

private:
    const StateTree& tree_;
    std::vector<bool> searched_;
};

void require_distinct(const Names& before, const std::vector<std::string>& after) {
    NameIndex().add_all(NamesOf(after), [&](std::uint32_t a, std::uint32_t b) {
        throw Error(Errc::name_collision, safemap::quoted(before[a].name) + " and " + safemap::quoted(before[b].name) +
                                              " would both become " + safemap::quoted(after[b]));
    });
}

/// The metadata of a checkpoint whose names change. A pair that records a tie follows the two names. If the checkpoint
/// has another value under the other name of a tensor, that value stays.
class RenamedMetadata {
public:
    /// Keeps references to `before`.
    explicit RenamedMetadata(const Contents& before) {
        std::unordered_map<std::string_view, std::string_view> stored;
        for (const AliasGroup& group : before.aliases)
            for (std::size_t i = 1; i < group.size(); ++i) stored.emplace(group[i], group.front());
        for (const auto& pair : before.metadata) {
            const auto tie = stored.find(pair.first);
            if (tie != stored.end() && tie->second == pair.second)
                ties_.insert({tie->first, tie->second});  // either may become the other name
            else pairs_.insert(pair);
        }
    }

    /// Renames the other name `before` of a tensor to `after`. The tensor itself is now called `stored`.
    void tie(std::string_view before, const std::string& after, const std::string& stored) {
        const bool taken = pairs_.contains(after);
        if (taken && before != after)
            throw Error(Errc::name_collision, safemap::quoted(before) + " would become " + safemap::quoted(after) +
                                                  ", which is already a metadata key");
        if (!taken && ties_.contains(before)) pairs_.emplace(after, stored);
    }

    std::vector<std::pair<std::string, std::string>> take() const { return {pairs_.begin(), pairs_.end()}; }

private:
    std::map<std::string, std::string> pairs_;
    std::unordered_set<std::string_view> ties_;  // other names that are in the metadata
};

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

/// Returns the tree, with an object in the place of each tensor that is not selected.
StateTree selected_tree(const Checkpoint& checkpoint) {
    StateTree tree = *checkpoint.tree();
    for (const auto& [id, name] : state::names_of_tensors(tree))
        if (Origin::find(checkpoint, name) == nullptr) tree[id] = state::unstored_tensor();
    return tree;
}

}  // namespace

std::shared_ptr<const Checkpoint::State> Checkpoint::State::derive(const Checkpoint& from, const Names& names,
                                                                   std::vector<std::string> after) {
    const State& before = *from.state_;
    RenamedMetadata metadata(before.contents);
    std::vector<LazyTensor> tensors;
    std::vector<AliasGroup> aliases;
    std::vector<std::uint32_t> numbers(before.contents.tensors.size(), not_selected);
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (checkpoint::is_first_name(names, i)) {
            numbers[names[i].tensor] = static_cast<std::uint32_t>(tensors.size());
            tensors.push_back(from.tensor(names[i].tensor).renamed(std::move(after[i])));
            continue;
        }
        const std::string& stored = tensors.back().name();
        metadata.tie(names[i].name, after[i], stored);
        if (checkpoint::is_first_name(names, i - 1)) aliases.push_back({stored});
        aliases.back().push_back(std::move(after[i]));
    }
    Contents contents = before.contents;
    contents.tensors = std::move(tensors);
    contents.aliases = std::move(aliases);
    contents.metadata = metadata.take();
    if (!before.origin) return std::make_shared<const State>(std::move(contents), from.state_, std::move(numbers));
    std::vector<std::uint32_t> from_origin = before.numbers;
    for (std::uint32_t& number : from_origin)
        if (number != not_selected) number = numbers[number];
    return std::make_shared<const State>(std::move(contents), before.origin, std::move(from_origin));
}

Checkpoint Checkpoint::select(const Selection& selection) const {
    const Names names = all_names(*this, selection);
    // A copy of a million tensors takes as much memory as the tensors.
    if (aliases().empty() && names.size() == size()) return *this;
    std::vector<std::string> same;
    same.reserve(names.size());
    for (const NamedTensor& named : names) same.emplace_back(named.name);
    return Checkpoint(State::derive(*this, names, std::move(same)));
}

Checkpoint Checkpoint::renamed(const std::function<std::string(std::string_view)>& function) const {
    if (!function) throw Error(Errc::invalid_argument, "there is no function that renames tensors");
    const Names names = all_names(*this);
    std::vector<std::string> after;
    after.reserve(names.size());
    for (const NamedTensor& named : names) after.push_back(function(named.name));
    require_distinct(names, after);
    return Checkpoint(State::derive(*this, names, std::move(after)));
}

std::vector<std::string> Checkpoint::parts() const {
    std::vector<std::string> parts;
    if (!Origin::has_tree(*this) || Origin::is_flat(*this)) return parts;
    const StateTree::Node& root = (*tree())[tree()->root()];
    if (state::is_module(*tree(), root)) return parts;  // its names are dotted
    const state::NodeNames names = state::names_of_tensors(*tree());
    const auto is_selected = [&](StateTree::NodeId id) {
        const auto name = names.find(id);
        return name != names.end() && Origin::find(*this, name->second) != nullptr;
    };
    PartSearch search(*tree());
    state::for_each_named_child(*tree(), root, [&](StateTree::NodeId node, auto&& segment) {
        if (parts.size() == most_parts || !state::is_part((*tree())[node]) || !search.any(node, is_selected)) return;
        std::string part = segment();
        if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(std::move(part));
    });
    return parts;
}

Checkpoint Checkpoint::below(std::string_view path) const {
    const auto node = tree() == nullptr ? std::nullopt : tree()->find(path);
    if (!node) state::throw_no_part(path, parts());
    Contents contents = state_->contents;
    state::take_below(contents, state_->origin ? selected_tree(*this).subtree(*node) : tree()->subtree(*node), path);
    const Checkpoint part(std::make_shared<const State>(std::move(contents)));
    return format() == Format::safetensors ? part : part.stored_as();
}

const std::vector<StoragePlace>& Origin::storages(const Checkpoint& checkpoint) noexcept {
    return checkpoint.state_->contents.stored.storages;
}

const std::vector<std::string>& Origin::lost_without_structure(const Checkpoint& checkpoint) noexcept {
    return checkpoint.state_->contents.lost_without_structure;
}

bool Origin::has_final_names(const Checkpoint& checkpoint) {
    const Checkpoint::State& now = *checkpoint.state_;
    if (now.contents.final_names || !now.contents.root.empty()) return true;
    return now.origin && std::any_of(checkpoint.begin(), checkpoint.end(), [&](const LazyTensor& tensor) {
               return now.origin->find(tensor.name()) == nullptr;
           });
}

const checkpoint::SortedNames& Origin::sorted_names(const Checkpoint& checkpoint) noexcept {
    return checkpoint.state_->sorted_names;
}

Checkpoint Origin::of(const Checkpoint& checkpoint) {
    return checkpoint.state_->origin ? Checkpoint(checkpoint.state_->origin) : checkpoint;
}

bool Origin::has_tree(const Checkpoint& checkpoint) noexcept {
    const Contents& contents = checkpoint.state_->contents;
    return contents.tree || contents.tree.late;
}

bool Origin::is_flat(const Checkpoint& checkpoint) {
    const Contents& contents = checkpoint.state_->contents;
    return contents.tree.late || (contents.tree && state::has_keys_as_names(*contents.tree));
}

const LazyTensor* Origin::find(const Checkpoint& checkpoint, std::string_view name) {
    const Checkpoint::State& now = *checkpoint.state_;
    if (!now.origin) return now.find(name);
    const auto number = now.origin->number(name);
    if (!number || *number >= now.numbers.size() || now.numbers[*number] == Checkpoint::State::not_selected)
        return nullptr;
    return &now.contents.tensors[now.numbers[*number]];
}

// ---- the structure document

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
