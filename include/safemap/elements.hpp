// Elements: the range that TensorView::unaligned<T>() returns. Reads one element at a time, for any alignment and
// strides, and for types whose elements share bytes.
#pragma once

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/float_types.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace detail {

template <class T> inline constexpr bool always_false = false;

/// True for types whose elements share bytes.
template <class T>
concept packed = requires {
    T::packed_bits;
};

/// Returns the dtype whose elements have this type.
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
    else if constexpr (is_same_v<T, f6_e2m3>) return Dtype::f6_e2m3;
    else if constexpr (is_same_v<T, f6_e3m2>) return Dtype::f6_e3m2;
    else if constexpr (is_same_v<T, f4>) return Dtype::f4;
    else if constexpr (is_same_v<T, c32>) return Dtype::c32;
    else if constexpr (is_same_v<T, std::complex<float>>) return Dtype::c64;
    else if constexpr (is_same_v<T, std::complex<double>>) return Dtype::c128;
    else static_assert(always_false<T>, "no dtype has elements of this type");
}

/// Returns element `number`, counted from `base`. Packed elements are in little-endian bit order, as
/// advanced/small_floats.hpp specifies.
template <class T> T read_element(const std::byte* base, std::int64_t number) noexcept {
    if constexpr (packed<T>) {
        constexpr int width = T::packed_bits;
        const std::int64_t bit = number * width;
        const std::byte* at = base + (bit >> 3);
        const int low = static_cast<int>(bit & 7);
        unsigned raw = std::to_integer<unsigned>(at[0]) >> low;
        if (low + width > 8) raw |= std::to_integer<unsigned>(at[1]) << (8 - low);
        return T{static_cast<std::uint8_t>(raw & ((1U << width) - 1))};
    } else if constexpr (std::is_same_v<T, bool>) {
        return base[number] != std::byte{0};
    } else {
        T value;
        std::memcpy(&value, base + number * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        return value;
    }
}

}  // namespace detail

/// The elements of a tensor in row-major order. Each element is read when an iterator is dereferenced. The range shares
/// the bytes and keeps them alive; iterators are valid while the range lives.
///
/// Example:
///     float sum = 0;
///     const safemap::Elements<float> values = view.unaligned<float>();
///     for (const float value : values) sum += value;
template <class T> class Elements {
public:
    class iterator {
    public:
        using value_type = T;
        using reference = T;
        using difference_type = std::ptrdiff_t;
        using iterator_category = std::input_iterator_tag;  // *it is a value, not a reference
        using iterator_concept = std::forward_iterator_tag;

        iterator() = default;
        T operator*() const noexcept { return detail::read_element<T>(all_->bytes_.bytes.data(), at_); }
        iterator& operator++() noexcept {
            ++number_;
            const auto& [shape, strides, offset] = all_->view_;
            for (std::size_t d = shape.size(); d-- > 0;) {
                if (++index_[d] < shape[d]) {
                    at_ += strides[d];
                    return *this;
                }
                at_ -= static_cast<std::int64_t>(shape[d] - 1) * strides[d];
                index_[d] = 0;
            }
            return *this;
        }
        iterator operator++(int) {
            iterator before = *this;
            ++*this;
            return before;
        }
        friend bool operator==(const iterator& a, const iterator& b) noexcept { return a.number_ == b.number_; }

    private:
        friend class Elements;
        iterator(const Elements* all, std::uint64_t number)
            : all_(all), number_(number), at_(all->view_.offset), index_(all->view_.shape.size(), 0) {}

        const Elements* all_ = nullptr;
        std::uint64_t number_ = 0;
        std::int64_t at_ = 0;  // position in bytes_, in elements
        Shape index_;
    };

    /// Makes the range of the `count` elements of `view`, which must all be inside `bytes`.
    Elements(SharedBytes bytes, StridedView view, std::uint64_t count)
        : bytes_(std::move(bytes)), view_(std::move(view)), count_(count) {}
    // There is no move: a range that was moved from would have no bytes.
    Elements(const Elements&) = default;
    Elements& operator=(const Elements&) = default;

    std::uint64_t size() const noexcept { return count_; }
    bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] iterator begin() const& { return iterator(this, 0); }
    [[nodiscard]] iterator end() const& { return iterator(this, count_); }
    iterator begin() const&& = delete;
    iterator end() const&& = delete;

private:
    SharedBytes bytes_;
    StridedView view_;
    std::uint64_t count_;
};

}  // namespace safemap::SAFEMAP_ABI
