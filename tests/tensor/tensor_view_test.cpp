// Tensors in memory.
#include "doctest_safemap.hpp"

#include <safemap/tensor_view.hpp>

#include <memory>
#include <numeric>
#include <vector>

using namespace safemap;

namespace {

// Numbers 0, 1, 2, … as T, with room to misalign them.
template <class T> SharedBytes numbers(std::size_t count, std::size_t shift = 0) {
    const auto owner = std::make_shared<std::vector<std::byte>>(count * sizeof(T) + 16);
    for (std::size_t i = 0; i < count; ++i) {
        const T value = static_cast<T>(i);
        std::memcpy(owner->data() + shift + i * sizeof(T), &value, sizeof(T));
    }
    return {std::span(*owner).subspan(shift, count * sizeof(T)), owner};
}

}  // namespace

TEST_CASE("as<T> gives the elements without a copy") {
    const TensorView view(Dtype::f32, numbers<float>(6), {{2, 3}, {3, 1}, 0});
    const auto x = view.as<float>();
    CHECK(x.size() == 6);
    CHECK(x[5] == 5.0F);
    CHECK(static_cast<const void*>(x.data()) == view.data());
    CHECK(view.nbytes() == 24);
    CHECK_FAULT(view.as<double>(), Errc::wrong_dtype);
    CHECK_FAULT(view.as<std::int32_t>(), Errc::wrong_dtype);
}

TEST_CASE("misaligned data is refused by as<T> and read by unaligned<T>") {
    const TensorView view(Dtype::f32, numbers<float>(6, 1), {{6}, {1}, 0});
    CHECK_FAULT(view.as<float>(), Errc::misaligned);
    CHECK(view.unaligned<float>(5) == 5.0F);
    CHECK_FAULT(view.unaligned<float>(6), Errc::index_out_of_range);
    CHECK_FAULT(view.unaligned<double>(0), Errc::wrong_dtype);
}

TEST_CASE("a strided view has no span, and elements in row-major order of its own") {
    const TensorView view(Dtype::i32, numbers<std::int32_t>(12), {{3, 4}, {4, 1}, 0});
    const TensorView part = view.slice({{.start = 2, .stop = 0, .step = -1}, {.start = 1, .step = 2}});
    CHECK(part.shape() == Shape{2, 2});
    CHECK_FAULT(part.as<std::int32_t>(), Errc::not_contiguous);
    CHECK_FAULT(part.bytes(), Errc::not_contiguous);
    CHECK(part.unaligned<std::int32_t>(0) == 9);
    CHECK(part.unaligned<std::int32_t>(1) == 11);
    CHECK(part.unaligned<std::int32_t>(3) == 7);
    const TensorView row = view.slice({Slice::at(1)});
    CHECK(row.as<std::int32_t>()[0] == 4);
}

TEST_CASE("a view keeps its bytes alive and may outlive everything") {
    auto bytes = numbers<float>(4);
    const std::weak_ptr<const void> watched = bytes.owner;
    std::optional<TensorView> view(std::in_place, Dtype::f32, std::move(bytes), StridedView{{4}, {1}, 0});
    bytes = {};
    std::optional<TensorView> part = view->slice({{.start = 2}});
    view.reset();
    CHECK(part->as<float>()[0] == 2.0F);
    part.reset();
    CHECK(watched.expired());
}

TEST_CASE("a view that reaches outside its bytes cannot be made") {
    const auto make = [](Dtype dtype, Shape shape, Strides strides, std::int64_t offset) {
        return TensorView(dtype, numbers<std::uint8_t>(8), {std::move(shape), std::move(strides), offset});
    };
    CHECK_OK(make(Dtype::u8, {8}, {1}, 0));
    CHECK_OK(make(Dtype::u8, {8}, {-1}, 7));
    CHECK_OK(make(Dtype::u8, {0, 100}, {1, 1}, 99));
    CHECK_FAULT(make(Dtype::u8, {9}, {1}, 0), Errc::storage_too_short);
    CHECK_FAULT(make(Dtype::u8, {8}, {1}, 1), Errc::storage_too_short);
    CHECK_FAULT(make(Dtype::u8, {8}, {-1}, 6), Errc::storage_too_short);
    CHECK_FAULT(make(Dtype::u8, {2}, {INT64_MAX}, 1), Errc::storage_too_short);
    CHECK_FAULT(make(Dtype::u8, {1ULL << 40, 1ULL << 40}, {0, 0}, 0), Errc::shape_overflow);
    CHECK_FAULT(make(Dtype::f64, {2}, {1}, 0), Errc::storage_too_short);
}

TEST_CASE("sub-byte views are cut at whole bytes only") {
    const TensorView view(Dtype::f4, numbers<std::uint8_t>(8), {{2, 8}, {8, 1}, 0});
    CHECK(view.nbytes() == 8);
    const TensorView row = view.slice({Slice::at(1)});
    CHECK(row.bytes()[0] == std::byte{4});
    const TensorView columns = view.slice({Slice{}, {.start = 2, .stop = 4}});
    CHECK(columns.shape() == Shape{2, 2});
    CHECK_FAULT(view.slice({Slice{}, {.start = 1, .stop = 3}}), Errc::partial_byte_slice);
    CHECK_FAULT(view.slice({Slice{}, {.step = 2}}), Errc::partial_byte_slice);
    CHECK_FAULT(TensorView(Dtype::f4, numbers<std::uint8_t>(8), StridedView{{3}, {1}, 0}), Errc::partial_byte);
    CHECK_FAULT(TensorView(Dtype::f4, numbers<std::uint8_t>(8), StridedView{{2}, {2}, 0}), Errc::partial_byte);
}
