// Walks the tree of a rank beside that of the lowest one. From the top:
//
//   the walk       through pairs of containers that hold tensors, and pairs of dictionaries
//   containers     dictionaries are matched by key, sequences and objects by place
//   values         what differs is copied
//
// local_parts.cpp compares the tensors.
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/rank_share.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/ranks/local_parts.hpp"
#include "distributed/ranks/tree_values.hpp"
#include "state/names.hpp"
#include "state/walk.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

/// Returns a text that is the same for equal keys, and that most others do not have.
std::string sketch(const StateTree& tree, NodeId key) {
    constexpr std::size_t most_items = 8;
    constexpr std::size_t most_characters = 64;
    std::string out;
    const auto add = [&](NodeId node) {
        out += ' ' + std::to_string(tree[node].index());
        if (const auto* const text = std::get_if<std::string>(&tree[node])) out += text->substr(0, most_characters);
        if (const auto* const number = std::get_if<std::int64_t>(&tree[node])) out += std::to_string(*number);
    };
    add(key);
    const auto* const tuple = std::get_if<StateTree::Sequence>(&tree[key]);
    if (tuple == nullptr || tuple->kind != StateTree::Sequence::Kind::tuple) return out;
    for (std::size_t i = 0; i < std::min(tuple->items.size(), most_items); ++i) add(tuple->items[i]);
    return out;
}

/// Returns a key as Python would print it, cut after some characters.
std::string key_text(const StateTree& tree, NodeId key, int levels = 3) {
    constexpr std::size_t most_items = 8;
    if (const auto* const text = std::get_if<std::string>(&tree[key])) return excerpt(*text);
    if (const auto* const number = std::get_if<std::int64_t>(&tree[key])) return std::to_string(*number);
    if (const auto* const constant = std::get_if<StateTree::Constant>(&tree[key])) return excerpt(constant->text);
    const auto* const items = std::get_if<StateTree::Sequence>(&tree[key]);
    if (items == nullptr || levels == 0) return "…";
    std::string out = "(";
    for (std::size_t i = 0; i < std::min(items->items.size(), most_items); ++i)
        out += (i > 0 ? ", " : "") + key_text(tree, items->items[i], levels - 1);
    return out + (items->items.size() > most_items ? ", …)" : ")");
}

/// The walk over one tree.
class ShareWalk {
public:
    ShareWalk(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
              const std::shared_ptr<const Source>& source, RankMeshes& meshes, const SampleSizes& samples,
              const ShardLists* lists)
        : skeleton_(skeleton),
          first_(skeleton.tree()),
          other_(tree),
          names_(names),
          parts_(skeleton, tree, names, i, meshes, samples, lists, share_),
          comparison_(first_, other_),
          with_tensors_(nodes_with_tensors(tree)),
          met_(first_.size(), StateTree::no_node),
          copy_(other_, share_.objects) {
        share_.rank = names.rank(i);
        share_.source = source;
        share_.parts.resize(skeleton.tensors().size());
    }

    RankShare run() {
        visit(first_.root(), other_.root());
        const auto next_pair = [&](Pairs& pairs) -> std::optional<Child> {
            if (pairs.next == pairs.children.size() || share_.foreign) return std::nullopt;
            Child& child = pairs.children[pairs.next++];
            state::append_segment(path_, child.segment);
            return std::move(child);
        };
        walk_.run(
            next_pair, [&](const Child& child) { visit(child.first, child.other); }, [](Pairs&) {});
        share_.states_rank = parts_.states_rank();
        return std::move(share_);
    }

private:
    struct Child {
        std::string segment;
        NodeId first;
        NodeId other;
    };
    /// The children of two containers that are at the same places.
    struct Pairs {
        std::vector<Child> children = {};
        std::size_t next = 0;
    };

    void visit(NodeId first, NodeId other) {
        if (const auto number = skeleton_.tensor_at(first)) return visit_tensor(*number, other);
        if (distributed_kind(other_[other]) || with_tensors_[other] != skeleton_.has_tensors(first))
            return refuse_kind(first, other);
        if (skeleton_.has_tensors(first)) return enter(first, other);
        visit_value(first, other);
    }

    std::string tensor_name() const { return path_.empty() ? std::string(state::root_name) : path_; }
    const std::string& first_file() const { return names_.file(0); }

    [[noreturn]] void differ(const std::string& what, const std::string& first, const std::string& other) const {
        throw Agreement(first_file()).difference(what, first, other).with_tensor(tensor_name());
    }
    [[noreturn]] void refuse_kind(NodeId first, NodeId other) const {
        const bool is_first = skeleton_.has_tensors(first);
        const auto text = [](const StateTree& tree, NodeId node, bool with_tensors) {
            const std::string kind = kind_text(tree[node]);
            return kind == "no tensor" && with_tensors ? std::string("a container of tensors") : kind;
        };
        differ("the kinds of this value", text(first_, first, is_first), text(other_, other, with_tensors_[other]));
    }
    [[noreturn]] void refuse_missing(const StateTree& tree, NodeId key, std::string_view segment, bool in_first) const {
        std::string name = path_;
        state::append_segment(name, segment);
        const std::string here = "the file";
        const std::string there = excerpt(first_file());
        // The name of any other key says which one it is.
        const bool is_unnamed = !state::key_of(segment);
        const std::string what = is_unnamed ? "the tensor of the key " + key_text(tree, key) : "the tensor";
        Error error(Errc::ranks_differ, what + " is missing in " + (in_first ? here : there) + ", but " +
                                            (in_first ? there + " has it" : "this file has it"));
        if (is_unnamed)
            error.with_hint("keys of tensors must be the same in all ranks; texts such as the names of parameters are");
        throw error.with_tensor(name);
    }

    void visit_tensor(std::uint32_t number, NodeId other) {
        if (about_tensor(tensor_name(), [&] { return parts_.add(number, other); }))
            share_.different.push_back({path_, copy_.copy(other)});
    }

    // Containers.

    /// Enters a pair of containers, but not a pair that was met before.
    void enter(NodeId first, NodeId other) {
        if (met_[first] == other) return;
        met_[first] = other;
        if (first_[first].index() != other_[other].index()) differ("the kinds of this container", "one", "another");
        if (std::holds_alternative<StateTree::Dict>(first_[first])) return enter_dict(first, other);
        Pairs pairs;
        if (const auto* const sequence = std::get_if<StateTree::Sequence>(&first_[first]))
            add_items(pairs, *sequence, std::get<StateTree::Sequence>(other_[other]));
        else if (const auto* const object = std::get_if<StateTree::Opaque>(&first_[first]))
            add_children(pairs, *object, std::get<StateTree::Opaque>(other_[other]));
        go_into(std::move(pairs));
    }

    void go_into(Pairs pairs) {
        comparison_.spend(1 + pairs.children.size());
        walk_.enter(std::move(pairs));
    }

    void add_items(Pairs& pairs, const StateTree::Sequence& first, const StateTree::Sequence& other) const {
        if (first.kind != other.kind || first.items.size() != other.items.size())
            differ("the lengths of this list", std::to_string(first.items.size()), std::to_string(other.items.size()));
        for (std::size_t i = 0; i < first.items.size(); ++i)
            pairs.children.push_back({state::item_segment(first.kind, i), first.items[i], other.items[i]});
    }

    void add_children(Pairs& pairs, const StateTree::Opaque& first, const StateTree::Opaque& other) const {
        if (first.type != other.type) differ("the classes of this object", excerpt(first.type), excerpt(other.type));
        if (first.children.size() != other.children.size())
            differ("the numbers of parts of this object", std::to_string(first.children.size()),
                   std::to_string(other.children.size()));
        for (std::size_t i = 0; i < first.children.size(); ++i) {
            const std::string& name = first.children[i].first;
            if (name != other.children[i].first)
                differ("the parts of this object", excerpt(name), excerpt(other.children[i].first));
            pairs.children.push_back({state::child_segment(name), first.children[i].second, other.children[i].second});
        }
    }

    void enter_dict(NodeId first, NodeId other) {
        const auto& x = std::get<StateTree::Dict>(first_[first]);
        const auto& y = std::get<StateTree::Dict>(other_[other]);
        Pairs pairs;
        std::vector<bool> matched(y.items.size());
        std::optional<Places> places;
        for (std::size_t i = 0; i < x.items.size(); ++i) {
            std::string segment = state::key_segment(first_[x.items[i].first], i);
            std::size_t j = i;
            if (i >= y.items.size() || !same_key(x.items[i].first, y.items[i].first)) {
                if (!places) places = places_of(y);
                j = place_in(y, x.items[i].first, segment, *places);
            }
            if (j < y.items.size()) {
                matched[j] = true;
                pairs.children.push_back({std::move(segment), x.items[i].second, y.items[j].second});
            } else if (skeleton_.has_tensors(x.items[i].second)) {
                refuse_missing(first_, x.items[i].first, segment, true);
            } else {
                add_lacking(segment);
            }
        }
        for (std::size_t j = 0; j < y.items.size(); ++j) {
            if (matched[j]) continue;
            const std::string segment = state::key_segment(other_[y.items[j].first], j);
            if (with_tensors_[y.items[j].second]) refuse_missing(other_, y.items[j].first, segment, false);
            add_different(segment, y.items[j].first, y.items[j].second);
        }
        go_into(std::move(pairs));
    }

    bool same_key(NodeId first, NodeId other) {
        const auto* const a = std::get_if<std::string>(&first_[first]);
        const auto* const b = std::get_if<std::string>(&other_[other]);
        return a != nullptr && b != nullptr ? *a == *b : comparison_.same(first, other);
    }

    /// The places of keys in a dictionary.
    struct Places {
        std::unordered_map<std::string, std::size_t> named = {};
        /// Keys that have no name of their own, such as tuples: they are named by their places, which can be other ones
        /// in each file.
        std::unordered_multimap<std::string, std::size_t> others = {};
    };

    /// Returns the place of a key in a dictionary; its size if it is not there.
    std::size_t place_in(const StateTree::Dict& dict, NodeId key, const std::string& segment, const Places& places) {
        if (state::key_of(segment)) {
            const auto found = places.named.find(segment);
            return found == places.named.end() ? dict.items.size() : found->second;
        }
        const auto [begin, end] = places.others.equal_range(sketch(first_, key));
        for (auto one = begin; one != end; ++one)
            if (same_key(key, dict.items[one->second].first)) return one->second;
        return dict.items.size();
    }

    Places places_of(const StateTree::Dict& dict) const {
        Places places;
        for (std::size_t i = 0; i < dict.items.size(); ++i) {
            const NodeId key = dict.items[i].first;
            std::string segment = state::key_segment(other_[key], i);
            if (state::key_of(segment)) places.named.emplace(std::move(segment), i);
            else places.others.emplace(sketch(other_, key), i);
        }
        return places;
    }

    // Values.

    /// Compares values that hold no tensors: dictionaries key by key, and others as a whole.
    void visit_value(NodeId first, NodeId other) {
        const auto* const x = std::get_if<StateTree::Dict>(&first_[first]);
        const auto* const y = std::get_if<StateTree::Dict>(&other_[other]);
        if (x != nullptr && y != nullptr && x->ordered == y->ordered) {
            if (met_[first] == other) return;
            met_[first] = other;
            return enter_dict(first, other);
        }
        if (!comparison_.same(first, other)) share_.different.push_back({path_, copy_.copy(other)});
    }

    void add_different(std::string_view segment, NodeId key, NodeId other) {
        std::string path = path_;
        state::append_segment(path, segment);
        share_.different.push_back({std::move(path), copy_.copy(other), copy_.copy(key)});
    }

    void add_lacking(std::string_view segment) {
        constexpr std::size_t most = 8;
        if (share_.lacking.size() >= most) return;
        std::string& path = share_.lacking.emplace_back(path_);
        state::append_segment(path, segment);
    }

    const Skeleton& skeleton_;
    const StateTree& first_;
    const StateTree& other_;
    const RankNames& names_;
    RankShare share_ = {};
    LocalParts parts_;
    TreeComparison comparison_;
    std::vector<bool> with_tensors_;
    std::vector<NodeId> met_;  ///< for each container of the skeleton, the one that it was compared with last
    TreeCopy copy_;
    std::string path_ = {};
    state::Walk<Pairs> walk_{path_};
};

}  // namespace

RankShare share_of(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
                   const std::shared_ptr<const Source>& source, RankMeshes& meshes, const SampleSizes& samples,
                   const ShardLists* lists) {
    if (tree.size() == 0) throw Error(Errc::field_missing, "the file holds no value");
    return ShareWalk(skeleton, tree, names, i, source, meshes, samples, lists).run();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
