// TensorView: a tensor whose bytes are in memory.
#pragma once

#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/elements.hpp>
#include <safemap/error.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {

/// A tensor in memory: a dtype, a shape, strides, a pointer to the bytes, and the owner that keeps the bytes alive.
///
/// A view is cheap to copy. Copies share the bytes, so a view may outlive the checkpoint that it came from. Const
/// members may be called from several threads at once. A caller that writes through mutable_as<T>() must ensure that no
/// other thread reads the same elements at the same time.
///
/// If the bytes are a mapped file, the view shows what other processes write to the file, and raises SIGBUS if another
/// process truncates it. No other process can change a view that LazyTensor::load() returns.
///
/// Example:
///     safemap::TensorView weights = checkpoint["ln.weight"].load();
///     std::span<const float> values = weights.as<float>();
///     float last = weights.at<float>(-1);
class [[nodiscard]] SAFEMAP_API TensorView {
public:
    /// Makes a tensor of the elements of `bytes` that `view` selects; its offset and strides count elements. Throws
    /// storage_too_short if an element is outside `bytes`, shape_overflow, partial_byte for a sub-byte dtype unless the
    /// view is contiguous and starts at a whole byte, and bad_tensor if the numbers of strides and dimensions differ.
    TensorView(Dtype dtype, SharedBytes bytes, StridedView view);
    // There is no move: a view that was moved from would have no bytes.
    TensorView(const TensorView&) = default;
    TensorView& operator=(const TensorView&) = default;
    /// Makes a row-major tensor of the first elements of `bytes`. Throws shape_overflow, partial_byte and
    /// storage_too_short.
    static TensorView row_major(Dtype dtype, SharedBytes bytes, const Shape& shape) {
        return {dtype, shape, std::move(bytes)};
    }

    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const& noexcept { return view_.shape; }
    const Shape& shape() const&& = delete;
    /// Returns the strides in elements, not in bytes.
    const Strides& strides() const& noexcept { return view_.strides; }
    const Strides& strides() const&& = delete;
    std::uint64_t element_count() const noexcept { return elements_; }
    /// Returns the size of the value in bytes, whatever its strides.
    std::uint64_t nbytes() const noexcept;
    bool contiguous() const noexcept { return is_contiguous(view_.shape, view_.strides); }

    /// Returns the bytes of the value in row-major order. Throws not_contiguous for a strided view. The span is valid
    /// while a copy of this view lives.
    [[nodiscard]] std::span<const std::byte> bytes() const&;
    std::span<const std::byte> bytes() const&& = delete;

    /// Returns the elements in row-major order, without a copy. T is the C++ type of the dtype: float for F32, bf16 for
    /// BF16, std::complex<float> for C64. Opaque dtypes have no C++ type; use bytes(). The span is valid while a copy
    /// of this view lives.
    ///
    /// Throws wrong_dtype, not_contiguous, or misaligned: safetensors files guarantee an alignment of eight bytes at
    /// most. unaligned<T>() and LazyTensor::load() work at any alignment. A BOOL tensor of an untrusted file may hold
    /// bytes other than 0 and 1, which are not valid as a C++ bool: use unaligned<bool>(), which reads any byte but 0
    /// as true.
    template <class T> [[nodiscard]] std::span<const T> as() const& {
        static_assert(!detail::packed<T>, "these elements share bytes: use unaligned<T>() or at<T>()");
        require_dtype(detail::dtype_of<T>());
        return {static_cast<const T*>(aligned_data(alignof(T))), elements_};
    }
    template <class T> std::span<const T> as() const&& = delete;

    /// Returns the elements in row-major order, for any strides and alignment, and for types whose elements share bytes
    /// (f4, f6_e2m3, f6_e3m2). Each element is read by memcpy, or unpacked, when the iterator is dereferenced. Throws
    /// wrong_dtype. The range keeps the bytes alive and may outlive this view.
    template <class T> [[nodiscard]] Elements<T> unaligned() const {
        require_dtype(detail::dtype_of<T>());
        return Elements<T>(bytes_, view_, elements_);
    }
    /// Returns the i-th element in row-major order. Throws wrong_dtype and index_out_of_range.
    template <class T> [[nodiscard]] T unaligned(std::uint64_t i) const {
        require_dtype(detail::dtype_of<T>());
        return detail::read_element<T>(bytes_.bytes.data(), numbered(i));
    }
    /// Returns element (i, j, …). There is one index for each dimension; a negative index counts from the end. Throws
    /// wrong_dtype, index_out_of_range, too_many_indices, and invalid_argument for too few indices.
    template <class T, std::integral... Indices> [[nodiscard]] T at(Indices... indices) const {
        require_dtype(detail::dtype_of<T>());
        const std::int64_t index[sizeof...(Indices) + 1] = {saturated(indices)...};
        return detail::read_element<T>(bytes_.bytes.data(), indexed({index, sizeof...(Indices)}));
    }

    /// Returns true if the bytes may be written to (see SharedBytes::writable): those of LazyTensor::load(), those of a
    /// checkpoint opened with Access::private_copy, and bytes that the caller passed in as writable.
    bool writable() const noexcept { return bytes_.writable; }
    /// Return the same as bytes() and as<T>(), for writing. Changes show in all views that share the bytes, and in no
    /// file. Throw read_only unless the view is writable(), and whatever bytes() or as<T>() throws.
    [[nodiscard]] std::span<std::byte> mutable_bytes() const&;
    std::span<std::byte> mutable_bytes() const&& = delete;
    template <class T> [[nodiscard]] std::span<T> mutable_as() const& {
        const std::span<const T> elements = as<T>();
        return {reinterpret_cast<T*>(mutable_bytes().data()), elements.size()};
    }
    template <class T> std::span<T> mutable_as() const&& = delete;

    /// Returns the part that `slices` select; every index has its meaning in Python. The part shares the bytes. Throws
    /// as safemap::slice does, and partial_byte_slice.
    TensorView slice(std::span<const Slice> slices) const;
    TensorView slice(std::initializer_list<Slice> slices) const {
        return slice(std::span<const Slice>(slices.begin(), slices.size()));
    }

    /// Returns the same bytes as U8, without a copy: for programs that do not have the dtype. The last dimension counts
    /// bytes instead of elements (two F4 elements are one byte), and the others stay as they are, with their strides; a
    /// 0-d tensor becomes one dimension. This is `tensor.view(torch.uint8)` of torch. The result is writable() if this
    /// view is.
    ///
    /// Throws not_contiguous if the last dimension has a stride other than 1 and its elements are not bytes;
    /// partial_byte if a row of the last dimension, or the stride of another one, is no whole number of bytes, which
    /// only sub-byte dtypes can cause; and shape_overflow, for a tensor without elements only.
    TensorView as_bytes() const;

    /// Returns the address of element (0, 0, …). Use it only if the tensor has elements. Valid while a copy of this
    /// view lives.
    const std::byte* data() const noexcept;
    /// Returns the owner that keeps the bytes alive.
    const std::shared_ptr<const void>& owner() const noexcept { return bytes_.owner; }

private:
    TensorView(Dtype dtype, const Shape& shape, SharedBytes bytes);
    /// Returns `index` as a signed number; if it does not fit, a number that is outside every dimension.
    template <std::integral I> static constexpr std::int64_t saturated(I index) noexcept {
        return std::in_range<std::int64_t>(index) ? static_cast<std::int64_t>(index) : INT64_MAX;
    }
    void require_dtype(Dtype wanted) const;
    const void* aligned_data(std::size_t alignment) const;
    /// Return the position in the bytes, in elements, of the element with this row-major number or these indices.
    std::int64_t numbered(std::uint64_t i) const;
    std::int64_t indexed(std::span<const std::int64_t> indices) const;

    Dtype dtype_;
    std::uint64_t elements_ = 0;
    SharedBytes bytes_;
    StridedView view_;
};

/// Returns the tensor as text for people: dtype and shape, and on the next lines the values in NumPy's layout. If there
/// are more than 1000 elements, only the first and last three of each dimension are shown. Floating-point numbers have
/// six digits; opaque elements are hexadecimal bits.
[[nodiscard]] SAFEMAP_API std::string to_string(const TensorView& view);
SAFEMAP_API std::ostream& operator<<(std::ostream& out, const TensorView& view);

}  // namespace safemap::SAFEMAP_ABI
