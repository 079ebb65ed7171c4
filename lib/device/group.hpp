// A group: the tensors that one bundle owns, and the word that says whether they are on the device.
#pragma once

#include "device/fences.hpp"
#include "device/fill_plan.hpp"
#include "device/layout.hpp"
#include "device/policy.hpp"

#include <safemap/bundle.hpp>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <forward_list>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class Cache;
class Upload;
struct Holding;
struct View;

/// The sizes in bytes with which groups are filled.
struct FillSizes {
    std::uint64_t job = 0;   // largest job
    std::uint64_t tile = 0;  // largest tile of a transposed tensor
    std::uint64_t most = 0;  // largest group that is ever filled
};

struct Picture;

/// The policy decides if a group gets a picture in page-locked memory of the host. A plan may decide instead: it keeps
/// the picture, makes one only where there is room, or makes none.
enum class Hosting : std::uint8_t { by_policy, kept, if_room, none };

/// The number of no slot.
inline constexpr std::uint32_t no_slot = UINT32_MAX;

/// The state and the leases of a group in one atomic word. A lease of a resident group is one step on it, without a
/// lock. All other changes of the state are made under the lock of the cache; leases may end at any time.
class Word {
public:
    /// `reserved` lasts no longer than the lock is held: the group was resident and not leased, its memory is wanted,
    /// and it becomes absent, or resident again.
    enum class State : std::uint64_t { absent, arriving, resident, reserved };

    State state() const noexcept { return state_of(word_.load(std::memory_order_acquire)); }
    bool leased() const noexcept { return (word_.load(std::memory_order_acquire) & lease_mask) != 0; }

    /// Leases a resident group. Returns false in any other state.
    bool try_lease() noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);
        while (state_of(word) == State::resident)
            if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed))
                return true;
        return false;
    }
    /// Reserves a resident group that is not leased. Returns false otherwise.
    bool try_reserve() noexcept {
        std::uint64_t word = of(State::resident);
        return word_.compare_exchange_strong(word, of(State::reserved), std::memory_order_acquire,
                                             std::memory_order_relaxed);
    }
    /// Leases in any state; under the lock.
    void lease() noexcept { word_.fetch_add(1, std::memory_order_acquire); }
    void release() noexcept {
        [[maybe_unused]] const std::uint64_t before = word_.fetch_sub(1, std::memory_order_release);
        assert((before & lease_mask) != 0);
    }
    /// Changes the state; under the lock. What was written before is seen by who leases after.
    void change(State from, State to) noexcept {
        assert(state() == from);
        word_.fetch_add(of(to) - of(from), std::memory_order_acq_rel);  // wraps
    }

private:
    static constexpr unsigned state_shift = 62;
    static constexpr std::uint64_t lease_mask = (std::uint64_t{1} << state_shift) - 1;
    static constexpr State state_of(std::uint64_t word) noexcept { return static_cast<State>(word >> state_shift); }
    static constexpr std::uint64_t of(State state) noexcept { return static_cast<std::uint64_t>(state) << state_shift; }

    std::atomic<std::uint64_t> word_ = of(State::absent);
};

/// A record of the policy, and the memory that it is about while that is there.
struct Record final : Use {
    Holding* holding = nullptr;
};

/// Tensors that come and go together, their layout, and their memory while they are there. Any thread may use `word`
/// and the atomic members. The other members that change are guarded by the lock of the cache, but what a lease holds
/// does not change.
class Group : public std::enable_shared_from_this<Group> {
public:
    Group(std::shared_ptr<View> owner, std::uint64_t order, Layout arranged);
    /// Gives the memory back to the cache.
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    const std::shared_ptr<View> view;
    const std::uint64_t number;  // groups that are made later have higher ones
    const Layout layout;

    /// A part that is made for the first upload, and stays: most groups of a large model may never come.
    struct OnDevice {
        OnDevice(const Layout& layout, const FillSizes& sizes)
            : plan(layout.size <= sizes.most ? FillPlan(layout, sizes.job, sizes.tile) : FillPlan()) {}

        const FillPlan plan;  // empty if the group is larger than the budget
        Record record = {};
        Fences ready = {};                 // the copies that brought it; set while resident
        Fences uses = {};                  // the work of callers that used it; set while resident
        std::shared_ptr<Group> self = {};  // set if a lease never ends: nobody says when the device is done with it
        std::shared_ptr<Picture> picture = {};  // if it had room in page-locked memory of the host once
    };
    /// Makes `on_device`, if it is not there yet.
    OnDevice& prepare(const FillSizes& sizes) {
        if (!on_device) {
            on_device = std::make_unique<OnDevice>(layout, sizes);
            counts = &on_device->record;
        }
        return *on_device;
    }
    std::unique_ptr<OnDevice> on_device = {};

    Word word = {};
    Record* counts = nullptr;  // the record of its memory: its own, or that of a block; does not change while resident
    std::atomic<std::uint64_t> used = 0;        // the cache's time of the last lease
    std::uint64_t announced = 0;                // the cache's time of the last prefetch
    std::atomic<bool> pending = false;          // the copies that brought the group may be in progress
    bool stays = false;                         // a plan decided that it stays on the device, once it is there
    Hosting hosting = Hosting::by_policy;       // a plan may decide that
    std::atomic<std::uint32_t> slot = no_slot;  // a plan decided that it shares this slot with others

    std::shared_ptr<DeviceMemory> memory = {};  // set while resident
    std::uint64_t offset = 0;                   // place of the layout in that memory, bytes
    Holding* holding = nullptr;                 // the memory that counts for it; set while resident or arriving
    std::shared_ptr<Upload> upload = {};        // set while arriving
    std::exception_ptr fault = {};              // fault of a prefetch, until the next acquire
};

/// The contents of a Bundle. They do not change, but the index of names is made on first use.
struct BundleData {
    std::shared_ptr<View> view;
    std::vector<std::shared_ptr<Group>> groups;  // owners of the tensors, each once
    std::forward_list<LazyTensor> renamed;       // tensors with another name than in their group
    std::vector<DeviceTensor> tensors;           // in the order of the request
    std::uint64_t device_bytes = 0;

    /// Returns the tensor with this name, or null. May be called from several threads at once.
    const DeviceTensor* find(std::string_view name) const;

private:
    mutable std::once_flag indexed_;
    mutable std::unique_ptr<std::uint32_t[]> by_name_;
};

}  // namespace safemap::SAFEMAP_ABI::device
