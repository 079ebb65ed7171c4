// Shape, Strides, Box and Slice.
#pragma once

#include <safemap/api.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {

/// A short list of numbers, one for each dimension. Owns its numbers: up to eight are stored in place, more on the
/// heap. Throws invalid_argument for 2^32 or more dimensions.
///
/// Example:
///     safemap::Shape shape = {2, 3};
///     shape.push_back(4);
///     std::cout << shape << ' ' << *safemap::element_count(shape) << '\n';  // [2, 3, 4] 24
template <class T> class Dims {
public:
    static constexpr std::size_t in_place = 8;

    Dims() noexcept : in_place_{} {}
    Dims(std::initializer_list<T> values) : Dims(std::span<const T>(values.begin(), values.size())) {}
    explicit Dims(std::span<const T> values) : Dims() { assign(values); }
    /// Makes a list of `count` times `value`.
    Dims(std::size_t count, T value) : Dims() {
        resize(count);
        std::fill(begin(), end(), value);
    }
    // Copying all eight numbers is faster than copying one, two or three.
    Dims(const Dims& other) : size_(other.size_) {
        if (size_ <= in_place) std::memcpy(in_place_, other.data(), sizeof in_place_);
        else {
            size_ = 0;
            assign(other);
        }
    }
    Dims(Dims&& other) noexcept : size_(std::exchange(other.size_, 0)), capacity_(other.capacity_) {
        if (!on_heap()) std::memcpy(in_place_, other.in_place_, sizeof in_place_);
        else {
            heap_ = other.heap_;
            other.capacity_ = in_place;
        }
    }
    Dims& operator=(const Dims& other) {
        if (this != &other) assign(other);
        return *this;
    }
    Dims& operator=(Dims&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Dims() {
        if (on_heap()) delete[] heap_;
    }

    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T* data() noexcept { return on_heap() ? heap_ : in_place_; }
    const T* data() const noexcept { return on_heap() ? heap_ : in_place_; }
    T* begin() noexcept { return data(); }
    T* end() noexcept { return data() + size_; }
    const T* begin() const noexcept { return data(); }
    const T* end() const noexcept { return data() + size_; }
    T& operator[](std::size_t i) noexcept { return data()[i]; }
    const T& operator[](std::size_t i) const noexcept { return data()[i]; }
    T& back() noexcept { return data()[size_ - 1]; }
    const T& back() const noexcept { return data()[size_ - 1]; }
    operator std::span<const T>() const noexcept { return {data(), size_}; }

    void push_back(T value) {
        resize(size_ + std::size_t{1});
        data()[size_ - 1] = value;
    }

    friend bool operator==(const Dims& a, const Dims& b) noexcept {
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
    }

private:
    bool on_heap() const noexcept { return capacity_ > in_place; }
    void assign(std::span<const T> values) {
        resize(values.size());
        std::copy(values.begin(), values.end(), data());
    }
    void resize(std::size_t count) {
        if (count > capacity_) grow(std::max(count, capacity_ * std::size_t{2}));
        size_ = static_cast<std::uint32_t>(count);
    }
    void grow(std::size_t capacity) {
        if (capacity > std::numeric_limits<std::uint32_t>::max())
            throw Error(Errc::invalid_argument, "room for " + std::to_string(capacity) + " dimensions is too much");
        T* const grown = new T[capacity];
        std::copy(begin(), end(), grown);
        if (on_heap()) delete[] heap_;
        heap_ = grown;
        capacity_ = static_cast<std::uint32_t>(capacity);
    }
    void swap(Dims& other) noexcept {
        std::swap_ranges(bytes(), bytes() + sizeof in_place_, other.bytes());
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }
    std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(in_place_); }

    union {
        T in_place_[in_place];
        T* heap_;
    };
    std::uint32_t size_ = 0;
    std::uint32_t capacity_ = in_place;
};

/// The number of elements along each dimension; empty for a 0-d tensor.
using Shape = Dims<std::uint64_t>;
/// The distance in elements from one index to the next along each dimension; may be zero or negative.
using Strides = Dims<std::int64_t>;

/// Returns the product of the dimensions, 1 for a 0-d shape, or nothing if it overflows 64 bits. Multiplies from the
/// first dimension on, as the reference does: [2^40, 2^40, 0] overflows, [0, 2^40, 2^40] is 0.
[[nodiscard]] SAFEMAP_API std::optional<std::uint64_t> element_count(const Shape& shape) noexcept;
/// A rectangular region of a tensor: the index of its first element, and the number of elements along each dimension.
struct Box {
    Shape start = {};
    Shape extent = {};
};

/// One index of a slice, as in Python: a range `start:stop:step`, an integer, which removes the dimension, or `...`.
/// Negative numbers count from the end. A range is clipped to the dimension; an integer outside it throws
/// index_out_of_range.
///
/// Example:
///     auto rows = tensor.slice({{.start = 0, .stop = 4096}});                    // Python's [0:4096]
///     auto last = tensor.slice({safemap::Slice::at(-1)});                        // [-1]
///     auto reversed = tensor.slice({safemap::Slice::ellipsis(), {.step = -1}});  // [..., ::-1]
struct Slice {
    enum class Kind : std::uint8_t { range, index, ellipsis };

    std::optional<std::int64_t> start = std::nullopt;
    std::optional<std::int64_t> stop = std::nullopt;
    std::int64_t step = 1;  ///< not 0; negative walks backwards
    Kind kind = Kind::range;

    /// Returns the integer index `i`.
    [[nodiscard]] static Slice at(std::int64_t i) noexcept { return {.start = i, .kind = Kind::index}; }
    /// Returns an ellipsis: as many full ranges as there are dimensions without an index. At most one is allowed.
    static Slice ellipsis() noexcept { return {.kind = Kind::ellipsis}; }
};

/// Returns the shape as text: "[2, 3]".
[[nodiscard]] SAFEMAP_API std::string to_string(const Shape& shape);
SAFEMAP_API std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI
