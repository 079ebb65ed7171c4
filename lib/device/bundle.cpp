// Bundle, Lease and DeviceTensor: what callers hold of groups.

#include "base/text.hpp"
#include "device/cache.hpp"

#include <safemap/bundle.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace safemap::SAFEMAP_ABI {

const std::string& DeviceTensor::name() const noexcept { return tensor_->name(); }
Dtype DeviceTensor::dtype() const noexcept { return tensor_->dtype(); }
const Shape& DeviceTensor::shape() const noexcept { return tensor_->shape(); }
std::uint64_t DeviceTensor::nbytes() const noexcept { return tensor_->nbytes(); }
const std::shared_ptr<DeviceMemory>& DeviceTensor::memory() const noexcept { return group_->memory; }
std::uint64_t DeviceTensor::offset() const noexcept { return group_->offset + place_; }

std::span<std::byte> DeviceTensor::host_bytes() const noexcept {
    const auto all = memory() ? memory()->host_bytes() : std::span<std::byte>();
    return all.empty() ? all : all.subspan(offset(), nbytes());
}

const DeviceTensor* device::BundleData::find(std::string_view name) const {
    const auto name_of = [&](std::uint32_t i) -> std::string_view { return tensors[i].name(); };
    std::call_once(indexed_, [&] {
        by_name_.resize(tensors.size());
        std::iota(by_name_.begin(), by_name_.end(), 0U);
        std::ranges::sort(by_name_, {}, name_of);
    });
    const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
    return at != by_name_.end() && name_of(*at) == name ? &tensors[*at] : nullptr;
}

std::size_t Bundle::size() const noexcept { return data_ ? data_->tensors.size() : 0; }
std::uint64_t Bundle::device_bytes() const noexcept { return data_ ? data_->device_bytes : 0; }

Lease& Lease::operator=(Lease&& other) noexcept {
    if (this != &other) {
        release();
        data_ = std::move(other.data_);
        stream_ = other.stream_;
    }
    return *this;
}

std::span<const DeviceTensor> Lease::tensors() const& noexcept {
    if (!data_) return {};
    return data_->tensors;
}

const DeviceTensor& Lease::operator[](std::string_view name) const& {
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

bool Lease::has(const DeviceTensor& tensor) const noexcept {
    const auto is_it = [&](const DeviceTensor& one) { return &one == &tensor; };
    return std::ranges::any_of(tensors(), is_it);
}

void Lease::wait() const {
    if (data_) data_->view->cache->order(*data_, {});
}

void Lease::release() noexcept {
    if (const auto data = std::move(data_)) data->view->cache->release(*data, stream_);
}

void Lease::release(NativeStream stream) {
    if (!data_) return;
    if (stream && !data_->view->cache->orderable(stream))
        throw Error(Errc::invalid_argument, "a lease cannot be released on a stream that is being captured");
    stream_ = stream;
    release();
}

}  // namespace safemap::SAFEMAP_ABI
