// The nested state dict of a DCP checkpoint, as torch's set_element() builds it from the paths of planner_data.
#pragma once

#include "distributed/dcp/dcp_metadata.hpp"
#include "state/path_tree.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Builds the tree, entry by entry. Keys of paths are dictionaries' keys, integers are places in lists, which grow with
/// None. An entry without a path is under its name.
class DcpTree {
public:
    /// Keeps references to the metadata, which must outlive it.
    explicit DcpTree(const DcpMetadata& metadata);

    /// Adds a tensor at the path of its entry. Throws duplicate_name if another entry has the path, field_missing if
    /// the path contradicts that of another entry, pickle_too_large for a place in a list that is too large.
    void add(const DcpEntry& entry, LazyTensor tensor);
    /// Adds an object at the path of its entry, likewise: its number in `objects`, whose nodes are moved into the tree
    /// at the first use. Later uses refer to the same nodes.
    void add(const DcpEntry& entry, std::uint32_t object, std::vector<StateTree>& objects);
    /// Adds a tree under a key of the root that no entry has: `key` itself, or with a number appended. Returns the key.
    std::string add(std::string_view key, StateTree tree);

    /// Returns the tree. Nothing may be added afterwards.
    StateTree take() { return tree_.take(); }
    /// Returns the names of the tensors and objects that were added, by node.
    const std::unordered_map<StateTree::NodeId, std::string>& names() const noexcept { return names_; }

private:
    using NodeId = StateTree::NodeId;
    enum class Kind : std::uint8_t { dictionary, list };

    NodeId moved(StateTree tree);
    void place(const DcpEntry& entry, NodeId leaf);
    NodeId container_below(NodeId container, const DcpStep& step, const DcpStep& next);
    Kind require_kind(NodeId container, const DcpStep& step) const;
    void put(NodeId container, const DcpStep& step, NodeId leaf);
    NodeId& item(NodeId list, std::int64_t place);
    NodeId key(const DcpStep& step);

    const DcpMetadata& metadata_;
    state::PathTree tree_ = {};
    NodeId none_;
    std::unordered_map<StateTree::NodeId, std::string> names_ = {};
    std::vector<NodeId> keys_;                                ///< by number of the text; no_node until it is a key
    std::unordered_map<std::uint32_t, NodeId> objects_ = {};  ///< objects that are in the tree
    std::uint64_t places_left_;                               ///< places in lists that may still be made
};

}  // namespace safemap::SAFEMAP_ABI::distributed
