// DLPack for tensors on a device: hands them to PyTorch, CuPy or JAX without a copy.
#pragma once

#include <safemap/advanced/dlpack.hpp>
#include <safemap/bundle.hpp>

#include <memory>

namespace safemap::SAFEMAP_ABI::dlpack {

/// Exports a tensor of a lease without a copy, with the read-only flag: weights are shared. The exported tensor shares
/// the lease, so the tensor stays on the device until the deleter is called. Another thread may call the deleter, but
/// the lease must not be used from two threads at once; the last one that lets go of it ends it.
///
/// `consumer` is the stream on which the consumer will use the tensor: its work from now on happens after the copies
/// that bring the tensor. Without a stream, blocks until they are done. Python's `__dlpack__(stream=...)` says which
/// stream that is. A deleter says nothing of a stream, so the memory is written again after the work that is then in
/// `consumer` and, for CUDA, in the legacy default stream. If one of them is being captured at that time, the memory is
/// not written again before the uploader is destroyed.
///
/// The device is kDLCUDA or kDLOpenCL with the number in the device's name, or the CPU for memory that the host can
/// use. On OpenCL, `data` is the cl_mem, and `byte_offset` the place in it.
///
/// Throws invalid_argument for a lease that has ended, or that does not have the tensor, and for a stream of another
/// kind of device; no_dlpack if DLPack does not have the dtype or the kind of device; device_failed.
///
/// Example:
///     auto lease = std::make_shared<safemap::Lease>(uploader.acquire(uploader.bundle("wte.weight")));
///     auto* exported = safemap::dlpack::export_versioned(lease, (*lease)["wte.weight"]);
///     exported->deleter(exported);
[[nodiscard]] SAFEMAP_API ManagedTensorVersioned* export_versioned(std::shared_ptr<Lease> lease,
                                                                   const DeviceTensor& tensor,
                                                                   NativeStream consumer = {},
                                                                   Float4 float4 = Float4::elements);
/// Exports in the same way, for consumers from before DLPack 1.0. This form has no read-only flag.
[[nodiscard]] SAFEMAP_API ManagedTensor* export_unversioned(std::shared_ptr<Lease> lease, const DeviceTensor& tensor,
                                                            NativeStream consumer = {},
                                                            Float4 float4 = Float4::elements);

}  // namespace safemap::SAFEMAP_ABI::dlpack
