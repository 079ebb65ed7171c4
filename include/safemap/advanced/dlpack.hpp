// DLPack: exchanges tensors with other libraries (NumPy, PyTorch, JAX, CuPy) without a copy.
//
// The structs have the layout of the structs in dlpack.h 1.1, which is an ABI. Their names differ, so that a program
// can include both headers. To call a function that takes a DLManagedTensorVersioned*, reinterpret_cast the pointer.
#pragma once

#include <safemap/tensor_view.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI::dlpack {

/// A version of DLPack. Exported tensors have the default, 1.1. Imported tensors may have any minor version of the same
/// major version.
struct Version {
    std::uint32_t major = 1;
    std::uint32_t minor = 1;
};

/// Kinds of memory; the numbers are those of DLDeviceType, which has more. The host cannot read `cuda` and `opencl`.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, opencl = 4, rocm_host = 11 };

/// The device whose memory holds a tensor; same layout as DLDevice.
struct Device {
    DeviceType type = DeviceType::cpu;
    std::int32_t id = 0;
};

/// The kind of an element; the numbers are those of DLDataTypeCode.
enum class TypeCode : std::uint8_t {
    signed_integer = 0,
    unsigned_integer = 1,
    floating = 2,
    bfloat = 4,
    complex = 5,
    boolean = 6,
    float8_e4m3fn = 10,
    float8_e4m3fnuz = 11,
    float8_e5m2 = 12,
    float8_e5m2fnuz = 13,
    float8_e8m0fnu = 14,
    float6_e2m3fn = 15,
    float6_e3m2fn = 16,
    float4_e2m1fn = 17,
};

/// The type of an element: its kind, its size in bits, and its number of vector lanes; same layout as DLDataType.
struct DataType {
    TypeCode code = TypeCode::floating;
    std::uint8_t bits = 32;
    std::uint16_t lanes = 1;

    friend bool operator==(const DataType&, const DataType&) = default;
};

/// A pointer to memory, a dtype and a strided shape; same layout as DLTensor. Owns nothing. Strides count elements; a
/// null `strides` means row-major. `byte_offset` is added to `data`.
struct Tensor {
    void* data = nullptr;
    Device device = {};
    std::int32_t ndim = 0;
    DataType dtype = {};
    std::int64_t* shape = nullptr;
    std::int64_t* strides = nullptr;
    std::uint64_t byte_offset = 0;
};

/// Bits of ManagedTensorVersioned::flags.
inline constexpr std::uint64_t flag_read_only = 1;  ///< consumers must not write to the bytes
inline constexpr std::uint64_t flag_copied = 2;     ///< the producer made a copy for this export
inline constexpr std::uint64_t flag_padded = 4;     ///< each sub-byte element has a byte of its own

/// A tensor with an owner; same layout as DLManagedTensorVersioned. A Python capsule named "dltensor_versioned" holds
/// one. The consumer calls `deleter` once, if it is not null; that releases the memory and this struct.
struct ManagedTensorVersioned {
    Version version = {};
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensorVersioned* self) = nullptr;
    std::uint64_t flags = 0;
    Tensor dl_tensor = {};
};

/// A tensor with an owner, as before DLPack 1.0; same layout as DLManagedTensor. A Python capsule named "dltensor"
/// holds one.
struct ManagedTensor {
    Tensor dl_tensor = {};
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensor* self) = nullptr;
};

/// Returns the DLPack type of a dtype. Throws no_dlpack for torch's quantised dtypes and its bits dtypes, which DLPack
/// does not have.
[[nodiscard]] SAFEMAP_API DataType data_type(Dtype dtype);

/// How F4 tensors are exported. `elements`: as DLPack defines them, packed elements of one lane. `pairs`: elements of
/// two lanes, so that a pair is one byte and the last dimension counts bytes. PyTorch (2.13) takes pairs only.
enum class Float4 : std::uint8_t { elements, pairs };

/// Exports a view without a copy. Returns a tensor with the strides of the view, and with the read-only flag if the
/// view is not writable(). Throws no_dlpack if DLPack does not have the dtype, and for pairs if the last dimension is
/// odd or strided.
///
/// The tensor keeps the view's bytes alive until its deleter is called. The consumer calls the deleter once, on any
/// thread.
///
/// NumPy takes negative strides. PyTorch (2.13) aborts the process on negative strides; it also does so when it copies
/// complex128 elements whose address is not a multiple of 16 bytes, which views of safetensors files may have. Give
/// PyTorch the result of LazyTensor::load() in both cases.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("model.safetensors");
///     auto* exported = safemap::dlpack::export_versioned(checkpoint["weight"].view());
///     exported->deleter(exported);
[[nodiscard]] SAFEMAP_API ManagedTensorVersioned* export_versioned(const TensorView& view,
                                                                   Float4 float4 = Float4::elements);
/// Exports a view as export_versioned() does, for consumers from before DLPack 1.0, and for JAX (0.10), which does not
/// take versioned tensors. JAX copies data that is not aligned to 64 bytes; load() aligns to 64 bytes.
///
/// This form has no read-only flag: a consumer that writes to the bytes of a mapped file gets a SIGSEGV.
[[nodiscard]] SAFEMAP_API ManagedTensor* export_unversioned(const TensorView& view, Float4 float4 = Float4::elements);

/// Imports a tensor without a copy. Returns a view that owns the tensor: the last copy of the view calls the deleter
/// once, on the thread that releases it. A null deleter is allowed. The view is writable() if the tensor is versioned
/// and is not flagged as read-only; an unversioned tensor has no such flag, so its view is read-only.
///
/// Strides may be negative. A pair of float4 becomes two elements of the last dimension, along which pairs must be
/// contiguous.
///
/// Throws, and leaves the tensor to the caller, which still has to delete it:
/// - no_dlpack for another major version, memory that the host cannot read, a type that no Dtype has, pairs that are
///   strided along the last dimension, and sub-byte elements that are flagged as padded;
/// - invalid_argument for a tensor that contradicts itself: no tensor, no data, negative dimensions;
/// - shape_overflow if the size does not fit in 64 bits;
/// - partial_byte if sub-byte elements do not fill whole bytes.
///
/// Trusts what the tensor says about its memory: DLPack does not give the size of the allocation.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("model.safetensors");
///     auto* exported = safemap::dlpack::export_versioned(checkpoint["weight"].view());
///     safemap::TensorView view = safemap::dlpack::import_tensor(exported);  // now owns `exported`
SAFEMAP_API TensorView import_tensor(ManagedTensorVersioned* tensor);
SAFEMAP_API TensorView import_tensor(ManagedTensor* tensor);

}  // namespace safemap::SAFEMAP_ABI::dlpack
