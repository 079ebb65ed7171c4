// A cache of open descriptors, limited by the number of files that the process may open.
#pragma once

#include "io/system.hpp"

#include <list>
#include <memory>

namespace safemap::SAFEMAP_ABI::io {

/// A shared descriptor. The last owner closes it.
using Handle = std::shared_ptr<const Descriptor>;

/// A slot of the cache, for one descriptor. All slots together keep at most half of the descriptors that the process
/// may open; the program has the other half. Beyond that, the least recently used descriptor is evicted. Thread-safe.
class CachedDescriptor {
public:
    CachedDescriptor() = default;
    ~CachedDescriptor();
    CachedDescriptor(const CachedDescriptor&) = delete;
    CachedDescriptor& operator=(const CachedDescriptor&) = delete;

    void keep(Handle handle) noexcept;
    /// Returns the descriptor; null if it was evicted.
    Handle get() noexcept;

private:
    friend bool close_one_kept() noexcept;

    // Guarded by the mutex of the list of all slots. The node is in that list while there is a handle.
    Handle handle_;
    std::list<CachedDescriptor*> own_ = {this};
    std::list<CachedDescriptor*>::iterator node_ = own_.begin();
};

/// Evicts the least recently used descriptor. It is closed unless it is in use. Returns false if the cache is empty.
/// Does not change errno.
bool close_one_kept() noexcept;

}  // namespace safemap::SAFEMAP_ABI::io
