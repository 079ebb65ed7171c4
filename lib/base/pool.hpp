// A bounded, process-wide thread pool. The calling thread takes part in the work. A long read asks whether the
// operation that it belongs to still wants it.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <functional>

namespace safemap::SAFEMAP_ABI {

/// The maximum number of threads of an operation: `most` if the caller gives a number, `unasked` if the number is 0.
struct ThreadLimits {
    unsigned most;
    unsigned unasked;
};
inline constexpr ThreadLimits any_threads{256, 256};
/// For work with buffers: they share 32 MiB, which is enough for each of eight workers.
inline constexpr ThreadLimits bulk_threads{8, 8};
/// For saving: two threads write as fast as a machine can.
inline constexpr ThreadLimits saving_threads{8, 2};
/// For uploading: more than four threads gain nothing on one disk, more than sixteen gain nothing at all. Each thread
/// holds one block.
inline constexpr ThreadLimits uploading_threads{16, 4};
/// For uploading to a GPU, whose bus is as fast as twelve threads that read cached files.
inline constexpr ThreadLimits gpu_uploading_threads{16, 12};

/// Returns the number of threads for an option: its value, or one per processor for 0; never more than `limits`.
unsigned thread_count(unsigned wanted, ThreadLimits limits = any_threads) noexcept;

/// Calls work(i, worker) once for every i in [0, count), on at most `threads` threads, one of them the caller. `worker`
/// is in [0, threads), and no two concurrent calls have the same. Returns when all calls have returned. After an
/// exception, no further call begins. Calls before it, in the order of i, run to their end: the exception of the lowest
/// i is rethrown here, whatever the threads do. Calls may nest, because the caller does the work for which no pool
/// thread is free.
///
/// If `tick` is given, the calling thread calls it between its own calls of work(), and at least ten times a second
/// while it waits for others. An exception of tick() counts as one before all calls of work(). A long read in work()
/// asks (Interruption): then the calling thread calls tick(), and a read ends after an exception before it. An
/// exception of tick() ends the loop also if that work() handles it.
void parallel_for(std::size_t count, unsigned threads, const std::function<void(std::size_t, unsigned)>& work,
                  const std::function<void()>& tick = {});

/// A question that long reads of this thread ask while the object lives: parallel_for() installs one for its work. The
/// question throws to stop the read. Objects of one thread nest, and end in the reverse order.
class Interruption {
public:
    explicit Interruption(std::function<void()> question);
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    /// Returns true if ask() has a question to ask on this thread.
    static bool possible() noexcept;
    /// Asks all questions of this thread, the newest first. A question may run code of the caller, so no lock may be
    /// held. Cheap, but not free: meant for every 50 ms of work.
    static void ask();

private:
    std::function<void()> question_;
    Interruption* outer_;
};

}  // namespace safemap::SAFEMAP_ABI
