// The ledger of a device: which groups have device memory, what they take of whose budget, which can lose it, and the
// memory that is kept for the next ones. It has no threads, allocates nothing on a device and reads nothing. The cache
// calls it under its lock.
#pragma once

#include "device/fences.hpp"
#include "device/group.hpp"

#include <safemap/device.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

struct Account;

/// A piece of device memory that is in use: by one group, by small groups that share it, or by the groups of a slot in
/// turn.
struct Holding {
    Account* account = nullptr;
    std::uint64_t size = 0;  // bytes, counted against the budget
    bool shared = false;
    std::uint32_t slot = no_slot;               // the number of the slot
    std::uint64_t given = 0;                    // shared blocks: bytes that groups have, or had; they are not reused
    std::shared_ptr<DeviceMemory> memory = {};  // null while it is being allocated
    Fences fences = {};                         // work in progress that groups left in the memory
    std::vector<Group*> groups = {};
    std::size_t writers = 0;                 // shared blocks: cancelled uploads whose jobs may still write to it
    Record block = {};                       // the policy's record of a shared block
    Record* record = nullptr;                // its own record; null: none, as a plan decides about it
    bool is_chosen = false;                  // the policy has chosen it to go
    std::size_t at = 0;                      // position in the list of holdings
    std::weak_ptr<AddressRange> range = {};  // its addresses, while groups that had them before sleep() are to come

    /// Takes the fences of a group that is not resident any more.
    void take_fences(Group& group) noexcept;
    /// Returns true if a block has room for a group of `bytes`.
    bool has_room(std::uint64_t bytes) const noexcept { return bytes <= size - given; }
};

/// Addresses that groups had before sleep(). It lives until all of them are there again, or gone.
struct AddressRange {
    std::shared_ptr<DeviceMemory> memory;  // from Device::reserve()
    bool shared = false;
    std::uint64_t given = 0;     // as that of the holding which was there
    Holding* holding = nullptr;  // the one that is there now
    bool committed = true;       // the memory is there: in a holding, kept, or on its way to be kept
    bool busy = false;           // a thread commits or decommits it

    bool is_empty() const noexcept { return !committed && !busy; }
};

/// Gives memory back to the device, and keeps its addresses. Returns the fault, if there is one.
std::exception_ptr decommit(DeviceMemory& memory) noexcept;

/// The share that one uploader has of the device.
struct Account {
    /// `most`: the largest number of bytes that it may claim. `unit`: see `granularity`.
    explicit Account(std::uint64_t most, std::uint64_t unit = 0) noexcept;

    // Addresses that stay.
    struct Place {
        std::shared_ptr<AddressRange> range;
        std::uint64_t offset = 0;
    };
    /// Returns the place that is kept for a group, or null.
    const Place* place_of(const Group& group) const noexcept;
    /// Returns the bytes of memory for `size` bytes.
    std::uint64_t rounded(std::uint64_t size) const noexcept;
    /// Returns the bytes that a group takes, without the rest of its block.
    std::uint64_t footprint(std::uint64_t size) const noexcept { return shares(size) ? size : rounded(size); }

    // Small groups.
    /// Returns true if groups of this size share blocks.
    bool shares(std::uint64_t size) const noexcept { return size > 0 && size <= small; }
    /// Returns the bytes that have to be claimed for absent groups, all together. `into` has for each of them the slot
    /// that it is put into, or `no_slot`. Puts small groups into the open block only if `uses_open`.
    std::uint64_t claims_of(std::span<Group* const> groups, std::span<const std::uint32_t> into, bool uses_open) const;
    /// Returns the block that small groups are put into, if it has `size` bytes left; otherwise null.
    Holding* open_block(std::uint64_t size) const noexcept;
    /// Returns the size of the next block, for a group of `size` bytes, if all blocks so far have `in_blocks`.
    std::uint64_t next_block(std::uint64_t size, std::uint64_t in_blocks) const noexcept;

    /// Returns the holding of a slot, or null while it has no memory.
    Holding* slot(std::uint32_t number) const noexcept { return slots[number].holding; }

    const std::uint64_t cap;            // bytes
    const std::uint64_t granularity;    // bytes of which memory is a multiple; 0: addresses need not stay
    const std::uint64_t small;          // bytes of the largest group that shares a block
    const std::uint64_t most_in_block;  // bytes of the largest block
    std::uint64_t claimed = 0;          // bytes of its holdings
    std::uint64_t allocated = 0;        // bytes of its holdings that have memory
    std::uint64_t peak = 0;             // maximum of `allocated`
    std::uint64_t in_blocks = 0;        // bytes of its blocks
    std::size_t freeing = 0;            // pieces of memory it had last that threads are freeing
    Holding* open = nullptr;            // the block that small groups are put into
    struct Slot {
        std::uint64_t bytes = 0;
        Holding* holding = nullptr;
    };
    std::vector<Slot> slots = {};
    std::unordered_map<const Group*, Place> places = {};  // kept for groups that are not there
};

/// The holdings of a device. What they claim, whether or not it is allocated yet, never exceeds the budget, nor do
/// those of an account exceed its cap.
class Ledger {
public:
    explicit Ledger(std::uint64_t budget) noexcept : budget_(budget), policy_(budget) {}

    std::uint64_t budget() const noexcept { return budget_; }
    std::uint64_t claimed() const noexcept { return claimed_; }

    // Room.
    /// Bytes that have to go before an account can claim more.
    struct Missing {
        std::uint64_t own = 0;  ///< bytes of its own holdings
        std::uint64_t all = 0;  ///< bytes of all holdings, those included

        explicit operator bool() const noexcept { return own > 0 || all > 0; }
        /// Subtracts bytes that go.
        void subtract(std::uint64_t bytes, bool is_own) noexcept;
    };
    Missing missing(const Account& account, std::uint64_t bytes) const noexcept;
    /// How much may go to make room.
    struct Reach {
        std::uint64_t since = UINT64_MAX;           ///< nothing that was used or announced later
        bool demanded = true;                       ///< also of others, slots, and what a plan or a prefetch keeps
        std::span<const std::uint32_t> slots = {};  ///< but not these slots of the account
        bool open_blocks = false;                   ///< also blocks that small groups are put into
    };
    /// Makes room of `bytes` for an account: reserves all groups of as many holdings as have to go, and subtracts them
    /// from `missing`. The policy chooses first. After that goes what a prefetch announced and nobody has leased since,
    /// the latest first; then slots; then what a plan keeps.
    void reserve(const Account& account, std::uint64_t bytes, Missing& missing, const Reach& reach,
                 std::vector<Holding*>& victims);
    /// Reserves all groups of a holding. Returns false, and changes nothing, if one is leased or not resident.
    static bool try_reserve(Holding& holding) noexcept;
    /// Makes the groups of reserved holdings resident again.
    void restore(std::span<Holding* const> victims) noexcept;
    /// Records a lease of a resident group. Any thread may call it, without the lock.
    void hit(const Group& group) const noexcept { policy_.hit(*group.counts); }
    /// Makes a group go before all others, until it is used.
    void let_go_first(Group& group) noexcept;
    /// Forgets the uses of a group without memory, which ends.
    void forget(Group& group) noexcept {
        if (group.on_device) policy_.forget(group.on_device->record);
    }
    /// Returns the bytes of holdings with a leased group: of an account, or of all others.
    std::uint64_t leased(const Account& account, bool others = false) const noexcept;
    /// Returns the bytes of all resident groups of an account.
    std::uint64_t resident(const Account& account) const noexcept;

    // Holdings.
    /// Adds a holding of `size` bytes, which must fit.
    Holding& add(Account& account, std::uint64_t size, bool shared, std::uint32_t slot = no_slot);
    /// Returns the holding at these addresses. Adds it if it is missing; then it must fit.
    Holding& holding_at(Account& account, const std::shared_ptr<AddressRange>& range);
    /// Keeps the places of all resident groups of an account, but of slots.
    void keep_places(Account& account);
    /// Sets the memory of a holding.
    static void provide(Holding& holding, std::shared_ptr<DeviceMemory> memory) noexcept;
    /// Makes slots of these sizes, in bytes: memory that some groups have in turn, always at the same address. Slots of
    /// before become ordinary holdings.
    void set_slots(Account& account, const std::vector<std::uint64_t>& bytes);
    /// Puts a group into a holding. For a block, `given` grows. `demanded`: it is used now.
    void put(Group& group, Holding& holding, bool demanded);
    /// Takes a group out of its holding. Returns the holding if it is empty now and no slot; otherwise null.
    Holding* take_out(Group& group) noexcept;
    /// Takes all groups out of a holding, and calls leave(group) for each.
    template <class Leave> void empty(Holding& holding, Leave&& leave) {
        groups_ -= holding.groups.size();
        for (Group* const group : holding.groups) {
            detach(*group);
            leave(*group);
        }
        holding.groups.clear();
    }
    /// Removes a holding without groups, and returns its memory.
    Space remove(Holding& holding) noexcept;
    std::span<const std::unique_ptr<Holding>> holdings() const noexcept { return holdings_; }

private:
    class Choice;
    static Holding* detach(Group& group) noexcept;
    void take_by_policy(const Account& account, std::uint64_t bytes, Missing& missing, const Choice& choice,
                        std::vector<Holding*>& victims);
    void take_the_rest(const Account& account, Missing& missing, const Choice& choice, std::vector<Holding*>& victims);
    void add_to_policy(Group& group, Holding& holding, bool demanded) noexcept;

    std::uint64_t budget_;
    std::uint64_t claimed_ = 0;
    std::size_t groups_ = 0;  // in all holdings
    std::vector<std::unique_ptr<Holding>> holdings_;
    Policy policy_;
};

/// Device memory that exists: in holdings, or kept for the next ones. Its total never exceeds the budget.
class Heap {
public:
    explicit Heap(std::uint64_t budget) noexcept : budget_(budget) {}

    std::uint64_t total() const noexcept { return total_; }
    std::uint64_t peak() const noexcept { return peak_; }

    /// Takes kept memory of exactly `size` bytes, if possible without fences in progress. Anything larger could take
    /// the room of what else fits. Returns nothing without such memory. With a range, takes only the memory of that;
    /// otherwise none whose addresses are kept for others. `reserved`: only memory of Device::reserve().
    Space take(std::uint64_t size, const AddressRange* range = nullptr, bool reserved = false) noexcept;
    /// Keeps memory for the next holdings. Frees nothing, except if there is no memory to remember it.
    void keep(Space space) noexcept;
    /// Takes kept memory that should be freed so that `size` new bytes fit: the smallest that is enough, or the
    /// largest. Returns nothing if nothing is kept. It counts until gone() is called.
    Space take_to_free(std::uint64_t size) noexcept;
    /// Takes kept memory that an account had last, to free it. Returns nothing without such memory.
    Space take_of(const Account& account) noexcept;

    /// Returns true if `size` new bytes fit.
    bool fits(std::uint64_t size) const noexcept { return size <= budget_ - total_; }
    /// Counts memory that is about to be allocated, and must fit.
    void coming(std::uint64_t size) noexcept;
    /// Counts memory that has been freed.
    void gone(std::uint64_t size) noexcept;

private:
    std::uint64_t budget_;
    std::uint64_t total_ = 0;
    std::uint64_t peak_ = 0;
    std::multimap<std::uint64_t, Space> kept_;
};

}  // namespace safemap::SAFEMAP_ABI::device
