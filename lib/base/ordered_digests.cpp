// Lets workers take turns.
#include "base/ordered_digests.hpp"

#include <chrono>

namespace safemap {

OrderedDigests::OrderedDigests(std::size_t items) : digests_(items, xxh3({})) {}

bool OrderedDigests::feed(std::size_t item, std::uint64_t size, std::uint64_t offset, std::span<const std::byte> bytes,
                          Watch* watch) {
    if (bytes.size() == size) {
        digests_[item] = xxh3(bytes);
        return true;
    }
    Open* const open = wait_for_turn(item, offset, watch);
    if (open == nullptr) return false;
    open->hash.update(bytes);
    {
        const std::lock_guard lock(mutex_);
        open->fed += bytes.size();
        if (open->fed == size) {
            digests_[item] = open->hash.digest();
            open_.erase(item);
        }
    }
    turn_.notify_all();
    return true;
}

/// Null where the turn will never come.
OrderedDigests::Open* OrderedDigests::wait_for_turn(std::size_t item, std::uint64_t offset, Watch* watch) {
    constexpr std::chrono::milliseconds tick_interval{100};
    std::unique_lock lock(mutex_);
    Open& open = open_[item];  // stays where it is, whatever comes and goes beside it
    const auto over = [&] { return all_abandoned_ || open.abandoned; };
    const auto ready = [&] { return over() || open.fed == offset; };
    while (!turn_.wait_for(lock, tick_interval, ready)) {
        if (watch == nullptr) continue;
        lock.unlock();
        watch->tick();
        lock.lock();
    }
    return over() ? nullptr : &open;
}

void OrderedDigests::abandon(std::size_t item) {
    {
        const std::lock_guard lock(mutex_);
        open_[item].abandoned = true;
    }
    turn_.notify_all();
}

void OrderedDigests::abandon_all() noexcept {
    {
        const std::lock_guard lock(mutex_);
        all_abandoned_ = true;
    }
    turn_.notify_all();
}

}  // namespace safemap
