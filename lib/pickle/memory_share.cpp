// Keeps the share of each thread, and shares out. Tested by tests/pickle/memory_share_test.cpp.
#include "pickle/memory_share.hpp"

#include "base/pool.hpp"
#include "pickle/pickle.hpp"

#include <algorithm>
#include <exception>
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

std::uint64_t MemoryShare::of_each(std::size_t threads) noexcept { return least() / std::max(threads, std::size_t{1}); }

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
    const std::uint64_t share = MemoryShare::of_each(std::min<std::size_t>(thread_count(threads), count));
    std::mutex mutex;
    std::vector<std::size_t> again;
    std::size_t failed = count;
    std::exception_ptr error;
    try {
        parallel_for(count, threads, [&](std::size_t i, unsigned) {
            const MemoryShare limit(share);
            try {
                read(i);
            } catch (...) {
                if (!MemoryShare::was_too_small()) {
                    const std::lock_guard lock(mutex);
                    failed = std::min(failed, i);
                    throw;
                }
            }
            if (!MemoryShare::was_too_small()) return;
            const std::lock_guard lock(mutex);
            again.push_back(i);
        });
    } catch (...) {
        error = std::current_exception();
    }
    std::sort(again.begin(), again.end());
    const MemoryShare whole(MemoryShare::least());
    for (const std::size_t i : again)
        if (i < failed) read(i);
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

}  // namespace safemap::SAFEMAP_ABI
