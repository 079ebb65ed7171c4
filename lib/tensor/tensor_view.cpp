// Implements views of tensors in memory.
#include <safemap/tensor_view.hpp>

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/checked.hpp"
#include "tensor/reach.hpp"

#include <cstdint>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

Error cut_by_rows(Dtype dtype, const Shape& shape) {
    return Error(Errc::partial_byte,
                 "rows of " + std::string(name(dtype)) + " of shape " + to_string(shape) + " do not fill whole bytes");
}

}  // namespace

TensorView::TensorView(Dtype dtype, SharedBytes bytes, StridedView view)
    : dtype_(dtype), bytes_(std::move(bytes)), view_(std::move(view)) {
    if (view_.shape.size() != view_.strides.size())
        throw Error(Errc::bad_tensor, std::to_string(view_.shape.size()) + " dimensions, but " +
                                          std::to_string(view_.strides.size()) + " strides");
    const auto count = safemap::element_count(view_.shape);
    if (!count) throw Error(Errc::shape_overflow, "the size of shape " + to_string(view_.shape) + " overflows");
    elements_ = *count;
    if (elements_ == 0) return;
    const auto reach = reach_of(view_);
    const auto needed = reach && reach->first >= 0
                            ? checked_mul(static_cast<std::uint64_t>(reach->last) + 1, bits(dtype))
                            : std::nullopt;
    if (!needed || (*needed + 7) / 8 > bytes_.bytes.size())
        throw Error(Errc::storage_too_short, "a view of shape " + to_string(view_.shape) + " reaches outside its " +
                                                 std::to_string(bytes_.bytes.size()) + " bytes");
    if (!whole_bytes(dtype) && !cuts_whole_bytes(dtype, view_))
        throw Error(Errc::partial_byte, "a view of " + std::string(safemap::name(dtype)) + " cuts bytes");
}

TensorView::TensorView(Dtype dtype, const Shape& shape, SharedBytes bytes)
    : dtype_(dtype), bytes_(std::move(bytes)), view_{shape, safemap::row_major(shape), 0} {
    const auto count = safemap::element_count(shape);
    if (!count || !checked_mul(*count, bits(dtype)))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(shape) + " overflows");
    elements_ = *count;
    const auto size = byte_size(dtype, elements_);
    if (!size)
        throw Error(Errc::partial_byte, "shape " + to_string(shape) + " of " + std::string(safemap::name(dtype)) +
                                            " does not fill whole bytes");
    if (*size > bytes_.bytes.size())
        throw Error(Errc::storage_too_short, "shape " + to_string(shape) + " of " + std::string(safemap::name(dtype)) +
                                                 " needs " + std::to_string(*size) + " bytes, but there are " +
                                                 std::to_string(bytes_.bytes.size()));
}

std::uint64_t TensorView::nbytes() const noexcept { return byte_size(dtype_, elements_).value_or(0); }

const std::byte* TensorView::data() const noexcept {
    if (elements_ == 0) return bytes_.bytes.data();
    return bytes_.bytes.data() + static_cast<std::uint64_t>(view_.offset) * bits(dtype_) / 8;
}

std::span<const std::byte> TensorView::bytes() const& {
    if (!contiguous())
        throw Error(Errc::not_contiguous, "a strided view of shape " + to_string(view_.shape) + " is not contiguous");
    return {data(), nbytes()};
}

TensorView TensorView::slice(std::span<const Slice> slices) const {
    StridedView part = safemap::slice(view_, slices);
    if (!whole_bytes(dtype_) && !cuts_whole_bytes(dtype_, part))
        throw Error(Errc::partial_byte_slice,
                    "a slice of " + std::string(safemap::name(dtype_)) + " does not start and end at whole bytes");
    return TensorView(dtype_, bytes_, std::move(part));
}

TensorView TensorView::as_bytes() const {
    const unsigned width = bits(dtype_);
    const auto in_bytes = [&](std::int64_t elements, bool matters) {
        std::int64_t in_bits = 0;
        if (__builtin_mul_overflow(elements, static_cast<std::int64_t>(width), &in_bits)) in_bits = 0;  // not used
        if (matters && in_bits % 8 != 0) throw cut_by_rows(dtype_, view_.shape);
        return in_bits / 8;
    };
    StridedView view = view_;
    if (view.shape.empty()) view = {{1}, {1}, view_.offset};
    const std::size_t last = view.shape.size() - 1;
    if (width != 8 && elements_ > 0 && view.shape[last] > 1 && view.strides[last] != 1)
        throw Error(Errc::not_contiguous, "the last dimension of shape " + to_string(view_.shape) + " has stride " +
                                              std::to_string(view.strides[last]) +
                                              ", and only one of stride 1 can be " + "viewed as bytes");
    const auto row_bits = checked_mul(view.shape[last], width);
    if (!row_bits) throw Error(Errc::shape_overflow, "the size of shape " + to_string(view_.shape) + " overflows");
    if (*row_bits % 8 != 0) throw cut_by_rows(dtype_, view_.shape);
    for (std::size_t d = 0; d < last; ++d)
        view.strides[d] = in_bytes(view.strides[d], elements_ > 0 && view.shape[d] > 1);
    if (width != 8) view.strides[last] = 1;
    view.shape[last] = *row_bits / 8;
    view.offset = elements_ > 0 ? in_bytes(view.offset, true) : 0;
    return TensorView(Dtype::u8, bytes_, std::move(view));
}

void TensorView::require_dtype(Dtype wanted) const {
    if (dtype_ == wanted) return;
    throw Error(Errc::wrong_dtype, "cannot read elements of " + std::string(safemap::name(wanted)) +
                                       " from a tensor of " + std::string(safemap::name(dtype_)));
}

const void* TensorView::aligned_data(std::size_t alignment) const {
    const std::span<const std::byte> value = bytes();
    if (elements_ > 0 && reinterpret_cast<std::uintptr_t>(value.data()) % alignment != 0)
        throw Error(Errc::misaligned, "the data is not aligned to " + std::to_string(alignment) + " bytes");
    return value.data();
}

std::span<std::byte> TensorView::mutable_bytes() const& {
    if (!writable() && elements_ > 0) throw Error(Errc::read_only, "the view is read-only");
    const std::span<const std::byte> value = bytes();
    return {const_cast<std::byte*>(value.data()), value.size()};
}

std::int64_t TensorView::numbered(std::uint64_t i) const {
    if (i >= elements_)
        throw Error(Errc::index_out_of_range,
                    "element " + std::to_string(i) + " is outside the " + std::to_string(elements_) + " elements");
    std::int64_t at = view_.offset;
    for (std::size_t d = view_.shape.size(); d-- > 0;) {
        at += static_cast<std::int64_t>(i % view_.shape[d]) * view_.strides[d];
        i /= view_.shape[d];
    }
    return at;
}

std::int64_t TensorView::indexed(std::span<const std::int64_t> indices) const {
    const std::size_t rank = view_.shape.size();
    if (indices.size() != rank)
        throw Error(indices.size() > rank ? Errc::too_many_indices : Errc::invalid_argument,
                    std::to_string(indices.size()) + " indices for " + std::to_string(rank) + " dimensions");
    std::int64_t at = view_.offset;
    for (std::size_t d = 0; d < rank; ++d) at += index_in_dimension(indices[d], view_.shape[d], d) * view_.strides[d];
    return at;
}

}  // namespace safemap::SAFEMAP_ABI
