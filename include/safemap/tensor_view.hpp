// A tensor whose bytes are in memory: a pointer, a dtype, a strided shape, and what keeps the bytes alive.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/error.hpp>
#include <safemap/float_types.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <complex>
#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace safemap {

namespace detail {
template <class T> inline constexpr bool always_false = false;

/// The Dtype that as<T>() expects.
template <class T> constexpr Dtype dtype_of() noexcept {
    using std::is_same_v;
    if constexpr (is_same_v<T, bool>) return Dtype::boolean;
    else if constexpr (is_same_v<T, std::uint8_t>) return Dtype::u8;
    else if constexpr (is_same_v<T, std::int8_t>) return Dtype::i8;
    else if constexpr (is_same_v<T, std::uint16_t>) return Dtype::u16;
    else if constexpr (is_same_v<T, std::int16_t>) return Dtype::i16;
    else if constexpr (is_same_v<T, std::uint32_t>) return Dtype::u32;
    else if constexpr (is_same_v<T, std::int32_t>) return Dtype::i32;
    else if constexpr (is_same_v<T, std::uint64_t>) return Dtype::u64;
    else if constexpr (is_same_v<T, std::int64_t>) return Dtype::i64;
    else if constexpr (is_same_v<T, float>) return Dtype::f32;
    else if constexpr (is_same_v<T, double>) return Dtype::f64;
    else if constexpr (is_same_v<T, bf16>) return Dtype::bf16;
    else if constexpr (is_same_v<T, f16>) return Dtype::f16;
    else if constexpr (is_same_v<T, f8_e4m3>) return Dtype::f8_e4m3;
    else if constexpr (is_same_v<T, f8_e5m2>) return Dtype::f8_e5m2;
    else if constexpr (is_same_v<T, f8_e4m3fnuz>) return Dtype::f8_e4m3fnuz;
    else if constexpr (is_same_v<T, f8_e5m2fnuz>) return Dtype::f8_e5m2fnuz;
    else if constexpr (is_same_v<T, f8_e8m0>) return Dtype::f8_e8m0;
    else if constexpr (is_same_v<T, std::complex<float>>) return Dtype::c64;
    else if constexpr (is_same_v<T, std::complex<double>>) return Dtype::c128;
    else static_assert(always_false<T>, "no dtype has elements of this type");
}
}  // namespace detail

/// A read-only tensor in memory. Cheap to copy; copies share the bytes and keep them alive, so a view may outlive
/// the checkpoint it came from. Const members may be called from several threads at once.
///
/// Where the bytes are a mapped file, what another process writes to the file shows in the view, and a process
/// that truncates the file turns the next touch into SIGBUS. LazyTensor::load() gives a view that no other
/// process can change.
class SAFEMAP_API TensorView {
public:
    /// Elements of `dtype` in `bytes`, looked at through `view` (offset and strides in elements).
    /// Every element must lie inside `bytes`: throws storage_too_short otherwise, partial_byte for a sub-byte
    /// dtype that is not contiguous from a whole byte on.
    TensorView(Dtype dtype, SharedBytes bytes, StridedView view);

    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const& noexcept { return view_.shape; }
    const Shape& shape() const&& = delete;
    /// In elements; not in bytes.
    const Strides& strides() const& noexcept { return view_.strides; }
    const Strides& strides() const&& = delete;
    std::uint64_t element_count() const noexcept { return elements_; }
    /// Bytes of the value, whatever its strides.
    std::uint64_t nbytes() const noexcept;
    bool contiguous() const noexcept { return is_contiguous(view_.shape, view_.strides); }

    /// The value's bytes in row-major order. Throws not_contiguous for a strided view.
    std::span<const std::byte> bytes() const&;
    std::span<const std::byte> bytes() const&& = delete;

    /// The elements in row-major order, without a copy. T is the C++ type of the dtype: float for F32, bf16 for
    /// BF16, std::complex<float> for C64. Throws wrong_dtype, not_contiguous, or misaligned (a safetensors file
    /// aligns nothing beyond eight bytes; unaligned<T>() and LazyTensor::load() always work).
    template <class T> std::span<const T> as() const& {
        require_dtype(detail::dtype_of<T>());
        return {static_cast<const T*>(aligned_data(alignof(T))), elements_};
    }
    template <class T> std::span<const T> as() const&& = delete;

    /// One element by its row-major number, whatever strides and alignment. Throws wrong_dtype,
    /// index_out_of_range.
    template <class T> T unaligned(std::uint64_t i) const {
        require_dtype(detail::dtype_of<T>());
        std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T> value;
        std::memcpy(&value, element(i), sizeof(value));
        return static_cast<T>(value);
    }

    /// The part that `slices` cut out, sharing the bytes. Throws as safemap::slice does, and partial_byte_slice.
    TensorView slice(std::span<const Slice> slices) const;
    TensorView slice(std::initializer_list<Slice> slices) const {
        return slice(std::span<const Slice>(slices.begin(), slices.size()));
    }

    /// The address of element (0, 0, …). For tensors with elements, valid while any copy of this view lives.
    const std::byte* data() const noexcept;
    /// What keeps the bytes alive.
    const std::shared_ptr<const void>& owner() const noexcept { return bytes_.owner; }

private:
    void require_dtype(Dtype wanted) const;
    const void* aligned_data(std::size_t alignment) const;
    const std::byte* element(std::uint64_t i) const;

    Dtype dtype_;
    std::uint64_t elements_ = 0;
    SharedBytes bytes_;
    StridedView view_;
};

}  // namespace safemap
