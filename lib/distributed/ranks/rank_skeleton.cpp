// Walks the tree of the lowest rank and lists its tensors. Tested by tests/distributed/rank_tensors_test.cpp.
#include "distributed/ranks/rank_skeleton.hpp"

#include "base/faults.hpp"
#include "state/names.hpp"
#include "state/walk.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

bool is_plain_tensor(const StateTree::Node& node) {
    const auto* const tensor = std::get_if<StateTree::Tensor>(&node);
    return tensor != nullptr && !tensor->numpy;
}

/// Calls visit(node, path) for every place of a tensor in the containers of a tree that hold tensors. Each container is
/// entered once.
template <class Visit> void each_tensor(const StateTree& tree, const std::vector<bool>& with_tensors, Visit&& visit) {
    struct Container {
        std::vector<std::pair<std::string, NodeId>> children = {};
        std::size_t next = 0;
    };
    std::string path;
    state::Walk<Container> walk(path);
    std::vector<bool> entered(tree.size());
    const auto come_to = [&](NodeId node) {
        if (is_plain_tensor(tree[node]) || distributed_kind(tree[node])) return visit(node, path);
        if (!with_tensors[node] || entered[node]) return;
        entered[node] = true;
        Container container;
        state::for_each_named_child(tree, tree[node], [&](NodeId child, auto&& segment) {
            if (with_tensors[child]) container.children.emplace_back(segment(), child);
        });
        walk.enter(std::move(container));
    };
    come_to(tree.root());
    const auto next_child = [&](Container& container) -> std::optional<NodeId> {
        if (container.next == container.children.size()) return std::nullopt;
        const auto& [segment, node] = container.children[container.next++];
        state::append_segment(path, segment);
        return node;
    };
    walk.run(next_child, come_to, [](Container&) {});
}

/// Sets how a DTensor is cut.
void set_shardings(SkeletonTensor& tensor, const Mesh& mesh) {
    const StatedTensor& said = tensor.said;
    const auto in = [&](CutOrder order) {
        return Sharding(said.shape, mesh.shape, said.placements, order, said.orders);
    };
    tensor.sharding = in(said.order);
    Sharding other = in(said.order == CutOrder::by_factors ? CutOrder::by_mesh : CutOrder::by_factors);
    if (!(other == *tensor.sharding)) tensor.other = std::move(other);
}

}  // namespace

/// Goes from the tensors up to all nodes that hold them.
std::vector<bool> nodes_with_tensors(const StateTree& tree) {
    // The nodes that hold node n are holders[first[n]] to holders[first[n + 1]].
    std::vector<std::size_t> first(tree.size() + 2);
    for (NodeId id = 0; id < tree.size(); ++id)
        state::for_each_child(tree[id], [&](NodeId child) { ++first[child + 2]; });
    for (std::size_t i = 2; i < first.size(); ++i) first[i] += first[i - 1];
    std::vector<NodeId> holders(first.back());
    for (NodeId id = 0; id < tree.size(); ++id)
        state::for_each_child(tree[id], [&](NodeId child) { holders[first[child + 1]++] = id; });

    std::vector<bool> found(tree.size());
    std::vector<NodeId> open;
    const auto add = [&](NodeId node) {
        if (found[node]) return;
        found[node] = true;
        open.push_back(node);
    };
    for (NodeId id = 0; id < tree.size(); ++id)
        if (is_plain_tensor(tree[id]) || distributed_kind(tree[id])) add(id);
    while (!open.empty()) {
        const NodeId node = open.back();
        open.pop_back();
        for (std::size_t i = first[node]; i < first[node + 1]; ++i) add(holders[i]);
    }
    return found;
}

Skeleton::Skeleton(StateTree tree, const RankNames& names, RankMeshes& meshes, const RoleOf& role_of,
                   const ShardLists* lists)
    : tree_(std::move(tree)), with_tensors_(nodes_with_tensors(tree_)), numbers_(tree_.size(), none) {
    ShardedNodes nodes(tree_, names, names.rank(0), meshes, lists);
    std::size_t name_bytes = 0;
    const auto add = [&](NodeId node, const std::string& path) {
        if (numbers_[node] != none) return;
        name_bytes += path.size();
        if (name_bytes > state::max_name_bytes)
            throw Error(Errc::pickle_too_large, "the names of all tensors together are too long");
        SkeletonTensor& tensor = tensors_.emplace_back();
        numbers_[node] = static_cast<std::uint32_t>(tensors_.size() - 1);
        tensor.node = node;
        tensor.name = path.empty() ? std::string(state::root_name) : path;
        if (const auto* const plain = std::get_if<StateTree::Tensor>(&tree_[node])) {
            tensor.role = role_of(tensor.name, plain->tensor);
            tensor.dtype = plain->tensor.dtype();
            tensor.shape = plain->tensor.shape();
            tensor.decoding = plain->tensor.decoding();
            has_parts_ = has_parts_ || tensor.role != TensorRole::replica;
            return;
        }
        about_tensor(tensor.name, [&] {
            StatedLocal local = nodes.read(node);
            tensor.role = local.tensor.kind == StatedTensor::Kind::dtensor ? TensorRole::dtensor : TensorRole::sharded;
            tensor.said = std::move(local.tensor);
            tensor.mesh = local.mesh;
            tensor.parameter = local.parameter;
            tensor.requires_grad = local.requires_grad;
            if (!local.values.empty()) tensor.decoding = local.values.front().value->decoding();
            if (tensor.role == TensorRole::dtensor) set_shardings(tensor, meshes[tensor.mesh]);
        });
        has_parts_ = true;
    };
    if (tree_.size() == 0) throw Error(Errc::field_missing, "the file holds no value");
    each_tensor(tree_, with_tensors_, add);
}

bool Skeleton::has_meshes() const noexcept {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [](const SkeletonTensor& one) { return one.role == TensorRole::dtensor; });
}

std::optional<std::uint32_t> Skeleton::tensor_at(NodeId node) const {
    return numbers_[node] == none ? std::nullopt : std::optional(numbers_[node]);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
