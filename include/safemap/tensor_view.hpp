// A tensor whose bytes are in memory: a pointer, a dtype, a strided shape, and what keeps the bytes alive.
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

/// A tensor in memory. Cheap to copy; copies share the bytes and keep them alive, so a view may outlive the checkpoint
/// it came from. Const members may be called from several threads at once; who writes through mutable_as<T>() sees to
/// it that nobody reads the same elements meanwhile.
///
/// Where the bytes are a mapped file, what another process writes to the file shows in the view, and a process
/// that truncates the file turns the next touch into SIGBUS. LazyTensor::load() gives a view that no other
/// process can change.
class SAFEMAP_API TensorView {
public:
    /// Elements of `dtype` in `bytes`, looked at through `view` (offset and strides in elements).
    /// Every element must lie inside `bytes`: throws storage_too_short otherwise, shape_overflow, partial_byte for a
    /// sub-byte dtype that is not contiguous from a whole byte on, and bad_tensor where there are not as many strides
    /// as dimensions.
    TensorView(Dtype dtype, SharedBytes bytes, StridedView view);
    /// The first elements of `bytes`, row-major. Throws shape_overflow, partial_byte, storage_too_short.
    static TensorView row_major(Dtype dtype, SharedBytes bytes, const Shape& shape) {
        return {dtype, shape, std::move(bytes)};
    }

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
    /// BF16, std::complex<float> for C64; dtypes that are opaque have bytes() alone. Throws wrong_dtype,
    /// not_contiguous, or misaligned (a safetensors file aligns nothing beyond eight bytes; unaligned<T>() and
    /// LazyTensor::load() always work). A file may hold bytes that are no bool: use unaligned<bool>() where it is not
    /// your own, which takes all but 0 for true.
    template <class T> std::span<const T> as() const& {
        static_assert(!detail::packed<T>, "these elements share bytes: use unaligned<T>() or at<T>()");
        require_dtype(detail::dtype_of<T>());
        return {static_cast<const T*>(aligned_data(alignof(T))), elements_};
    }
    template <class T> std::span<const T> as() const&& = delete;

    /// The elements in row-major order, whatever strides and alignment, and also where they share bytes (f4, f6_e2m3,
    /// f6_e3m2): each is read by memcpy, or unpacked, when it is asked for. May outlive this view. Throws wrong_dtype.
    template <class T> Elements<T> unaligned() const {
        require_dtype(detail::dtype_of<T>());
        return Elements<T>(bytes_, view_, elements_);
    }
    /// One of them by its row-major number. Throws wrong_dtype, index_out_of_range.
    template <class T> T unaligned(std::uint64_t i) const {
        require_dtype(detail::dtype_of<T>());
        return detail::read_element<T>(bytes_.bytes.data(), numbered(i));
    }
    /// Element (i, j, …), one index for each dimension; a negative one counts from the end. Throws wrong_dtype,
    /// index_out_of_range, too_many_indices, and invalid_argument for too few.
    template <class T, std::integral... Indices> T at(Indices... indices) const {
        require_dtype(detail::dtype_of<T>());
        const std::int64_t index[sizeof...(Indices) + 1] = {saturated(indices)...};
        return detail::read_element<T>(bytes_.bytes.data(), indexed({index, sizeof...(Indices)}));
    }

    /// Whether the bytes are private memory: those of LazyTensor::load(), of a checkpoint opened with
    /// Access::private_copy, and what was handed over as writable.
    bool writable() const noexcept { return bytes_.writable; }
    /// As bytes() and as<T>(), for writing. What is written shows in all views that share the bytes, and in no file.
    /// Throw read_only where the view is not writable().
    std::span<std::byte> mutable_bytes() const&;
    std::span<std::byte> mutable_bytes() const&& = delete;
    template <class T> std::span<T> mutable_as() const& {
        const std::span<const T> elements = as<T>();
        return {reinterpret_cast<T*>(mutable_bytes().data()), elements.size()};
    }
    template <class T> std::span<T> mutable_as() const&& = delete;

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
    TensorView(Dtype dtype, const Shape& shape, SharedBytes bytes);
    /// As a signed number, or one that is outside every dimension.
    template <std::integral I> static constexpr std::int64_t saturated(I index) noexcept {
        return std::in_range<std::int64_t>(index) ? static_cast<std::int64_t>(index) : INT64_MAX;
    }
    void require_dtype(Dtype wanted) const;
    const void* aligned_data(std::size_t alignment) const;
    /// Which element of the bytes is the one with this row-major number, or with these indices.
    std::int64_t numbered(std::uint64_t i) const;
    std::int64_t indexed(std::span<const std::int64_t> indices) const;

    Dtype dtype_;
    std::uint64_t elements_ = 0;
    SharedBytes bytes_;
    StridedView view_;
};

/// For a person to read: dtype and shape, and on the next lines the values, laid out as NumPy lays them out. Of more
/// than 1000 elements only the first and last three of each dimension are shown, floating-point numbers with six
/// digits, opaque elements as hexadecimal bits.
SAFEMAP_API std::string to_string(const TensorView& view);
SAFEMAP_API std::ostream& operator<<(std::ostream& out, const TensorView& view);

}  // namespace safemap::SAFEMAP_ABI
