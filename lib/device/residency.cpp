// The arithmetic of the budget.
#include "device/residency.hpp"

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
    Choice(std::span<const std::unique_ptr<Holding>> holdings, Residency::Reach reach) : reach_(reach) {
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
        const bool is_slot = holding.slot != no_slot;
        if (is_slot && (!reach_.demanded || std::ranges::count(reach_.slots, holding.slot) > 0)) return false;
        return std::ranges::all_of(holding.groups, [&](const Group* group) { return can_go(*group); });
    }

private:
    bool can_go(const Group& group) const noexcept {
        return group.word.state() == Word::State::resident && !group.word.leased() &&
               group.used.load(std::memory_order_relaxed) <= reach_.since && group.announced <= reach_.since &&
               (reach_.demanded || (!group.stays && awaited(group) == 0));
    }

    Residency::Reach reach_;
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
    /// Returns true if `a` goes after `b`.
    static bool later(const Candidate& a, const Candidate& b) noexcept {
        if (a.tier != b.tier) return a.tier > b.tier;
        return a.announced != b.announced ? a.announced < b.announced : a.number < b.number;
    }
};

}  // namespace

void Holding::take_fences(Group& group) noexcept {
    fences.splice(fences.end(), group.ready);
    fences.splice(fences.end(), group.uses);
    drop_done(fences);
    group.pending.store(false, std::memory_order_relaxed);
}

Residency::Residency(std::uint64_t budget, Quota* shared) noexcept
    : budget_(budget),
      shared_(shared),
      small_(budget < least_budget_for_blocks ? 0 : std::min(most_small, budget / 64)),
      most_block_(std::min(largest_block, budget / 16)) {}

std::uint64_t Residency::next_block(std::uint64_t size, std::uint64_t shared_bytes) const noexcept {
    // Blocks double the bytes of all blocks, so that a few small groups do not claim a large one.
    return std::clamp(padded(shared_bytes), std::max(first_block, padded(size)), most_block_);
}

std::uint64_t Residency::claims_of(std::span<Group* const> groups, std::span<const std::uint32_t> slots) const {
    std::uint64_t claims = 0;
    // Bytes left in the open block, and in the last one that is claimed here. As in Cache::settle(), a group that does
    // not fit into the open block does not close it for the next ones.
    std::uint64_t open = open_ == nullptr ? 0 : open_->size - open_->given;
    std::uint64_t last = 0;
    std::uint64_t shared_bytes = shared_bytes_;
    const auto claim = [&](std::uint64_t size) {
        claims = checked_add(claims, size).value_or(std::numeric_limits<std::uint64_t>::max());
    };
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::uint64_t size = groups[i]->layout.size;
        if (slots[i] != no_slot) {
            if (slot(slots[i]) == nullptr) claim(slot_bytes(slots[i]));
            continue;
        }
        if (!shares(size)) {
            claim(size);
            continue;
        }
        if (size > open && size > last) {
            last = next_block(size, shared_bytes);
            shared_bytes += last;
            claim(last);
        }
        std::uint64_t& left = size <= open ? open : last;
        left -= std::min(left, padded(size));
    }
    return claims;
}

Holding* Residency::open_block(std::uint64_t size) const noexcept {
    return open_ != nullptr && open_->has_room(size) ? open_ : nullptr;
}

std::uint64_t Residency::reserve(std::uint64_t bytes, Reach reach, std::vector<Holding*>& victims,
                                 std::uint64_t given) {
    std::uint64_t free = left();
    if (shared_ != nullptr) free = std::min(free, shared_->free() + given);
    return bytes <= free ? 0 : give(bytes - free, reach, victims);
}

std::uint64_t Residency::give(std::uint64_t missing, Reach reach, std::vector<Holding*>& victims) {
    // A lease that moves from one group to another while they are looked at hides both. So a demand looks again.
    for (int looks = reach.demanded ? 16 : 1; missing > 0 && looks > 0; --looks)
        missing = reserve_once(missing, reach, victims);
    return missing;
}

std::uint64_t Residency::reserve_once(std::uint64_t missing, Reach reach, std::vector<Holding*>& victims) {
    const Choice choice(holdings_, reach);
    std::vector<Candidate> candidates;
    for (const auto& holding : holdings_) {
        if (holding.get() == open_ || !choice.can_go(*holding)) continue;
        // An empty slot has no group whose state says that it was found before.
        if (holding->groups.empty() && std::ranges::count(victims, holding.get()) > 0) continue;
        candidates.emplace_back(choice, *holding);
    }
    std::ranges::make_heap(candidates, Candidate::later);
    victims.reserve(victims.size() + candidates.size());
    while (missing > 0 && !candidates.empty()) {
        std::ranges::pop_heap(candidates, Candidate::later);
        Holding* const next = candidates.back().holding;
        candidates.pop_back();
        if (!try_reserve(*next)) continue;  // leased meanwhile
        victims.push_back(next);
        missing -= std::min(missing, next->size);
    }
    return missing;
}

void Residency::set_slots(std::vector<std::uint64_t> bytes) {
    std::vector<Slot> slots(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) slots[i].bytes = bytes[i];
    for (const Slot& slot : slots_)
        if (slot.holding != nullptr) slot.holding->slot = no_slot;
    slots_ = std::move(slots);
}

bool Residency::try_reserve(Holding& holding) noexcept {
    if (holding.writers > 0) return false;
    for (std::size_t i = 0; i < holding.groups.size(); ++i) {
        if (holding.groups[i]->word.try_reserve()) continue;
        while (i-- > 0) holding.groups[i]->word.change(Word::State::reserved, Word::State::resident);
        return false;
    }
    return true;
}

void Residency::restore(std::span<Holding* const> victims) noexcept {
    for (Holding* holding : victims)
        for (Group* group : holding->groups) group->word.change(Word::State::reserved, Word::State::resident);
}

std::uint64_t Residency::leased() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& holding : holdings_)
        if (std::ranges::any_of(holding->groups, [](const Group* group) { return group->word.leased(); }))
            sum += holding->size;
    return sum;
}

std::uint64_t Residency::resident() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& holding : holdings_)
        for (const Group* group : holding->groups)
            if (group->word.state() == Word::State::resident) sum += group->layout.size;
    return sum;
}

bool Residency::has(const Holding* holding) const noexcept {
    return std::ranges::any_of(holdings_, [&](const auto& one) { return one.get() == holding; });
}

Holding& Residency::add(std::uint64_t size, bool shared, std::uint32_t slot) {
    assert(size <= left());
    auto added = std::make_unique<Holding>();
    added->groups.reserve(1);
    holdings_.push_back(std::move(added));
    Holding& holding = *holdings_.back();
    holding.size = size;
    holding.shared = shared;
    holding.slot = slot;
    if (slot != no_slot) slots_[slot].holding = &holding;
    holding.at = holdings_.size() - 1;
    claimed_ += size;
    if (shared_ != nullptr) shared_->add(size);
    if (shared) shared_bytes_ += size;
    return holding;
}

void Residency::put(Group& group, Holding& holding) {
    holding.groups.push_back(&group);
    group.holding = &holding;
    group.offset = holding.given;
    if (holding.shared) holding.given = std::min(holding.size, holding.given + padded(group.layout.size));
}

Holding* Residency::take_out(Group& group) noexcept {
    Holding* const holding = std::exchange(group.holding, nullptr);
    group.memory.reset();
    holding->take_fences(group);
    std::erase(holding->groups, &group);
    const bool is_empty = holding->groups.empty() && holding->writers == 0;
    return is_empty && holding->slot == no_slot ? holding : nullptr;
}

Space Residency::remove(Holding& holding) noexcept {
    assert(holding.groups.empty());
    claimed_ -= holding.size;
    if (shared_ != nullptr) shared_->subtract(holding.size);
    if (holding.shared) shared_bytes_ -= holding.size;
    if (open_ == &holding) open_ = nullptr;
    if (holding.slot != no_slot) slots_[holding.slot].holding = nullptr;
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

std::uint64_t Heap::missing(std::uint64_t size) const noexcept {
    std::uint64_t free = budget_ - total_;
    if (shared_ != nullptr) free = std::min(free, shared_->free());
    return size - std::min(size, free);
}

Space Heap::take_kept(std::uint64_t bytes) noexcept {
    if (kept_.empty()) return {};
    auto found = kept_.lower_bound(bytes);
    if (found == kept_.end()) --found;
    Space space = std::move(found->second);
    kept_.erase(found);
    return space;
}

void Heap::coming(std::uint64_t size) noexcept {
    assert(fits(size));
    total_ += size;
    peak_ = std::max(peak_, total_);
    if (shared_ != nullptr) shared_->add(size);
}

void Heap::gone(std::uint64_t size) noexcept {
    total_ -= size;
    if (shared_ != nullptr) shared_->subtract(size);
}

}  // namespace safemap::SAFEMAP_ABI::device
