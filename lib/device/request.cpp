// Requests: how long a caller waits.
#include "device/request.hpp"

#include "base/watch.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>

namespace safemap::SAFEMAP_ABI::device {
namespace {

using Clock = std::chrono::steady_clock;

// Nothing tells an event that a stop was requested, so waits are this long if it may be.
constexpr auto pause_for_stop = std::chrono::milliseconds(5);

}  // namespace

bool is_wanted(const Request& request) noexcept {
    if (request.monitor.stop.stop_requested()) return false;
    return request.deadline == Clock::time_point::max() || Clock::now() < request.deadline;
}

bool is_limited(const Request& request) noexcept {
    return request.monitor.stop.stop_possible() || request.deadline != Clock::time_point::max();
}

Deadline next_look(const Request& request) noexcept {
    Deadline next = request.deadline;
    if (request.monitor.on_progress) next = std::min(next, Clock::now() + Watch::interval);
    if (request.monitor.stop.stop_possible()) next = std::min(next, Clock::now() + pause_for_stop);
    return next;
}

void require_wanted(const Request& request) {
    if (request.monitor.stop.stop_requested()) throw Error(Errc::cancelled, "the request was cancelled");
    if (!is_wanted(request)) throw Error(Errc::deadline_passed, "the tensors were not on the device in time");
}

}  // namespace safemap::SAFEMAP_ABI::device
