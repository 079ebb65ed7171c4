// The ledger of a device.
#include "device/ledger.hpp"

#include "base/checked.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <new>
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

/// Decides which holdings can go.
class Choice {
public:
    Choice(std::span<const std::unique_ptr<Holding>> holdings, const Account& account, Ledger::Reach reach)
        : account_(account), reach_(reach) {
        // Who prefetches as much as fits leases it in about as many steps as that has groups. What has not been leased
        // for longer was announced by mistake. The time of the cache moves by 2.
        std::uint64_t groups = 0;
        for (const auto& holding : holdings) groups += holding->groups.size();
        awaited_since_ = reach.since - std::min(reach.since, 2 * groups);
    }

    /// Returns the time at which a group was announced that will be leased soon, or 0.
    std::uint64_t awaited(const Group& group) const noexcept {
        const bool is_leased_since = group.used.load(std::memory_order_relaxed) > group.announced;
        return is_leased_since || group.announced < awaited_since_ ? 0 : group.announced;
    }
    /// Returns true if all groups of a holding can go.
    bool can_go(const Holding& holding) const noexcept {
        if (holding.size == 0 || holding.writers > 0) return false;
        const bool is_own = holding.account == &account_;
        if (!is_own && !reach_.demanded) return false;
        if (holding.account->open == &holding && !reach_.open_blocks) return false;
        const bool is_slot = holding.slot != no_slot;
        if (is_slot && !reach_.demanded) return false;
        if (is_slot && is_own && std::ranges::count(reach_.slots, holding.slot) > 0) return false;
        return std::ranges::all_of(holding.groups, [&](const Group* group) { return can_go(*group); });
    }

private:
    bool can_go(const Group& group) const noexcept {
        return group.word.state() == Word::State::resident && !group.word.leased() &&
               group.used.load(std::memory_order_relaxed) <= reach_.since && group.announced <= reach_.since &&
               (reach_.demanded || (!group.stays && awaited(group) == 0));
    }

    const Account& account_;
    Ledger::Reach reach_;
    std::uint64_t awaited_since_ = 0;
};

/// A holding that can go. Without a plan, what was made last goes first: in a cycle of groups that do not all fit, the
/// first ones stay, where the least recently used one would always be the one that is needed next. Of what prefetches
/// announced, the latest goes first, as it is needed last.
struct Candidate {
    unsigned tier = 0;            // lower tiers go first
    std::uint64_t announced = 0;  // the latest time at which a group of it was announced that is awaited
    std::uint64_t number = 0;     // number of its oldest group
    Holding* holding = nullptr;

    Candidate(const Choice& choice, Holding& of) : number(UINT64_MAX), holding(&of) {
        bool stays = false;
        for (const Group* group : of.groups) {
            stays = stays || group->stays;
            announced = std::max(announced, choice.awaited(*group));
            number = std::min(number, group->number);
        }
        tier = stays ? 4 : of.slot != no_slot ? 3 : announced > 0 ? 2 : of.shared ? 1 : 0;
    }
    /// Returns true if `a` goes before `b`.
    static bool sooner(const Candidate& a, const Candidate& b) noexcept {
        if (a.tier != b.tier) return a.tier < b.tier;
        return a.announced != b.announced ? a.announced > b.announced : a.number > b.number;
    }
};

}  // namespace

void Holding::take_fences(Group& group) noexcept {
    fences.splice(fences.end(), group.ready);
    fences.splice(fences.end(), group.uses);
    drop_done(fences);
    group.pending.store(false, std::memory_order_relaxed);
}

Account::Account(std::uint64_t most) noexcept
    : cap(most),
      small(most < least_budget_for_blocks ? 0 : std::min(most_small, most / 64)),
      most_in_block(std::min(largest_block, most / 16)) {}

std::uint64_t Account::next_block(std::uint64_t size, std::uint64_t so_far) const noexcept {
    // Blocks double the bytes of all blocks, so that a few small groups do not claim a large one.
    return std::clamp(padded(so_far), std::max(first_block, padded(size)), most_in_block);
}

std::uint64_t Account::claims_of(std::span<Group* const> groups, std::span<const std::uint32_t> into,
                                 bool uses_open) const {
    std::uint64_t claims = 0;
    // Bytes left in the open block, and in the last one that is claimed here. As in Cache::settle(), a group that does
    // not fit into the open block does not close it for the next ones.
    std::uint64_t left_open = open == nullptr || !uses_open ? 0 : open->size - open->given;
    std::uint64_t left_last = 0;
    std::uint64_t so_far = in_blocks;
    const auto claim = [&](std::uint64_t size) {
        claims = checked_add(claims, size).value_or(std::numeric_limits<std::uint64_t>::max());
    };
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::uint64_t size = groups[i]->layout.size;
        if (into[i] != no_slot) {
            if (slot(into[i]) == nullptr) claim(slots[into[i]].bytes);
            continue;
        }
        if (!shares(size)) {
            claim(size);
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

void Account::set_slots(const std::vector<std::uint64_t>& bytes) {
    std::vector<Slot> made(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) made[i].bytes = bytes[i];
    for (const Slot& slot : slots)
        if (slot.holding != nullptr) slot.holding->slot = no_slot;
    slots = std::move(made);
}

void Ledger::Missing::subtract(std::uint64_t bytes, bool is_own) noexcept {
    all -= std::min(all, bytes);
    if (is_own) own -= std::min(own, bytes);
}

Ledger::Missing Ledger::missing(const Account& account, std::uint64_t bytes) const noexcept {
    const auto above = [bytes](std::uint64_t left) { return bytes - std::min(bytes, left); };
    return {.own = above(account.cap - account.claimed), .all = above(budget_ - claimed_)};
}

void Ledger::reserve(const Account& account, Missing& missing, Reach reach, std::vector<Holding*>& victims) const {
    // A lease that moves from one group to another while they are looked at hides both. So a demand looks again.
    for (int looks = reach.demanded ? 16 : 1; missing && looks > 0; --looks) {
        const Choice choice(holdings_, account, reach);
        std::vector<Candidate> candidates;
        for (const auto& holding : holdings_) {
            if (!choice.can_go(*holding)) continue;
            // An empty slot has no group whose state says that it was found before.
            if (holding->groups.empty() && std::ranges::count(victims, holding.get()) > 0) continue;
            candidates.emplace_back(choice, *holding);
        }
        std::ranges::sort(candidates, Candidate::sooner);
        victims.reserve(victims.size() + candidates.size());
        const auto take = [&](Candidate& candidate) {
            Holding* const holding = std::exchange(candidate.holding, nullptr);
            if (!try_reserve(*holding)) return;  // leased meanwhile
            victims.push_back(holding);
            missing.subtract(holding->size, holding->account == &account);
        };
        for (Candidate& candidate : candidates)
            if (missing.own > 0 && candidate.holding->account == &account) take(candidate);
        for (Candidate& candidate : candidates)
            if (missing && candidate.holding != nullptr) take(candidate);
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
    for (Holding* holding : victims)
        for (Group* group : holding->groups) group->word.change(Word::State::reserved, Word::State::resident);
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

void Ledger::provide(Holding& holding, std::shared_ptr<DeviceMemory> memory) noexcept {
    holding.memory = std::move(memory);
    Account& account = *holding.account;
    account.allocated += holding.size;
    account.peak = std::max(account.peak, account.allocated);
}

void Ledger::put(Group& group, Holding& holding) {
    holding.groups.push_back(&group);
    group.holding = &holding;
    group.offset = holding.given;
    if (holding.shared) holding.given = std::min(holding.size, holding.given + padded(group.layout.size));
}

Holding* Ledger::take_out(Group& group) noexcept {
    Holding* const holding = std::exchange(group.holding, nullptr);
    group.memory.reset();
    holding->take_fences(group);
    std::erase(holding->groups, &group);
    const bool is_empty = holding->groups.empty() && holding->writers == 0;
    return is_empty && holding->slot == no_slot ? holding : nullptr;
}

Space Ledger::remove(Holding& holding) noexcept {
    assert(holding.groups.empty());
    Account& account = *holding.account;
    claimed_ -= holding.size;
    account.claimed -= holding.size;
    if (holding.memory) account.allocated -= holding.size;
    if (holding.shared) account.in_blocks -= holding.size;
    if (account.open == &holding) account.open = nullptr;
    if (holding.slot != no_slot) account.slots[holding.slot].holding = nullptr;
    Space space{std::move(holding.memory), std::move(holding.fences)};
    const std::size_t at = holding.at;
    std::swap(holdings_[at], holdings_.back());
    holdings_[at]->at = at;
    holdings_.pop_back();
    return space;
}

Space Heap::take(std::uint64_t size) noexcept {
    const auto [begin, end] = kept_.equal_range(size);
    if (begin == end) return {};
    const auto idle = std::find_if(begin, end, [](const auto& one) { return are_done(one.second.fences); });
    const auto found = idle == end ? begin : idle;
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
        gone(size);
    }
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
