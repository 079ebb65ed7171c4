// Walks the tree of a rank beside that of the lowest one. From the top:
//
//   the walk       a stack of frames, one for each pair of containers that hold tensors, or dictionaries
//   containers     dictionaries are matched by key, sequences and objects by place
//   values         what differs is copied
//   tensors        each is compared with what the skeleton says of it, and becomes a LocalPart
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/rank_share.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/tree_values.hpp"
#include "lazy/stored_tensor.hpp"
#include "state/names.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

std::string kind_text(const StateTree::Node& node) {
    if (const auto kind = distributed_kind(node))
        return *kind == StatedTensor::Kind::dtensor ? "a DTensor" : "a ShardedTensor";
    return std::holds_alternative<StateTree::Tensor>(node) ? "a plain tensor" : "no tensor";
}

std::string kind_text(TensorRole role) {
    if (role == TensorRole::dtensor) return "a DTensor";
    return role == TensorRole::sharded ? "a ShardedTensor" : "a plain tensor";
}

std::string described(Dtype dtype, const Shape& shape) { return std::string(name(dtype)) + " " + to_string(shape); }

std::string described(const std::vector<StatedShard>& shards) {
    constexpr std::size_t most = 4;
    std::string text = std::to_string(shards.size()) + (shards.size() == 1 ? " shard" : " shards");
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

/// The walk over one tree.
class ShareWalk {
public:
    ShareWalk(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
              const std::shared_ptr<const Source>& source, RankMeshes& meshes, const SampleSizes& samples)
        : skeleton_(skeleton),
          first_(skeleton.tree()),
          other_(tree),
          names_(names),
          meshes_(meshes),
          samples_(samples),
          nodes_(tree, names, names.rank(i), meshes),
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
        while (!frames_.empty() && !share_.foreign) {
            Frame& frame = frames_.back();
            path_.resize(frame.path_size);
            if (frame.next == frame.children.size()) {
                frames_.pop_back();
                continue;
            }
            Child& child = frame.children[frame.next++];
            state::append_segment(path_, child.segment);
            visit(child.first, child.other);
        }
        share_.states_rank = nodes_.stated_rank().has_value();
        return std::move(share_);
    }

private:
    struct Child {
        std::string segment;
        NodeId first;
        NodeId other;
    };
    struct Frame {
        std::size_t path_size;
        std::vector<Child> children;
        std::size_t next = 0;
    };

    void visit(NodeId first, NodeId other) {
        if (const auto number = skeleton_.tensor_at(first)) {
            return about_tensor(tensor_name(), [&] { visit_tensor(*number, other); });
        }
        if (distributed_kind(other_[other]) || with_tensors_[other] != skeleton_.has_tensors(first))
            return refuse_kind(first, other);
        if (skeleton_.has_tensors(first)) return enter(first, other);
        visit_value(first, other);
    }

    std::string tensor_name() const { return path_.empty() ? std::string(state::root_name) : path_; }
    const std::string& first_file() const { return names_.file(0); }

    [[noreturn]] void differ(const std::string& what, const std::string& first, const std::string& other) const {
        throw Error(Errc::ranks_differ, what + " differ between ranks: " + first + " in " + excerpt(first_file()) +
                                            ", " + other + " in this file")
            .with_tensor(tensor_name());
    }
    [[noreturn]] void refuse_kind(NodeId first, NodeId other) const {
        const bool is_first = skeleton_.has_tensors(first);
        const auto text = [](const StateTree& tree, NodeId node, bool with_tensors) {
            const std::string kind = kind_text(tree[node]);
            return kind == "no tensor" && with_tensors ? std::string("a container of tensors") : kind;
        };
        differ("the kinds of this value", text(first_, first, is_first), text(other_, other, with_tensors_[other]));
    }
    [[noreturn]] void refuse_missing(std::string_view segment, bool in_first) const {
        std::string name = path_;
        state::append_segment(name, segment);
        const std::string here = "the file";
        const std::string there = excerpt(first_file());
        throw Error(Errc::ranks_differ, "the tensor is missing in " + (in_first ? here : there) + ", but " +
                                            (in_first ? there + " has it" : "this file has it"))
            .with_tensor(name);
    }

    // Containers.

    /// Enters a pair of containers, but not a pair that was met before.
    void enter(NodeId first, NodeId other) {
        if (met_[first] == other) return;
        met_[first] = other;
        if (first_[first].index() != other_[other].index()) differ("the kinds of this container", "one", "another");
        if (std::holds_alternative<StateTree::Dict>(first_[first])) return enter_dict(first, other);
        Frame frame{.path_size = path_.size(), .children = {}};
        if (const auto* const sequence = std::get_if<StateTree::Sequence>(&first_[first]))
            add_items(frame, *sequence, std::get<StateTree::Sequence>(other_[other]));
        else if (const auto* const object = std::get_if<StateTree::Opaque>(&first_[first]))
            add_children(frame, *object, std::get<StateTree::Opaque>(other_[other]));
        push(std::move(frame));
    }

    void push(Frame frame) {
        comparison_.spend(1 + frame.children.size());
        frames_.push_back(std::move(frame));
    }

    void add_items(Frame& frame, const StateTree::Sequence& first, const StateTree::Sequence& other) const {
        if (first.kind != other.kind || first.items.size() != other.items.size())
            differ("the lengths of this list", std::to_string(first.items.size()), std::to_string(other.items.size()));
        for (std::size_t i = 0; i < first.items.size(); ++i)
            frame.children.push_back({state::item_segment(first.kind, i), first.items[i], other.items[i]});
    }

    void add_children(Frame& frame, const StateTree::Opaque& first, const StateTree::Opaque& other) const {
        if (first.type != other.type) differ("the classes of this object", first.type, other.type);
        if (first.children.size() != other.children.size())
            differ("the numbers of parts of this object", std::to_string(first.children.size()),
                   std::to_string(other.children.size()));
        for (std::size_t i = 0; i < first.children.size(); ++i) {
            const std::string& name = first.children[i].first;
            if (name != other.children[i].first)
                differ("the parts of this object", excerpt(name), excerpt(other.children[i].first));
            frame.children.push_back({state::child_segment(name), first.children[i].second, other.children[i].second});
        }
    }

    void enter_dict(NodeId first, NodeId other) {
        const auto& x = std::get<StateTree::Dict>(first_[first]);
        const auto& y = std::get<StateTree::Dict>(other_[other]);
        Frame frame{.path_size = path_.size(), .children = {}};
        std::vector<bool> matched(y.items.size());
        std::optional<std::unordered_map<std::string, std::size_t>> places;
        for (std::size_t i = 0; i < x.items.size(); ++i) {
            std::string segment = state::key_segment(first_[x.items[i].first], i);
            std::size_t j = i;
            if (i >= y.items.size() || !same_key(x.items[i].first, y.items[i].first)) {
                if (!places) places = places_of(y);
                const auto found = places->find(segment);
                j = found == places->end() ? y.items.size() : found->second;
            }
            if (j < y.items.size()) {
                matched[j] = true;
                frame.children.push_back({std::move(segment), x.items[i].second, y.items[j].second});
            } else if (skeleton_.has_tensors(x.items[i].second)) {
                refuse_missing(segment, true);
            } else {
                add_lacking(segment);
            }
        }
        for (std::size_t j = 0; j < y.items.size(); ++j) {
            if (matched[j]) continue;
            const std::string segment = state::key_segment(other_[y.items[j].first], j);
            if (with_tensors_[y.items[j].second]) refuse_missing(segment, false);
            add_different(segment, y.items[j].second);
        }
        push(std::move(frame));
    }

    bool same_key(NodeId first, NodeId other) {
        const auto* const a = std::get_if<std::string>(&first_[first]);
        const auto* const b = std::get_if<std::string>(&other_[other]);
        return a != nullptr && b != nullptr ? *a == *b : comparison_.same(first, other);
    }

    std::unordered_map<std::string, std::size_t> places_of(const StateTree::Dict& dict) const {
        std::unordered_map<std::string, std::size_t> places;
        for (std::size_t i = 0; i < dict.items.size(); ++i)
            places.emplace(state::key_segment(other_[dict.items[i].first], i), i);
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
        if (!comparison_.same(first, other)) share_.different.emplace_back(path_, copy_.copy(other));
    }

    void add_different(std::string_view segment, NodeId other) {
        std::string path = path_;
        state::append_segment(path, segment);
        share_.different.emplace_back(std::move(path), copy_.copy(other));
    }

    void add_lacking(std::string_view segment) {
        constexpr std::size_t most = 8;
        if (share_.lacking.size() >= most) return;
        std::string& path = share_.lacking.emplace_back(path_);
        state::append_segment(path, segment);
    }

    // Tensors.

    void visit_tensor(std::uint32_t number, NodeId other) {
        const SkeletonTensor& tensor = skeleton_.tensors()[number];
        const StateTree::Node& node = other_[other];
        if (tensor.role == TensorRole::dtensor || tensor.role == TensorRole::sharded) {
            const auto kind = distributed_kind(node);
            if (!kind || (*kind == StatedTensor::Kind::dtensor) != (tensor.role == TensorRole::dtensor))
                differ("the kinds of this tensor", kind_text(tensor.role), kind_text(node));
            return visit_distributed(number, tensor, other);
        }
        const auto* const plain = std::get_if<StateTree::Tensor>(&node);
        if (plain == nullptr || plain->numpy)
            differ("the kinds of this tensor", kind_text(tensor.role), kind_text(node));
        visit_plain(number, tensor, *plain, other);
    }

    void visit_distributed(std::uint32_t number, const SkeletonTensor& tensor, NodeId other) {
        const StatedLocal local = nodes_.read(other);
        if (const auto stated = nodes_.stated_rank(); stated && *stated != share_.rank) {
            share_.foreign = stated;
            return;
        }
        if (tensor.role == TensorRole::dtensor) add_dtensor(number, tensor, local);
        else add_sharded(number, tensor, local);
    }

    void visit_plain(std::uint32_t number, const SkeletonTensor& tensor, const StateTree::Tensor& plain, NodeId other) {
        const LazyTensor& value = plain.tensor;
        if (tensor.role == TensorRole::ignored) return set_part(number, {.offset = value.element_count()});
        if (value.dtype() != tensor.dtype)
            differ("the dtypes", std::string(name(tensor.dtype)), std::string(name(value.dtype())));
        if (tensor.role == TensorRole::piece) return set_part(number, odd({{0, &value}}));
        if (value.shape() != tensor.shape) differ("the shapes", to_string(tensor.shape), to_string(value.shape()));
        if (sampled_differ(tensor, value)) {
            if (is_byte_list(value)) {
                share_.different.emplace_back(path_, copy_.copy(other));
                return set_part(number, {.state = LocalPart::State::empty});
            }
            if (!share_.other_value) share_.other_value = number;
        }
        set_part(number, part_of(tensor, 0, value));
    }

    /// Returns true if the first bytes were compared and differ from those of the lowest rank.
    bool sampled_differ(const SkeletonTensor& tensor, const LazyTensor& value) {
        const bool bytes = is_byte_list(value);
        const std::uint64_t size = std::min(value.nbytes(), bytes ? compared_bytes : samples_.each);
        if (size == 0 || size > samples_.all) return false;
        samples_.all -= size;
        const auto& first = std::get<StateTree::Tensor>(first_[tensor.node]).tensor;
        return &first != &value && !have_equal_bytes(first, value, size);
    }

    void compare(const StatedTensor& first, const StatedTensor& other) const {
        if (first.dtype != other.dtype)
            differ("the dtypes", described(first.dtype, first.shape), described(other.dtype, other.shape));
        if (first.shape != other.shape) differ("the shapes", to_string(first.shape), to_string(other.shape));
        if (first.placements != other.placements)
            differ("the placements", to_string(first.placements), to_string(other.placements));
        if (first.orders != other.orders || first.order != other.order)
            differ("the orders in which the tensor is sharded", "one", "another");
        if (!same_shards(first.shards, other.shards))
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

    static bool fits(const Sharding& sharding, const std::vector<std::uint64_t>& at, const LazyTensor& value) {
        const Shape shape = sharding.local_shape(at);
        // torch gives values without elements various shapes.
        return shape == value.shape() || (element_count(shape) == 0 && value.element_count() == 0);
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
        std::vector<std::pair<std::uint32_t, const LazyTensor*>> values;
        for (const LocalValue& one : local.values) {
            if (one.value->dtype() != tensor.said.dtype)
                throw Error(Errc::piece_mismatch, "a local shard has the dtype " +
                                                      std::string(name(one.value->dtype())) + "; expected " +
                                                      std::string(name(tensor.said.dtype)));
            values.emplace_back(shard_of(tensor, one), one.value);
        }
        if (values.size() == 1) set_part(number, part_of(tensor, values.front().first, *values.front().second));
        else if (values.empty()) set_part(number, {.state = LocalPart::State::empty});
        else set_part(number, odd(values));
    }

    /// Returns the number of a local shard among all shards.
    std::uint32_t shard_of(const SkeletonTensor& tensor, const LocalValue& value) const {
        const auto& shards = tensor.said.shards;
        const auto found = std::find_if(shards.begin(), shards.end(), [&](const StatedShard& one) {
            return one.start == value.start && one.extent == value.value->shape();
        });
        if (found == shards.end())
            throw Error(Errc::piece_mismatch,
                        "the local shard " + to_string(value.start) + " + " + to_string(value.value->shape()) +
                            " is not one of the shards that the metadata lists: " + described(shards));
        return static_cast<std::uint32_t>(found - shards.begin());
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

    LocalPart odd(const std::vector<std::pair<std::uint32_t, const LazyTensor*>>& values) {
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

    const Skeleton& skeleton_;
    const StateTree& first_;
    const StateTree& other_;
    const RankNames& names_;
    RankMeshes& meshes_;
    SampleSizes samples_;
    ShardedNodes nodes_;
    TreeComparison comparison_;
    std::vector<bool> with_tensors_;
    std::vector<NodeId> met_;  ///< for each container of the skeleton, the one that it was compared with last
    RankShare share_ = {};
    TreeCopy copy_;
    std::unordered_map<std::uint32_t, std::optional<std::vector<std::uint64_t>>> coordinates_ = {};
    std::vector<Frame> frames_ = {};
    std::string path_ = {};
};

}  // namespace

RankShare share_of(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
                   const std::shared_ptr<const Source>& source, RankMeshes& meshes, const SampleSizes& samples) {
    if (skeleton.tree().size() == 0 || tree.size() == 0) return {.rank = names.rank(i), .source = source};
    return ShareWalk(skeleton, tree, names, i, source, meshes, samples).run();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
