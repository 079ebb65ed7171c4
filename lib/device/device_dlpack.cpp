// Exports tensors on devices as DLPack tensors, which share their leases.
#include <safemap/advanced/device_dlpack.hpp>

#include "device/backend.hpp"
#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace dlpack {
namespace {

/// Returns the number in a name such as "cuda:1", or 0.
std::int32_t number_of(std::string_view name) {
    const std::size_t colon = name.find(':');
    if (colon == std::string_view::npos) return 0;
    return static_cast<std::int32_t>(device::parse_ordinal(name.substr(colon + 1)).value_or(0));
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

/// The shape of a tensor, and its strides, row-major.
struct Dimensions {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};

Dimensions dimensions_of(const DeviceTensor& tensor, bool pairs) {
    Dimensions out;
    // A tensor that is on a device has fewer than 2^63 elements, unless it has none.
    for (const std::uint64_t dimension : tensor.shape()) {
        if (!std::in_range<std::int64_t>(dimension))
            throw Error(Errc::no_dlpack, "a dimension is too large; expected less than 2^63")
                .with_tensor(tensor.name());
        out.shape.push_back(static_cast<std::int64_t>(dimension));
    }
    if (pairs) {
        if (out.shape.empty() || out.shape.back() % 2 != 0)
            throw Error(Errc::no_dlpack, "F4 elements do not form pairs along the last dimension")
                .with_tensor(tensor.name());
        out.shape.back() /= 2;
    }
    out.strides.resize(out.shape.size());
    std::uint64_t stride = 1;  // may wrap if there are no elements
    for (std::size_t d = out.shape.size(); d-- > 0;) {
        out.strides[d] = static_cast<std::int64_t>(stride);
        stride *= static_cast<std::uint64_t>(out.shape[d]);
    }
    return out;
}

}  // namespace
}  // namespace dlpack

/// An exported tensor, and the lease that it shares.
template <class Managed> struct LeaseExport {
    std::shared_ptr<Lease> lease;
    NativeStream consumer;
    dlpack::Dimensions dimensions;
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
    device::Cache& cache = *lease->data_->cache;
    const bool pairs = float4 == dlpack::Float4::pairs && tensor.dtype() == Dtype::f4;
    auto type = dlpack::data_type(tensor.dtype());
    if (pairs) type.lanes = 2;
    auto out = std::make_unique<LeaseExport>(
        LeaseExport{std::move(lease), consumer, dlpack::dimensions_of(tensor, pairs), Managed{}});
    const bool has_address = tensor.nbytes() > 0 && tensor.memory()->has_address();
    auto* const handle = tensor.nbytes() > 0 ? static_cast<std::byte*>(tensor.memory()->handle()) : nullptr;
    out->managed.manager_ctx = out.get();
    out->managed.deleter = end;
    out->managed.dl_tensor = {.data = has_address ? handle + tensor.offset() : handle,
                              .device = dlpack::where(cache.device(), tensor),
                              .ndim = static_cast<std::int32_t>(out->dimensions.shape.size()),
                              .dtype = type,
                              .shape = out->dimensions.shape.data(),
                              .strides = out->dimensions.strides.data(),
                              .byte_offset = handle == nullptr || has_address ? 0 : tensor.offset()};
    cache.order(*out->lease->data_, cache.orderable(consumer));
    return &out.release()->managed;
}

template <class Managed> void LeaseExport<Managed>::end(Managed* self) {
    const std::unique_ptr<LeaseExport> own(static_cast<LeaseExport*>(self->manager_ctx));
    const auto& data = own->lease->data_;
    if (!data) return;
    const bool is_cuda = self->dl_tensor.device.type == dlpack::DeviceType::cuda;
    bool is_fenced = !own->consumer || data->cache->use(*data, own->consumer);
    if (is_cuda) is_fenced = data->cache->use(*data, NativeStream::cuda(nullptr)) && is_fenced;
    if (!is_fenced) data->cache->lease_until_stop(*data);  // nobody knows when the memory is free
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
