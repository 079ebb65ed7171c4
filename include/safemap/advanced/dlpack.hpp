// DLPack: tensors handed to other libraries (NumPy, PyTorch, JAX, CuPy) and taken from them, without a copy.
//
// The structs are those of dlpack.h 1.1, under names of our own, so that a program may include both; their layout is
// the ABI. Where a function wants a DLManagedTensorVersioned*, give it ours by reinterpret_cast.
#pragma once

#include <safemap/tensor_view.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI::dlpack {

/// What is exported says this version. Imported is whatever has the same major version.
struct Version {
    std::uint32_t major = 1;
    std::uint32_t minor = 1;
};

/// Memory that the host can read; numbers as in DLDeviceType. There are others.
enum class DeviceType : std::int32_t { cpu = 1, cuda_host = 3, rocm_host = 11 };

struct Device {
    DeviceType type = DeviceType::cpu;
    std::int32_t id = 0;
};

/// DLDataTypeCode.
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

struct DataType {
    TypeCode code = TypeCode::floating;
    std::uint8_t bits = 32;
    std::uint16_t lanes = 1;

    friend bool operator==(const DataType&, const DataType&) = default;
};

/// DLTensor. Strides count elements; null means row-major.
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
inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_copied = 2;
inline constexpr std::uint64_t flag_padded = 4;  ///< sub-byte elements have a byte each

/// DLManagedTensorVersioned, which a Python capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
    Version version = {};
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensorVersioned* self) = nullptr;
    std::uint64_t flags = 0;
    Tensor dl_tensor = {};
};

/// DLManagedTensor, which a Python capsule named "dltensor" holds.
struct ManagedTensor {
    Tensor dl_tensor = {};
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensor* self) = nullptr;
};

/// The DLPack type of a dtype. Throws no_dlpack for those that have none: torch's quantised dtypes and bits.
SAFEMAP_API DataType data_type(Dtype dtype);

/// How F4 is exported: as DLPack has it, packed elements of one lane; or in pairs of two lanes, which count bytes along
/// the last dimension and are the only ones that PyTorch (2.13) takes.
enum class Float4 : std::uint8_t { elements, pairs };

/// Hands a view over without a copy: the tensor keeps the view's bytes alive until its deleter is called, once, by
/// whoever takes it, on any thread. The read-only flag is set where the view is not writable(). Strides are those of
/// the view; NumPy takes negative ones, PyTorch (2.13) ends the process on meeting them, and where it copies complex128
/// that does not begin at a multiple of 16 bytes, as files of safetensors have it: load() such views for it.
/// Throws no_dlpack, also for pairs along a last dimension that is odd or strided.
SAFEMAP_API ManagedTensorVersioned* export_versioned(const TensorView& view, Float4 float4 = Float4::elements);
/// The same for consumers from before DLPack 1.0, and for JAX (0.10), which takes no other, and copies what is not
/// aligned to 64 bytes, as load() is. This form cannot say that bytes are read-only: a consumer that writes
/// to those of a mapped file dies of SIGSEGV.
SAFEMAP_API ManagedTensor* export_unversioned(const TensorView& view, Float4 float4 = Float4::elements);

/// Takes a tensor over without a copy. Its deleter is called once, on the thread that lets go of the last copy of the
/// view; a deleter may be null. Where this throws, nothing was taken, and the tensor is still the caller's to delete.
/// Strides may be any, negative ones too. A pair of float4 becomes two elements along the last dimension, along which
/// pairs must follow each other. The view is writable() where the tensor is versioned and not flagged as read-only: the
/// other form does not say.
///
/// Throws no_dlpack for another major version, for memory that the host cannot read, for types that no Dtype has, for
/// pairs that are strided along the last dimension, and for sub-byte elements flagged as padded; invalid_argument for
/// what contradicts itself (no tensor, no data, negative dimensions); shape_overflow; partial_byte for sub-byte
/// elements that do not stand in whole bytes. What the tensor says of its memory is believed.
SAFEMAP_API TensorView import_tensor(ManagedTensorVersioned* tensor);
SAFEMAP_API TensorView import_tensor(ManagedTensor* tensor);

}  // namespace safemap::SAFEMAP_ABI::dlpack
