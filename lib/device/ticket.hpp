// The contents of a Ticket.
#pragma once

#include "device/cache.hpp"

#include <safemap/ticket.hpp>

#include <memory>

namespace safemap::SAFEMAP_ABI {

/// The bundle is leased as long as this lives.
struct Ticket::Data {
    std::shared_ptr<const device::BundleData> bundle = {};
    Request request = {};
    device::Uploads uploads = {};
};

}  // namespace safemap::SAFEMAP_ABI
