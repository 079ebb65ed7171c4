// Keeps the share of each thread, and shares out. Tested by tests/pickle/memory_share_test.cpp.
#include "pickle/memory_share.hpp"

#include "base/pool.hpp"
#include "pickle/pickle.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

thread_local MemoryShare* innermost = nullptr;

}  // namespace

MemoryShare::MemoryShare(std::uint64_t least, std::uint64_t most) noexcept
    : least_(std::min(least, MemoryShare::least())),
      most_(std::min(most, MemoryShare::most())),
      outer_(std::exchange(innermost, this)) {}

MemoryShare::~MemoryShare() {
    innermost = outer_;
    if (exceeded_) exceed();
}

std::uint64_t MemoryShare::least() noexcept {
    return innermost == nullptr ? PickleLimits::least_memory : innermost->least_;
}

std::uint64_t MemoryShare::most() noexcept { return innermost == nullptr ? no_limit : innermost->most_; }

void MemoryShare::exceed() noexcept {
    if (innermost != nullptr) innermost->exceeded_ = true;
}

bool MemoryShare::was_too_small() noexcept {
    if (innermost == nullptr || !innermost->exceeded_) return false;
    const std::uint64_t whole = innermost->outer_ == nullptr ? PickleLimits::least_memory : innermost->outer_->least_;
    return innermost->least_ < whole;
}

void parallel_for_pickles(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& read) {
    const std::size_t used = std::min<std::size_t>(thread_count(threads), count);
    const std::uint64_t share = MemoryShare::least() / std::max(used, std::size_t{1});
    std::mutex mutex;
    std::vector<std::size_t> again;
    parallel_for(count, threads, [&](std::size_t i, unsigned) {
        const MemoryShare limit(share);
        read(i);
        if (!MemoryShare::was_too_small()) return;
        const std::lock_guard lock(mutex);
        again.push_back(i);
    });
    std::sort(again.begin(), again.end());
    const MemoryShare whole(MemoryShare::least());
    for (const std::size_t i : again) read(i);
}

}  // namespace safemap::SAFEMAP_ABI
