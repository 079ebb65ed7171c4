// Walks the tree of a rank beside that of the lowest one. From the top:
//
//   tensors        dtypes, shapes, placements, meshes and shards are compared; the place of a local value takes 24
//                  bytes
//   the walk       through pairs of containers that hold tensors, and pairs of dictionaries
//   containers     dictionaries are matched by key, sequences and objects by place
//   values         what differs is copied
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/rank_share.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "distributed/ranks/tree_values.hpp"
#include "lazy/stored_tensor.hpp"
#include "state/names.hpp"
#include "state/walk.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <unordered_map>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

std::string role_text(TensorRole role) {
    if (role == TensorRole::dtensor) return "a DTensor";
    return role == TensorRole::sharded ? "a ShardedTensor" : "a plain tensor";
}

std::string described(const std::vector<StatedShard>& shards) {
    constexpr std::size_t most = 4;
    std::string text = counted(shards.size(), "shard");
    for (std::size_t i = 0; i < std::min(shards.size(), most); ++i)
        text += (i == 0 ? ": " : ", ") + to_string(shards[i].start) + " + " + to_string(shards[i].extent);
    return text + (shards.size() > most ? ", ..." : "");
}

bool same_shards(const std::vector<StatedShard>& a, const std::vector<StatedShard>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StatedShard& x, const StatedShard& y) {
        return x.start == y.start && x.extent == y.extent;
    });
}

bool is_byte_list(const LazyTensor& tensor) {
    return tensor.dtype() == Dtype::u8 && tensor.shape().size() == 1 && tensor.nbytes() <= compared_bytes;
}

/// The numbers of a ShardedTensor's shards, by their places.
class ShardNumbers {
public:
    explicit ShardNumbers(const std::vector<StatedShard>& shards) : shards_(shards) {}

    /// Returns the number of a local shard. Throws piece_mismatch if it is not one of the shards.
    std::uint32_t of(const LocalValue& value) {
        // Most files have one shard of each tensor.
        constexpr int most_searched = 4;
        if (asked_++ == most_searched)
            for (std::size_t i = 0; i < shards_.size(); ++i)
                by_place_.emplace(key(shards_[i].start, shards_[i].extent), i);
        std::size_t found = shards_.size();
        if (asked_ <= most_searched) {
            const auto same = [&](const StatedShard& one) {
                return one.start == value.start && one.extent == value.value->shape();
            };
            found = static_cast<std::size_t>(std::find_if(shards_.begin(), shards_.end(), same) - shards_.begin());
        } else if (const auto at = by_place_.find(key(value.start, value.value->shape())); at != by_place_.end()) {
            found = at->second;
        }
        if (found == shards_.size())
            throw Error(Errc::piece_mismatch,
                        "the local shard " + to_string(value.start) + " + " + to_string(value.value->shape()) +
                            " is not one of the shards that the metadata lists: " + described(shards_));
        return static_cast<std::uint32_t>(found);
    }

private:
    using Key = std::vector<std::uint64_t>;

    static Key key(const Shape& start, const Shape& extent) {
        Key out(start.begin(), start.end());
        out.insert(out.end(), extent.begin(), extent.end());
        return out;
    }

    const std::vector<StatedShard>& shards_;
    int asked_ = 0;
    std::map<Key, std::size_t> by_place_ = {};
};

bool fits(const Sharding& sharding, const std::vector<std::uint64_t>& at, const LazyTensor& value) {
    const Shape shape = sharding.local_shape(at);
    // torch gives values without elements various shapes.
    return shape == value.shape() || (element_count(shape) == 0 && value.element_count() == 0);
}

/// Returns "a DTensor", "a ShardedTensor", "a plain tensor" or "no tensor".
std::string kind_text(const StateTree::Node& node) {
    if (const auto kind = distributed_kind(node))
        return *kind == StatedTensor::Kind::dtensor ? "a DTensor" : "a ShardedTensor";
    return std::holds_alternative<StateTree::Tensor>(node) ? "a plain tensor" : "no tensor";
}

/// The tensors of one file. Keeps references to what it is made of; fills `share`.
class LocalParts {
public:
    LocalParts(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
               RankMeshes& meshes, const SampleSizes& samples, const ShardLists* lists, RankShare& share)
        : skeleton_(skeleton),
          tree_(tree),
          agree_(names.file(0)),
          meshes_(meshes),
          samples_(samples),
          nodes_(tree, names, names.rank(i), meshes, lists),
          share_(share) {}

    /// Compares the node that the file has in place of a tensor of the skeleton, and adds its part to the share. If the
    /// file says that it is of another rank, sets `foreign` of the share instead. Returns true if the tensor is to be
    /// listed as a value that differs. Throws as share_of() does.
    bool add(std::uint32_t number, NodeId other) {
        const SkeletonTensor& tensor = skeleton_.tensors()[number];
        const StateTree::Node& node = tree_[other];
        if (tensor.role == TensorRole::dtensor || tensor.role == TensorRole::sharded) {
            const auto kind = distributed_kind(node);
            if (!kind || (*kind == StatedTensor::Kind::dtensor) != (tensor.role == TensorRole::dtensor))
                differ("the kinds of this tensor", role_text(tensor.role), kind_text(node));
            add_distributed(number, tensor, other);
            return false;
        }
        const auto* const plain = std::get_if<StateTree::Tensor>(&node);
        if (plain == nullptr || plain->numpy)
            differ("the kinds of this tensor", role_text(tensor.role), kind_text(node));
        return add_plain(number, tensor, plain->tensor);
    }
    /// Returns true if a tensor has said which rank the file is of.
    bool states_rank() const noexcept { return nodes_.stated_rank().has_value(); }

private:
    using Values = std::vector<std::pair<std::uint32_t, const LazyTensor*>>;  ///< number of the shard, and its tensor

    void add_distributed(std::uint32_t number, const SkeletonTensor& tensor, NodeId other) {
        const StatedLocal local = nodes_.read(other, &tensor.said);
        if (const auto stated = nodes_.stated_rank(); stated && *stated != share_.rank) {
            share_.foreign = stated;
            return;
        }
        if (tensor.role == TensorRole::dtensor) add_dtensor(number, tensor, local);
        else add_sharded(number, tensor, local);
    }

    bool add_plain(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value) {
        if (tensor.role == TensorRole::ignored) {
            set_part(number, {.offset = value.element_count()});
            return false;
        }
        agree_("the dtype", tensor.dtype, value.dtype());
        if (tensor.role == TensorRole::piece) {
            set_part(number, odd({{0, &value}}));
            return false;
        }
        agree_("the shape", tensor.shape, value.shape());
        const bool is_other = sampled_differ(tensor, value);
        if (is_other && is_byte_list(value)) {
            set_part(number, {.state = LocalPart::State::empty});
            return true;
        }
        if (is_other && !share_.other_value) share_.other_value = number;
        set_part(number, part_of(tensor, 0, value));
        return false;
    }

    /// Returns true if the first bytes were compared and differ from those of the lowest rank.
    bool sampled_differ(const SkeletonTensor& tensor, const LazyTensor& value) {
        const bool bytes = is_byte_list(value);
        const std::uint64_t size = std::min(value.nbytes(), bytes ? compared_bytes : samples_.each);
        if (size == 0 || size > samples_.all) return false;
        samples_.all -= size;
        const auto& first = std::get<StateTree::Tensor>(skeleton_.tree()[tensor.node]).tensor;
        return &first != &value && !have_equal_bytes(first, value, size);
    }

    void compare(const StatedTensor& first, const StatedTensor& other) const {
        agree_("the dtype", first.dtype, other.dtype);
        agree_("the shape", first.shape, other.shape);
        if (first.placements != other.placements)
            differ("the placements", to_string(first.placements), to_string(other.placements));
        if (first.orders != other.orders || first.order != other.order)
            differ("the order in which the tensor is sharded", "one", "another");
        if (!other.shards_as_first && !same_shards(first.shards, other.shards))
            differ("the shards", described(first.shards), described(other.shards));
    }

    void compare_meshes(const SkeletonTensor& tensor, const StatedLocal& local) const {
        if (tensor.mesh == local.mesh) return;
        const Mesh& first = meshes_[tensor.mesh];
        const Mesh& other = meshes_[local.mesh];
        if (first.shape != other.shape || first.names != other.names)
            differ("the meshes", to_string(first), to_string(other));
    }

    void add_dtensor(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local) {
        compare_meshes(tensor, local);
        compare(tensor.said, local.tensor);
        const LazyTensor& value = *local.values.front().value;
        const auto* const coordinates = coordinates_in(local.mesh);
        if (coordinates == nullptr) {
            if (value.element_count() > 0)
                throw Error(Errc::world_mismatch, "the file of rank " + std::to_string(share_.rank) +
                                                      " has values, but its rank is not in the mesh " +
                                                      to_string(meshes_[local.mesh]));
            return set_part(number, {.place = local.mesh, .state = LocalPart::State::empty});
        }
        check_shape(number, tensor, value, *coordinates, local.mesh);
        set_part(number, part_of(tensor, local.mesh, value));
    }

    /// Returns the coordinates of this rank, or null if it is not in the mesh.
    const std::vector<std::uint64_t>* coordinates_in(std::uint32_t mesh) {
        const auto [found, fresh] = coordinates_.try_emplace(mesh);
        if (fresh)
            if (const auto place = place_of(meshes_[mesh], share_.rank))
                found->second = coordinates_of(meshes_[mesh].shape, *place);
        return found->second ? &*found->second : nullptr;
    }

    void check_shape(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value,
                     const std::vector<std::uint64_t>& at, std::uint32_t mesh) {
        const bool fits_first = fits(*tensor.sharding, at, value);
        const bool fits_other = tensor.other && fits(*tensor.other, at, value);
        if (tensor.other && (fits_first || fits_other)) {
            share_.fits.push_back({number, fits_first, fits_other});
            return;
        }
        if (fits_first) return;
        throw Error(Errc::piece_mismatch,
                    "the local value of rank " + std::to_string(share_.rank) + " has the shape " +
                        to_string(value.shape()) + "; expected " + to_string(tensor.sharding->local_shape(at)) +
                        " of " + to_string(tensor.said.shape) + " with the placements " +
                        to_string(tensor.said.placements) + " on the mesh " + to_string(meshes_[mesh]));
    }

    void add_sharded(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local) {
        compare(tensor.said, local.tensor);
        ShardNumbers numbers(tensor.said.shards);
        Values values;
        for (const LocalValue& one : local.values) {
            if (one.value->dtype() != tensor.said.dtype)
                throw Error(Errc::piece_mismatch, "a local shard has the dtype " +
                                                      std::string(name(one.value->dtype())) + "; expected " +
                                                      std::string(name(tensor.said.dtype)));
            values.emplace_back(numbers.of(one), one.value);
        }
        if (values.size() == 1) set_part(number, part_of(tensor, values.front().first, *values.front().second));
        else if (values.empty()) set_part(number, {.state = LocalPart::State::empty});
        else set_part(number, odd(values));
    }

    /// Returns the part that a value is: a run of the file if possible.
    LocalPart part_of(const SkeletonTensor& tensor, std::uint32_t place, const LazyTensor& value) {
        if (value.element_count() == 0) return {.place = place, .state = LocalPart::State::empty};
        const StoredTensor& stored = *value.stored();
        const StridedView view = value.strided_view();
        if (whole_bytes(value.dtype()) && stored.in_one_run() && stored.shared_source(0) == share_.source &&
            stored.dtype() == value.dtype() && value.decoding() == tensor.decoding &&
            is_contiguous(view.shape, view.strides))
            return {.offset = stored.locate(static_cast<std::uint64_t>(view.offset)).offset,
                    .place = place,
                    .state = LocalPart::State::run};
        LocalPart part = odd({{place, &value}});
        part.place = place;
        return part;
    }

    LocalPart odd(const Values& values) {
        if (values.size() > std::numeric_limits<std::uint16_t>::max())
            throw Error(Errc::pickle_too_large, "a rank has more than 65,535 shards of one tensor");
        LocalPart part{.first = static_cast<std::uint32_t>(share_.values.size()),
                       .count = static_cast<std::uint16_t>(values.size()),
                       .state = LocalPart::State::values};
        for (const auto& [shard, value] : values) share_.values.push_back({shard, value->renamed({})});
        return part;
    }

    /// Sets the part of a tensor. A tensor that the lowest rank has in several places is one tensor in this file too.
    void set_part(std::uint32_t number, const LocalPart& part) {
        LocalPart& here = share_.parts[number];
        const bool same = here == part || (here.state == part.state && part.state == LocalPart::State::values);
        if (here.state != LocalPart::State::absent && !same)
            differ("the ties of this tensor", "one tensor that has several names", "several tensors");
        if (here.state == LocalPart::State::absent) here = part;
    }

    [[noreturn]] void differ(const std::string& what, const std::string& first, const std::string& other) const {
        agree_.differ(what, first, other);
    }

    const Skeleton& skeleton_;
    const StateTree& tree_;
    Agreement agree_;
    RankMeshes& meshes_;
    SampleSizes samples_;
    ShardedNodes nodes_;
    RankShare& share_;
    /// This rank's coordinates in each mesh; nothing if the mesh does not have it.
    std::unordered_map<std::uint32_t, std::optional<std::vector<std::uint64_t>>> coordinates_ = {};
};

// The walk.

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
