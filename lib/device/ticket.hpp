// The contents of a Ticket.
#pragma once

#include "device/cache.hpp"

#include <safemap/ticket.hpp>

#include <exception>
#include <memory>

namespace safemap::SAFEMAP_ABI {

/// The bundle is leased from its beginning on, as long as this lives.
struct Ticket::Data {
    std::shared_ptr<const device::BundleData> bundle = {};
    Request request = {};
    device::Uploads uploads = {};
    bool begun = false;             // false: it waits for something in the way, and has no lease yet
    std::exception_ptr fault = {};  // why it did not begin

    /// Begins, if that needs no wait.
    void try_begin() noexcept {
        try {
            if (auto waited_for = bundle->view->cache->try_request(bundle, request)) {
                uploads = *std::move(waited_for);
                begun = true;
            }
        } catch (...) {
            fault = std::current_exception();
        }
    }
};

}  // namespace safemap::SAFEMAP_ABI
