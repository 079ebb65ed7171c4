// Counts the forks of this process.
#include "base/forks.hpp"

#include <pthread.h>

namespace safemap::SAFEMAP_ABI {
namespace {

std::atomic<unsigned> forks_so_far = 0;

}  // namespace

unsigned count_forks() noexcept {
    // Without memory for the handler, forks are not noticed.
    static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks_so_far.fetch_add(1); });
    static_cast<void>(registered);
    return forks_so_far.load(std::memory_order_relaxed);
}

}  // namespace safemap::SAFEMAP_ABI
