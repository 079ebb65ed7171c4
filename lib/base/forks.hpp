// Forks: a process that was forked must not touch threads, locks and devices of the process that it was forked from.
#pragma once

#include <safemap/api.hpp>

#include <atomic>
#include <memory>
#include <mutex>

namespace safemap::SAFEMAP_ABI {

/// Returns how often this process and those before it were forked since the first call. Costs one load.
unsigned count_forks() noexcept;

/// Returns the object of its type that this process shares, and makes it if nobody holds it. A process that was forked
/// has its own.
template <class Shared> std::shared_ptr<Shared> shared_of_process() {
    struct Place {
        const unsigned forks = count_forks();
        std::mutex mutex = {};
        std::weak_ptr<Shared> shared = {};
    };
    // Never destroyed: a fork may have happened while another thread had the mutex.
    static std::atomic<Place*> current = new Place();
    Place* place = current.load();
    if (place->forks != count_forks()) {
        auto own = std::make_unique<Place>();
        if (current.compare_exchange_strong(place, own.get())) place = own.release();
    }
    const std::lock_guard lock(place->mutex);
    auto shared = place->shared.lock();
    if (!shared) place->shared = shared = std::make_shared<Shared>();
    return shared;
}

}  // namespace safemap::SAFEMAP_ABI
