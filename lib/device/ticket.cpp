// Ticket: an upload that was requested, and whose lease is taken later.
#include "device/ticket.hpp"

#include <safemap/error.hpp>

#include <new>
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
    if (!data_->begun && !data_->fault) data_->try_begin();
    if (data_->fault || !device::is_wanted(data_->request)) return true;
    if (!data_->begun) return false;
    const device::BundleData& bundle = *data_->bundle;
    device::Cache& cache = *bundle.view->cache;
    if (cache.are_over(data_->uploads)) return device::Cache::is_there(bundle);
    try {
        cache.help_without_readers(bundle);
    } catch (const std::bad_alloc&) {  // somebody else may have the memory for it
    }
    return false;
}

Lease Ticket::wait(NativeStream stream) {
    if (!data_) throw Error(Errc::invalid_argument, "there is no ticket");
    device::Cache& cache = *data_->bundle->view->cache;
    const NativeStream orderable = cache.orderable(stream);
    const auto data = std::move(data_);
    if (data->fault) device::throw_copy(data->fault);
    if (data->begun) cache.end_request(data->bundle, data->request, data->uploads);
    else cache.lease(data->bundle, device::Keep::no, data->request);
    return Lease::ordered(data->bundle, stream, orderable, data->request);
}

void Ticket::cancel() noexcept {
    const auto data = std::move(data_);
    if (data && data->begun) data->bundle->view->cache->cancel_request(*data->bundle, data->uploads);
}

}  // namespace safemap::SAFEMAP_ABI
