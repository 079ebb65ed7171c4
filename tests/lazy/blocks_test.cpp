// Tests when and how a tensor is cut into tiles.
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "doctest_safemap.hpp"
#include "lazy/blocks.hpp"

#include <cstring>
#include <vector>

namespace blocks_test {

using namespace safemap;

namespace {
LazyTensor floats(Shape shape, StridedView view) {
    const auto nothing = callback_source("zeros", UINT64_MAX / 2, [](auto, auto) {});
    return LazyTensor("t", stored_run(Dtype::f32, std::move(shape), nothing, 0), std::move(view));
}

/// Returns a matrix where each source holds some columns.
LazyTensor columns(std::uint64_t rows, std::uint64_t count, std::uint64_t sources) {
    const std::uint64_t each = count / sources;
    const auto nothing = callback_source("zeros", UINT64_MAX / 2, [](auto, auto) {});
    std::vector<BoxPiece> boxes;
    for (std::uint64_t i = 0; i < sources; ++i)
        boxes.push_back({nothing, 0, {{0, i * each}, {rows, each}}, row_major({rows, each})});
    return {"t", stored_boxes(Dtype::f32, {rows, count}, boxes)};
}
}  // namespace

TEST_CASE("contiguous tensors and slices of rows are cut into byte ranges") {
    const Blocks blocks(floats({1000, 1000}, {{500, 1000}, {1000, 1}, 0}), 1'000'000);
    CHECK(blocks.ranges());
    CHECK(blocks.count() == 3);
    CHECK(blocks.range(0).offset == 0);
    CHECK(blocks.range(2).end() == 2'000'000);
}

TEST_CASE("a large transpose is cut into square tiles") {
    const Blocks blocks(floats({16384, 16384}, {{16384, 16384}, {1, 16384}, 0}), 4U << 20);
    CHECK_FALSE(blocks.ranges());
    CHECK(blocks.box(0).extent == Shape{1024, 1024});
    CHECK(blocks.count() == 256);
}

TEST_CASE("gathering and scattering all blocks gives the value, for ranges and for tiles") {
    const std::uint64_t rows = 37;
    const std::uint64_t columns = 23;
    std::vector<std::uint16_t> stored(rows * columns);
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint16_t>(i);
    const auto source = memory_source("memory", SharedBytes{.bytes = std::as_bytes(std::span(stored))});
    const auto base = stored_run(Dtype::u16, {rows, columns}, source, 0);
    const LazyTensor straight("straight", base);
    const LazyTensor transposed("transposed", base, {{columns, rows}, {1, columns}, 0});
    for (const LazyTensor* tensor : {&straight, &transposed}) {
        CAPTURE(tensor->name());
        const Blocks blocks(*tensor, 96);
        CHECK(blocks.ranges() == (tensor == &straight));
        Gatherer gatherer;
        std::vector<std::byte> buffer(96);
        std::vector<std::byte> value(tensor->nbytes());
        std::uint64_t total = 0;
        for (std::uint64_t i = 0; i < blocks.count(); ++i) {
            const auto bytes = blocks.gather(i, *tensor, gatherer, buffer);
            CHECK(bytes.size() == blocks.size(i));
            total += bytes.size();
            blocks.scatter(i, [&](std::uint64_t at, std::uint64_t from, std::uint64_t size) {
                std::memcpy(value.data() + at, bytes.data() + from, size);
            });
        }
        std::vector<std::byte> slow(tensor->nbytes());
        tensor->read(0, slow);
        CHECK(value == slow);
        CHECK(total == slow.size());
    }
}

TEST_CASE("channels-last images are cut along the two innermost dimensions") {
    const Blocks blocks(floats({8, 224, 224, 64}, {{8, 64, 224, 224}, {224 * 224 * 64, 1, 224 * 64, 64}, 0}), 1U << 20);
    CHECK_FALSE(blocks.ranges());
    const Box box = blocks.box(0);
    CHECK(box.extent[1] == 64);
    CHECK(box.extent[3] == 224);
}

TEST_CASE("tensors without elements have no blocks, and small tensors have one") {
    CHECK(Blocks(floats({0, 7}, {{0, 7}, {7, 1}, 0}), 64).count() == 0);
    CHECK(Blocks(floats({2, 3}, {{3, 2}, {1, 3}, 0}), 64).ranges());
    CHECK(Blocks(floats({2, 3}, {{3, 2}, {1, 3}, 0}), 64).count() == 1);
}

TEST_CASE("a caller that needs the bytes in order gets ranges, even for a transpose") {
    const auto blocks = Blocks::in_order(floats({16384, 16380}, {{16384, 16380}, {1, 16384}, 0}), 4U << 20);
    CHECK(blocks.ranges());
    CHECK(blocks.range(0).size % (16380 * 4) == 0);
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < blocks.count(); ++i) {
        CHECK(blocks.range(i).offset == end);
        CHECK(blocks.range(i).size <= 4U << 20);
        end = blocks.range(i).end();
    }
    CHECK(end == std::uint64_t{16384} * 16380 * 4);
    CHECK(Blocks::in_order(floats({4, 16384}, {{4, 16384}, {1, 4}, 0}), 4800).range(0).size == 4800);
}

TEST_CASE("blocks for disk are rows if rows are read efficiently, and tiles otherwise") {
    const auto wide = Blocks::for_disk(floats({16384, 16384}, {{16384, 16384}, {1, 16384}, 0}), 4U << 20);
    CHECK(wide.ranges());
    CHECK(wide.range(0).size == 64 * 16384 * 4);
    CHECK_FALSE(Blocks::for_disk(floats({16384, 32768}, {{16384, 32768}, {1, 16384}, 0}), 4U << 20).ranges());
    // One image is a contiguous range in the source too.
    const auto images = Blocks::for_disk(
        floats({8, 64, 224, 224}, {{8, 64, 224, 224}, {224 * 224 * 64, 1, 224 * 64, 64}, 0}), 16U << 20);
    CHECK(images.ranges());
    CHECK(images.range(0).size == 64 * 224 * 224 * 4);
}

TEST_CASE("a tensor in boxes with short rows goes to disk in whole rows") {
    constexpr std::uint64_t row = 8'190 * 4;
    const LazyTensor tensor = columns(8'192, 8'190, 30);
    CHECK(Blocks::wants_rows(tensor));
    const Blocks blocks = Blocks::for_disk(tensor, 8U << 20);
    CHECK(blocks.ranges());
    CHECK(blocks.range(0).size == (1U << 20) / row * row);
    CHECK(blocks.range(blocks.count() - 1).end() == tensor.nbytes());
    CHECK(Blocks::for_disk(tensor.cast(Dtype::bf16), 8U << 20).range(0).size % (row / 2) == 0);
    // The shorter the rows of a box, the more of them are read together.
    CHECK(Blocks::for_disk(columns(8'192, 8'192, 512), 8U << 20).range(0).size == 256 * 8'192 * 4);
    CHECK(Blocks::for_disk(columns(8'192, 8'192, 2'048), 8U << 20).range(0).size == 8U << 20);
    // One row is too long; or each row of a box is long enough; or there are no elements.
    CHECK(Blocks::for_disk(tensor, row - 1).range(0).size == (row - 1) / 48 * 48);
    CHECK_FALSE(Blocks::wants_rows(columns(64, 8'192, 2)));
    CHECK_FALSE(Blocks::wants_rows(columns(0, 8'192, 2)));
    CHECK_FALSE(Blocks::wants_rows(floats({8'192, 8'192}, {{8'192, 8'192}, {8'192, 1}, 0})));
    CHECK(Blocks::for_disk(tensor.slice({{.start = 0, .stop = 0}}), 8U << 20).count() == 0);
    CHECK(Blocks::for_disk(tensor.slice({Slice{}, {.start = 0, .stop = 0}}), 8U << 20).count() == 0);
}

TEST_CASE("aligned ranges cover the value once, are not longer, and are cut where pages of the file begin") {
    for (const std::uint64_t offset : {0U, 8U, 1440U, 4088U, 4096U, 100'000U}) {
        for (const std::uint64_t rows : {1U, 3U, 64U, 100U, 1001U}) {
            const LazyTensor tensor = columns(rows, 3000, 3);
            Blocks blocks = Blocks::for_disk(tensor, 1U << 20);
            const std::uint64_t longest = blocks.range(0).size;
            blocks.align(offset, 4096);
            std::uint64_t end = 0;
            for (std::uint64_t i = 0; i < blocks.count(); ++i) {
                CHECK(blocks.range(i).offset == end);
                CHECK((blocks.range(i).size > 0 && blocks.range(i).size <= longest));
                CHECK((i == 0 || (offset + end) % 4096 == 0));
                end = blocks.range(i).end();
            }
            CHECK(end == tensor.nbytes());
        }
    }
    Blocks small(columns(100, 300, 3), 5000);
    const Extent before = small.range(1);
    small.align(8, 4096);
    CHECK(small.range(1).offset == before.offset);
}

}  // namespace blocks_test
