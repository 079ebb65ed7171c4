// Descriptors that are kept open in case they are needed again, as many as there is room for.
#pragma once

#include "io/system.hpp"

#include <list>
#include <memory>

namespace safemap::SAFEMAP_ABI::io {

/// A descriptor shared by those who use it, closed by the last of them.
using Handle = std::shared_ptr<const Descriptor>;

/// A place for one descriptor. All places together keep at most half of what the process may have open, so that the
/// other half is left to the program; beyond that the one unused for longest is let go. Thread safe.
class Kept {
public:
    Kept() = default;
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    void keep(Handle handle) noexcept;
    /// What is kept; null where it has been let go.
    Handle get() noexcept;

private:
    friend bool close_one_kept() noexcept;

    // Guarded by the list of all places, in which the node is while there is a handle.
    Handle handle_;
    std::list<Kept*> own_ = {this};
    std::list<Kept*>::iterator node_ = own_.begin();
};

/// Lets go of the descriptor unused for longest; it is closed unless somebody uses it just now. False where none is
/// kept. Leaves errno alone.
bool close_one_kept() noexcept;

}  // namespace safemap::SAFEMAP_ABI::io
