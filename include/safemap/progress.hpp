// How long work says how far it is, and how it is stopped.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// A moment of a bulk operation.
struct Progress {
    /// "converting", "verifying", "hashing", "comparing" or "prefetching"; valid during the call.
    std::string_view stage;
    std::uint64_t bytes_done = 0;   ///< bytes of tensors finished; when verifying, of all that is read
    std::uint64_t bytes_total = 0;  ///< those in all
};

/// How a bulk operation is watched and stopped. Both parts may be left out.
struct Monitor {
    /// Called on the thread that called the operation, at most ten times a second, once at the end, and by most
    /// operations once at the beginning too. Returning false cancels: the operation undoes what it began and throws
    /// Errc::cancelled. What it throws itself passes through, and cancels likewise.
    std::function<bool(const Progress&)> on_progress = {};
    /// A stop request cancels likewise, within one block of work.
    std::stop_token stop = {};
};

/// How a bulk operation works: who watches it, and how many threads there are.
struct Work {
    Monitor monitor = {};
    /// Threads that work, the calling one among them. 0: one per processor. The operation says where it takes fewer.
    unsigned threads = 0;
};

}  // namespace safemap::SAFEMAP_ABI
