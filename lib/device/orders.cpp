// Follows plans: uploads what each needs next, as room comes free.
#include "device/cache.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

std::shared_ptr<Plan> Cache::follow(View& view, Bundles order, bool cyclic) {
    start(view);
    if (order.empty()) throw Error(Errc::invalid_argument, "there are no bundles to follow");
    const auto plan = std::make_shared<Plan>(std::move(order), cyclic);
    Split chosen;
    std::vector<Fate> fates = plan->fates();
    for (Fate& fate : fates) fate.bytes = view.account.footprint(fate.bytes);
    if (cyclic) chosen = split(std::move(fates), view.account.cap, unpromised_host_bytes());
    std::uint64_t needed = chosen.needed;
    for (const auto& bundle : plan->order()) needed = std::max(needed, bundle->device_bytes);
    if (needed > view.account.cap)
        throw Error(Errc::budget_exceeded, "the order needs at least " + bytes_text(needed) + ", but the budget is " +
                                               bytes_text(view.account.cap));
    Uploads begun;
    {
        const std::lock_guard lock(mutex_);
        if (view.plan)
            throw Error(Errc::invalid_argument, "the uploader follows another order of " +
                                                    counted(view.plan->order().size(), "bundle") + "; end that first");
        adopt(view, plan, chosen);
        begin_plan(view, begun);
    }
    let_readers_prepare(begun);
    return plan;
}

std::uint64_t Cache::unpromised_host_bytes() const {
    const std::lock_guard lock(mutex_);
    return tier_.unpromised();
}

void Cache::restart(Plan& plan) {
    require_own_process();
    View& view = *plan.view();
    Uploads begun;
    {
        const std::lock_guard lock(mutex_);
        if (view.plan.get() != &plan) return;
        plan.restart();
        begin_plan(view, begun);
    }
    let_readers_prepare(begun);
}

/// Begins to upload what comes first in the plan of a view.
void Cache::begin_plan(View& view, Uploads& begun) noexcept {
    view.look_again();
    if (!view.plan->cyclic()) keep_until_use(view);
    advance(view, begun);
}

void Cache::unfollow(std::shared_ptr<Plan> plan) noexcept {
    if (is_forked()) return;
    const std::shared_ptr<View> owner = plan->view();  // outlives the bundles of the plan
    View& view = *owner;
    {
        const std::lock_guard lock(mutex_);
        if (view.plan != plan) return;
        view.plan.reset();
        view.look_again();
        end_slots(view, *plan);
    }
    plan.reset();  // bundles that nobody else has, but those on their way
    Trash trash;
    Lock lock(mutex_);
    // Threads that have brought a bundle may still hold it.
    const auto wait_for_arriving = [&] { changed_.wait(lock, [&] { return view.arriving == 0; }); };
    wait_for_arriving();
    cancel_if(lock, view, trash,
              [](const Upload& upload) { return upload.group.use_count() == 1 && !upload.group->word.leased(); });
    wait_for_arriving();
    free_kept(lock, view.account);
}

/// Makes the slots of a plan that ends ordinary holdings.
void Cache::end_slots(View& view, const Plan& plan) noexcept {
    for (const Account::Slot& slot : view.account.slots)
        if (slot.holding != nullptr && slot.holding->groups.empty())
            if (Space space = ledger_.remove(*slot.holding)) heap_.keep(std::move(space));
    ledger_.set_slots(view.account, {});
    tier_.end_promise(std::exchange(view.promised, 0));
    for (Group* const group : plan.groups()) {
        group->stays = false;
        group->slot = no_slot;
        group->hosting = Hosting::by_policy;
    }
}

/// Makes a plan that of the view, and tells its groups what it decides.
void Cache::adopt(View& view, const std::shared_ptr<Plan>& plan, const Split& chosen) {
    ledger_.set_slots(view.account, chosen.slot_bytes);
    view.plan = plan;
    view.promised = chosen.hosted;
    tier_.promise(chosen.hosted);
    // Groups outside the plan make way for it.
    for (const auto& holding : ledger_.holdings())
        if (holding->account == &view.account)
            for (Group* const group : holding->groups) ledger_.let_go_first(*group);
    for (std::size_t i = 0; i < chosen.fates.size(); ++i) {
        Group& group = *view.plan->groups()[i];
        group.stays = chosen.fates[i].stays;
        group.slot = chosen.fates[i].slot;
        group.hosting = chosen.fates[i].hosting();
        if (group.stays) group.used.store(now(), std::memory_order_relaxed);
        // It moves to its slot, where it will be in every pass.
        if (group.slot == no_slot || !group.word.try_reserve()) continue;
        if (group.holding->shared || group.holding->groups.size() > 1) {
            group.word.change(State::reserved, State::resident);
            continue;
        }
        evict(*group.holding);
    }
}

/// Lets the groups of a plan that are on the device already stay there until they are used. Those that are used last
/// make way, if otherwise two absent ones would not fit when the first absent one is due.
void Cache::keep_until_use(View& view) noexcept {
    const auto is_absent = [](const Group* group) { return group->word.state() == State::absent; };
    Window window;
    for (const Group* const group : view.plan->groups())
        if (is_absent(group)) window.add(view.account.footprint(group->layout.size));
    std::uint64_t room = view.account.cap - std::min(view.account.cap, window.bytes());
    bool is_due = false;
    for (Group* const group : view.plan->groups()) {
        is_due = is_due || is_absent(group);
        if (is_due) {
            const std::uint64_t size = view.account.footprint(group->layout.size);
            if (is_absent(group) || size > room) continue;
            room -= size;
        }
        group->used.store(now(), std::memory_order_relaxed);
    }
}

void Cache::reached(const BundleData& bundle) {
    if (is_forked()) return;
    Uploads begun;
    {
        const std::lock_guard lock(mutex_);
        pass(bundle);
        advance(*bundle.view, begun);
    }
    let_readers_prepare(begun);
}

/// Moves the place in the plan to this bundle, which is leased.
void Cache::pass(const BundleData& bundle) noexcept {
    Plan* const plan = bundle.view->plan.get();
    if (plan == nullptr) return;
    plan->reach(bundle);
    // Groups that are not used again make way.
    for (const auto& group : bundle.groups)
        if (plan->next_use(*group) == Plan::never) ledger_.let_go_first(*group);
}

/// Begins the uploads that the plan needs next, in order, until one has no room. It goes on when a bundle is acquired
/// or released.
void Cache::advance(View& view, Uploads& begun) noexcept {
    const Plan* const plan = view.plan.get();
    if (plan == nullptr || view.sleeping || view.stopping) return;
    bool is_there = true;  // all of it, or on its way
    try {
        for (std::size_t steps = 1; steps <= plan->order().size(); ++steps) {
            const BundleData* const bundle = plan->upcoming(steps);
            if (bundle == nullptr) return;
            Groups absent;
            for (const auto& group : bundle->groups) {
                if (group->word.state() != State::absent) continue;
                if (group->fault || group->word.leased()) {
                    is_there = false;
                    continue;
                }
                if (!may_take_slot(view, *group, steps)) return;
                group->used.store(now(), std::memory_order_relaxed);
                absent.push_back(group);
            }
            if (!absent.empty() && !begin_ahead(view, absent, 0, begun)) return;
        }
        // All of a plan that fits is there, or comes. Nothing is left to do until a group of it goes.
        if (is_there && plan->cyclic() && view.account.slots.empty()) view.follows = false;
    } catch (const std::bad_alloc&) {
        // Nothing is uploaded ahead; who needs it will upload it.
    }
}

/// Returns true unless the slot of a group, which is used in `steps` steps, has a group that is used before.
bool Cache::may_take_slot(const View& view, const Group& group, std::size_t steps) const noexcept {
    const std::uint32_t number = group.slot;
    if (number == no_slot) return true;
    const Holding* const slot = view.account.slot(number);
    if (slot == nullptr || slot->groups.empty()) return true;
    const Group& other = *slot->groups.front();
    return other.word.state() == State::resident && !other.word.leased() && view.plan->next_use(other) > steps;
}

/// Returns an upload that nobody waits for, into a slot that an absent group needs; otherwise null.
std::shared_ptr<Upload> Cache::in_the_way(const Groups& absent) noexcept {
    for (const auto& group : absent) {
        const std::uint32_t number = group->slot;
        if (number == no_slot) continue;
        const Holding* const slot = group->view->account.slot(number);
        if (slot == nullptr || slot->groups.empty()) continue;
        const Group& other = *slot->groups.front();
        if (other.word.state() == State::arriving && !other.word.leased()) return other.upload;
    }
    return nullptr;
}

/// Goes on with the plan after a lease of a slot has ended.
void Cache::go_on(View& view) noexcept {
    Uploads begun;
    {
        const std::lock_guard lock(mutex_);
        advance(view, begun);
    }
    let_readers_prepare(begun);
}

}  // namespace safemap::SAFEMAP_ABI::device
