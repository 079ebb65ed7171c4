// Requests: how long a caller waits.
#pragma once

#include "device/fences.hpp"

#include <safemap/request.hpp>

namespace safemap::SAFEMAP_ABI::device {

/// Returns false if the deadline passed, or a stop was requested.
bool is_wanted(const Request& request) noexcept;
/// Throws deadline_passed or cancelled then.
void require_wanted(const Request& request);
/// Returns true if that can happen.
bool is_limited(const Request& request) noexcept;
/// Returns the deadline, or an earlier time at which a wait looks if a stop was requested, or reports progress.
Deadline next_look(const Request& request) noexcept;

}  // namespace safemap::SAFEMAP_ABI::device
