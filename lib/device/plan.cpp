// Plans: which groups stay on the device, which ones share slots, and when each is used next.
#include "device/plan.hpp"

#include "base/checked.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

std::uint64_t sum_of(const std::vector<Fate>& groups) {
    std::uint64_t sum = 0;
    for (const Fate& group : groups)
        sum = checked_add(sum, group.bytes).value_or(std::numeric_limits<std::uint64_t>::max());
    return sum;
}

std::uint64_t stays_of(const std::vector<Fate>& groups) {
    std::uint64_t sum = 0;
    for (const Fate& group : groups)
        if (group.stays) sum += group.bytes;
    return sum;
}

/// Returns the sizes of the two largest groups that have to share slots.
std::uint64_t window_of(const std::vector<Fate>& groups) {
    Window window;
    for (const Fate& group : groups)
        if (!group.stays && group.alone) window.add(group.bytes);
    return window.bytes();
}

/// Lets groups stay that are used together with others, the first ones first. Returns the bytes that are left.
std::uint64_t keep_companions(std::vector<Fate>& groups, std::uint64_t room) {
    for (Fate& group : groups) {
        if (group.alone || group.bytes > room) continue;
        group.stays = true;
        room -= group.bytes;
    }
    return room;
}

/// Lets the largest groups stay, if the window of the others is smaller then: what the window does not take can stay.
/// Stops at a window that is nearly as small as it can become, so that groups of about equal size are spread evenly.
/// Returns the bytes that are left of `budget` beside the window and all that stay.
std::uint64_t keep_largest(std::vector<Fate>& groups, std::uint64_t budget) {
    std::vector<Fate*> largest;
    for (Fate& group : groups)
        if (!group.stays && group.alone) largest.push_back(&group);
    std::ranges::stable_sort(largest, std::ranges::greater(), &Fate::bytes);
    const auto bytes = [&](std::size_t i) { return i < largest.size() ? largest[i]->bytes : 0; };

    // The windows if the first 0, 1, 2, ... of them stay, as long as these fit.
    std::vector<std::uint64_t> windows;
    for (std::uint64_t stay = 0; windows.size() <= largest.size(); stay += bytes(windows.size() - 1)) {
        const std::uint64_t window = bytes(windows.size()) + bytes(windows.size() + 1);
        if (stay > budget || window > budget - stay) break;
        windows.push_back(window);
    }
    const std::uint64_t nearly = windows.back() + budget / 64;
    std::uint64_t left = budget;
    for (std::size_t i = 0; windows[i] > nearly; ++i) {
        largest[i]->stays = true;
        left -= largest[i]->bytes;
    }
    return left - window_of(groups);
}

/// Lets as many groups stay as have room, spread evenly. Returns the bytes that are left.
std::uint64_t keep_evenly(std::vector<Fate>& groups, std::uint64_t room) {
    std::uint64_t total = 0;
    for (const Fate& group : groups)
        if (!group.stays && group.alone) total += group.bytes;
    if (total == 0) return room;
    const double share = static_cast<double>(room) / static_cast<double>(total);
    double due = 0;  // bytes that should have stayed so far, less those that do
    for (Fate& group : groups) {
        if (group.stays || !group.alone) continue;
        due += share * static_cast<double>(group.bytes);
        // Rounded: a group stays if at least half of it is due.
        if (due * 2 < static_cast<double>(group.bytes) || group.bytes > room) continue;
        group.stays = true;
        room -= group.bytes;
        due -= static_cast<double>(group.bytes);
    }
    return room;
}

/// Fills what is left: the largest groups that fit. Returns true if one did.
bool keep_more(std::vector<Fate>& groups, std::uint64_t room) {
    bool kept = false;
    std::vector<Fate*> others;
    for (Fate& group : groups)
        if (!group.stays && group.alone) others.push_back(&group);
    std::ranges::stable_sort(others, std::ranges::greater(), &Fate::bytes);
    for (Fate* group : others) {
        if (group->bytes > room || group->bytes == 0) continue;
        group->stays = true;
        room -= group->bytes;
        kept = true;
    }
    return kept;
}

/// Lets as many of the groups that share slots have pictures as fit. Returns the bytes of these.
std::uint64_t host_evenly(std::vector<Fate>& groups, std::uint64_t room) {
    std::vector<Fate> passing;
    for (const Fate& group : groups)
        if (group.slot != no_slot) passing.push_back({.bytes = group.bytes});
    keep_more(passing, keep_evenly(passing, room));
    auto chosen = passing.begin();
    for (Fate& group : groups)
        if (group.slot != no_slot) group.hosted = (chosen++)->stays;
    return stays_of(passing);
}

}  // namespace

std::uint64_t Window::bytes() const noexcept {
    return checked_add(largest_, second_).value_or(std::numeric_limits<std::uint64_t>::max());
}

Split split(std::vector<Fate> groups, std::uint64_t budget, std::uint64_t host) {
    Split result;
    if (sum_of(groups) <= budget) {
        for (Fate& group : groups) group.stays = true;
        result.fates = std::move(groups);
        return result;
    }
    result.needed = window_of(groups);
    if (result.needed <= budget) {
        const std::uint64_t beside = result.needed + keep_companions(groups, budget - result.needed);
        std::uint64_t room = keep_evenly(groups, keep_largest(groups, beside));
        // The window of the others may be smaller now.
        while (keep_more(groups, room)) room = budget - stays_of(groups) - window_of(groups);
    }
    std::uint32_t next = 0;
    for (Fate& group : groups) {
        if (group.stays || !group.alone || group.bytes == 0) continue;
        group.slot = next;
        if (next == result.slot_bytes.size()) result.slot_bytes.push_back(0);
        result.slot_bytes[next] = std::max(result.slot_bytes[next], group.bytes);
        next = 1 - next;
    }
    result.hosted = host_evenly(groups, host);
    result.fates = std::move(groups);
    return result;
}

Plan::Plan(std::vector<std::shared_ptr<const BundleData>> order, bool cyclic)
    : order_(std::move(order)), cyclic_(cyclic) {
    for (std::uint32_t at = 0; at < order_.size(); ++at) {
        places_[order_[at].get()].push_back(at);
        for (const auto& group : order_[at]->groups) {
            Places& uses = uses_[group.get()];
            if (uses.empty()) groups_.push_back(group.get());
            uses.push_back(at);
        }
    }
}

std::vector<Fate> Plan::fates() const {
    std::unordered_map<const Group*, bool> alone;
    for (const auto& bundle : order_)
        for (const auto& group : bundle->groups)
            alone.try_emplace(group.get(), true).first->second &= bundle->groups.size() == 1;
    std::vector<Fate> fates;
    fates.reserve(groups_.size());
    for (const Group* group : groups_) fates.push_back({.bytes = group->layout.size, .alone = alone[group]});
    return fates;
}

void Plan::reach(const BundleData& bundle) noexcept {
    const auto found = places_.find(&bundle);
    if (found == places_.end()) return;
    const std::size_t steps = steps_to(found->second);
    if (steps == never) return;
    here_ = here_ == never ? steps - 1 : (here_ + steps) % order_.size();
}

std::size_t Plan::next_use(const Group& group) const noexcept {
    const auto found = uses_.find(&group);
    return found == uses_.end() ? never : steps_to(found->second);
}

const BundleData* Plan::upcoming(std::size_t steps) const noexcept {
    const std::size_t at = (here_ == never ? 0 : here_ + 1) + (steps - 1);
    if (at < order_.size()) return order_[at].get();
    return cyclic_ && !order_.empty() ? order_[at % order_.size()].get() : nullptr;
}

std::size_t Plan::steps_to(const Places& places) const noexcept {
    if (here_ == never) return places.front() + std::size_t{1};
    const auto next = std::ranges::upper_bound(places, here_);
    if (next != places.end()) return *next - here_;
    return cyclic_ ? places.front() + order_.size() - here_ : never;
}

}  // namespace safemap::SAFEMAP_ABI::device
