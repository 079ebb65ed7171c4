// Ends of uploads, of residence and of the cache: arrivals, groups that nobody knows any more, sleep and wake, stop.
#include "device/cache.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

/// Makes a group resident whose upload is finished, or absent if it failed or was cancelled.
void Cache::arrive(Upload& upload, std::exception_ptr failed) noexcept {
    const auto alive = shared_from_this();
    const auto group = upload.group;
    Trash trash;
    const std::lock_guard lock(mutex_);
    uploads_.erase(upload.place);
    upload.group.reset();
    if (!upload.fault) upload.fault = std::move(failed);
    upload.finished = true;
    changed_.notify_all();
    if (upload.cancelled) return leave(upload);
    const auto self = std::move(group->upload);  // the caller has it, too
    Space space = upload.filling.end();
    if (!upload.fault) {
        group->memory = std::move(space.memory);
        Fences& fences = upload.filling.has_copies() ? group->ready : group->holding->fences;
        fences.splice(fences.end(), space.fences);
        group->pending.store(!group->ready.empty(), std::memory_order_relaxed);
        group->word.change(State::arriving, State::resident);
        stats_.uploaded_bytes += group->layout.value_bytes;
        return;
    }
    // Threads that wait for the group see the upload's fault. If no thread waits, the next acquire throws it.
    if (group->word.leased()) let_go(*group, trash);
    else group->fault = std::move(upload.fault);
    group->word.change(State::arriving, State::absent);
    Fences& fences = group->holding->fences;
    fences.splice(fences.end(), space.fences);
    if (Holding* const empty = residency_.take_out(*group))
        if (auto left = residency_.remove(*empty)) heap_.keep(std::move(left));
}

/// Takes the memory back of a group that nobody knows any more.
void Cache::forget(Group& group) noexcept {
    owners_.forget(group);
    Lock lock(mutex_);
    if (group.holding == nullptr) return;
    Holding* const empty = residency_.take_out(group);
    if (empty == nullptr) return;
    Space space = residency_.remove(*empty);
    if (stopping_) free(lock, std::move(space));
    else heap_.keep(std::move(space));
    changed_.notify_all();
}

/// Cancels the uploads that `which` returns true for, and waits until they are over.
template <class Which> void Cache::cancel_if(Lock& lock, Trash& trash, Which&& which) {
    trash.reserve(uploads_.size());
    for (auto at = uploads_.begin(); at != uploads_.end();) {
        Upload& upload = **at++;  // cancel() may remove it
        if (!upload.cancelled && which(upload)) cancel(upload, trash);
    }
    lock.unlock();
    trash.clear();
    lock.lock();
    const auto is_cancelled = [](const Upload* upload) { return upload->cancelled; };
    changed_.wait(lock, [&] { return std::ranges::none_of(uploads_, is_cancelled); });
}

std::uint64_t Cache::sleep() {
    Trash trash;
    Lock lock(mutex_);
    sleeping_ = true;
    cancel_if(lock, trash, [](const Upload& upload) { return !upload.group->word.leased(); });
    std::size_t count = asleep_.size();
    for (const auto& holding : residency_.holdings()) count += holding->groups.size();
    asleep_.reserve(count);
    // Each owner that is taken here is kept: the last one must not be destroyed under the lock.
    for (const auto& holding : residency_.holdings())
        for (Group* const group : holding->groups) {
            if (group->word.leased()) continue;
            if (auto shared = group->weak_from_this().lock()) asleep_.push_back(std::move(shared));
        }
    std::ranges::sort(asleep_, {}, &Group::number);
    evict_all(lock, trash);
    return heap_.total();
}

void Cache::wake() {
    Uploads begun;
    Groups asleep;
    Trash trash;
    std::exception_ptr fault;
    {
        const std::lock_guard lock(mutex_);
        sleeping_ = false;
        asleep.swap(asleep_);
        advance(begun, trash);
        try {
            begin_asleep(asleep, begun, trash);
        } catch (...) {
            fault = std::current_exception();
        }
    }
    for (const auto& upload : begun) prepare(upload, false);
    if (fault) std::rethrow_exception(fault);
}

/// Begins to bring back what sleep() took. What shares a slot comes when the plan needs it.
void Cache::begin_asleep(const Groups& asleep, Uploads& begun, Trash& trash) {
    for (const auto& group : asleep) {
        if (group->slot != no_slot || group->word.state() != State::absent) continue;
        if (group->fault || group->word.leased()) continue;
        begun.reserve(begun.size() + 1);
        const Uploads one = begin({group}, {.since = 0, .demanded = false}, false, trash);
        begun.insert(begun.end(), one.begin(), one.end());
    }
}

void Cache::stop() noexcept {
    Groups asleep;
    std::unique_ptr<Plan> plan;
    Trash trash;
    Lock lock(mutex_);
    stopping_ = true;
    follows_ = false;
    plan.swap(plan_);
    asleep.swap(asleep_);
    cancel_if(lock, trash, [](const Upload&) { return true; });
    if (plan) end_slots(*plan);  // so that their memory is freed, that of leases when these end
    stopped_ = true;
    for (auto& [group, bundles] : kept_) trash.bundles.splice(trash.bundles.end(), bundles);
    kept_.clear();
    for (const auto& holding : residency_.holdings())
        for (Group* const group : holding->groups)
            if (group->self) trash.groups.push_back(std::move(group->self));
    // Only now: until everything here can be freed, others have to know who has it.
    std::erase(budget_->caches, this);
    evict_all(lock, trash);
    changed_.wait(lock, [&] { return freeing_ == 0; });
    free_kept(lock);
}

void Cache::Trash::reserve(std::size_t cancelled) {
    groups.reserve(groups.size() + cancelled);
    uploads.reserve(uploads.size() + cancelled);
    copying.reserve(copying.size() + cancelled);
}

void Cache::Trash::clear() noexcept {
    for (const auto& upload : copying) upload->finish();
    copying.clear();
    bundles.clear();
    groups.clear();
    uploads.clear();
    caches.clear();
}

Group::~Group() { cache.forget(*this); }

}  // namespace safemap::SAFEMAP_ABI::device
