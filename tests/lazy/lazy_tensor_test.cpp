// Tests names, views, casts and slices of tensors that have not been read.
#include "doctest_safemap.hpp"
#include "reference/slow_slice.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace lazy_tensor_test {

using namespace safemap;

namespace {

std::shared_ptr<const Source> floats(std::vector<float> values) {
    std::vector<std::byte> bytes(values.size() * 4);
    std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin());
    return memory_source("floats", std::move(bytes));
}

SharedBytes bytes_of(std::size_t size, bool writable) {
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    for (std::size_t i = 0; i < size; ++i) (*bytes)[i] = static_cast<std::byte>(i);
    return {*bytes, bytes, writable};
}

/// Checks that a tensor over memory is that memory, and reads its values.
template <class T> void check_over_memory(const TensorView& value) {
    const LazyTensor tensor("t", value);
    const TensorView view = tensor.view();
    CHECK(tensor.dtype() == value.dtype());
    CHECK(view.shape() == value.shape());
    CHECK(view.strides() == value.strides());
    const TensorView loaded = tensor.load();
    REQUIRE(loaded.element_count() == value.element_count());
    for (std::uint64_t i = 0; i < value.element_count(); ++i)
        REQUIRE(static_cast<float>(loaded.unaligned<T>(i)) == static_cast<float>(value.unaligned<T>(i)));
    if (value.element_count() == 0) return;
    CHECK(view.data() == value.data());
    CHECK(view.owner() == value.owner());
    CHECK(view.writable() == value.writable());
}

LazyTensor matrix() { return LazyTensor("w", stored_run(Dtype::f32, {2, 3}, floats({0, 1, 2, 3, 4, 5}), 0)); }

}  // namespace

TEST_CASE("view, load, slice and read give the same values") {
    const LazyTensor w = matrix();
    const TensorView view = w.view();
    CHECK(view.as<float>()[4] == 4);
    const TensorView part = w.slice({Slice{}, {.step = -2}}).load();
    CHECK(part.shape() == Shape{2, 2});
    CHECK(part.as<float>()[0] == 2);
    CHECK(part.as<float>()[3] == 3);
    CHECK(reinterpret_cast<std::uintptr_t>(part.data()) % 64 == 0);
    const TensorView strided = w.slice({Slice{}, Slice::at(1)}).view();
    CHECK(strided.unaligned<float>(1) == 4);
    float one = 0;
    w.read(20, std::as_writable_bytes(std::span(&one, 1)));
    CHECK(one == 5);
}

TEST_CASE("views and loaded values outlive the tensor and its source") {
    std::optional<LazyTensor> w = matrix();
    const TensorView view = w->view();
    const TensorView loaded = w->load();
    w.reset();
    CHECK(view.as<float>()[5] == 5);
    CHECK(loaded.as<float>()[5] == 5);
}

TEST_CASE("a value that is cast, decoded, in pieces or without addresses has no view, but can be loaded") {
    const auto no_view = [](const LazyTensor& tensor) {
        CHECK_FAULT(tensor.view(), Errc::no_view);
        CHECK_FALSE(tensor.try_view());
    };
    no_view(matrix().cast(Dtype::bf16));
    const auto source = floats({1, 2, 3, 4});
    const LazyTensor swapped("t", stored_run(Dtype::f32, {4}, source, 0), {.byte_swap = true});
    no_view(swapped);
    const RunPiece runs[] = {{source, 0, 0, 2}, {source, 8, 2, 2}};
    const LazyTensor scattered("t", stored_runs(Dtype::f32, {4}, runs));
    no_view(scattered);
    CHECK(scattered.slice({{.start = 2}}).view().unaligned<float>(0) == 3);  // this part is in one piece
    CHECK(scattered.piece_count() == 2);
    const auto callback =
        callback_source("c", 16, [](auto, std::span<std::byte> into) { std::memset(into.data(), 0, into.size()); });
    no_view(LazyTensor("t", stored_run(Dtype::f32, {4}, callback, 0)));
    no_view(LazyTensor("t", stored_run(Dtype::f32, {4}, callback, 0)).slice({{.start = 1}}));
    CHECK(matrix().cast(Dtype::bf16).load().unaligned<bf16>(5) == 5.0F);
    CHECK(scattered.load().unaligned<float>(3) == 4);
}

TEST_CASE("try_view gives what view gives, and throws what is not about views") {
    const LazyTensor w = matrix();
    CHECK(w.try_view()->data() == w.view().data());
    const LazyTensor column = w.slice({Slice{}, Slice::at(1)});
    CHECK(column.try_view()->data() == column.view().data());
    CHECK(column.try_view()->strides() == Strides{3});
    CHECK(w.slice({{.stop = 0}}).try_view()->nbytes() == 0);

    class Changed final : public Source {
    public:
        const std::string& name() const noexcept override { return name_; }
        std::uint64_t size() const noexcept override { return 16; }
        void read_at(std::uint64_t, std::span<std::byte>) const override {}
        std::optional<SharedBytes> map(Extent) const override { throw Error(Errc::file_changed, "changed"); }

    private:
        std::string name_ = "changed";
    };
    const LazyTensor changed("t", stored_run(Dtype::f32, {4}, std::make_shared<Changed>(), 0));
    const auto error = error_of([&] { static_cast<void>(changed.try_view()); });
    REQUIRE(error);
    CHECK(error->code() == Errc::file_changed);
    CHECK(error->tensor() == "t");
}

TEST_CASE("casts convert between float dtypes, only once, and keep shape and name") {
    const LazyTensor half = matrix().cast(Dtype::f16);
    CHECK(half.dtype() == Dtype::f16);
    CHECK(half.nbytes() == 12);
    CHECK(half.name() == "w");
    CHECK(half.slice({Slice::at(1)}).dtype() == Dtype::f16);
    CHECK_OK(half.cast(Dtype::f16));
    CHECK_FAULT(half.cast(Dtype::bf16), Errc::unsupported_cast);
    CHECK_FAULT(matrix().cast(Dtype::i32), Errc::unsupported_cast);
    CHECK_FAULT(matrix().cast(Dtype::f8_e8m0), Errc::unsupported_cast);
    const LazyTensor ints("i", stored_run(Dtype::i32, {1}, floats({0}), 0));
    CHECK_FAULT(ints.cast(Dtype::f32), Errc::unsupported_cast);
    CHECK_OK(ints.cast(Dtype::i32));
}

TEST_CASE("errors name the tensor") {
    const auto error = error_of([] { static_cast<void>(matrix().slice({Slice::at(9)})); });
    REQUIRE(error);
    CHECK(error->tensor() == "w");
    CHECK(error->code() == Errc::index_out_of_range);
}

TEST_CASE("a view outside its storage is refused") {
    const auto stored = stored_run(Dtype::f32, {6}, floats({0, 1, 2, 3, 4, 5}), 0);
    const auto make = [&](Shape shape, Strides strides, std::int64_t offset) {
        return LazyTensor("t", stored, StridedView{std::move(shape), std::move(strides), offset});
    };
    CHECK_OK(make({2, 3}, {3, 1}, 0));
    CHECK_OK(make({6}, {-1}, 5));
    CHECK_OK(make({0}, {1}, 100));
    CHECK_FAULT(make({2, 3}, {3, 1}, 1), Errc::bad_tensor);
    CHECK_FAULT(make({2}, {-1}, 0), Errc::bad_tensor);
    CHECK_FAULT(make({2}, {INT64_MAX}, 1), Errc::bad_tensor);
    CHECK_FAULT(make({2, 2}, {1}, 0), Errc::bad_tensor);
    CHECK_FAULT(make({1ULL << 40, 1ULL << 40}, {0, 0}, 0), Errc::shape_overflow);
}

TEST_CASE("placement gives the location of a value that is stored as it is") {
    const LazyTensor w("w", stored_run(Dtype::f32, {2, 3}, floats({9, 0, 1, 2, 3, 4, 5}), 4));
    REQUIRE(w.placement());
    CHECK(w.placement()->extent == Extent{4, 24});
    CHECK(w.slice({Slice::at(1)}).placement()->extent == Extent{16, 12});
    CHECK_FALSE(w.slice({Slice{}, Slice::at(1)}).placement());
    CHECK_FALSE(w.cast(Dtype::f16).placement());
}

TEST_CASE("reads outside the value, reads of partial elements and buffers of the wrong size are refused") {
    std::vector<std::byte> out(100);
    CHECK_FAULT(matrix().read(24, std::span(out).first(1)), Errc::index_out_of_range);
    CHECK_FAULT(matrix().read(UINT64_MAX, std::span(out).first(1)), Errc::index_out_of_range);
    CHECK_FAULT(matrix().read(2, std::span(out).first(4)), Errc::invalid_argument);
    CHECK_FAULT(matrix().read(Box{{0, 0}, {2, 4}}, std::span(out).first(32)), Errc::index_out_of_range);
    CHECK_FAULT(matrix().read(Box{{0}, {2}}, std::span(out).first(8)), Errc::index_out_of_range);
    CHECK_FAULT(matrix().read(Box{{0, 0}, {2, 2}}, std::span(out).first(15)), Errc::invalid_argument);
    CHECK_OK(matrix().read(24, {}));
}

TEST_CASE("scalars and empty tensors work like others") {
    const LazyTensor scalar("s", stored_run(Dtype::f32, {}, floats({7}), 0));
    CHECK(scalar.element_count() == 1);
    CHECK(scalar.load().unaligned<float>(0) == 7);
    CHECK(scalar.view().unaligned<float>(0) == 7);
    const LazyTensor empty("e", stored_run(Dtype::f32, {0, 3}, floats({}), 0));
    CHECK(empty.nbytes() == 0);
    const TensorView nothing = empty.load();
    CHECK(nothing.as<float>().empty());
    CHECK(empty.view().nbytes() == 0);
    CHECK_FALSE(empty.placement());
}

TEST_CASE("a tensor over memory is that memory, with its strides, and reads its values") {
    const SharedBytes bytes = bytes_of(96, true);
    const auto check = [&](Shape shape, Strides strides, std::int64_t offset) {
        check_over_memory<std::uint16_t>(TensorView(Dtype::u16, bytes, {std::move(shape), std::move(strides), offset}));
    };
    check({6, 8}, {8, 1}, 0);
    check({8, 6}, {1, 8}, 0);
    check({2, 3}, {3, 1}, 5);
    check({3, 2}, {-6, -2}, 47);
    check({2, 5, 2}, {1, 0, -3}, 9);
    check({}, {}, 7);
    check({1, 3}, {99, 1}, 5);  // the stride of a dimension of size 1 stays
    check({0, 3}, {7, 1}, 48);
    check({2, 0}, {0, 1}, 0);
    const auto check_half_bytes = [&](Shape shape, Strides strides, std::int64_t offset) {
        check_over_memory<f4>(TensorView(Dtype::f4, bytes, {std::move(shape), std::move(strides), offset}));
    };
    check_half_bytes({4, 6}, {6, 1}, 2);
    check_half_bytes({3, 2}, {-8, 1}, 20);
}

TEST_CASE("random slices and transposes of memory are tensors") {
    const unsigned seed = soak::seed(3);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::uint64_t> sizes(random() % 4);
        for (std::uint64_t& size : sizes) size = 1 + random() % 5;
        const Shape shape(sizes);
        const SharedBytes bytes = bytes_of(*element_count(shape) * 2, random() % 2 == 0);
        const auto slices = reference::random_slices(random, shape.size());
        if (!reference::sliced(reference::whole(shape), slices)) continue;
        StridedView view = slice(StridedView{shape, row_major(shape), 0}, slices);
        for (std::size_t d = view.shape.size(); d > 1; --d) {
            const std::size_t other = random() % d;
            std::swap(view.shape[d - 1], view.shape[other]);
            std::swap(view.strides[d - 1], view.strides[other]);
        }
        check_over_memory<std::uint16_t>(TensorView(Dtype::u16, bytes, view));
    }
}

TEST_CASE("a tensor over memory keeps the owner of the bytes alive, and shows what is written to them") {
    std::optional<SharedBytes> bytes(bytes_of(8, true));
    const std::weak_ptr<const void> owner = bytes->owner;
    std::optional<LazyTensor> tensor(std::in_place, "t", TensorView::row_major(Dtype::u32, *bytes, {2}));
    bytes.reset();
    std::optional<TensorView> view(tensor->view());
    view->mutable_as<std::uint32_t>()[0] = 9;
    CHECK(tensor->load().at<std::uint32_t>(0) == 9);
    CHECK(tensor->load().at<std::uint32_t>(1) == 0x07060504);
    tensor.reset();
    CHECK(view->as<std::uint32_t>()[0] == 9);
    view.reset();
    CHECK(owner.expired());
}

TEST_CASE("memory that is repeated beyond 64 bits is refused as a tensor") {
    const Shape shape = {1ULL << 40, 1ULL << 22};
    const TensorView value(Dtype::u32, bytes_of(4, false), {shape, {0, 0}, 0});
    CHECK_FAULT(LazyTensor("t", value), Errc::shape_overflow);
}

}  // namespace lazy_tensor_test
