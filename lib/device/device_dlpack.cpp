// Exports tensors on devices as DLPack tensors, which share their leases.
#include <safemap/advanced/device_dlpack.hpp>

#include "device/cache.hpp"
#include "drivers/backend.hpp"
#include "tensor/dlpack_description.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace dlpack {
namespace {

/// Returns the number in a name such as "cuda:1", or 0.
std::int32_t number_of(std::string_view name) {
    const std::size_t colon = name.find(':');
    if (colon == std::string_view::npos) return 0;
    return static_cast<std::int32_t>(drivers::parse_ordinal(name.substr(colon + 1)).value_or(0));
}

Device where(const safemap::Device& device, const DeviceTensor& tensor) {
    switch (device.stream_kind()) {
        case NativeStream::Kind::cuda: return {DeviceType::cuda, number_of(device.name())};
        case NativeStream::Kind::opencl: return {DeviceType::opencl, number_of(device.name())};
        case NativeStream::Kind::none: break;
    }
    if (tensor.nbytes() > 0 && tensor.host_bytes().empty())
        throw Error(Errc::no_dlpack, "DLPack has no number for the device '" + device.name() + "'")
            .with_tensor(tensor.name());
    return {DeviceType::cpu, 0};
}

/// Returns the address of a tensor and 0, or the handle of its memory and the place in it.
std::pair<void*, std::uint64_t> place_of(const DeviceTensor& tensor) {
    if (tensor.nbytes() == 0) return {nullptr, 0};
    if (tensor.memory()->has_address()) return {tensor.address(), 0};
    return {tensor.memory()->handle(), tensor.offset()};
}

Described describe(const DeviceTensor& tensor, Float4 float4) {
    try {
        return described(tensor.dtype(), tensor.shape(), row_major(tensor.shape()), float4);
    } catch (Error& error) {
        error.with_tensor(tensor.name());
        throw;
    }
}

}  // namespace
}  // namespace dlpack

/// An exported tensor, and the lease that it shares.
template <class Managed> struct LeaseExport {
    std::shared_ptr<Lease> lease;
    NativeStream consumer;
    dlpack::Described described;
    Managed managed = {};

    static Managed* make(std::shared_ptr<Lease> lease, const DeviceTensor& tensor, NativeStream consumer,
                         dlpack::Float4 float4);
    static void end(Managed* self);
};

template <class Managed>
Managed* LeaseExport<Managed>::make(std::shared_ptr<Lease> lease, const DeviceTensor& tensor, NativeStream consumer,
                                    dlpack::Float4 float4) {
    if (!lease || !lease->has(tensor))
        throw Error(Errc::invalid_argument, "the lease does not have the tensor").with_tensor(tensor.name());
    device::Cache& cache = *lease->data_->view->cache;
    auto out = std::make_unique<LeaseExport>(
        LeaseExport{std::move(lease), consumer, dlpack::describe(tensor, float4), Managed{}});
    const auto [data, offset] = dlpack::place_of(tensor);
    out->managed.manager_ctx = out.get();
    out->managed.deleter = end;
    out->managed.dl_tensor = out->described.at(data, dlpack::where(*cache.device(), tensor), offset);
    cache.order(*out->lease->data_, cache.orderable(consumer));
    return &out.release()->managed;
}

template <class Managed> void LeaseExport<Managed>::end(Managed* self) {
    const std::unique_ptr<LeaseExport> own(static_cast<LeaseExport*>(self->manager_ctx));
    const auto& data = own->lease->data_;
    if (!data) return;
    const bool is_cuda = self->dl_tensor.device.type == dlpack::DeviceType::cuda;
    bool is_fenced = !own->consumer || data->view->cache->use(*data, own->consumer);
    if (is_cuda) is_fenced = data->view->cache->use(*data, NativeStream::cuda(nullptr)) && is_fenced;
    if (!is_fenced) data->view->cache->lease_until_stop(*data);  // nobody knows when the memory is free
}

namespace dlpack {

ManagedTensorVersioned* export_versioned(std::shared_ptr<Lease> lease, const DeviceTensor& tensor,
                                         NativeStream consumer, Float4 float4) {
    auto* const out = LeaseExport<ManagedTensorVersioned>::make(std::move(lease), tensor, consumer, float4);
    out->flags = flag_read_only;
    return out;
}

ManagedTensor* export_unversioned(std::shared_ptr<Lease> lease, const DeviceTensor& tensor, NativeStream consumer,
                                  Float4 float4) {
    return LeaseExport<ManagedTensor>::make(std::move(lease), tensor, consumer, float4);
}

}  // namespace dlpack
}  // namespace safemap::SAFEMAP_ABI
