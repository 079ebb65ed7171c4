// The arithmetic of the budget: which groups have device memory, which can lose it, and the memory that is kept for the
// next ones. It has no threads, allocates nothing on a device and reads nothing. The cache calls it under its lock.
#pragma once

#include "device/budget.hpp"
#include "device/fences.hpp"
#include "device/group.hpp"

#include <safemap/device.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// A piece of device memory that is in use: by one group, by small groups that share it, or by the groups of a slot in
/// turn.
struct Holding {
    std::uint64_t size = 0;  // bytes, counted against the budget
    bool shared = false;
    std::uint32_t slot = no_slot;               // the number of the slot
    std::uint64_t given = 0;                    // shared blocks: bytes that groups have, or had; they are not reused
    std::shared_ptr<DeviceMemory> memory = {};  // null while it is being allocated
    Fences fences = {};                         // work in progress that groups left in the memory
    std::vector<Group*> groups = {};
    std::size_t writers = 0;  // shared blocks: cancelled uploads whose jobs may still write to it
    std::size_t at = 0;       // position in the list of holdings

    /// Takes the fences of a group that is not resident any more.
    void take_fences(Group& group) noexcept;
    /// Returns true if a block has room for a group of `bytes`.
    bool has_room(std::uint64_t bytes) const noexcept { return bytes <= size - given; }
};

/// The holdings under a budget. `claimed` is what the holdings of groups take that are resident or arriving, whether or
/// not it is allocated yet. It never exceeds the budget, nor does that of all caches exceed `shared`.
class Residency {
public:
    /// `shared`: the quota of the device, which counts what is claimed here, too; null: none.
    explicit Residency(std::uint64_t budget, Quota* shared = nullptr) noexcept;

    std::uint64_t budget() const noexcept { return budget_; }
    std::uint64_t claimed() const noexcept { return claimed_; }
    /// Returns the bytes that are left in the budget, whatever others have.
    std::uint64_t left() const noexcept { return budget_ - claimed_; }

    // Small groups.
    /// Returns true if groups of this size share blocks.
    bool shares(std::uint64_t size) const noexcept { return size > 0 && size <= small_; }
    /// Returns the bytes that have to be claimed for absent groups, all together. `slots` has for each of them the slot
    /// that it is put into, or `no_slot`.
    std::uint64_t claims_of(std::span<Group* const> groups, std::span<const std::uint32_t> slots) const;
    /// Returns the block that small groups are put into, if it has `size` bytes left; otherwise null.
    Holding* open_block(std::uint64_t size) const noexcept;
    /// Returns the size of the next block, for a group of `size` bytes, if all blocks so far have `shared_bytes`.
    std::uint64_t next_block(std::uint64_t size, std::uint64_t shared_bytes) const noexcept;
    /// Returns the bytes of all blocks.
    std::uint64_t shared_bytes() const noexcept { return shared_bytes_; }

    // Room.
    /// How much may go to make room.
    struct Reach {
        std::uint64_t since = UINT64_MAX;           ///< nothing that was used or announced later
        bool demanded = true;                       ///< slots, and what a plan keeps or a prefetch announced, too
        std::span<const std::uint32_t> slots = {};  ///< but not these slots
    };
    /// Makes room for `bytes`: reserves all groups of as many holdings as have to go. Small groups that share a block
    /// go after others, then what a prefetch announced and nobody has leased since, and what a plan keeps goes last.
    /// Among equals, the group that was made last goes first. The open block stays. Returns the bytes still missing, 0
    /// if none. `given`: bytes that other caches are about to give.
    std::uint64_t reserve(std::uint64_t bytes, Reach reach, std::vector<Holding*>& victims, std::uint64_t given = 0);
    /// Reserves as many holdings as have to go until they have `bytes`. Returns the bytes still missing.
    std::uint64_t give(std::uint64_t bytes, Reach reach, std::vector<Holding*>& victims);
    /// Reserves all groups of a holding. Returns false, and changes nothing, if one is leased or not resident.
    static bool try_reserve(Holding& holding) noexcept;
    /// Makes the groups of reserved holdings resident again.
    static void restore(std::span<Holding* const> victims) noexcept;
    /// Returns the bytes of holdings with a leased group.
    std::uint64_t leased() const noexcept;
    /// Returns the bytes of all resident groups.
    std::uint64_t resident() const noexcept;

    // Slots of a plan: memory that some groups have in turn, always at the same address.
    /// Makes slots of these sizes, in bytes. Slots of before become ordinary holdings.
    void set_slots(std::vector<std::uint64_t> bytes);
    /// Returns the holding of a slot, or null while it has no memory.
    Holding* slot(std::uint32_t number) const noexcept { return slots_[number].holding; }
    std::uint64_t slot_bytes(std::uint32_t number) const noexcept { return slots_[number].bytes; }

    // Holdings.
    /// Adds a holding of `size` bytes, which must fit.
    Holding& add(std::uint64_t size, bool shared, std::uint32_t slot = no_slot);
    /// Makes a block the one that small groups are put into; null: none. Returns the one before.
    Holding* open(Holding* block) noexcept { return std::exchange(open_, block); }
    /// Returns true if this is one of the holdings. It need not exist any more.
    bool has(const Holding* holding) const noexcept;
    /// Puts a group into a holding. For a block, `given` grows.
    static void put(Group& group, Holding& holding);
    /// Takes a group out of its holding. Returns the holding if it is empty now and no slot; otherwise null.
    Holding* take_out(Group& group) noexcept;
    /// Removes a holding without groups, and returns its memory.
    Space remove(Holding& holding) noexcept;
    std::span<const std::unique_ptr<Holding>> holdings() const noexcept { return holdings_; }

private:
    std::uint64_t reserve_once(std::uint64_t missing, Reach reach, std::vector<Holding*>& victims);

    std::uint64_t budget_;
    Quota* shared_;
    std::uint64_t small_;       // largest group that shares a block
    std::uint64_t most_block_;  // largest block
    std::uint64_t claimed_ = 0;
    std::uint64_t shared_bytes_ = 0;  // bytes of all blocks
    std::vector<std::unique_ptr<Holding>> holdings_;
    struct Slot {
        std::uint64_t bytes = 0;
        Holding* holding = nullptr;
    };
    std::vector<Slot> slots_;
    Holding* open_ = nullptr;
};

/// Device memory that exists: in holdings, or kept for the next ones. Its total never exceeds the budget, nor does that
/// of all caches exceed `shared`.
class Heap {
public:
    /// `shared`: the quota of the device, which counts this memory, too; null: none.
    explicit Heap(std::uint64_t budget, Quota* shared = nullptr) noexcept : budget_(budget), shared_(shared) {}

    std::uint64_t total() const noexcept { return total_; }
    std::uint64_t peak() const noexcept { return peak_; }

    /// Takes kept memory of exactly `size` bytes, if possible without fences in progress. Anything larger could take
    /// the room of what else fits. Returns nothing without such memory.
    Space take(std::uint64_t size) noexcept;
    /// Keeps memory for the next holdings. Frees nothing, except if there is no memory to remember it.
    void keep(Space space) noexcept;
    /// Takes kept memory that should be freed so that `size` new bytes fit: the smallest that is enough, or the
    /// largest. Returns nothing if nothing is kept. It counts until gone() is called.
    Space take_to_free(std::uint64_t size) noexcept { return take_kept(missing(size)); }
    /// Takes kept memory of at least `bytes`, the smallest that is enough, or the largest. It counts until gone() is
    /// called.
    Space take_kept(std::uint64_t bytes) noexcept;

    /// Returns true if memory is kept.
    bool keeps() const noexcept { return !kept_.empty(); }
    /// Returns the bytes that have to be freed before `size` new bytes fit.
    std::uint64_t missing(std::uint64_t size) const noexcept;
    /// Returns true if `size` new bytes fit.
    bool fits(std::uint64_t size) const noexcept { return missing(size) == 0; }
    /// Returns true if `size` new bytes fit, but for the memory of other caches.
    bool fits_here(std::uint64_t size) const noexcept { return size <= budget_ - total_; }
    /// Counts memory that is about to be allocated, and must fit.
    void coming(std::uint64_t size) noexcept;
    /// Counts memory that has been freed.
    void gone(std::uint64_t size) noexcept;

private:
    std::uint64_t budget_;
    Quota* shared_;
    std::uint64_t total_ = 0;
    std::uint64_t peak_ = 0;
    std::multimap<std::uint64_t, Space> kept_;
};

}  // namespace safemap::SAFEMAP_ABI::device
