// One limit for the memory of pickles that are read side by side: each thread gets a share of it, and a pickle that
// needs more than a share is read again when no other is read.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace safemap::SAFEMAP_ABI {

/// The memory that pickles may take on this thread while the object lives, in bytes. PickleLimits::of_packed() follows
/// it. Objects of one thread nest, and end in the reverse order.
class MemoryShare {
public:
    static constexpr std::uint64_t no_limit = UINT64_MAX;

    /// A pickle may take `least`, and a large one, memory in proportion to its bytes in the file, but never more than
    /// `most`. Neither is more than the object around this one gives.
    explicit MemoryShare(std::uint64_t least, std::uint64_t most = no_limit) noexcept;
    ~MemoryShare();
    MemoryShare(const MemoryShare&) = delete;
    MemoryShare& operator=(const MemoryShare&) = delete;

    static std::uint64_t least() noexcept;
    /// Returns the share of each of several threads in least().
    static std::uint64_t of_each(std::size_t threads) noexcept;
    static std::uint64_t most() noexcept;
    /// Notes that a pickle needs more than it may take. Limits call it before they throw, so that it is known also
    /// where nobody reports the error.
    static void exceed() noexcept;
    /// Returns true if exceed() was called since the innermost object exists, and what is around that object gives
    /// more: what was read is to be read again there.
    static bool was_too_small() noexcept;

private:
    std::uint64_t least_;
    std::uint64_t most_;
    bool exceeded_ = false;
    MemoryShare* outer_;
};

/// Calls read(i) for every i in [0, count) on at most `threads` threads, as parallel_for() does. Each thread has an
/// equal share of the memory that a small pickle may take: together they take no more than one alone may. If the share
/// was too small, read(i) is called once more after all others, on the calling thread, in the order of the numbers,
/// without the limit of a share, also if the first call has thrown. It must replace what the first call has read.
void parallel_for_pickles(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& read);

}  // namespace safemap::SAFEMAP_ABI
