// Makes workers take turns to feed a hash.
#include "base/ordered_digests.hpp"

#include <chrono>
#include <type_traits>

namespace safemap::SAFEMAP_ABI {

namespace {

template <class Hash> auto at_once(std::span<const std::byte> bytes) {
    if constexpr (std::is_same_v<Hash, Xxh3>) {
        return xxh3(bytes);
    } else {
        Hash hash;
        hash.update(bytes);
        return hash.digest();
    }
}

}  // namespace

template <class Hash> OrderedHashes<Hash>::OrderedHashes(std::size_t items) : digests_(items, at_once<Hash>({})) {}

template <class Hash>
bool OrderedHashes<Hash>::feed(std::size_t item, std::uint64_t size, std::uint64_t offset,
                               std::span<const std::byte> bytes, Watch* watch) {
    if (bytes.size() == size) {
        digests_[item] = at_once<Hash>(bytes);
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

/// Waits until the bytes before `offset` were fed. Returns null if that will never happen.
template <class Hash>
typename OrderedHashes<Hash>::Open* OrderedHashes<Hash>::wait_for_turn(std::size_t item, std::uint64_t offset,
                                                                       Watch* watch) {
    constexpr std::chrono::milliseconds tick_interval{100};
    std::unique_lock lock(mutex_);
    Open& open = open_[item];  // a reference that stays valid when other items come and go
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

template <class Hash> void OrderedHashes<Hash>::abandon(std::size_t item) {
    {
        const std::lock_guard lock(mutex_);
        open_[item].abandoned = true;
    }
    turn_.notify_all();
}

template <class Hash> void OrderedHashes<Hash>::abandon_all() noexcept {
    {
        const std::lock_guard lock(mutex_);
        all_abandoned_ = true;
    }
    turn_.notify_all();
}

template class OrderedHashes<Xxh3>;
template class OrderedHashes<Sha256>;

}  // namespace safemap::SAFEMAP_ABI
