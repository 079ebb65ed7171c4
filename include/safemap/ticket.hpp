// Ticket: an upload that was requested, and whose lease is taken later; Request: how long and how urgently it is
// wanted.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bundle.hpp>
#include <safemap/device.hpp>

#include <chrono>
#include <memory>
#include <stop_token>

namespace safemap::SAFEMAP_ABI {

/// How long and how urgently a bundle is wanted. A caller that waits takes part in the reading. With a deadline or a
/// stop token it leaves that to the reader threads, so that no read in progress makes it late.
struct Request {
    /// Among bundles that somebody waits for, those of higher priority are read first. Jobs in progress (at most 8 MiB
    /// each) are not interrupted.
    int priority = 0;
    /// Errc::deadline_passed is thrown at this time. The upload goes on as a prefetch does: it makes way for others.
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    /// A stop request throws Errc::cancelled, and ends the upload unless somebody else wants it.
    std::stop_token stop = {};
};

/// The result of Uploader::request(): a bundle on its way to the device. Tickets can be
/// moved, not copied, and must not be used from two threads at once. A ticket that is destroyed is cancelled.
///
/// Example:
///     safemap::Bundle expert = uploader.bundle(safemap::Selection::prefix("mlp.experts.7"));
///     safemap::Ticket ticket = uploader.request(expert, {.priority = 1});
///     safemap::Lease lease = ticket.wait();  // after work for the experts that are there
class [[nodiscard]] SAFEMAP_API Ticket {
public:
    /// Makes a ticket for nothing, as is one that was moved from: it is done(), and wait() throws invalid_argument.
    Ticket() noexcept;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket();

    /// Returns true if wait() would not block: the tensors are on the device, the upload failed, the deadline has
    /// passed or a stop was requested, or there is no upload any more. Without reader threads, does at most one job of
    /// it.
    bool done() const noexcept;
    /// Waits as Uploader::acquire() does, and returns the lease. Throws what that throws, and the errors of Request.
    /// The ticket is used up, whether this throws or not; for a ticket that is, throws invalid_argument. If the
    /// uploader was destroyed, throws cancelled.
    Lease wait(NativeStream stream = {});
    /// Ends the upload unless somebody else wants it. wait() must not be called any more.
    void cancel() noexcept;

private:
    friend class Uploader;
    struct Data;
    explicit Ticket(std::unique_ptr<Data> data) noexcept;
    std::unique_ptr<Data> data_;
};

}  // namespace safemap::SAFEMAP_ABI
