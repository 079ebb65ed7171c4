// Request: how long and how urgently a bundle is wanted.
#pragma once

#include <safemap/api.hpp>
#include <safemap/progress.hpp>

#include <chrono>

namespace safemap::SAFEMAP_ABI {

/// How long and how urgently a bundle is wanted. A caller that waits reads parts of the bundle itself. With a deadline
/// or a stop token, only the reader threads read: a read that has begun cannot be interrupted, and would make the
/// caller late.
struct Request {
    /// Among bundles that somebody waits for, those of higher priority are read first. Jobs in progress (at most 8 MiB
    /// each) are not interrupted.
    int priority = 0;
    /// Errc::deadline_passed is thrown at this time. The upload goes on as a prefetch does: it makes way for others.
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    /// A stop request throws Errc::cancelled, and cancels the upload, unless another lease wants it.
    /// Monitor::on_progress gets the bytes of the bundle that are on the device or read, on the thread that waits. It
    /// is not called for a bundle that is on the device. If it returns false or throws, the upload is cancelled, too.
    Monitor monitor = {};
};

}  // namespace safemap::SAFEMAP_ABI
