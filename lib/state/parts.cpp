// Finds the part of a nested state dict that holds its tensors, and renames them. Tested by
// tests/checkpoint/parts_test.cpp.
#include "state/parts.hpp"

#include "base/text.hpp"
#include "state/flat_dict.hpp"
#include "state/modules.hpp"
#include "state/names.hpp"
#include "state/structure.hpp"
#include "state/training.hpp"
#include "state/walk.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::state {

using NodeId = StateTree::NodeId;

namespace {

using Rename = std::function<std::string(std::string_view name)>;

/// A name that trainers give to the part with the model. docs/format.md has the same table, and says who writes it.
struct ModelName {
    std::string_view name;
    bool only_module = false;  ///< the name is also that of other things, unless it is a pickled module
};

/// In order of preference. The first names are averages that the library itself loads before the weights beside them.
constexpr std::array model_names{
    ModelName{"params_ema"},  ModelName{"ema", true},        ModelName{"g_ema"},   ModelName{"G_ema"},
    ModelName{"state_dict"},  ModelName{"model_state_dict"}, ModelName{"model"},   ModelName{"module"},
    ModelName{"model_state"}, ModelName{"teacher"},          ModelName{"net"},     ModelName{"network"},
    ModelName{"params"},      ModelName{"generator"},        ModelName{"weights"},
};

/// The tensors of a tree, named by their paths.
struct PathNames {
    std::span<const LazyTensor> tensors;
    std::span<const AliasGroup> aliases;

    /// Calls visit(name) for all names that begin with `prefix`.
    template <class Visit> void each(std::string_view prefix, Visit&& visit) const {
        for (const LazyTensor& tensor : tensors)
            if (tensor.name().starts_with(prefix)) visit(std::string_view(tensor.name()));
        for (const AliasGroup& group : aliases)
            for (std::size_t i = 1; i < group.size(); ++i)
                if (group[i].starts_with(prefix)) visit(std::string_view(group[i]));
    }
};

/// A place in a tree.
struct PartPlace {
    std::string path = {};
    NodeId node = StateTree::no_node;
};

bool has_own_names(const StateTree& tree) {
    for (NodeId id = 0; id < tree.size(); ++id)
        if (const auto* tensor = std::get_if<StateTree::Tensor>(&tree[id]); tensor && !tensor->tensor.name().empty())
            return true;
    return false;
}

bool is_dict_or_module(const StateTree& tree, NodeId node) {
    return std::holds_alternative<StateTree::Dict>(tree[node]) || is_module(tree, tree[node]);
}

std::string below_path(const std::string& path, std::string_view segment) {
    std::string below = path;
    append_segment(below, segment);
    return below;
}

/// Returns "" for the root, and else the path with a slash.
std::string prefix_below(const std::string& path) { return path.empty() ? path : path + '/'; }

/// Returns the longest path, with a slash at its end, that all names below `prefix` begin with.
std::string_view common_path(const PathNames& names, std::string_view prefix) {
    std::optional<std::string_view> common;
    names.each(prefix, [&](std::string_view name) {
        if (!common) common = name;
        const auto differ = std::mismatch(common->begin(), common->end(), name.begin(), name.end()).first;
        const std::size_t same = static_cast<std::size_t>(differ - common->begin());
        common = common->substr(0, common->substr(0, same).rfind('/') + 1);
    });
    return common.value_or(std::string_view());
}

/// Goes from a place down along `path` while the entries are dicts or modules whose keys are texts. Does not go if that
/// leads to the state of an optimizer.
PartPlace walk_down(const StateTree& tree, const PartPlace& from, std::string_view path) {
    PartPlace place = from;
    if (is_optimizer(tree, place.node)) return from;
    while (!path.empty() && std::holds_alternative<StateTree::Dict>(tree[place.node])) {
        const std::string_view wanted = path.substr(0, path.find('/'));
        path.remove_prefix(wanted.size() + 1);
        NodeId found = StateTree::no_node;
        for_each_named_child(tree, tree[place.node], [&](NodeId child, auto&& segment) {
            if (found == StateTree::no_node && segment() == wanted) found = child;
        });
        const auto key = key_of(wanted);
        if (found == StateTree::no_node || !key || !std::holds_alternative<std::string>(*key)) break;
        if (!is_dict_or_module(tree, found)) break;
        if (wanted.starts_with("optim") || is_optimizer(tree, found)) return from;
        place = {below_path(place.path, wanted), found};
    }
    return place;
}

/// Returns the part below `from` that holds all tensors which are there, as far down as there is one, or else `from`.
PartPlace only_part(const StateTree& tree, const PathNames& names, const PartPlace& from) {
    const std::string prefix = prefix_below(from.path);
    const std::string_view common = common_path(names, prefix);
    return walk_down(tree, from, common.substr(std::min(prefix.size(), common.size())));
}

struct SizedPart {
    StatePart size;
    NodeId node;
};

/// Returns the entries at a place that hold tensors.
std::vector<SizedPart> parts_at(const StateTree& tree, const PathNames& names, const PartPlace& place) {
    std::vector<SizedPart> parts;
    if (is_module(tree, tree[place.node])) return parts;  // its names are dotted
    std::unordered_map<std::string, std::size_t> by_segment;
    for_each_named_child(tree, tree[place.node], [&](NodeId child, auto&& segment) {
        if (!is_part(tree[child])) return;
        std::string name = segment();
        if (by_segment.try_emplace(name, parts.size()).second)
            parts.push_back({.size = {.name = std::move(name)}, .node = child});
    });
    const std::string prefix = prefix_below(place.path);
    const auto part_of = [&](std::string_view name) -> SizedPart* {
        if (!name.starts_with(prefix)) return nullptr;
        name.remove_prefix(prefix.size());
        const auto found = by_segment.find(std::string(name.substr(0, name.find('/'))));
        return found == by_segment.end() ? nullptr : &parts[found->second];
    };
    std::set<const SizedPart*> held;  // also by other names of tied tensors alone
    for (const LazyTensor& tensor : names.tensors) {
        SizedPart* const part = part_of(tensor.name());
        if (part == nullptr) continue;
        ++part->size.tensors;
        part->size.bytes += tensor.nbytes();
    }
    names.each(prefix, [&](std::string_view name) {
        if (const SizedPart* const part = part_of(name)) held.insert(part);
    });
    std::vector<SizedPart> holding;
    for (SizedPart& part : parts)
        if (held.contains(&part)) holding.push_back(std::move(part));
    return holding;
}

/// Returns "model." for the path "model": names that join the keys of a path with dots, as
/// torch.distributed.checkpoint does, begin with it. Returns nothing if a key is neither a text nor an integer.
std::optional<std::string> dotted_prefix(std::string_view path) {
    std::string prefix;
    while (!path.empty()) {
        const std::size_t end = std::min(path.find('/'), path.size());
        const auto key = key_of(path.substr(0, end));
        if (!key) return std::nullopt;
        if (const auto* const text = std::get_if<std::string>(&*key)) prefix += *text + '.';
        else if (const auto* const number = std::get_if<std::int64_t>(&*key)) prefix += std::to_string(*number) + '.';
        else return std::nullopt;
        path.remove_prefix(std::min(end + 1, path.size()));
    }
    return prefix;
}

/// Returns the names that tensors have without the part at `path`, by node, if their stored names are dotted; else
/// nothing. `removed` is a prefix that they have lost already.
NodeNames names_without(std::string_view path, const StateTree& subtree, const std::string& removed) {
    const auto prefix = dotted_prefix(path);
    if (!prefix || path.empty()) return {};
    NodeNames names;
    std::unordered_set<std::string_view> taken;  // tied tensors of a document have one name
    const NodeNames before = names_of_tensors(subtree);
    for (const auto& [id, name] : before) {
        const std::string whole = removed + name;
        if (std::get<StateTree::Tensor>(subtree[id]).tensor.name().empty() || !whole.starts_with(*prefix)) return {};
        if (taken.insert(name).second) names.emplace(id, whole.substr(prefix->size()));
    }
    return names;
}

/// Returns true for a pair of the metadata that declares the key to be another name of a tensor.
bool declares_tie(const std::pair<std::string, std::string>& pair, const std::unordered_set<std::string_view>& names) {
    return pair.first != "format" && !pair.first.starts_with("safemap.") && names.contains(pair.second) &&
           !names.contains(pair.first);
}

std::unordered_set<std::string_view> stored_names(const Contents& contents) {
    std::unordered_set<std::string_view> names;
    for (const LazyTensor& tensor : contents.tensors) names.insert(tensor.name());
    return names;
}

/// Gives the tensors other names, here and in the tree. Changes nothing if the other name of a tied tensor would become
/// a key that the metadata has.
bool rename_all(Contents& contents, const Rename& renamed) {
    std::map<std::string, std::string> metadata;
    if (!contents.metadata.empty()) {
        const auto names = stored_names(contents);
        for (const auto& pair : contents.metadata) {
            const bool tie = declares_tie(pair, names);
            if (!metadata.emplace(tie ? renamed(pair.first) : pair.first, tie ? renamed(pair.second) : pair.second)
                     .second)
                return false;
        }
    }
    contents.metadata.assign(metadata.begin(), metadata.end());
    StateTree tree = *contents.tree;
    for (const auto& [id, name] : names_of_tensors(tree)) {
        LazyTensor& tensor = std::get<StateTree::Tensor>(tree[id]).tensor;
        tensor = tensor.renamed(renamed(name));
    }
    contents.tree = std::make_shared<const StateTree>(std::move(tree));
    for (LazyTensor& tensor : contents.tensors) tensor = tensor.renamed(renamed(tensor.name()));
    for (AliasGroup& group : contents.aliases)
        for (std::string& name : group) name = renamed(name);
    return true;
}

/// The names that tensors have in a part.
class PartNames {
public:
    PartNames(const StateTree& tree, const PartPlace& place)
        : prefix_(prefix_below(place.path)), verbatim_(is_flat(tree, place.node)) {}

    const std::string& prefix() const noexcept { return prefix_; }
    /// Returns the name in the part for a path in the tree. A flat dict has its keys as names.
    std::string within(std::string_view path) const {
        const std::string_view name = path.substr(prefix_.size());
        const auto key = verbatim_ ? key_of(name) : std::nullopt;
        const auto* const text = key ? std::get_if<std::string>(&*key) : nullptr;
        return text != nullptr ? *text : std::string(name);
    }
    std::string path(std::string_view name) const {
        return prefix_ + (verbatim_ ? key_segment(std::string(name), 0) : std::string(name));
    }

private:
    std::string prefix_;
    bool verbatim_;
};

/// Returns true if the tensors of a file have the names of a part, as save() gives them to the tensors of one.
bool has_names_of(const PartNames& part, const StateTree& tree, const FlatState& paths) {
    std::unordered_map<std::string_view, const AliasGroup*> ties;
    for (const AliasGroup& group : paths.aliases) ties.emplace(group.front(), &group);
    for (const auto& [id, path] : paths_of_tensors(tree)) {
        const std::string& own = std::get<StateTree::Tensor>(tree[id]).tensor.name();
        const auto tie = ties.find(path);
        const auto is_own = [&](const std::string& each) { return part.within(each) == own; };
        if (tie == ties.end() ? !is_own(path) : std::none_of(tie->second->begin(), tie->second->end(), is_own))
            return false;
    }
    return true;
}

bool all_begin_with(const Contents& contents, std::string_view prefix) {
    const auto begins = [&](std::string_view name) { return name.size() > prefix.size() && name.starts_with(prefix); };
    return std::all_of(contents.tensors.begin(), contents.tensors.end(),
                       [&](const LazyTensor& tensor) { return begins(tensor.name()); }) &&
           std::all_of(contents.aliases.begin(), contents.aliases.end(),
                       [&](const AliasGroup& group) { return std::all_of(group.begin(), group.end(), begins); });
}

/// Gives the tensors their names in the only part. `paths` has the tensors of the tree, if they have names of their
/// own.
void take_names(Contents& contents, const PartPlace& part, const FlatState& paths) {
    const PartNames names(*contents.tree, part);
    const auto dotted = dotted_prefix(part.path);
    if (!paths.tensors.empty() && has_names_of(names, *contents.tree, paths)) {
        contents.root_prefix = names.prefix();
    } else if (contents.final_names) {
        return;
    } else if (all_begin_with(contents, names.prefix())) {
        const auto within = [&](std::string_view name) {
            return name.starts_with(names.prefix()) ? names.within(name) : std::string(name);
        };
        if (!rename_all(contents, within)) return;
        for (SkippedObject& object : contents.skipped) object.name = within(object.name);
        contents.root_prefix = names.prefix();
    } else if (dotted && all_begin_with(contents, *dotted)) {
        const auto within = [&](std::string_view name) {
            return std::string(name.substr(name.starts_with(*dotted) ? dotted->size() : 0));
        };
        if (!rename_all(contents, within)) return;
        for (SkippedObject& object : contents.skipped) object.name = within(object.name);
        contents.root_prefix = *dotted;
    } else {
        return;  // other names, which --rename gave
    }
    contents.root = part.path;
}

/// Gives the tensors of a file their paths as names, if they have those of the only part.
void take_paths(Contents& contents, const PartPlace& part, const FlatState& paths) {
    const PartNames names(*contents.tree, part);
    if (has_names_of(names, *contents.tree, paths))
        static_cast<void>(rename_all(contents, [&](std::string_view name) { return names.path(name); }));
}

std::string sized_text(const StatePart& part) {
    return safemap::quoted(part.name) + " (" + counted(part.tensors, "tensor") + ", " + bytes_text(part.bytes) + ")";
}

/// Returns the path of the model: of one of the parts at `from`, or of `from` if that is the model. Adds a note on what
/// is taken and what is left.
std::string model_among(const StateTree& tree, const PathNames& names, const PartPlace& from, Contents& contents) {
    const std::vector<SizedPart> parts = parts_at(tree, names, from);
    const SizedPart* taken = nullptr;
    for (const ModelName& model : model_names)
        for (const SizedPart& part : parts)
            if (taken == nullptr && part.size.name == model.name && part.size.tensors > 0 &&
                (model.only_module ? is_module(tree, tree[part.node]) : is_dict_or_module(tree, part.node)))
                taken = &part;
    const bool whole = parts.size() == 1 && parts.front().size.tensors == names.tensors.size();
    if (taken == nullptr && (!from.path.empty() || parts.empty() || whole)) return from.path;
    std::string left;
    for (const SizedPart& part : parts)
        if (&part != taken) left += (left.empty() ? "" : ", ") + sized_text(part.size);
    if (taken == nullptr)
        throw Error(Errc::invalid_argument, "no part has a name that trainers give to a model: " + left)
            .with_hint("--root PART (OpenOptions::root) gives one of the parts");
    contents.notes.insert(contents.notes.begin(), "took the model from the part " + sized_text(taken->size) +
                                                      (left.empty() ? "" : "; left " + left));
    return only_part(tree, names, {below_path(from.path, taken->size.name), taken->node}).path;
}

}  // namespace

bool is_part(const StateTree::Node& node) {
    const auto* opaque = std::get_if<StateTree::Opaque>(&node);
    const bool is_object = opaque != nullptr && opaque->form == StateTree::Opaque::Form::object;
    return is_object || std::holds_alternative<StateTree::Dict>(node) ||
           std::holds_alternative<StateTree::Sequence>(node);
}

void throw_no_part(std::string_view path, std::span<const std::string> parts) {
    std::string candidates;
    for (const std::string& part : parts)
        candidates += (candidates.empty() ? "its parts are " : ", ") + safemap::quoted(part);
    throw Error(Errc::invalid_argument, "there is no part named " + safemap::quoted(path))
        .with_hint(candidates.empty() ? "it is a flat state dict without parts" : candidates);
}

void take_below(Contents& contents, StateTree subtree, std::string_view path) {
    const NodeNames names = names_without(path, subtree, contents.root_prefix);
    const auto stored = stored_names(contents);
    std::erase_if(contents.metadata, [&](const auto& pair) { return declares_tie(pair, stored); });
    // In a file, tensors have the names of the whole tree. The subtree gives them new ones.
    for (NodeId id = 0; id < subtree.size(); ++id)
        if (auto* const tensor = std::get_if<StateTree::Tensor>(&subtree[id]))
            tensor->tensor = tensor->tensor.renamed({});
    std::vector<std::string> notes = std::move(contents.notes);
    if (names.empty()) set_tree(contents, std::move(subtree));
    else set_named_tree(contents, std::move(subtree), names);
    contents.notes = std::move(notes);
    const bool in_part = contents.root_prefix.empty() && !contents.root.empty();  // the tree is that of a part
    contents.root = in_part ? below_path(contents.root, path) : std::string(path);
    contents.root_prefix = {};
}

void take_root(Contents& contents, const OpenOptions& options) {
    const std::string wanted = options.root.value_or(std::string());
    if (contents.tree.late && !wanted.empty())
        contents.tree = std::make_shared<const StateTree>(contents.tree.late->tree(contents.tensors));
    if (!contents.tree && !wanted.empty()) throw_no_part(wanted, {});
    if (!contents.tree || contents.tree->size() == 0) return;

    const std::shared_ptr<const StateTree> tree = contents.tree;
    const FlatState paths = has_own_names(*tree) ? flatten(*tree) : FlatState();
    PartPlace only;
    std::string model;
    if (!is_flat(*tree)) {
        const bool own = !paths.tensors.empty();
        const PathNames names{own ? paths.tensors : contents.tensors, own ? paths.aliases : contents.aliases};
        const PartPlace root{{}, tree->root()};
        for (SizedPart& part : parts_at(*tree, names, root)) contents.parts.push_back(std::move(part.size));
        if (names.tensors.size() == contents.tensors.size()) only = only_part(*tree, names, root);
        if (!options.root && options.root_auto && !options.stored_names)
            model = model_among(*tree, names, only.path.empty() ? root : only, contents);
    }
    if (options.stored_names && !options.root) return;
    if (!only.path.empty() && options.root && wanted.empty()) return take_paths(contents, only, paths);
    if (!only.path.empty()) take_names(contents, only, paths);
    const std::string& path = options.root ? wanted : model;
    if (path.empty()) return;
    const auto node = contents.tree->find(path);
    if (!node) {
        std::vector<std::string> parts;
        for (const StatePart& part : contents.parts) parts.push_back(part.name);
        throw_no_part(path, parts);
    }
    take_below(contents, contents.tree->subtree(*node), path);
}

}  // namespace safemap::SAFEMAP_ABI::state
