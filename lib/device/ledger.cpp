// The ledger of a device.
#include "device/ledger.hpp"

#include "base/checked.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <new>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// Groups of this size share blocks: an allocator of a device rounds up to as much as 2 MiB.
constexpr std::uint64_t most_small = 256_KiB;
constexpr std::uint64_t first_block = 4_KiB;
constexpr std::uint64_t largest_block = 16_MiB;
// With a smaller budget, blocks would take too large a share of it.
constexpr std::uint64_t least_budget_for_blocks = 1_MiB;

std::uint64_t padded(std::uint64_t size) noexcept {
    return (size + place_alignment - 1) / place_alignment * place_alignment;
}

}  // namespace

std::exception_ptr decommit(DeviceMemory& memory) noexcept {
    try {
        memory.decommit();
        return nullptr;
    } catch (...) {
        return std::current_exception();
    }
}

/// Decides which holdings can go.
class Ledger::Choice {
public:
    /// `groups`: number of groups on the device.
    Choice(const Account& account, const Reach& reach, std::size_t groups)
        : account_(account),
          reach_(reach),
          // A program that prefetches as many groups as fit leases them in about as many steps. A group that was
          // announced longer ago, and not leased since, was announced by mistake. The time of the cache moves by 2.
          awaited_since_(reach.since - std::min<std::uint64_t>(reach.since, 2 * groups)) {}

    /// Returns true if all groups of a holding can go.
    bool can_go(const Holding& holding) const noexcept {
        if (holding.size == 0 || holding.writers > 0) return false;
        const bool is_own = holding.account == &account_;
        if (!is_own && !reach_.demanded) return false;
        const bool is_open = holding.account->open == &holding || !holding.range.expired();
        if (is_open && !reach_.open_blocks) return false;
        const bool is_slot = holding.slot != no_slot;
        if (is_slot && !reach_.demanded) return false;
        if (is_slot && is_own && std::ranges::count(reach_.slots, holding.slot) > 0) return false;
        return std::ranges::all_of(holding.groups, [&](const Group* group) { return can_go(*group); });
    }

    /// The reason why another than the policy decides about a holding. The least goes first.
    struct Reason {
        unsigned tier = 0;            // 0: nothing
        std::uint64_t announced = 0;  // the latest time at which a group of it was announced that is awaited
        std::uint64_t number = 0;     // number of its oldest group

        friend bool operator<(const Reason& a, const Reason& b) noexcept {
            return std::tuple(a.tier, b.announced, b.number) < std::tuple(b.tier, a.announced, a.number);
        }
    };
    Reason reason(const Holding& holding) const noexcept {
        bool stays = false;
        Reason reason{.number = UINT64_MAX};
        for (const Group* group : holding.groups) {
            stays = stays || group->stays;
            reason.announced = std::max(reason.announced, awaited(*group));
            reason.number = std::min(reason.number, group->number);
        }
        reason.tier = stays ? 3 : holding.slot != no_slot ? 2 : reason.announced > 0 ? 1 : 0;
        return reason;
    }

private:
    /// Returns the time at which a group was announced that will be leased soon, or 0.
    std::uint64_t awaited(const Group& group) const noexcept {
        const bool is_leased_since = group.used.load(std::memory_order_relaxed) > group.announced;
        return is_leased_since || group.announced < awaited_since_ ? 0 : group.announced;
    }
    bool can_go(const Group& group) const noexcept {
        return group.word.state() == Word::State::resident && !group.word.leased() &&
               group.used.load(std::memory_order_relaxed) <= reach_.since && group.announced <= reach_.since &&
               (reach_.demanded || (!group.stays && awaited(group) == 0));
    }

    const Account& account_;
    const Reach& reach_;
    std::uint64_t awaited_since_ = 0;
};

void Holding::take_fences(Group& group) noexcept {
    fences.splice(fences.end(), group.on_device->ready);
    fences.splice(fences.end(), group.on_device->uses);
    drop_done(fences);
    group.pending.store(false, std::memory_order_relaxed);
}

Account::Account(std::uint64_t most, std::uint64_t unit) noexcept
    : cap(most),
      granularity(unit),
      small(most < least_budget_for_blocks ? 0 : std::min(most_small, most / 64)),
      most_in_block(std::min(largest_block, most / 16)) {}

std::uint64_t Account::next_block(std::uint64_t size, std::uint64_t so_far) const noexcept {
    // Blocks double the bytes of all blocks, so that a few small groups do not claim a large one.
    return rounded(std::clamp(padded(so_far), std::max(first_block, padded(size)), most_in_block));
}

std::uint64_t Account::rounded(std::uint64_t size) const noexcept {
    if (granularity == 0) return size;
    const auto more = checked_add(size, granularity - 1);
    return more ? *more / granularity * granularity : std::numeric_limits<std::uint64_t>::max();
}

const Account::Place* Account::place_of(const Group& group) const noexcept {
    const auto found = places.find(&group);
    return found == places.end() ? nullptr : &found->second;
}

std::uint64_t Account::claims_of(std::span<Group* const> groups, std::span<const std::uint32_t> into,
                                 bool uses_open) const {
    std::uint64_t claims = 0;
    // Bytes left in the open block, and in the last one that is claimed here. As in Cache::settle(), a group that does
    // not fit into the open block does not close it for the next ones.
    std::uint64_t left_open = open == nullptr || !uses_open ? 0 : open->size - open->given;
    std::uint64_t left_last = 0;
    std::uint64_t so_far = in_blocks;
    std::vector<const AddressRange*> ranges;
    const auto claim = [&](std::uint64_t size) {
        claims = checked_add(claims, size).value_or(std::numeric_limits<std::uint64_t>::max());
    };
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::uint64_t size = groups[i]->layout.size;
        if (into[i] != no_slot) {
            if (slot(into[i]) == nullptr) claim(slots[into[i]].bytes);
            continue;
        }
        if (const Place* const place = place_of(*groups[i])) {
            const AddressRange* const range = place->range.get();
            if (std::ranges::find(ranges, range) != ranges.end()) continue;
            ranges.push_back(range);
            if (range->holding == nullptr || !uses_open) claim(range->memory->size());
            continue;
        }
        if (!shares(size)) {
            claim(rounded(size));
            continue;
        }
        if (size > left_open && size > left_last) {
            left_last = next_block(size, so_far);
            so_far += left_last;
            claim(left_last);
        }
        std::uint64_t& left = size <= left_open ? left_open : left_last;
        left -= std::min(left, padded(size));
    }
    return claims;
}

Holding* Account::open_block(std::uint64_t size) const noexcept {
    return open != nullptr && open->has_room(size) ? open : nullptr;
}

void Ledger::Missing::subtract(std::uint64_t bytes, bool is_own) noexcept {
    all -= std::min(all, bytes);
    if (is_own) own -= std::min(own, bytes);
}

Ledger::Missing Ledger::missing(const Account& account, std::uint64_t bytes) const noexcept {
    const auto above = [bytes](std::uint64_t left) { return bytes - std::min(bytes, left); };
    return {.own = above(account.cap - account.claimed), .all = above(budget_ - claimed_)};
}

void Ledger::reserve(const Account& account, std::uint64_t bytes, Missing& missing, const Reach& reach,
                     std::vector<Holding*>& victims) {
    // A lease that moves from one group to another while they are looked at hides both. So a demand looks again.
    for (int looks = reach.demanded ? 16 : 1; missing && looks > 0; --looks) {
        const Choice choice(account, reach, groups_);
        take_by_policy(account, bytes, missing, choice, victims);
        if (missing && reach.demanded) take_the_rest(account, missing, choice, victims);
    }
}

void Ledger::take_by_policy(const Account& account, std::uint64_t bytes, Missing& missing, const Choice& choice,
                            std::vector<Holding*>& victims) {
    while (missing) {
        if (victims.size() == victims.capacity()) victims.reserve(2 * victims.size() + 1);
        const auto can_go = [&](Use& use) noexcept {
            Holding& holding = *static_cast<Record&>(use).holding;
            if (missing.own > 0 && holding.account != &account) return false;
            return choice.can_go(holding) && choice.reason(holding).tier == 0 && try_reserve(holding);
        };
        Use* const use = policy_.victim(bytes, can_go);
        if (use == nullptr) return;
        Holding& holding = *static_cast<Record*>(use)->holding;
        holding.is_chosen = true;
        victims.push_back(&holding);
        missing.subtract(holding.size, holding.account == &account);
    }
}

/// Reserves what a plan or a prefetch keeps, and slots.
void Ledger::take_the_rest(const Account& account, Missing& missing, const Choice& choice,
                           std::vector<Holding*>& victims) {
    struct Candidate {
        Choice::Reason reason;
        Holding* holding;
    };
    std::vector<Candidate> candidates;
    for (const auto& holding : holdings_) {
        const Choice::Reason reason = choice.reason(*holding);
        if (reason.tier == 0 || !choice.can_go(*holding)) continue;
        // An empty slot has no group whose state says that it was found before.
        if (holding->groups.empty() && std::ranges::count(victims, holding.get()) > 0) continue;
        candidates.push_back({reason, holding.get()});
    }
    std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) { return a.reason < b.reason; });
    victims.reserve(victims.size() + candidates.size());
    for (const auto& [reason, holding] : candidates) {
        const bool is_own = holding->account == &account;
        if (!missing || (missing.own > 0 && !is_own) || !try_reserve(*holding)) continue;
        victims.push_back(holding);
        missing.subtract(holding->size, is_own);
    }
}

bool Ledger::try_reserve(Holding& holding) noexcept {
    if (holding.writers > 0) return false;
    for (std::size_t i = 0; i < holding.groups.size(); ++i) {
        if (holding.groups[i]->word.try_reserve()) continue;
        while (i-- > 0) holding.groups[i]->word.change(Word::State::reserved, Word::State::resident);
        return false;
    }
    return true;
}

void Ledger::restore(std::span<Holding* const> victims) noexcept {
    for (Holding* holding : victims) {
        for (Group* group : holding->groups) group->word.change(Word::State::reserved, Word::State::resident);
        if (std::exchange(holding->is_chosen, false)) policy_.stays(*holding->record);
    }
}

void Ledger::let_go_first(Group& group) noexcept {
    group.used.store(0, std::memory_order_relaxed);
    group.announced = 0;
    if (group.holding != nullptr && group.holding->record != nullptr) policy_.let_go_first(*group.holding->record);
}

std::uint64_t Ledger::leased(const Account& account, bool others) const noexcept {
    std::uint64_t sum = 0;
    for (const auto& holding : holdings_)
        if ((holding->account != &account) == others &&
            std::ranges::any_of(holding->groups, [](const Group* group) { return group->word.leased(); }))
            sum += holding->size;
    return sum;
}

std::uint64_t Ledger::resident(const Account& account) const noexcept {
    std::uint64_t sum = 0;
    for (const auto& holding : holdings_)
        for (const Group* group : holding->groups)
            if (holding->account == &account && group->word.state() == Word::State::resident) sum += group->layout.size;
    return sum;
}

Holding& Ledger::add(Account& account, std::uint64_t size, bool shared, std::uint32_t slot) {
    assert(!missing(account, size));
    auto added = std::make_unique<Holding>();
    added->groups.reserve(1);
    holdings_.push_back(std::move(added));
    Holding& holding = *holdings_.back();
    holding.account = &account;
    holding.size = size;
    holding.shared = shared;
    holding.slot = slot;
    if (slot != no_slot) account.slots[slot].holding = &holding;
    holding.at = holdings_.size() - 1;
    claimed_ += size;
    account.claimed += size;
    if (shared) account.in_blocks += size;
    return holding;
}

Holding& Ledger::holding_at(Account& account, const std::shared_ptr<AddressRange>& range) {
    if (range->holding != nullptr) return *range->holding;
    Holding& holding = add(account, range->memory->size(), range->shared);
    holding.given = range->given;
    holding.range = range;
    range->holding = &holding;
    return holding;
}

void Ledger::keep_places(Account& account) {
    for (const auto& holding : holdings_) {
        if (holding->account != &account || !holding->memory || holding->slot != no_slot) continue;
        auto range = holding->range.lock();
        if (!range)
            range = std::make_shared<AddressRange>(AddressRange{.memory = holding->memory, .shared = holding->shared});
        range->holding = holding.get();
        holding->range = range;
        for (const Group* const group : holding->groups)
            if (group->word.state() == Word::State::resident)
                account.places.insert_or_assign(group, Account::Place{range, group->offset});
    }
}

void Ledger::provide(Holding& holding, std::shared_ptr<DeviceMemory> memory) noexcept {
    holding.memory = std::move(memory);
    Account& account = *holding.account;
    account.allocated += holding.size;
    account.peak = std::max(account.peak, account.allocated);
}

void Ledger::set_slots(Account& account, const std::vector<std::uint64_t>& bytes) {
    std::vector<Account::Slot> made(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) made[i].bytes = account.rounded(bytes[i]);
    for (const Account::Slot& slot : account.slots) {
        if (slot.holding == nullptr) continue;
        slot.holding->slot = no_slot;
        for (Group* const group : slot.holding->groups) add_to_policy(*group, *slot.holding, false);
    }
    account.slots = std::move(made);
}

void Ledger::put(Group& group, Holding& holding, bool demanded) {
    holding.groups.push_back(&group);
    ++groups_;
    group.holding = &holding;
    const Account::Place* const place = holding.slot == no_slot ? holding.account->place_of(group) : nullptr;
    group.offset = place != nullptr ? place->offset : holding.given;
    if (holding.shared && place == nullptr)
        holding.given = std::min(holding.size, holding.given + padded(group.layout.size));
    if (holding.slot == no_slot) add_to_policy(group, holding, demanded);
}

void Ledger::add_to_policy(Group& group, Holding& holding, bool demanded) noexcept {
    Record& record = holding.shared ? holding.block : group.on_device->record;
    if (group.counts != &record) group.counts = &record;  // leases of a resident group read it
    if (holding.record != nullptr) {
        if (demanded) policy_.hit(record);
        return;
    }
    record.holding = &holding;
    holding.record = &record;
    policy_.came(record, holding.size, demanded);
}

/// Ends what a group has of its holding, but for its place in the list of groups. Returns the holding.
Holding* Ledger::detach(Group& group) noexcept {
    Holding* const holding = std::exchange(group.holding, nullptr);
    group.memory.reset();
    holding->take_fences(group);
    group.counts = &group.on_device->record;
    return holding;
}

Holding* Ledger::take_out(Group& group) noexcept {
    Holding* const holding = detach(group);
    groups_ -= std::erase(holding->groups, &group);
    if (!holding->shared && holding->record != nullptr) policy_.left(*std::exchange(holding->record, nullptr));
    const bool is_empty = holding->groups.empty() && holding->writers == 0;
    return is_empty && holding->slot == no_slot ? holding : nullptr;
}

Space Ledger::remove(Holding& holding) noexcept {
    assert(holding.groups.empty());
    Account& account = *holding.account;
    if (holding.record != nullptr) policy_.left(*holding.record);
    if (holding.shared) policy_.forget(holding.block);
    claimed_ -= holding.size;
    account.claimed -= holding.size;
    if (holding.memory) account.allocated -= holding.size;
    if (holding.shared) account.in_blocks -= holding.size;
    if (account.open == &holding) account.open = nullptr;
    if (holding.slot != no_slot) account.slots[holding.slot].holding = nullptr;
    if (const auto range = holding.range.lock()) {
        range->holding = nullptr;
        range->given = holding.given;
    }
    Space space{std::move(holding.memory), std::move(holding.fences), &account, std::move(holding.range)};
    const std::size_t at = holding.at;
    std::swap(holdings_[at], holdings_.back());
    holdings_[at]->at = at;
    holdings_.pop_back();
    return space;
}

Space Heap::take(std::uint64_t size, const AddressRange* range, bool reserved) noexcept {
    const auto [begin, end] = kept_.equal_range(size);
    auto found = end;
    for (auto at = begin; at != end; ++at) {
        const Space& one = at->second;
        if (one.range.lock().get() != range || (reserved && !one.memory->can_decommit())) continue;
        if (found == end) found = at;
        if (!are_done(one.fences)) continue;
        found = at;
        break;
    }
    if (found == end) return {};
    Space space = std::move(found->second);
    kept_.erase(found);
    return space;
}

void Heap::keep(Space space) noexcept {
    const std::uint64_t size = space.memory->size();
    try {
        kept_.emplace(size, std::move(space));
    } catch (const std::bad_alloc&) {
        // Freed instead. What could not be added was not moved.
        wait_until_done(space.fences);
        if (const auto range = space.range.lock()) {
            static_cast<void>(decommit(*range->memory));
            range->committed = false;
        }
        gone(size);
    }
}

Space Heap::take_of(const Account& account) noexcept {
    const auto found = std::ranges::find_if(kept_, [&](const auto& one) { return one.second.last == &account; });
    if (found == kept_.end()) return {};
    Space space = std::move(found->second);
    kept_.erase(found);
    return space;
}

Space Heap::take_to_free(std::uint64_t size) noexcept {
    if (kept_.empty()) return {};
    const std::uint64_t free = budget_ - total_;
    auto found = kept_.lower_bound(size - std::min(size, free));
    if (found == kept_.end()) --found;
    Space space = std::move(found->second);
    kept_.erase(found);
    return space;
}

void Heap::coming(std::uint64_t size) noexcept {
    assert(fits(size));
    total_ += size;
    peak_ = std::max(peak_, total_);
}

void Heap::gone(std::uint64_t size) noexcept { total_ -= size; }

}  // namespace safemap::SAFEMAP_ABI::device
