// Bundle, Lease and DeviceTensor: what callers hold of groups.

#include "base/text.hpp"
#include "device/cache.hpp"

#include <safemap/bundle.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <new>
#include <numeric>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI {

const std::string& DeviceTensor::name() const noexcept { return tensor_->name(); }
Dtype DeviceTensor::dtype() const noexcept { return tensor_->dtype(); }
const Shape& DeviceTensor::shape() const noexcept { return tensor_->shape(); }
std::uint64_t DeviceTensor::nbytes() const noexcept { return tensor_->nbytes(); }
const std::shared_ptr<DeviceMemory>& DeviceTensor::memory() const noexcept { return group_->memory; }
std::uint64_t DeviceTensor::offset() const noexcept { return group_->offset + place_; }

void* DeviceTensor::address() const noexcept {
    const DeviceMemory* const block = memory().get();
    if (block == nullptr || block->handle() == nullptr || !block->has_address()) return nullptr;
    return static_cast<std::byte*>(block->handle()) + offset();
}

std::span<std::byte> DeviceTensor::host_bytes() const noexcept {
    const auto all = memory() ? memory()->host_bytes() : std::span<std::byte>();
    return all.empty() ? all : all.subspan(offset(), nbytes());
}

const DeviceTensor* device::BundleData::find(std::string_view name) const {
    if (view->cache->is_forked()) {  // a thread that is not here may be making the index
        const auto found = std::ranges::find(tensors, name, &DeviceTensor::name);
        return found != tensors.end() ? &*found : nullptr;
    }
    const auto name_of = [&](std::uint32_t i) -> std::string_view { return tensors[i].name(); };
    std::call_once(indexed_, [&] {
        auto numbers = std::make_unique<std::uint32_t[]>(tensors.size());
        std::iota(numbers.get(), numbers.get() + tensors.size(), 0U);
        std::ranges::sort(std::span(numbers.get(), tensors.size()), {}, name_of);
        by_name_ = std::move(numbers);
    });
    const std::span by_name(by_name_.get(), tensors.size());
    const auto at = std::ranges::lower_bound(by_name, name, {}, name_of);
    return at != by_name.end() && name_of(*at) == name ? &tensors[*at] : nullptr;
}

std::size_t Bundle::size() const noexcept { return data_ ? data_->tensors.size() : 0; }
std::uint64_t Bundle::device_bytes() const noexcept { return data_ ? data_->device_bytes : 0; }

std::vector<BundleTensor> Bundle::tensors() const {
    std::vector<BundleTensor> all;
    if (!data_) return all;
    all.reserve(size());
    for (const DeviceTensor& tensor : data_->tensors) {
        const auto owner = std::ranges::find(data_->groups, tensor.group_, &std::shared_ptr<device::Group>::get);
        all.push_back({.name = tensor.name(),
                       .dtype = tensor.dtype(),
                       .shape = tensor.shape(),
                       .nbytes = tensor.nbytes(),
                       .owner = static_cast<std::size_t>(owner - data_->groups.begin()),
                       .offset = tensor.place_});
    }
    return all;
}

void device::Awaited::try_begin(const BundleData& bundle) noexcept {
    try {
        if (auto waited_for = bundle.view->cache->try_request(bundle, request)) {
            uploads = *std::move(waited_for);
            begun = true;
        }
    } catch (...) {
        fault = std::current_exception();
    }
}

bool device::Awaited::ready(const BundleData& bundle) noexcept {
    if (!begun && !fault) try_begin(bundle);
    if (fault || !is_wanted(request)) return true;
    if (!begun) return false;
    Cache& cache = *bundle.view->cache;
    if (cache.are_over(uploads)) return Cache::is_there(bundle);
    try {
        cache.help_without_readers(bundle);
    } catch (const std::bad_alloc&) {  // somebody else may have the memory for it
    }
    return false;
}

Lease& Lease::operator=(Lease&& other) noexcept {
    if (this != &other) {
        release();
        data_ = std::move(other.data_);
        awaited_ = std::move(other.awaited_);
        stream_ = other.stream_;
    }
    return *this;
}

std::span<const DeviceTensor> Lease::tensors() const& noexcept {
    if (!data_ || awaited_) return {};
    return data_->tensors;
}

const DeviceTensor& Lease::operator[](std::string_view name) const& {
    if (awaited_) throw Error(Errc::invalid_argument, "the lease has no tensors before it was waited for");
    const DeviceTensor* const tensor = data_ ? data_->find(name) : nullptr;
    if (tensor != nullptr) return *tensor;
    throw Error(Errc::tensor_not_found, "this lease has no tensor " + safemap::quoted(name));
}

const DeviceTensor& Lease::operator[](const char* name) const& { return (*this)[not_null(name, "name of a tensor")]; }

/// Makes the lease of a bundle that is leased already, for the work of `stream`, and orders that after the copies.
/// `orderable` is Cache::orderable(stream), which was asked before the bundle was leased.
Lease Lease::ordered(std::shared_ptr<const device::BundleData> data, NativeStream stream, NativeStream orderable,
                     const Request& request) {
    Lease lease(std::move(data));
    lease.data_->view->cache->order(*lease.data_, orderable, request);
    lease.stream_ = stream;  // now, because a lease that is not passed on is not used by the stream
    return lease;
}

Lease Lease::acquired(const std::shared_ptr<const device::BundleData>& data, NativeStream stream,
                      const Request& request) {
    device::Cache& cache = *data->view->cache;
    const NativeStream orderable = cache.orderable(stream);
    const bool was_there = device::Cache::try_lease(*data);
    if (!was_there) cache.lease(*data, request);
    Lease lease = ordered(data, stream, orderable, request);
    if (was_there && data->view->follows) cache.reached(*data);
    return lease;
}

bool Lease::has(const DeviceTensor& tensor) const noexcept {
    const auto is_it = [&](const DeviceTensor& one) { return &one == &tensor; };
    return std::ranges::any_of(tensors(), is_it);
}

bool Lease::ready() const noexcept {
    if (awaited_) return awaited_->ready(*data_);
    return !data_ || device::Cache::is_there(*data_);
}

void Lease::wait(NativeStream stream) {
    if (!data_) throw Error(Errc::invalid_argument, "there is no lease, or it has ended");
    if (stream && stream_ && stream != stream_)
        throw Error(Errc::invalid_argument, "the lease is for the work of another stream")
            .with_hint("acquire the bundle once for each stream");
    device::Cache& cache = *data_->view->cache;
    const NativeStream orderable = cache.orderable(stream);
    if (!awaited_) {
        cache.order(*data_, orderable);
        if (stream) stream_ = stream;
        return;
    }
    const auto awaited = std::move(awaited_);
    const auto data = std::move(data_);
    if (awaited->fault) device::throw_copy(awaited->fault);
    if (awaited->begun) cache.end_request(*data, awaited->request, awaited->uploads);
    else cache.lease(*data, awaited->request);
    *this = ordered(data, stream, orderable, awaited->request);
}

void Lease::release() noexcept {
    const auto data = std::move(data_);
    if (!data) return;
    if (const auto awaited = std::move(awaited_)) {
        if (awaited->begun) data->view->cache->cancel_request(*data, awaited->uploads);
    } else {
        data->view->cache->release(*data, stream_);
    }
}

void Lease::release(NativeStream stream) {
    if (!data_) return;
    if (stream && !data_->view->cache->orderable(stream))
        throw Error(Errc::invalid_argument, "a lease cannot be released on a stream that is being captured");
    stream_ = stream;
    release();
}

}  // namespace safemap::SAFEMAP_ABI
