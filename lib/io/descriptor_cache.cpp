// The list of all slots in use. The most recently used one is at the front.
#include "io/descriptor_cache.hpp"

#include "io/calls.hpp"

#include <pthread.h>

#include <cerrno>
#include <mutex>

namespace safemap::SAFEMAP_ABI::io {

namespace {

struct All {
    std::mutex mutex;
    std::list<CachedDescriptor*> places;
};

// Never destroyed: a source may be closed after all other static objects. Locked during a fork, so that the child's
// copy is consistent.
All& all() {
    static All& only = []() -> All& {
        static auto* const made = new All;
        ::pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); }, [] { made->mutex.unlock(); });
        return *made;
    }();
    return only;
}

bool more_than_allowed() noexcept {
    const std::uint64_t most = calls.descriptor_limit() / 2;
    const std::lock_guard lock(all().mutex);
    return all().places.size() > most;
}

}  // namespace

CachedDescriptor::~CachedDescriptor() {
    const std::lock_guard lock(all().mutex);
    if (handle_) all().places.erase(node_);
}

void CachedDescriptor::keep(Handle handle) noexcept {
    {
        const std::lock_guard lock(all().mutex);
        handle_.swap(handle);
        auto& from = handle ? all().places : own_;
        all().places.splice(all().places.begin(), from, node_);
    }
    while (more_than_allowed()) close_one_kept();
}

Handle CachedDescriptor::get() noexcept {
    const std::lock_guard lock(all().mutex);
    if (handle_) all().places.splice(all().places.begin(), all().places, node_);
    return handle_;
}

bool close_one_kept() noexcept {
    Handle closing;
    {
        const std::lock_guard lock(all().mutex);
        if (all().places.empty()) return false;
        CachedDescriptor& last = *all().places.back();
        closing.swap(last.handle_);
        last.own_.splice(last.own_.end(), all().places, last.node_);
    }
    const int error = errno;
    closing.reset();
    errno = error;
    return true;
}

}  // namespace safemap::SAFEMAP_ABI::io
