// Follows a plan: uploads what it needs next, as room comes free.
#include "device/cache.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

void Cache::follow(std::vector<std::shared_ptr<const BundleData>> order, bool cyclic) {
    auto plan = order.empty() ? nullptr : std::make_unique<Plan>(std::move(order), cyclic);
    Split chosen;
    if (plan) {
        std::uint64_t needed = 0;
        for (const auto& bundle : plan->order()) needed = std::max(needed, bundle->device_bytes);
        if (cyclic) chosen = split(plan->fates(), residency_.budget());
        needed = std::max(needed, chosen.needed);
        if (needed > residency_.budget())
            throw Error(Errc::budget_exceeded, "the plan needs at least " + bytes_text(needed) +
                                                   ", but the budget is " + bytes_text(residency_.budget()));
    }
    Uploads begun;
    Trash trash;
    {
        const std::lock_guard lock(mutex_);
        plan.swap(plan_);  // the old one is destroyed after the lock
        if (plan) end_slots(*plan);
        follows_ = plan_ != nullptr;
        adopt(chosen, trash);
        advance(begun, trash);
    }
    for (const auto& upload : begun) prepare(upload, false);
}

/// Makes the slots of a plan that ends ordinary holdings.
void Cache::end_slots(const Plan& plan) noexcept {
    residency_.set_slots({});
    for (Group* const group : plan.groups()) {
        group->stays = false;
        group->slot = no_slot;
    }
}

/// Tells the groups of the plan what it decides.
void Cache::adopt(const Split& chosen, Trash& trash) {
    residency_.set_slots(chosen.slot_bytes);
    // Groups outside the plan make way for it.
    for (const auto& holding : residency_.holdings())
        for (Group* const group : holding->groups) group->let_go_first();
    for (std::size_t i = 0; i < chosen.fates.size(); ++i) {
        Group& group = *plan_->groups()[i];
        group.stays = chosen.fates[i].stays;
        group.slot = chosen.fates[i].slot;
        if (group.stays) group.used.store(now(), std::memory_order_relaxed);
        // It moves to its slot, where it will be in every pass.
        if (group.slot == no_slot || !group.word.try_reserve()) continue;
        if (group.holding->shared || group.holding->groups.size() > 1) {
            group.word.change(State::reserved, State::resident);
            continue;
        }
        evict(*group.holding, trash);
    }
    if (plan_ && !plan_->cyclic()) keep_until_use();
}

/// Lets the groups of a plan that are on the device already stay there until they are used. Those that are used last
/// make way, if otherwise two absent ones would not fit when the first absent one is due.
void Cache::keep_until_use() noexcept {
    const auto is_absent = [](const Group* group) { return group->word.state() == State::absent; };
    Window window;
    for (const Group* const group : plan_->groups())
        if (is_absent(group)) window.add(group->layout.size);
    std::uint64_t room = residency_.budget() - std::min(residency_.budget(), window.bytes());
    bool is_due = false;
    for (Group* const group : plan_->groups()) {
        is_due = is_due || is_absent(group);
        if (is_due) {
            if (is_absent(group) || group->layout.size > room) continue;
            room -= group->layout.size;
        }
        group->used.store(now(), std::memory_order_relaxed);
    }
}

void Cache::reached(const BundleData& bundle) {
    Uploads begun;
    Trash trash;
    {
        const std::lock_guard lock(mutex_);
        pass(bundle);
        advance(begun, trash);
    }
    for (const auto& upload : begun) prepare(upload, false);
}

/// Moves the place in the plan to this bundle, which is leased.
void Cache::pass(const BundleData& bundle) noexcept {
    if (!plan_) return;
    plan_->reach(bundle);
    // Groups that are not used again make way.
    for (const auto& group : bundle.groups)
        if (plan_->next_use(*group) == Plan::never) group->let_go_first();
}

/// Begins the uploads that the plan needs next, in order, until one has no room. It goes on when a bundle is acquired
/// or released.
void Cache::advance(Uploads& begun, Trash& trash) noexcept {
    if (!plan_ || sleeping_ || stopping_) return;
    try {
        for (std::size_t steps = 1; steps <= plan_->order().size(); ++steps) {
            const BundleData* const bundle = plan_->upcoming(steps);
            if (bundle == nullptr) return;
            Groups absent;
            for (const auto& group : bundle->groups) {
                if (group->word.state() != State::absent || group->fault || group->word.leased()) continue;
                if (!may_take_slot(*group, steps)) return;
                group->used.store(now(), std::memory_order_relaxed);
                absent.push_back(group);
            }
            if (absent.empty()) continue;
            begun.reserve(begun.size() + absent.size());
            const Uploads uploads = begin(absent, {.since = 0, .demanded = false}, false, trash);
            if (uploads.empty()) return;
            begun.insert(begun.end(), uploads.begin(), uploads.end());
        }
    } catch (const std::bad_alloc&) {
        // Nothing is uploaded ahead; who needs it will upload it.
    }
}

/// Returns true unless the slot of a group, which is used in `steps` steps, has a group that is used before.
bool Cache::may_take_slot(const Group& group, std::size_t steps) const noexcept {
    const std::uint32_t number = group.slot;
    if (number == no_slot) return true;
    const Holding* const slot = residency_.slot(number);
    if (slot == nullptr || slot->groups.empty()) return true;
    const Group& other = *slot->groups.front();
    return other.word.state() == State::resident && !other.word.leased() && plan_->next_use(other) > steps;
}

/// Returns an upload that nobody waits for, into a slot that an absent group needs; otherwise null.
std::shared_ptr<Upload> Cache::in_the_way(const Groups& absent) const noexcept {
    for (const auto& group : absent) {
        const std::uint32_t number = group->slot;
        if (number == no_slot) continue;
        const Holding* const slot = residency_.slot(number);
        if (slot == nullptr || slot->groups.empty()) continue;
        const Group& other = *slot->groups.front();
        if (other.word.state() == State::arriving && !other.word.leased()) return other.upload;
    }
    return nullptr;
}

/// Goes on with the plan after a lease of a slot has ended.
void Cache::go_on() noexcept {
    Uploads begun;
    Trash trash;
    {
        const std::lock_guard lock(mutex_);
        advance(begun, trash);
    }
    for (const auto& upload : begun) prepare(upload, false);
}

}  // namespace safemap::SAFEMAP_ABI::device
