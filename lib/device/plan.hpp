// Plans: which groups stay on the device, which ones share slots, and when each is used next. Pure arithmetic.
#pragma once

#include "device/group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// Memory for the two largest of some groups: one is used while the next one arrives.
class Window {
public:
    void add(std::uint64_t bytes) noexcept {
        second_ = std::max(second_, std::min(largest_, bytes));
        largest_ = std::max(largest_, bytes);
    }
    /// Returns the sum of the two, at most 2^64 - 1.
    std::uint64_t bytes() const noexcept;

private:
    std::uint64_t largest_ = 0;
    std::uint64_t second_ = 0;
};

/// The decision of a plan about one group.
struct Fate {
    std::uint64_t bytes = 0;
    bool alone = true;             // it is all that its bundle needs, so it may share a slot
    bool stays = false;            // decided: it stays
    std::uint32_t slot = no_slot;  // decided: its slot; groups with neither come and go like any other
    bool hosted = false;           // decided: it has a slot, and a picture in page-locked memory of the host

    Hosting hosting() const noexcept {
        if (slot != no_slot) return hosted ? Hosting::kept : Hosting::none;
        return stays ? Hosting::if_room : Hosting::by_policy;
    }
};

/// The decisions of a plan.
struct Split {
    std::vector<Fate> fates = {};                // parallel to the argument of split()
    std::vector<std::uint64_t> slot_bytes = {};  // 0, 1 or 2 slots
    std::uint64_t needed = 0;                    // bytes without which the plan cannot be followed
    std::uint64_t hosted = 0;                    // bytes of pictures
};

/// Decides for groups in the order of their first use in a cycle:
/// - if all fit into `budget`, all stay
/// - else as many stay as fit beside the two largest ones that do not, spread evenly over the order, so that each
/// upload
///   has about the same time; groups that are used together with others come first, because they cannot share a slot
/// - the others share two slots, alternating, each as large as its largest group
/// - as many of these as fit into `host` have pictures, spread evenly over them
Split split(std::vector<Fate> groups, std::uint64_t budget, std::uint64_t host = 0);

/// A plan that is followed, and the place in it. Not thread-safe.
class Plan {
public:
    static constexpr std::size_t never = SIZE_MAX;

    Plan(std::vector<std::shared_ptr<const BundleData>> order, bool cyclic);

    const std::vector<std::shared_ptr<const BundleData>>& order() const noexcept { return order_; }
    bool cyclic() const noexcept { return cyclic_; }
    /// Returns the view that all bundles are of. There is at least one bundle.
    const std::shared_ptr<View>& view() const noexcept { return order_.front()->view; }
    /// Returns the groups of all bundles, each once, in the order of first use.
    const std::vector<Group*>& groups() const noexcept { return groups_; }
    /// Returns groups() as split() wants them.
    std::vector<Fate> fates() const;

    /// Goes back to the beginning.
    void restart() noexcept { here_ = never; }
    /// Moves to the next place where this bundle is used. Does nothing if the plan does not have it.
    void reach(const BundleData& bundle) noexcept;
    /// Returns how many steps from here on a group is used next, 1 or more, or `never`.
    std::size_t next_use(const Group& group) const noexcept;
    /// Returns the bundle that is used `steps` steps from here on, or null behind the end.
    const BundleData* upcoming(std::size_t steps) const noexcept;

private:
    using Places = std::vector<std::uint32_t>;  // rising
    std::size_t steps_to(const Places& places) const noexcept;

    std::vector<std::shared_ptr<const BundleData>> order_;
    bool cyclic_;
    std::size_t here_ = never;  // in order_; never: before the first
    std::vector<Group*> groups_;
    std::unordered_map<const BundleData*, Places> places_;
    std::unordered_map<const Group*, Places> uses_;
};

}  // namespace safemap::SAFEMAP_ABI::device
