// Exports views as DLPack tensors, and imports DLPack tensors as views.
#include <safemap/advanced/dlpack.hpp>

#include "base/checked.hpp"
#include "tensor/dlpack_description.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/bytes.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace safemap::SAFEMAP_ABI::dlpack {
namespace {

// The layout of dlpack.h 1.1 on 64-bit machines.
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, device) == 8 && offsetof(Tensor, ndim) == 16 &&
              offsetof(Tensor, dtype) == 20 && offsetof(Tensor, shape) == 24 && offsetof(Tensor, strides) == 32 &&
              offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(Device) == 8 && sizeof(DataType) == 4 && offsetof(DataType, lanes) == 2);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, manager_ctx) == 48 &&
              offsetof(ManagedTensor, deleter) == 56);
static_assert(sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(ManagedTensorVersioned, deleter) == 16 && offsetof(ManagedTensorVersioned, flags) == 24 &&
              offsetof(ManagedTensorVersioned, dl_tensor) == 32);

struct Row {
    Dtype dtype;
    TypeCode code;
};

// The type codes of dtypes. The number of bits is that of the dtype.
constexpr std::array table{
    Row{Dtype::boolean, TypeCode::boolean},
    Row{Dtype::f4, TypeCode::float4_e2m1fn},
    Row{Dtype::f6_e2m3, TypeCode::float6_e2m3fn},
    Row{Dtype::f6_e3m2, TypeCode::float6_e3m2fn},
    Row{Dtype::u8, TypeCode::unsigned_integer},
    Row{Dtype::i8, TypeCode::signed_integer},
    Row{Dtype::f8_e5m2, TypeCode::float8_e5m2},
    Row{Dtype::f8_e4m3, TypeCode::float8_e4m3fn},
    Row{Dtype::f8_e8m0, TypeCode::float8_e8m0fnu},
    Row{Dtype::f8_e4m3fnuz, TypeCode::float8_e4m3fnuz},
    Row{Dtype::f8_e5m2fnuz, TypeCode::float8_e5m2fnuz},
    Row{Dtype::i16, TypeCode::signed_integer},
    Row{Dtype::u16, TypeCode::unsigned_integer},
    Row{Dtype::f16, TypeCode::floating},
    Row{Dtype::bf16, TypeCode::bfloat},
    Row{Dtype::i32, TypeCode::signed_integer},
    Row{Dtype::u32, TypeCode::unsigned_integer},
    Row{Dtype::f32, TypeCode::floating},
    Row{Dtype::c64, TypeCode::complex},
    Row{Dtype::f64, TypeCode::floating},
    Row{Dtype::i64, TypeCode::signed_integer},
    Row{Dtype::u64, TypeCode::unsigned_integer},
    Row{Dtype::c32, TypeCode::complex},
    Row{Dtype::c128, TypeCode::complex},
};

std::string text_of(const DataType& type) {
    return "type code " + std::to_string(static_cast<int>(type.code)) + " of " + std::to_string(type.bits) +
           " bits and " + std::to_string(type.lanes) + " lanes";
}

constexpr DataType float4_pair{TypeCode::float4_e2m1fn, 4, 2};

void join_pairs(Described& out) {
    if (out.shape.empty() || out.shape.back() % 2 != 0 || (out.shape.back() > 0 && out.strides.back() != 1))
        throw Error(Errc::no_dlpack, "F4 elements do not form pairs along the last dimension");
    out.type = float4_pair;
    out.shape.back() /= 2;
    // Strides are even if there is more than one row: views of F4 consist of whole bytes.
    for (std::int64_t& stride : out.strides) stride /= 2;
    out.strides.back() = 1;
}

/// The memory behind an exported tensor: the owner of the bytes, its description and the tensor itself.
template <class Managed> struct Exported {
    std::shared_ptr<const void> owner;
    Described described;
    Managed managed = {};
};

template <class Managed> std::unique_ptr<Exported<Managed>> exported(const TensorView& view, Float4 float4) {
    std::unique_ptr<Exported<Managed>> out(new Exported<Managed>{
        .owner = view.owner(),
        .described = described(view.dtype(), view.shape(), view.strides(), float4),
        .managed = {},
    });
    out->managed.manager_ctx = out.get();
    out->managed.deleter = [](Managed* self) { delete static_cast<Exported<Managed>*>(self->manager_ctx); };
    // DLPack has no const pointer; a flag marks read-only data.
    out->managed.dl_tensor =
        out->described.at(view.element_count() == 0 ? nullptr : const_cast<std::byte*>(view.data()));
    return out;
}

void require_readable(const Device& device) {
    switch (device.type) {
        case DeviceType::cpu:
        case DeviceType::cuda_host:
        case DeviceType::rocm_host: return;
        case DeviceType::cuda:
        case DeviceType::opencl: break;
    }
    throw Error(Errc::no_dlpack, "the tensor is on a device of type " + std::to_string(static_cast<int>(device.type)) +
                                     "; expected host memory");
}

/// An imported tensor in our form.
struct Understood {
    Dtype dtype;
    StridedView view;  // offset 0 is element (0, 0, ...)
};

/// Converts pairs of float4, one byte each, to single elements. Strides of the input count pairs.
void split_pairs(StridedView& view) {
    if (view.shape.empty()) {
        view = {{2}, {1}, 0};
        return;
    }
    if (view.shape.back() > 1 && view.strides.back() != 1)
        throw Error(Errc::no_dlpack, "pairs of float4 are not adjacent along the last dimension");
    for (std::int64_t& stride : view.strides)
        if (__builtin_mul_overflow(stride, 2, &stride))
            throw Error(Errc::shape_overflow, "strides do not fit in 64 bits");
    view.strides.back() = 1;
    const auto doubled = checked_mul(view.shape.back(), 2);
    if (!doubled) throw Error(Errc::shape_overflow, "a dimension does not fit in 64 bits");
    view.shape.back() = *doubled;
}

StridedView strided_view(const Tensor& tensor) {
    if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
        throw Error(Errc::invalid_argument, "a DLPack tensor of " + std::to_string(tensor.ndim) + " dimensions" +
                                                (tensor.ndim > 0 ? " without a shape" : ""));
    StridedView view;
    for (std::int32_t d = 0; d < tensor.ndim; ++d) {
        if (tensor.shape[d] < 0)
            throw Error(Errc::invalid_argument, "negative dimension " + std::to_string(tensor.shape[d]));
        view.shape.push_back(static_cast<std::uint64_t>(tensor.shape[d]));
        if (tensor.strides != nullptr) view.strides.push_back(tensor.strides[d]);
    }
    if (!element_count(view.shape))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(view.shape) + " overflows");
    if (tensor.strides == nullptr) view.strides = row_major(view.shape);
    return view;
}

Understood understood(const Tensor& tensor) {
    require_readable(tensor.device);
    const bool pairs = tensor.dtype == float4_pair;
    for (const Row& row : table) {
        if (data_type(row.dtype) != tensor.dtype && !(pairs && row.dtype == Dtype::f4)) continue;
        StridedView view = strided_view(tensor);
        if (pairs) split_pairs(view);
        return {row.dtype, std::move(view)};
    }
    throw Error(Errc::no_dlpack, "unsupported DLPack type: " + text_of(tensor.dtype));
}

/// Returns a view of the memory of an imported tensor.
TensorView borrowed(const Tensor& tensor, std::shared_ptr<const void> owner, bool writable) {
    auto [dtype, view] = understood(tensor);
    if (element_count(view.shape).value_or(0) == 0)
        return TensorView(dtype, {.owner = std::move(owner), .writable = writable}, std::move(view));
    if (tensor.data == nullptr) throw Error(Errc::invalid_argument, "the DLPack tensor has no data");

    // Strides may be negative: the bytes begin at the lowest element.
    const auto reach = reach_of(view);
    std::int64_t elements = 0;
    if (!reach || __builtin_sub_overflow(reach->last, reach->first, &elements))
        throw Error(Errc::shape_overflow, "the strides of a view of shape " + to_string(view.shape) + " overflow");
    const auto size = checked_mul(static_cast<std::uint64_t>(elements) + 1, bits(dtype));
    const auto below = checked_mul(~static_cast<std::uint64_t>(reach->first) + 1, bits(dtype));
    if (!size || !below || *size > INT64_MAX)
        throw Error(Errc::shape_overflow, "the strides of a view of shape " + to_string(view.shape) + " overflow");
    if (*below % 8 != 0) throw Error(Errc::partial_byte, "a view of " + std::string(name(dtype)) + " cuts bytes");
    view.offset = -reach->first;
    const std::byte* first = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset - *below / 8;
    return TensorView(dtype, {{first, (*size + 7) / 8}, std::move(owner), writable}, std::move(view));
}

/// Calls the deleter of an imported tensor, after keep().
template <class Managed> class Keeper {
public:
    Keeper() = default;
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;
    ~Keeper() {
        if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
    }
    void keep(Managed* managed) noexcept { managed_ = managed; }

private:
    Managed* managed_ = nullptr;
};

template <class Managed> TensorView taken(Managed* managed, bool writable) {
    const auto keeper = std::make_shared<Keeper<Managed>>();
    TensorView view = borrowed(managed->dl_tensor, keeper, writable);
    keeper->keep(managed);  // nothing throws after this
    return view;
}

void require_tensor(const void* tensor) {
    if (tensor == nullptr) throw Error(Errc::invalid_argument, "the DLPack tensor is null");
}

}  // namespace

Tensor Described::at(void* data, Device device, std::uint64_t byte_offset) noexcept {
    return {.data = data,
            .device = device,
            .ndim = static_cast<std::int32_t>(shape.size()),
            .dtype = type,
            .shape = shape.data(),
            .strides = strides.data(),
            .byte_offset = byte_offset};
}

Described described(Dtype dtype, const Shape& shape, const Strides& strides, Float4 float4) {
    Described out{data_type(dtype), {}, {strides.begin(), strides.end()}};
    for (const std::uint64_t dimension : shape) {
        if (!std::in_range<std::int64_t>(dimension))
            throw Error(Errc::no_dlpack,
                        "dimension " + std::to_string(dimension) + " is too large; expected less than 2^63");
        out.shape.push_back(static_cast<std::int64_t>(dimension));
    }
    if (!std::in_range<std::int32_t>(out.shape.size()))
        throw Error(Errc::no_dlpack, std::to_string(out.shape.size()) + " dimensions; expected fewer than 2^31");
    if (float4 == Float4::pairs && dtype == Dtype::f4) join_pairs(out);
    return out;
}

DataType data_type(Dtype dtype) {
    for (const Row& row : table)
        if (row.dtype == dtype) return {row.code, static_cast<std::uint8_t>(bits(dtype)), 1};
    throw Error(Errc::no_dlpack, "DLPack has no type for " + std::string(name(dtype)));
}

ManagedTensorVersioned* export_versioned(const TensorView& view, Float4 float4) {
    auto out = exported<ManagedTensorVersioned>(view, float4);
    if (!view.writable()) out->managed.flags = flag_read_only;
    return &out.release()->managed;
}

ManagedTensor* export_unversioned(const TensorView& view, Float4 float4) {
    return &exported<ManagedTensor>(view, float4).release()->managed;
}

TensorView import_tensor(ManagedTensorVersioned* tensor) {
    require_tensor(tensor);
    if (tensor->version.major != Version{}.major)
        throw Error(Errc::no_dlpack, "DLPack version " + std::to_string(tensor->version.major) + '.' +
                                         std::to_string(tensor->version.minor) + "; expected version 1");
    const unsigned width = tensor->dl_tensor.dtype.bits;
    if ((tensor->flags & flag_padded) != 0 && width < 8)
        throw Error(Errc::no_dlpack,
                    "elements of " + std::to_string(width) + " bits, each padded to a byte, are not supported");
    return taken(tensor, (tensor->flags & flag_read_only) == 0);
}

TensorView import_tensor(ManagedTensor* tensor) {
    require_tensor(tensor);
    return taken(tensor, false);
}

}  // namespace safemap::SAFEMAP_ABI::dlpack
