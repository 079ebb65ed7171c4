// Ticket: an upload that was requested, and whose lease is taken later.
#include "device/ticket.hpp"

#include <safemap/error.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

Ticket::Ticket() noexcept = default;
Ticket::Ticket(std::unique_ptr<Data> data) noexcept : data_(std::move(data)) {}
Ticket::Ticket(Ticket&& other) noexcept = default;
Ticket::~Ticket() { cancel(); }

Ticket& Ticket::operator=(Ticket&& other) noexcept {
    if (this != &other) {
        cancel();
        data_ = std::move(other.data_);
    }
    return *this;
}

bool Ticket::done() const noexcept {
    if (!data_) return true;
    const device::BundleData& bundle = *data_->bundle;
    return bundle.view->cache->are_over(data_->uploads) && device::Cache::is_there(bundle);
}

Lease Ticket::wait(NativeStream stream) {
    if (!data_) throw Error(Errc::invalid_argument, "there is no ticket");
    device::Cache& cache = *data_->bundle->view->cache;
    const NativeStream orderable = cache.orderable(stream);
    const auto data = std::move(data_);
    cache.end_request(data->bundle, data->request, data->uploads);
    return Lease::ordered(data->bundle, stream, orderable, data->request);
}

void Ticket::cancel() noexcept {
    if (const auto data = std::move(data_)) data->bundle->view->cache->cancel_request(*data->bundle, data->uploads);
}

}  // namespace safemap::SAFEMAP_ABI
