// Which group owns a tensor. Makes bundles: finds the owners of known tensors, and makes one group of the others.
#pragma once

#include "device/group.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// A table of the tensors of all groups, by what the tensors hold: not by name. All members may be called from several
/// threads at once.
class Owners {
public:
    /// A tensor of a group.
    struct Place {
        std::shared_ptr<Group> group = {};
        std::uint32_t tensor = 0;  // its number in the layout
        bool moved = false;        // the tensor was moved into it
    };

    /// Returns the owners of `tensors`, parallel to them. Tensors without an owner get a new group, which lists them in
    /// file order; they are moved from. Takes linear time if they are in file order. Throws budget_exceeded as
    /// lay_out() does.
    std::vector<Place> own(const std::shared_ptr<View>& view, std::vector<LazyTensor>& tensors);
    /// Returns the owner of a tensor, or null.
    std::shared_ptr<Group> find(const LazyTensor& tensor) const;
    /// Removes the tensors of a group, which has no owner any more.
    void forget(const Group& group) noexcept;

private:
    /// An entry of the table. While own() works, tensors of the new group have no group yet.
    struct Owned {
        Group* group;
        std::uint32_t tensor;
    };
    using Table = std::unordered_multimap<std::size_t, Owned>;  // by TensorHash
    class Newcomers;

    Place find_known(const LazyTensor& tensor, std::size_t key) const;

    mutable std::mutex mutex_;
    Table table_;
};

}  // namespace safemap::SAFEMAP_ABI::device
