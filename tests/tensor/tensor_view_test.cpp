// Tests tensors in memory. From top to bottom: as<T>() and unaligned<T>(), lifetime and bounds, packed elements, the
// C++ type of each dtype, ranges and at(), writing, slices, values as bytes.
#include "doctest_safemap.hpp"

#include "reference/slow_slice.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/tensor_view.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

namespace tensor_view_test {

using namespace safemap;

namespace {

// Returns the numbers 0, 1, 2, … as T, shifted by `shift` bytes to misalign them.
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

TEST_CASE("a strided view has no span, but elements in row-major order") {
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

TEST_CASE("a view keeps its bytes alive, and may outlive everything else") {
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

TEST_CASE("a view that reaches outside its bytes is refused") {
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
    CHECK_FAULT(make(Dtype::u8, {2, 2}, {1}, 0), Errc::bad_tensor);
}

TEST_CASE("a row-major view uses the first bytes, and needs enough of them") {
    const SharedBytes eight = numbers<std::uint8_t>(8);
    const TensorView view = TensorView::row_major(Dtype::u16, eight, {3, 1});
    CHECK(view.contiguous());
    CHECK(view.strides() == Strides{1, 1});
    CHECK(view.bytes().data() == eight.bytes.data());
    CHECK(view.nbytes() == 6);
    CHECK(TensorView::row_major(Dtype::f4, eight, {4, 4}).element_count() == 16);
    CHECK(TensorView::row_major(Dtype::u8, {}, {0, 1ULL << 63, 2}).element_count() == 0);
    CHECK_FAULT(TensorView::row_major(Dtype::u16, eight, {5}), Errc::storage_too_short);
    CHECK_FAULT(TensorView::row_major(Dtype::f4, eight, {3}), Errc::partial_byte);
    CHECK_FAULT(TensorView::row_major(Dtype::u8, eight, {1ULL << 40, 1ULL << 40}), Errc::shape_overflow);
    CHECK_FAULT(TensorView::row_major(Dtype::f64, eight, {1ULL << 61}), Errc::shape_overflow);
}

TEST_CASE("sub-byte views must be cut at whole bytes") {
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

namespace {

/// Returns `count` elements of random bits, packed as the dtype requires, and the `width` bits of each as a number.
SharedBytes random_bits(std::mt19937_64& random, std::size_t count, unsigned width, std::vector<unsigned>& raw) {
    const auto owner = std::make_shared<std::vector<std::byte>>((count * width + 7) / 8);
    raw.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i)
        for (unsigned bit = 0; bit < width; ++bit) {
            if (random() % 2 == 0) continue;
            raw[i] |= 1U << bit;
            const std::size_t at = i * width + bit;  // little-endian: the lowest bit of the first byte comes first
            (*owner)[at / 8] |= std::byte{1} << static_cast<int>(at % 8);
        }
    return {*owner, owner};
}

/// Decodes a packed float by its definition: sign, exponent, mantissa.
float by_definition(unsigned raw, unsigned exponent_bits, unsigned mantissa_bits, int bias) {
    const unsigned mantissa = raw & ((1U << mantissa_bits) - 1);
    const unsigned exponent = raw >> mantissa_bits & ((1U << exponent_bits) - 1);
    const double sign = (raw >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
    const double fraction = mantissa / static_cast<double>(1U << mantissa_bits);
    const int power = exponent == 0 ? 1 - bias : static_cast<int>(exponent) - bias;
    return static_cast<float>(sign * std::ldexp(exponent == 0 ? fraction : 1 + fraction, power));
}

template <class T> struct Packing;
template <> struct Packing<f4> {
    static constexpr Dtype dtype = Dtype::f4;
    static constexpr unsigned exponent = 2, mantissa = 1;
    static constexpr int bias = 1;
};
template <> struct Packing<f6_e2m3> {
    static constexpr Dtype dtype = Dtype::f6_e2m3;
    static constexpr unsigned exponent = 2, mantissa = 3;
    static constexpr int bias = 1;
};
template <> struct Packing<f6_e3m2> {
    static constexpr Dtype dtype = Dtype::f6_e3m2;
    static constexpr unsigned exponent = 3, mantissa = 2;
    static constexpr int bias = 3;
};

/// Reads one zero element in every way.
template <class T> void reads_zero(Dtype dtype) {
    const auto owner = std::make_shared<std::vector<T>>(1);
    const TensorView view(dtype, {std::as_bytes(std::span(*owner)), owner, true}, {});
    CHECK(view.as<T>()[0] == T{});
    CHECK(view.unaligned<T>(0) == T{});
    CHECK(view.at<T>() == T{});
    CHECK(view.mutable_as<T>().data() == owner->data());
    const auto elements = view.unaligned<T>();
    CHECK(std::distance(elements.begin(), elements.end()) == 1);
}

}  // namespace

TEST_CASE("every dtype of whole bytes that is not opaque has a C++ type") {
    reads_zero<std::uint8_t>(Dtype::u8);
    reads_zero<std::int8_t>(Dtype::i8);
    reads_zero<std::uint16_t>(Dtype::u16);
    reads_zero<std::int16_t>(Dtype::i16);
    reads_zero<std::uint32_t>(Dtype::u32);
    reads_zero<std::int32_t>(Dtype::i32);
    reads_zero<std::uint64_t>(Dtype::u64);
    reads_zero<std::int64_t>(Dtype::i64);
    reads_zero<float>(Dtype::f32);
    reads_zero<double>(Dtype::f64);
    reads_zero<bf16>(Dtype::bf16);
    reads_zero<f16>(Dtype::f16);
    reads_zero<f8_e4m3>(Dtype::f8_e4m3);
    reads_zero<f8_e5m2>(Dtype::f8_e5m2);
    reads_zero<f8_e4m3fnuz>(Dtype::f8_e4m3fnuz);
    reads_zero<f8_e5m2fnuz>(Dtype::f8_e5m2fnuz);
    reads_zero<f8_e8m0>(Dtype::f8_e8m0);
    reads_zero<std::complex<float>>(Dtype::c64);
    reads_zero<std::complex<double>>(Dtype::c128);

    const std::uint16_t halves[] = {0x3C00, 0xC000};  // 1 - 2i
    const TensorView complex(Dtype::c32, {std::as_bytes(std::span(halves))}, {});
    CHECK(static_cast<std::complex<float>>(complex.as<c32>()[0]) == std::complex<float>(1, -2));
    CHECK(static_cast<std::complex<float>>(complex.at<c32>()) == std::complex<float>(1, -2));
}

TEST_CASE("a BOOL byte that is neither 0 nor 1 reads as true") {
    const std::byte bytes[] = {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}};
    const TensorView view(Dtype::boolean, {bytes}, {{4}, {1}, 0});
    const auto elements = view.unaligned<bool>();
    CHECK(std::vector<bool>(elements.begin(), elements.end()) == std::vector<bool>{false, true, true, true});
    const TensorView clean(Dtype::boolean, {std::span(bytes).first(2)}, {{2}, {1}, 0});
    CHECK(clean.as<bool>()[1]);
}

TEST_CASE_TEMPLATE("packed elements are unpacked from the lowest bit on", T, f4, f6_e2m3, f6_e3m2) {
    using Format = Packing<T>;
    std::mt19937_64 random(6);
    std::vector<unsigned> raw;
    const unsigned width = T::packed_bits;
    const TensorView view(Format::dtype, random_bits(random, 96, width, raw), {{6, 4, 4}, {16, 4, 1}, 0});
    std::size_t i = 0;
    for (const T element : view.unaligned<T>()) CHECK(element.bits == raw[i++]);
    CHECK(i == 96);
    CHECK(view.template unaligned<T>(95).bits == raw[95]);
    CHECK(view.template at<T>(5, -1, 2).bits == raw[5 * 16 + 3 * 4 + 2]);

    const TensorView part = view.slice({{.step = -2}, {.start = 1, .stop = 3}});
    i = 0;
    for (const T element : part.unaligned<T>()) {
        const std::size_t at = (5 - 2 * (i / 8)) * 16 + 4 + i % 8;
        CHECK(element.bits == raw[at]);
        ++i;
    }
    CHECK(i == 24);

    for (unsigned bits = 0; bits < (1U << width); ++bits) {
        const float value = T{static_cast<std::uint8_t>(bits)};
        const float want = by_definition(bits, Format::exponent, Format::mantissa, Format::bias);
        CHECK(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(want));
    }
}

TEST_CASE("the largest and smallest packed floats are those of the OCP specification") {
    CHECK(static_cast<float>(f4{0b0111}) == 6.0F);
    CHECK(static_cast<float>(f4{0b0001}) == 0.5F);
    CHECK(static_cast<float>(f6_e2m3{0b011111}) == 7.5F);
    CHECK(static_cast<float>(f6_e2m3{0b000001}) == 0.125F);
    CHECK(static_cast<float>(f6_e3m2{0b111111}) == -28.0F);
    CHECK(static_cast<float>(f6_e3m2{0b000001}) == 0.0625F);
}

TEST_CASE("elements of any view come in row-major order, also with more than eight dimensions") {
    std::mt19937_64 random(12);
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        Shape shape;
        for (std::size_t rank = random() % (round % 20 == 0 ? 12 : 5); rank > 0; --rank)
            shape.push_back(random() % (round % 20 == 0 ? 3 : 5));
        const std::size_t count = *element_count(shape);
        const TensorView view(Dtype::u32, numbers<std::uint32_t>(count, static_cast<std::size_t>(round % 4)),
                              {shape, row_major(shape), 0});
        const auto slices = reference::random_slices(random, shape.size());
        const auto cut = reference::sliced(reference::whole(shape), slices);
        if (!cut) continue;
        const TensorView part = view.slice(slices);
        CHECK(part.shape() == cut->shape);
        const auto elements = part.unaligned<std::uint32_t>();
        CHECK(elements.size() == cut->elements.size());
        CHECK(elements.empty() == cut->elements.empty());
        if (!std::equal(elements.begin(), elements.end(), cut->elements.begin(), cut->elements.end()))
            FAIL("shape ", to_string(shape));
    }
}

TEST_CASE("a range of elements keeps the bytes alive and is a forward range") {
    const auto elements =
        TensorView(Dtype::u16, numbers<std::uint16_t>(4), {{2, 2}, {1, 2}, 0}).unaligned<std::uint16_t>();
    static_assert(std::forward_iterator<decltype(elements.begin())>);
    CHECK(std::vector<int>(elements.begin(), elements.end()) == std::vector<int>{0, 2, 1, 3});
    CHECK(*std::max_element(elements.begin(), elements.end()) == 3);
    auto second = elements.begin();
    CHECK(*second++ == 0);
    CHECK(*second == 2);
    CHECK(second != elements.begin());
}

TEST_CASE("at() takes one index per dimension, negative ones from the end, and checks them") {
    const TensorView view(Dtype::i32, numbers<std::int32_t>(24, 1), {{2, 3, 4}, {12, 4, 1}, 0});
    CHECK(view.at<std::int32_t>(1, 2, 3) == 23);
    CHECK(view.at<std::int32_t>(std::size_t{1}, std::uint8_t{0}, -4) == 12);
    CHECK_FAULT(view.at<std::int32_t>(2, 0, 0), Errc::index_out_of_range);
    CHECK_FAULT(view.at<std::int32_t>(0, 0, -5), Errc::index_out_of_range);
    CHECK_FAULT(view.at<std::int32_t>(0, SIZE_MAX, 0), Errc::index_out_of_range);
    CHECK_FAULT(view.at<std::int32_t>(0, 0), Errc::invalid_argument);
    CHECK_FAULT(view.at<std::int32_t>(0, 0, 0, 0), Errc::too_many_indices);
    CHECK_FAULT(view.at<float>(0, 0, 0), Errc::wrong_dtype);
    CHECK(view.slice({Slice::at(1), Slice{.step = -1}}).at<std::int32_t>(0, 1) == 21);

    const TensorView scalar(Dtype::i32, numbers<std::int32_t>(1), {});
    CHECK(scalar.at<std::int32_t>() == 0);
    CHECK_FAULT(scalar.at<std::int32_t>(0), Errc::too_many_indices);
    const TensorView empty(Dtype::i32, {}, {{0, 2}, {2, 1}, 0});
    CHECK_FAULT(empty.at<std::int32_t>(0, 0), Errc::index_out_of_range);
    CHECK_FAULT(empty.unaligned<std::int32_t>(0), Errc::index_out_of_range);
    CHECK(empty.unaligned<std::int32_t>().empty());

    const TensorView deep(Dtype::u8, numbers<std::uint8_t>(8), {Shape(10, 1), Strides(10, 1), 5});
    CHECK(deep.at<std::uint8_t>(0, 0, 0, 0, 0, -1, 0, 0, 0, 0) == 5);
}

TEST_CASE("only private bytes can be written to") {
    SharedBytes bytes = numbers<float>(4);
    const TensorView read_only(Dtype::f32, bytes, {{4}, {1}, 0});
    CHECK_FALSE(read_only.writable());
    CHECK_FAULT(read_only.mutable_as<float>(), Errc::read_only);
    CHECK_FAULT(read_only.mutable_bytes(), Errc::read_only);

    bytes.writable = true;
    const TensorView view(Dtype::f32, bytes, {{2, 2}, {2, 1}, 0});
    const TensorView row = view.slice({Slice::at(1)});
    row.mutable_as<float>()[0] = 7;
    CHECK(view.at<float>(1, 0) == 7);
    CHECK_FAULT(row.mutable_as<std::int32_t>(), Errc::wrong_dtype);
    const TensorView column = view.slice({Slice{}, Slice::at(0)});
    CHECK_FAULT(column.mutable_as<float>(), Errc::not_contiguous);
    const TensorView nothing(Dtype::f32, {}, {{0}, {1}, 0});
    CHECK(nothing.mutable_as<float>().empty());
}

TEST_CASE("slices of packed dtypes are refused unless they cover whole bytes, for every small shape") {
    std::mt19937_64 random(9);
    const std::vector<std::byte> bytes(512);
    int taken = 0;
    int refused = 0;
    for (const Dtype dtype : {Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2}) {
        const std::int64_t grain = dtype == Dtype::f4 ? 2 : 4;
        for (int round = 0; round < 20'000; ++round) {
            Shape shape;
            for (std::size_t rank = 1 + random() % 3; rank > 0; --rank) shape.push_back(random() % 5);
            if (random() % 2 == 0) shape.push_back(8);
            if (!byte_size(dtype, *element_count(shape))) continue;
            const auto slices = reference::random_slices(random, shape.size());
            const auto cut = reference::sliced(reference::whole(shape), slices);
            if (!cut) continue;
            const TensorView view(dtype, {bytes}, {shape, row_major(shape), 0});
            const auto error = error_of([&] { static_cast<void>(view.slice(slices)); });
            const bool allowed = reference::in_whole_bytes(*cut, grain);
            if (error.has_value() == allowed) FAIL(name(dtype), " ", to_string(shape), " round ", round);
            if (error) CHECK(error->code() == Errc::partial_byte_slice);
            (error ? refused : taken) += 1;
        }
    }
    CHECK(taken > 3000);
    CHECK(refused > 3000);
}

TEST_CASE("as_bytes gives the bytes of each element, for every dtype and random views, or says why not") {
    std::mt19937_64 random(soak::seed(14));
    int taken = 0;
    int refused = 0;
    for (int round = 0; round < soak::rounds(16'000); ++round) {
        const auto dtype = static_cast<Dtype>(random() % std::size(detail::dtype_bits));
        Shape shape;
        for (std::size_t rank = random() % 4; rank > 0; --rank) shape.push_back(random() % 5);
        if (random() % 2 == 0) shape.push_back(8);
        if (!byte_size(dtype, *element_count(shape))) continue;
        const TensorView base(dtype, numbers<std::uint8_t>(64 * 8 * 16, random() % 3), {shape, row_major(shape), 0});
        const auto slices = reference::random_slices(random, shape.size());
        std::optional<TensorView> view;
        if (error_of([&] { view.emplace(base.slice(slices)); })) continue;
        const auto cut = *reference::sliced(reference::whole(shape), slices);
        CAPTURE(dtype);
        CAPTURE(view->shape());
        const std::uint64_t last = view->shape().empty() ? 1 : view->shape().back();
        const bool gaps = bits(dtype) != 8 && !cut.elements.empty() && last > 1 && view->strides().back() != 1;
        const auto error = error_of([&] { static_cast<void>(view->as_bytes()); });
        if (gaps || last * bits(dtype) % 8 != 0) {
            REQUIRE(error);
            CHECK(error->code() == (gaps ? Errc::not_contiguous : Errc::partial_byte));
            ++refused;
            continue;
        }
        REQUIRE_FALSE(error);
        const TensorView bytes = view->as_bytes();
        CHECK(bytes.dtype() == Dtype::u8);
        CHECK(bytes.nbytes() == view->nbytes());
        CHECK(bytes.owner() == view->owner());
        CHECK(bytes.shape().size() == std::max<std::size_t>(view->shape().size(), 1));
        CHECK(bytes.shape().back() == last * bits(dtype) / 8);
        std::vector<std::uint8_t> expected;
        const std::size_t grain = bits(dtype) == 4 ? 2 : bits(dtype) == 6 ? 4 : 1;  // elements that fill whole bytes
        for (std::size_t i = 0; i < cut.elements.size(); i += grain)
            for (std::size_t k = 0; k < grain * bits(dtype) / 8; ++k)
                expected.push_back(
                    base.data() == nullptr
                        ? std::uint8_t{}
                        : std::to_integer<std::uint8_t>(
                              base.data()[static_cast<std::size_t>(cut.elements[i]) * bits(dtype) / 8 + k]));
        const auto found = bytes.unaligned<std::uint8_t>();
        CHECK(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
        ++taken;
    }
    CHECK(taken > 100);
    CHECK(refused > 4);
}

TEST_CASE("as_bytes follows torch's view(torch.uint8): strides, scalars, empty tensors, writable bytes") {
    SharedBytes memory = numbers<std::uint8_t>(64);
    memory.writable = true;
    const TensorView view(Dtype::bf16, memory, {{3, 2}, {8, 1}, 2});
    const TensorView bytes = view.as_bytes();
    CHECK(bytes.shape() == Shape{3, 4});
    CHECK(bytes.strides() == Strides{16, 1});
    CHECK(bytes.data() == view.data());
    CHECK(bytes.writable());
    CHECK(bytes.at<std::uint8_t>(1, 3) == 4 + 16 + 3);
    const auto shape_of = [&](Dtype dtype, const StridedView& part) {
        const TensorView found = TensorView(dtype, memory, part).as_bytes();
        return found.shape();
    };
    const auto strides_of = [&](Dtype dtype, const StridedView& part) {
        const TensorView found = TensorView(dtype, memory, part).as_bytes();
        return found.strides();
    };
    CHECK(shape_of(Dtype::c128, {{}, {}, 1}) == Shape{16});
    CHECK(shape_of(Dtype::u8, {{}, {}, 1}) == Shape{1});
    CHECK(strides_of(Dtype::f32, {{2, 3}, {-4, 1}, 8}) == Strides{-16, 1});
    CHECK(strides_of(Dtype::f8_e4m3, {{2, 3}, {1, 2}, 0}) == Strides{1, 2});
    CHECK(shape_of(Dtype::f32, {{4, 1}, {1, 9}, 0}) == Shape{4, 4});
    CHECK(strides_of(Dtype::f32, {{4, 1}, {1, 9}, 0}) == Strides{4, 1});
    CHECK(shape_of(Dtype::f32, {{0, 3}, {INT64_MAX, 7}, 99}) == Shape{0, 12});
    CHECK(shape_of(Dtype::f32, {{1, 3}, {INT64_MIN, 1}, 0}) == Shape{1, 12});
    CHECK(strides_of(Dtype::f4, {{3, 4}, {8, 1}, 2}) == Strides{4, 1});
    CHECK_FAULT(TensorView(Dtype::f32, memory, {{2, 2}, {1, 2}, 0}).as_bytes(), Errc::not_contiguous);
    CHECK_FAULT(TensorView(Dtype::f4, memory, {{2, 3}, {3, 1}, 0}).as_bytes(), Errc::partial_byte);
    CHECK_FAULT(TensorView(Dtype::f64, {}, {{0, 1ULL << 62}, {1, 1}, 0}).as_bytes(), Errc::shape_overflow);
}

}  // namespace tensor_view_test
