// One bounded, process-wide pool of threads in which the caller takes part.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <functional>

namespace safemap::SAFEMAP_ABI {

/// Threads that `wanted` means: itself, or one per core for 0.
unsigned thread_count(unsigned wanted) noexcept;

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
