// One bounded, process-wide pool of threads in which the caller takes part.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <functional>

namespace safemap::SAFEMAP_ABI {

/// What an operation takes at most: of threads that the caller asks for, and where he leaves the number at 0.
struct ThreadLimits {
    unsigned most;
    unsigned unasked;
};
inline constexpr ThreadLimits any_threads{256, 256};
/// Buffers share 32 MiB, of which eight workers have enough each.
inline constexpr ThreadLimits bulk_threads{8, 8};
/// Two write as fast as a machine does.
inline constexpr ThreadLimits saving_threads{8, 2};
/// More than four gain nothing on one disk, more than sixteen on none: each has a block of its own in hand.
inline constexpr ThreadLimits uploading_threads{16, 4};

/// The threads that an option means: as many as it says, one per processor for 0, and no more than the limits.
unsigned thread_count(unsigned wanted, ThreadLimits limits = any_threads) noexcept;

/// Calls work(i, worker) for every i in [0, count), each once, on at most `threads` threads of which the caller is
/// one; `worker` is in [0, threads) and no two calls at the same time have the same. Returns when all have
/// returned. The first exception is rethrown here, and no further work is begun. Because the caller does what no
/// pool thread is free for, calls may nest.
///
/// `tick`, where given, is called on the calling thread between its pieces of work and at least ten times a second
/// while it waits for others; an exception of it counts as the work's.
void parallel_for(std::size_t count, unsigned threads, const std::function<void(std::size_t, unsigned)>& work,
                  const std::function<void()>& tick = {});

}  // namespace safemap::SAFEMAP_ABI
