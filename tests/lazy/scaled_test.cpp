// Tests products with scales against a slow twin that computes one element after another.
#include "lazy/scaled.hpp"

#include "lazy/stored_tensor.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace scaled_test {

using namespace safemap;

namespace {

std::shared_ptr<const Source> memory(std::vector<std::byte> bytes) { return memory_source("memory", std::move(bytes)); }

std::vector<std::byte> bytes_of(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
}

std::vector<float> floats_of(const LazyTensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.element_count()));
    tensor.read(0, std::as_writable_bytes(std::span(values)));
    return values;
}

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
    std::vector<std::uint32_t> bits;
    for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
    return bits;
}

/// Multiplies element by element, by the definition of ScaledNumbers::block.
std::vector<float> slow_product(const std::vector<float>& numbers, const Shape& shape, const std::vector<float>& scales,
                                const Shape& scale_shape, const Shape& block) {
    std::vector<float> out;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::uint64_t rest = i;
        std::uint64_t scale = 0;
        std::uint64_t step = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            scale += rest % shape[d] / block[d] * step;
            step *= scale_shape[d];
            rest /= shape[d];
        }
        // A processor gives either of two NaNs, and makes it quiet; the result is the number's.
        const auto quiet = std::bit_cast<float>(std::bit_cast<std::uint32_t>(numbers[i]) | 0x0040'0000U);
        out.push_back(std::isnan(numbers[i]) ? quiet : numbers[i] * scales[static_cast<std::size_t>(scale)]);
    }
    return out;
}

struct Case {
    Shape shape;
    Shape block;
    Shape scale_shape;
};

Case random_case(std::mt19937& random) {
    const auto below = [&](std::uint64_t most) {
        return std::uniform_int_distribution<std::uint64_t>(1, most)(random);
    };
    Case made;
    const std::size_t rank = static_cast<std::size_t>(below(5)) - 1;
    for (std::size_t d = 0; d < rank; ++d) {
        const std::uint64_t length = below(rank < 3 ? 300 : 20);
        const std::uint64_t kinds[] = {1, length, 32, 128, below(40)};
        made.shape.push_back(length);
        made.block.push_back(kinds[below(5) - 1]);
        made.scale_shape.push_back((length + made.block[d] - 1) / made.block[d]);
    }
    return made;
}

struct Product {
    LazyTensor tensor;
    std::vector<float> wanted;
};

Product random_product(std::mt19937& random) {
    constexpr Dtype number_dtypes[] = {Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz};
    constexpr Dtype scale_dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64, Dtype::f8_e8m0};
    const Case made = random_case(random);
    const auto filled = [&](Dtype dtype, const Shape& shape) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(*byte_size(dtype, *element_count(shape))));
        std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
        return LazyTensor("t", stored_run(dtype, shape, memory(std::move(bytes)), 0));
    };
    const LazyTensor numbers = filled(number_dtypes[random() % 4], made.shape);
    const LazyTensor scales = filled(scale_dtypes[random() % 5], made.scale_shape);
    std::vector<float> scale_values;
    if (scales.dtype() == Dtype::f8_e8m0) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(scales.nbytes()));
        scales.read(0, bytes);
        for (const std::byte each : bytes)
            scale_values.push_back(each == std::byte{0xFF} ? NAN : std::ldexp(1.0F, static_cast<int>(each) - 127));
    } else {
        scale_values = floats_of(scales.cast(Dtype::f32));
    }
    return {scaled({numbers, scales, made.block}),
            slow_product(floats_of(numbers.cast(Dtype::f32)), made.shape, scale_values, made.scale_shape, made.block)};
}

}  // namespace

TEST_CASE("products of random shapes, dtypes and blocks are those of the slow twin") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(800); ++round) {
        const Product product = random_product(random);
        CAPTURE(to_string(product.tensor.shape()));
        REQUIRE(product.tensor.dtype() == Dtype::f32);
        REQUIRE(bits_of(floats_of(product.tensor)) == bits_of(product.wanted));
        REQUIRE(scaled_numbers(product.tensor) != nullptr);
        // Any bytes can be read, also from inside an element.
        const auto& source = product.tensor.stored()->source(0);
        const auto all = bytes_of(floats_of(product.tensor));
        const std::size_t begin = random() % all.size();
        std::vector<std::byte> part(random() % (all.size() - begin + 1));
        source.read_at(begin, part);
        REQUIRE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
}

TEST_CASE("a slice of a product reads its part of it") {
    std::mt19937 random(soak::seed(2));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const Product product = random_product(random);
        const Shape& shape = product.tensor.shape();
        if (shape.empty()) continue;
        const auto last = static_cast<std::int64_t>(shape.back());
        const auto stop = std::uniform_int_distribution<std::int64_t>(1, last)(random);
        std::vector<Slice> slices(shape.size());
        slices.back() = {.start = stop / 2, .stop = stop};
        std::vector<float> wanted;
        for (std::size_t i = 0; i < product.wanted.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i) % last;
            if (at >= stop / 2 && at < stop) wanted.push_back(product.wanted[i]);
        }
        REQUIRE(bits_of(floats_of(product.tensor.slice(slices))) == bits_of(wanted));
    }
}

TEST_CASE("a product is cast as an F32 tensor is: rounded once") {
    const LazyTensor numbers("t", stored_run(Dtype::f8_e4m3, {1}, memory({std::byte{0x3E}}), 0));  // 1.75
    const float scale = 1.0F + 0x1p-8F + 0x1p-12F;
    const LazyTensor scales("s", stored_run(Dtype::f32, {1}, memory(bytes_of(std::span(&scale, 1))), 0));
    const LazyTensor product = scaled({numbers, scales, {1}});
    std::uint16_t bf16 = 0;
    product.cast(Dtype::bf16).read(0, std::as_writable_bytes(std::span(&bf16, 1)));
    CHECK(bf16 == 0x3FE1);  // 0x3FE2 if the scale were rounded to BF16 before
    CHECK(product.cast(Dtype::bf16).cast(Dtype::bf16).dtype() == Dtype::bf16);
}

TEST_CASE("scales that do not fit are refused") {
    const LazyTensor numbers("t", stored_run(Dtype::f8_e4m3, {4, 4}, memory(std::vector<std::byte>(16)), 0));
    const auto scales = [](const Shape& shape) {
        const auto bytes = static_cast<std::size_t>(*byte_size(Dtype::f32, *element_count(shape)));
        return LazyTensor("s", stored_run(Dtype::f32, shape, memory(std::vector<std::byte>(bytes)), 0));
    };
    CHECK_FAULT(scaled({numbers, scales({4}), {1, 4}}), Errc::invalid_argument);
    CHECK_FAULT(scaled({numbers, scales({4, 1}), {1}}), Errc::invalid_argument);
    CHECK_FAULT(scaled({numbers, scales({3, 1}), {1, 4}}), Errc::invalid_argument);
    CHECK_FAULT(scaled({numbers, scales({4, 1}), {1, 0}}), Errc::invalid_argument);
    CHECK(scaled_numbers(scales({4})) == nullptr);
}

}  // namespace scaled_test
