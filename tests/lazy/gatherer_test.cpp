// Tests random tensors of every kind against the slow reference, and how much is read. From top to bottom: random
// tensors, their values and parts, sub-byte tensors, the number of reads, slices, blocks.
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "doctest_safemap.hpp"
#include "lazy/blocks.hpp"
#include "lazy/gatherer.hpp"
#include "reference/random_boxes.hpp"
#include "reference/slow_slice.hpp"
#include "reference/slow_tensor.hpp"
#include "soak.hpp"

#include <cstring>
#include <memory>
#include <numeric>
#include <random>

namespace gatherer_test {

using namespace safemap;
using reference::Described;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

std::shared_ptr<const Source> random_source(Random& random, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    if (below(random, 2) == 0) return memory_source("memory", std::move(bytes));
    const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return callback_source("callback", size, [shared](std::uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), shared->data() + offset, into.size());
    });
}

Shape random_shape(Random& random, std::size_t most_dimensions, std::uint64_t most) {
    Shape shape;
    for (std::size_t d = below(random, most_dimensions + 1); d > 0; --d)
        shape.push_back(below(random, most + 1) + (below(random, 9) != 0 ? 1 : 0));
    return shape;
}

// Cuts the base into runs at random offsets, in random order, in several sources.
void cut_into_runs(Random& random, Described& t) {
    const std::uint64_t count = *element_count(t.shape);
    const unsigned size = element_size(t.dtype);
    for (std::uint64_t first = 0; first < count;) {
        const std::uint64_t n = below(random, 3) == 0 ? count - first : 1 + below(random, count - first);
        const std::size_t before = below(random, 40);
        t.runs.push_back({random_source(random, before + n * size + below(random, 20)), before, first, n});
        first += n;
    }
    std::shuffle(t.runs.begin(), t.runs.end(), random);
}

// Cuts the base into boxes, each stored with its own order of dimensions, some reversed or with gaps.
void cut_into_boxes(Random& random, Described& t) {
    const std::size_t rank = t.shape.size();
    for (Box& place : reference::random_places(random, t.shape)) {
        BoxPiece box;
        box.place = std::move(place);
        std::vector<std::size_t> order(rank);
        std::iota(order.begin(), order.end(), 0U);
        if (below(random, 2) == 0) std::shuffle(order.begin(), order.end(), random);
        box.strides = Strides(rank, 1);
        std::int64_t stride = 1 + static_cast<std::int64_t>(below(random, 4) == 0 ? below(random, 3) : 0);
        std::int64_t lowest = 0;
        for (std::size_t k = rank; k-- > 0;) {
            const std::size_t d = order[k];
            const auto extent = static_cast<std::int64_t>(std::max<std::uint64_t>(box.place.extent[d], 1));
            box.strides[d] = below(random, 6) == 0 ? -stride : stride;
            if (box.strides[d] < 0) lowest += (extent - 1) * stride;
            stride *= extent;
        }
        const auto size = static_cast<std::int64_t>(element_size(t.dtype));
        const std::size_t before = below(random, 30);
        box.offset = before + static_cast<std::uint64_t>(lowest * size);
        box.source = random_source(random, before + static_cast<std::size_t>((stride + 3) * size));
        t.boxes.push_back(box);
    }
    std::shuffle(t.boxes.begin(), t.boxes.end(), random);
}

Slice random_slice(Random& random, std::uint64_t n) {
    const auto bound = [&]() -> std::optional<std::int64_t> {
        if (below(random, 2) == 0) return std::nullopt;
        return static_cast<std::int64_t>(below(random, 2 * n + 3)) - static_cast<std::int64_t>(n) - 1;
    };
    if (n > 0 && below(random, 6) == 0) return Slice::at(static_cast<std::int64_t>(below(random, n)));
    constexpr std::int64_t steps[] = {1, 1, 1, 2, 3, -1, -2, 7};
    return {.start = bound(), .stop = bound(), .step = steps[below(random, 8)]};
}

// Returns a random view: dimensions permuted, then sliced; sometimes with arbitrary strides.
StridedView random_view(Random& random, const Shape& shape) {
    StridedView view{shape, row_major(shape), 0};
    if (element_count(shape) != 0U && below(random, 8) == 0) {  // expanded, stepped or overlapping
        const auto count = static_cast<std::int64_t>(*element_count(shape));
        view = {};
        std::int64_t room = count - 1;
        view.offset = static_cast<std::int64_t>(below(random, static_cast<std::size_t>(count)));
        room -= view.offset;
        for (std::size_t d = below(random, 4); d > 0; --d) {
            const auto extent = 1 + static_cast<std::int64_t>(below(random, 5));
            const std::int64_t stride =
                extent == 1
                    ? 5
                    : static_cast<std::int64_t>(below(random, static_cast<std::size_t>(room / (extent - 1) + 1)));
            if (extent > 1) room -= stride * (extent - 1);
            view.shape.push_back(static_cast<std::uint64_t>(extent));
            view.strides.push_back(stride);
        }
        return view;
    }
    for (std::size_t d = 1; d < shape.size() && below(random, 2) == 0; ++d) {
        const std::size_t other = below(random, d + 1);
        std::swap(view.shape[d], view.shape[other]);
        std::swap(view.strides[d], view.strides[other]);
    }
    std::vector<Slice> slices;
    for (std::size_t d = 0; d < shape.size() && below(random, 4) != 0; ++d)
        slices.push_back(random_slice(random, view.shape[d]));
    return slice(view, slices);
}

constexpr Dtype dtypes[] = {Dtype::u8,  Dtype::f16, Dtype::bf16, Dtype::f32,  Dtype::f64,     Dtype::i16,
                            Dtype::i32, Dtype::i64, Dtype::c64,  Dtype::c128, Dtype::f8_e4m3, Dtype::boolean};

Described random_tensor(Random& random, std::uint64_t most) {
    Described t;
    t.dtype = dtypes[below(random, std::size(dtypes))];
    t.shape = random_shape(random, 4, most);
    if (below(random, 3) == 0) cut_into_boxes(random, t);
    else cut_into_runs(random, t);
    t.view = random_view(random, t.shape);
    t.decoding = {below(random, 4) == 0, below(random, 4) == 0, below(random, 4) == 0};
    t.wanted = t.dtype;
    if (is_castable(t.dtype) && below(random, 2) == 0) {
        constexpr Dtype targets[] = {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::f64, Dtype::f8_e5m2};
        t.wanted = targets[below(random, std::size(targets))];
    }
    return t;
}

LazyTensor lazy(const Described& t) {
    const auto stored =
        t.boxes.empty() ? stored_runs(t.dtype, t.shape, t.runs) : stored_boxes(t.dtype, t.shape, t.boxes);
    return LazyTensor("t", stored, t.view, t.decoding).cast(t.wanted);
}

}  // namespace

TEST_CASE("random tensors of runs and boxes, viewed, decoded and cast, have the values of the slow reference") {
    const unsigned seed = soak::seed(20261121);
    CAPTURE(seed);
    Random random(seed);
    Gatherer gatherer;
    for (int round = 0; round < soak::rounds(4000); ++round) {
        CAPTURE(round);
        const Described t = random_tensor(random, round % 10 == 0 ? 40 : 7);
        const auto want = reference::value_of(t);
        const LazyTensor tensor = lazy(t);
        REQUIRE(tensor.nbytes() == want.size());
        std::vector<std::byte> got(want.size(), std::byte{0x5A});
        gatherer.fill(tensor, 0, got);
        if (got != want) FAIL("round ", round, ": values differ, shape ", to_string(tensor.shape()));
    }
}

TEST_CASE("any region and any byte range gives the corresponding part of the value") {
    Random random(77);
    Gatherer gatherer;
    for (int round = 0; round < 1500; ++round) {
        CAPTURE(round);
        const Described t = random_tensor(random, 8);
        const LazyTensor tensor = lazy(t);
        std::vector<std::byte> whole(tensor.nbytes());
        gatherer.fill(tensor, 0, whole);
        const unsigned size = element_size(tensor.dtype());
        const std::uint64_t count = tensor.element_count();

        const std::uint64_t first = below(random, count + 1);
        const std::uint64_t n = below(random, count - first + 1);
        std::vector<std::byte> range(n * size);
        gatherer.fill(tensor, first * size, range);
        CHECK(std::equal(range.begin(), range.end(), whole.begin() + static_cast<std::ptrdiff_t>(first * size)));

        if (count == 0) continue;
        Box box;
        for (const std::uint64_t extent : tensor.shape()) {
            box.start.push_back(below(random, extent));
            box.extent.push_back(1 + below(random, extent - box.start.back()));
        }
        std::vector<std::byte> region(*element_count(box.extent) * size);
        gatherer.fill(tensor, box, region);
        for_each_range(tensor.shape(), bits(tensor.dtype()), box,
                       [&](std::uint64_t value, std::uint64_t at, std::uint64_t bytes) {
                           if (std::memcmp(region.data() + at, whole.data() + value, bytes) != 0)
                               FAIL("region differs");
                       });
    }
}

TEST_CASE("large transposes, steps and casts are gathered in several windows") {
    Random random(5);
    const std::array tried = {Dtype::u8, Dtype::f32, Dtype::bf16, Dtype::f64, Dtype::c128};
    for (int i = soak::step(2) - 1; i < 5; i += soak::step(4)) {
        const Dtype dtype = tried[static_cast<std::size_t>(i)];
        CAPTURE(dtype);
        Described t;
        t.dtype = dtype;
        t.shape = {700, 900};
        t.runs = {{random_source(random, 700 * 900 * element_size(dtype) + 3), 3, 0, 700 * 900}};
        t.wanted = dtype == Dtype::f32 ? Dtype::bf16 : dtype;
        for (const StridedView& view :
             {StridedView{{900, 700}, {1, 900}, 0}, StridedView{{350, 900}, {-1800, 1}, 699 * 900},
              StridedView{{900, 50}, {1, 12600}, 0}, StridedView{{2, 630000}, {0, 1}, 0}}) {
            t.view = view;
            const LazyTensor tensor = lazy(t);
            std::vector<std::byte> got(tensor.nbytes());
            Gatherer().fill(tensor, 0, got);
            CHECK(got == reference::value_of(t));
        }
    }
}

TEST_CASE("sub-byte tensors are gathered in whole bytes") {
    Random random(6);
    const auto source = random_source(random, 64);
    std::vector<std::byte> bytes(64);
    source->read_at(0, bytes);
    for (const Dtype dtype : {Dtype::f4, Dtype::f6_e2m3}) {
        const std::uint64_t row_bytes = bits(dtype);  // bytes of eight elements
        const LazyTensor tensor("t", stored_run(dtype, {6, 8}, source, 5));
        const LazyTensor part = tensor.slice({{.start = 5, .stop = 0, .step = -2}});
        std::vector<std::byte> got(part.nbytes());
        part.read(0, got);
        CHECK(got.size() == 3 * row_bytes);
        for (std::size_t i = 0; i < 3; ++i)
            CHECK(std::memcmp(&got[i * row_bytes], &bytes[5 + (5 - 2 * i) * row_bytes], row_bytes) == 0);
        CHECK_FAULT(tensor.slice({Slice{}, {.start = 1}}), Errc::partial_byte_slice);
        CHECK_FAULT(part.read(Box{{0, 1}, {1, 8 - 1}}, std::span(got).first(1)), Errc::partial_byte_slice);
        std::vector<std::byte> odd(1);
        tensor.read(1, odd);  // a contiguous value can be read from any byte
        CHECK(odd[0] == bytes[6]);
    }
}

TEST_CASE("a slice of a sub-byte tensor can be read in any ranges of whole bytes") {
    Random random(16);
    for (const Dtype dtype : {Dtype::f4, Dtype::f6_e3m2}) {
        const LazyTensor whole("t", stored_run(dtype, {50, 4, 4, 2}, random_source(random, 50 * 32), 0));
        const LazyTensor part = whole.slice({Slice{}, {.start = 1, .stop = 3}});
        const TensorView loaded = part.load();
        REQUIRE(part.nbytes() == 50 * 16 * bits(dtype) / 8);
        for (int i = 0; i < 300; ++i) {
            const std::uint64_t grain = dtype == Dtype::f4 ? 1 : 3;
            const std::uint64_t first = below(random, part.nbytes() / grain + 1);
            const std::uint64_t count = below(random, part.nbytes() / grain - first + 1);
            std::vector<std::byte> got(count * grain);
            part.read(first * grain, got);
            CHECK(std::equal(got.begin(), got.end(),
                             loaded.bytes().begin() + static_cast<std::ptrdiff_t>(first * grain)));
        }
    }
}

TEST_CASE("the rows of a rank are read as one range, and nothing else is read") {
    const auto log = std::make_shared<std::vector<Extent>>();
    const auto source = callback_source("log", 4'000'100, [log](std::uint64_t offset, std::span<std::byte> into) {
        log->push_back({offset, into.size()});
        std::memset(into.data(), 0, into.size());
    });
    const LazyTensor tensor("w", stored_run(Dtype::f32, {1000, 1000}, source, 100));
    std::vector<std::byte> out(4'000'000);

    const LazyTensor rows = tensor.slice({{.start = 250, .stop = 500}});
    rows.read(0, std::span(out).first(rows.nbytes()));
    CHECK(*log == std::vector<Extent>{{100 + 1'000'000, 1'000'000}});

    log->clear();
    const LazyTensor column = tensor.slice({Slice{}, Slice::at(3)});
    column.read(0, std::span(out).first(column.nbytes()));
    std::uint64_t read = 0;
    for (const Extent& extent : *log) read += extent.size;
    CHECK(log->size() <= 4);  // one megabyte per read, because the rows are close to each other
    CHECK(read <= 4'000'000);

    log->clear();
    const LazyTensor far("f", stored_run(Dtype::u8, {4'000'100}, source, 0), StridedView{{100}, {40'000}, 0});
    far.read(0, std::span(out).first(100));
    CHECK(log->size() == 100);  // one byte per read, because the bytes between would be discarded
}

TEST_CASE("a slice is read with one read per contiguous range, and no other bytes") {
    const auto log = std::make_shared<std::vector<Extent>>();
    const auto source = callback_source("log", 64 << 20, [log](std::uint64_t offset, std::span<std::byte> into) {
        log->push_back({offset, into.size()});
        std::memset(into.data(), 0, into.size());
    });
    const LazyTensor experts("e", stored_run(Dtype::bf16, {8, 64, 1 << 14}, source, 0));  // rows of 32 KiB
    const LazyTensor packed("p", stored_run(Dtype::f4, {64, 1 << 14}, source, 0));        // rows of 8 KiB
    struct Row {
        const char* what;
        LazyTensor part;
        std::size_t ranges;
    };
    const Slice all{};
    const Row rows[] = {
        {"an expert", experts.slice({Slice::at(3)}), 1},
        {"some experts", experts.slice({{.start = 2, .stop = 5}, Slice::ellipsis()}), 1},
        {"a rank's rows of an expert", experts.slice({Slice::at(-1), {.start = 16, .stop = 32}}), 1},
        {"a slice of a slice", experts.slice({{.start = 1}}).slice({Slice::at(0), {.stop = 8}}), 1},
        {"part of a row", experts.slice({Slice::at(0), Slice::at(5), {.start = 100, .stop = 300}}), 1},
        {"a rank's rows of all experts", experts.slice({all, {.start = 16, .stop = 32}}), 8},
        {"every second row, from behind", experts.slice({Slice::at(2), {.step = -2}}), 32},
        {"a rank's columns", experts.slice({Slice::at(0), all, {.start = 0, .stop = 4096}}), 64},
        {"rows that share no byte", packed.slice({{.start = 8, .stop = 16}}), 1},
        {"nothing", experts.slice({Slice::at(0), {.start = 5, .stop = 5}}), 0},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        log->clear();
        static_cast<void>(row.part.load());
        std::uint64_t bytes = 0;
        for (const Extent& extent : *log) bytes += extent.size;
        CHECK(log->size() == row.ranges);
        CHECK(bytes == row.part.nbytes());
    }
}

TEST_CASE("boxes are read by intersections, not by rows") {
    const auto log = std::make_shared<std::vector<Extent>>();
    const auto source = callback_source("log", 4 << 20, [log](std::uint64_t offset, std::span<std::byte> into) {
        log->push_back({offset, into.size()});
        std::memset(into.data(), 0, into.size());
    });
    constexpr std::uint64_t side = 1024;
    // The columns of each rank are contiguous, and far from those of the next rank.
    const auto columns = [&](std::uint64_t ranks) {
        std::vector<BoxPiece> boxes;
        const std::uint64_t each = side / ranks;
        for (std::uint64_t r = 0; r < ranks; ++r)
            boxes.push_back({source, r * side * each * 4, {{0, r * each}, {side, each}}, row_major({side, each})});
        return LazyTensor("c", stored_boxes(Dtype::f32, {side, side}, boxes));
    };
    for (const std::uint64_t ranks : {4U, 64U}) {
        const LazyTensor tensor = columns(ranks);
        log->clear();
        static_cast<void>(tensor.load());
        CHECK(log->size() == 16);  // 256 KiB per read
        log->clear();
        static_cast<void>(tensor.slice({{.start = 512, .stop = 576}}).load());  // 64 rows
        CHECK(log->size() == (ranks == 4 ? 4 : 64));
        log->clear();
        static_cast<void>(LazyTensor("t", tensor.stored(), StridedView{{side, 4}, {1, 1024}, 0}).load());
        CHECK(log->size() == (ranks == 4 ? 4 : 64));
    }
}

TEST_CASE("random slices of slices have the values of the slow reference") {
    std::mt19937_64 random(21);
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        Shape shape;
        for (std::size_t rank = random() % 5; rank > 0; --rank) shape.push_back(random() % 6);
        const std::uint64_t count = *element_count(shape);
        std::vector<std::byte> bytes(count * 2);
        for (std::uint64_t i = 0; i < count; ++i) std::memcpy(&bytes[i * 2], &i, 2);
        LazyTensor tensor("t", stored_run(Dtype::u16, shape, memory_source("m", std::move(bytes)), 0));
        std::optional<reference::Cut> cut = reference::whole(shape);
        for (int cuts = 0; cut && cuts < 2; ++cuts) {
            const auto slices = reference::random_slices(random, cut->shape.size());
            const auto next = reference::sliced(*cut, slices);
            if (next) tensor = tensor.slice(slices);
            else CHECK(error_of([&] { static_cast<void>(tensor.slice(slices)); }).has_value());
            cut = next;
        }
        if (!cut) continue;
        for (const TensorView& value : {tensor.load(), tensor.view()}) {
            CHECK(value.shape() == cut->shape);
            const auto elements = value.unaligned<std::uint16_t>();
            CHECK(std::equal(elements.begin(), elements.end(), cut->elements.begin(), cut->elements.end()));
        }
    }
}

TEST_CASE("blocks cover every element once and keep their size limit, for any tensor") {
    Random random(8);
    int tiled = 0;
    for (int round = 0; round < 1500; ++round) {
        CAPTURE(round);
        const Described t = random_tensor(random, 12);
        const LazyTensor tensor = lazy(t);
        const std::uint64_t most = 64 + below(random, 100);
        const Blocks blocks = round % 3 == 0   ? Blocks::in_order(tensor, most)
                              : round % 3 == 1 ? Blocks::for_disk(tensor, most)
                                               : Blocks(tensor, most);
        std::vector<int> covered(tensor.nbytes());
        tiled += blocks.ranges() ? 0 : 1;
        for (std::uint64_t i = 0; i < blocks.count(); ++i) {
            if (blocks.ranges()) {
                const Extent range = blocks.range(i);
                CHECK(range.size <= most);
                for (std::uint64_t k = 0; k < range.size; ++k) ++covered.at(range.offset + k);
                continue;
            }
            const Box box = blocks.box(i);
            CHECK(*byte_size(tensor.dtype(), *element_count(box.extent)) <= most);
            std::uint64_t last = 0;
            for_each_range(tensor.shape(), bits(tensor.dtype()), box,
                           [&](std::uint64_t value, std::uint64_t at, std::uint64_t size) {
                               CHECK(at == last);
                               last = at + size;
                               for (std::uint64_t k = 0; k < size; ++k) ++covered.at(value + k);
                           });
        }
        CHECK(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
    }
    CHECK(tiled > 15);
}

}  // namespace gatherer_test
