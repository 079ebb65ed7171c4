// Progress, cancellation and threads of bulk operations.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// The state of a bulk operation, as passed to Monitor::on_progress.
struct Progress {
    /// "converting", "verifying", "hashing", "comparing", "loading", "prefetching" or "uploading"; valid during the
    /// call.
    std::string_view stage;
    std::uint64_t bytes_done = 0;   ///< tensor bytes finished; for verify(), bytes of all data read
    std::uint64_t bytes_total = 0;  ///< all bytes of that kind; a fault may leave `bytes_done` below it
    double bytes_per_second = 0;    ///< mean rate since the operation began, without bytes that were done before
};

/// The progress function and stop token of a bulk operation. Both may be unset.
struct Monitor {
    /// Called on the thread that called the operation, at most ten times a second, once at the end, and by most
    /// operations once at the beginning too. If it returns false, the operation undoes its work and throws
    /// Errc::cancelled; a save with SaveOptions::resume keeps finished shards. If it throws, the operation undoes its
    /// work and the exception passes through.
    std::function<bool(const Progress&)> on_progress = {};
    /// A stop request cancels too, within one block of work.
    std::stop_token stop = {};
};

/// The monitor and the number of threads of a bulk operation.
///
/// Example:
///     safemap::Work work = {.threads = 4};
///     work.monitor.on_progress = [](const safemap::Progress& p) { std::cerr << p.bytes_done << '\r'; return true; };
///     checkpoint.prefetch(safemap::Selection::prefix("model.layers.0"), work);
struct Work {
    Monitor monitor = {};
    /// Number of threads, including the calling one. 0: one per processor. Each operation documents its maximum.
    unsigned threads = 0;
};

}  // namespace safemap::SAFEMAP_ABI
