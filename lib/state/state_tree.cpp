// The array of nodes. What names them is lib/state/flatten.cpp.
#include <safemap/error.hpp>
#include <safemap/state_tree.hpp>

#include <limits>

namespace safemap {

StateTree::NodeId StateTree::add(Node node) {
    if (nodes_.size() >= std::numeric_limits<NodeId>::max()) {
        throw Error(Errc::pickle_too_large, "a tree of more than 2^32 - 1 values");
    }
    nodes_.push_back(std::move(node));
    return static_cast<NodeId>(nodes_.size() - 1);
}

}  // namespace safemap
