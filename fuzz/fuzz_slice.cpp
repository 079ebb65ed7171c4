// Fuzzes slices of slices. Properties: small tensors give the same as the slow reference; all others stay inside the
// base.
#include "fuzz_target.hpp"
#include "reference/slow_slice.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>
#include <safemap/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace fuzz_slice {

namespace {

using namespace safemap;

constexpr std::uint64_t small = 4096;  // up to this many elements the slow reference is compared

void require(bool holds) {
    if (!holds) std::abort();
}

/// Reads numbers from the input; zeros after its end.
class Input {
public:
    explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    unsigned byte() {
        if (bytes_.empty()) return 0;
        const unsigned value = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return value;
    }
    /// Returns mostly a small number of either sign, sometimes any number.
    std::int64_t number() {
        const unsigned first = byte();
        if (first < 240) return static_cast<std::int64_t>(first % 16) - 8;
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | byte();
        return static_cast<std::int64_t>(value);
    }

private:
    std::span<const std::uint8_t> bytes_;
};

Shape shape_of(Input& input) {
    Shape shape;
    for (unsigned rank = input.byte() % 11; rank > 0; --rank) {
        const std::int64_t dimension = input.number();
        shape.push_back(dimension < 0 && dimension >= -8 ? static_cast<std::uint64_t>(-dimension)
                                                         : static_cast<std::uint64_t>(dimension));
    }
    return shape;
}

std::vector<Slice> slices_of(Input& input) {
    std::vector<Slice> slices;
    for (unsigned count = input.byte() % 12; count > 0; --count) {
        const unsigned kind = input.byte();
        if (kind % 8 == 0) {
            slices.push_back(Slice::at(input.number()));
        } else if (kind % 8 == 1) {
            slices.push_back(Slice::ellipsis());
        } else {
            Slice s;
            if ((kind & 8U) != 0) s.start = input.number();
            if ((kind & 16U) != 0) s.stop = input.number();
            if ((kind & 32U) != 0) s.step = input.number();
            slices.push_back(s);
        }
    }
    return slices;
}

void require_call_is_wrong(const Error& error) { require(exit_code(error.code()) == 2); }

void slice_small(Input& input, const Shape& shape, Dtype dtype, std::uint64_t nbytes) {
    const std::vector<std::byte> bytes(nbytes);  // exact size: a sanitizer sees an access past the end
    TensorView view(dtype, {bytes}, {shape, row_major(shape), 0});
    StridedView strided{shape, row_major(shape), 0};
    std::optional<reference::Cut> cut = reference::whole(shape);
    const std::int64_t grain = dtype == Dtype::u8 ? 1 : dtype == Dtype::f4 ? 2 : 4;
    for (int i = 0; i < 3; ++i) {
        const auto slices = slices_of(input);
        cut = reference::sliced(*cut, slices);
        const bool allowed = cut && reference::in_whole_bytes(*cut, grain);
        try {
            view = view.slice(slices);
            strided = slice(strided, slices);
            require(allowed && reference::walked(strided) == *cut);
            require(view.shape() == cut->shape && view.strides() == strided.strides);
            static_cast<void>(to_string(view));  // reads every element that is printed
        } catch (const Error& error) {
            require(!allowed);
            require((error.code() == Errc::partial_byte_slice) == cut.has_value());
            return require_call_is_wrong(error);
        }
    }
}

void slice_any(Input& input, const Shape& shape) {
    const auto count = element_count(shape);
    if (!count) return;
    const StridedView base{shape, row_major(shape), 0};
    StridedView view = base;
    try {
        for (int i = 0; i < 3; ++i) view = slice(view, slices_of(input));
    } catch (const Error& error) {
        return require_call_is_wrong(error);
    }
    const auto left = element_count(view.shape);
    require(left && *left <= *count);
    if (*left == 0) return;
    const auto whole = reach_of(base);
    const auto part = reach_of(view);
    if (whole) require(part && part->first >= whole->first && part->last <= whole->last);
}

}  // namespace

FUZZ_TARGET(slice, data, size) {
    Input input({data, size});
    constexpr Dtype dtypes[] = {Dtype::u8, Dtype::f4, Dtype::f6_e3m2};
    const Dtype dtype = dtypes[input.byte() % 3];
    const Shape shape = shape_of(input);
    const auto count = element_count(shape);
    const auto nbytes = count ? byte_size(dtype, *count) : std::nullopt;
    const bool walkable = std::all_of(shape.begin(), shape.end(), [](std::uint64_t n) { return n <= small; });
    if (nbytes && *count <= small && walkable) slice_small(input, shape, dtype, *nbytes);
    else slice_any(input, shape);
    return 0;
}

}  // namespace fuzz_slice
