// Request: how long and how urgently a bundle is wanted.
#pragma once

#include <safemap/api.hpp>
#include <safemap/progress.hpp>

#include <chrono>

namespace safemap::SAFEMAP_ABI {

/// How long and how urgently a bundle is wanted. A caller that waits takes part in the reading. With a deadline or a
/// stop token it leaves that to the reader threads, so that no read in progress makes it late.
struct Request {
    /// Among bundles that somebody waits for, those of higher priority are read first. Jobs in progress (at most 8 MiB
    /// each) are not interrupted.
    int priority = 0;
    /// Errc::deadline_passed is thrown at this time. The upload goes on as a prefetch does: it makes way for others.
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    /// A stop request throws Errc::cancelled, and ends the upload unless somebody else wants it. The function reports
    /// the bytes of the bundle that are read, those that were on the device before included. It is called on the thread
    /// that waits, and not for a bundle that is on the device. If it returns false or throws, that ends the upload,
    /// too.
    Monitor monitor = {};
};

}  // namespace safemap::SAFEMAP_ABI
