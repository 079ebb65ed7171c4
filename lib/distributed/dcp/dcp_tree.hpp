// The nested state dict of a DCP checkpoint, as torch's set_element() builds it from the paths of planner_data.
#pragma once

#include "base/name_index.hpp"
#include "distributed/dcp/dcp_metadata.hpp"

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
    StateTree take() { return std::move(tree_); }
    /// Returns the names of the tensors and objects that were added, by node.
    const std::unordered_map<StateTree::NodeId, std::string>& names() const noexcept { return names_; }

private:
    using NodeId = StateTree::NodeId;
    /// A dictionary and the number of the text that is a key of it.
    struct Key {
        NodeId dict;
        std::uint32_t text;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const noexcept;
    };

    enum class Kind : std::uint8_t { dictionary, list };

    NodeId moved(StateTree tree);
    void place(const DcpEntry& entry, NodeId leaf);
    NodeId container_below(NodeId container, const DcpStep& step, const DcpStep& next);
    Kind require_kind(NodeId container, const DcpStep& step) const;
    void put(NodeId container, const DcpStep& step, NodeId leaf);
    NodeId& item(NodeId list, std::int64_t place);
    void add_entry(NodeId dict, std::string_view key, NodeId value);
    std::uint32_t number_of(std::string_view text);
    std::string_view text_of(std::uint32_t number) const;
    bool is_container(NodeId id) const;

    const DcpMetadata& metadata_;
    StateTree tree_;
    NodeId none_;
    std::unordered_map<StateTree::NodeId, std::string> names_ = {};
    std::unordered_map<Key, NodeId, KeyHash> values_ = {};
    std::unordered_map<std::string_view, std::uint32_t, NameHash> texts_ = {};  ///< numbers of texts, made when needed
    std::unordered_map<std::uint32_t, NodeId> objects_ = {};                    ///< objects that are in the tree
    std::vector<std::string_view> more_texts_ = {};  ///< names that are keys, and are not in DcpMetadata::texts
    std::uint64_t places_left_;                      ///< places in lists that may still be made
};

}  // namespace safemap::SAFEMAP_ABI::distributed
