// Tests of gathers of several tensors, and of load_into(): values against the slow reference, the number of reads,
// faults and cancelling. From top to bottom: random tensors whose pieces are neighbours in few sources; then for
// gathers, and again for load_into(): values, reads, faults.
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/watch.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "lazy/gatherer.hpp"
#include "reference/slow_tensor.hpp"
#include "soak.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace together_test {

using namespace safemap;
using namespace safemap::literals;
using reference::Described;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// A source in memory that counts its reads, and fails on request.
class Counting final : public Source {
public:
    Counting(std::string name, std::uint64_t size, std::uint32_t seed) : name_(std::move(name)), bytes_(size) {
        std::uint32_t state = seed;
        for (std::byte& byte : bytes_) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
    }
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return bytes_.size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        ++reads;
        bytes_read += into.size();
        if (on_read) on_read();
        if (bad >= offset && bad < offset + into.size()) throw Error(Errc::io_error, "a bad sector");
        std::memcpy(into.data(), bytes_.data() + offset, into.size());
    }

    void require_unchanged() const override {
        if (changed) throw Error(Errc::file_changed, "changed").with_path(name_);
    }

    mutable std::atomic<std::size_t> reads = 0;
    mutable std::atomic<std::uint64_t> bytes_read = 0;
    bool changed = false;
    std::uint64_t bad = UINT64_MAX;
    std::function<void()> on_read = {};

private:
    std::string name_;
    std::vector<std::byte> bytes_;
};

using Sources = std::vector<std::shared_ptr<Counting>>;

Sources make_sources(std::size_t count, std::uint64_t size) {
    Sources sources;
    for (std::size_t i = 0; i < count; ++i)
        sources.push_back(std::make_shared<Counting>("rank " + std::to_string(i), size, std::uint32_t(i + 1)));
    return sources;
}

std::size_t reads_of(const Sources& sources) {
    return std::accumulate(sources.begin(), sources.end(), std::size_t{0},
                           [](std::size_t sum, const auto& source) { return sum + source->reads; });
}

/// Puts the pieces of tensors into sources, each behind the last one in its source, often without a gap.
struct Filled {
    Sources sources;
    std::vector<std::uint64_t> used = std::vector<std::uint64_t>(sources.size());

    std::uint64_t take(Random& random, std::size_t source, std::uint64_t size) {
        used[source] += below(random, 3) == 0 ? below(random, 12'000) : 0;
        if (used[source] + size > sources[source]->size()) used[source] = below(random, 50);
        REQUIRE(used[source] + size <= sources[source]->size());
        return std::exchange(used[source], used[source] + size);
    }
};

void add_runs(Random& random, Filled& filled, Described& t) {
    const std::uint64_t count = *element_count(t.shape);
    const std::uint64_t each = count / (1 + below(random, filled.sources.size())) + 1;
    std::size_t source = below(random, filled.sources.size());
    for (std::uint64_t first = 0; first < count; first += each) {
        const std::uint64_t n = std::min(each, count - first);
        const std::uint64_t offset = filled.take(random, source, n * element_size(t.dtype));
        t.runs.push_back({filled.sources[source], offset, first, n});
        source = (source + 1) % filled.sources.size();
    }
}

/// Cuts a matrix into columns, as tensor parallelism does; some are stored transposed.
void add_boxes(Random& random, Filled& filled, Described& t) {
    const std::uint64_t rows = t.shape[0];
    const std::uint64_t each = t.shape[1] / 3 + 1;
    for (std::uint64_t column = 0; column < t.shape[1]; column += each) {
        const std::uint64_t n = std::min(each, t.shape[1] - column);
        const std::size_t source = below(random, filled.sources.size());
        const std::uint64_t offset = filled.take(random, source, rows * n * element_size(t.dtype));
        const Strides strides = below(random, 2) == 0 ? Strides{static_cast<std::int64_t>(n), 1}
                                                      : Strides{1, static_cast<std::int64_t>(rows)};
        t.boxes.push_back({filled.sources[source], offset, {{0, column}, {rows, n}}, strides});
    }
}

constexpr Dtype dtypes[] = {Dtype::u8,  Dtype::f16, Dtype::bf16, Dtype::f32,     Dtype::f64,
                            Dtype::i16, Dtype::c64, Dtype::c128, Dtype::f8_e4m3, Dtype::boolean};

Described random_tensor(Random& random, Filled& filled) {
    Described t;
    t.dtype = dtypes[below(random, std::size(dtypes))];
    const std::uint64_t most = below(random, 8) == 0 ? 90 : 12;
    t.shape = {below(random, 9) == 0 ? 0 : 1 + below(random, most), 1 + below(random, most)};
    if (*element_count(t.shape) > 0 && below(random, 4) == 0) add_boxes(random, filled, t);
    else add_runs(random, filled, t);
    t.view = {t.shape, row_major(t.shape), 0};
    if (below(random, 4) == 0) {
        std::swap(t.view.shape[0], t.view.shape[1]);
        std::swap(t.view.strides[0], t.view.strides[1]);
    }
    if (below(random, 5) == 0) t.view = slice(t.view, std::vector{Slice{.step = -1}, Slice{.start = 1, .step = 2}});
    t.decoding = {below(random, 5) == 0, below(random, 8) == 0, below(random, 8) == 0};
    constexpr Dtype targets[] = {Dtype::bf16, Dtype::f32, Dtype::f64, Dtype::f8_e5m2};
    t.wanted = is_castable(t.dtype) && below(random, 2) == 0 ? targets[below(random, 4)] : t.dtype;
    return t;
}

LazyTensor lazy(const Described& t) {
    return {"t", t.boxes.empty() ? stored_runs(t.dtype, t.shape, t.runs) : stored_boxes(t.dtype, t.shape, t.boxes),
            t.view, t.decoding};
}

/// A part of a tensor that is wanted, and the value that it must have.
struct Wanted {
    LazyTensor tensor;
    Dtype dtype;
    std::uint64_t offset;
    std::vector<std::byte> value;
};

Wanted wanted_part(Random& random, Filled& filled) {
    if (below(random, 8) == 0) {  // sub-byte elements: their bytes are those of a tensor of U8
        const Dtype dtype = below(random, 2) == 0 ? Dtype::f4 : Dtype::f6_e2m3;
        const std::uint64_t grain = dtype == Dtype::f4 ? 1 : 3;  // bytes of whole elements
        Described bytes{.dtype = Dtype::u8, .shape = {3 * below(random, 400)}, .wanted = Dtype::u8};
        bytes.view = {bytes.shape, {1}, 0};
        Filled one{{filled.sources[0]}, {filled.used[0]}};
        add_runs(random, dtype == Dtype::f4 ? filled : one, bytes);
        std::vector<RunPiece> pieces = bytes.runs;
        for (RunPiece& piece : pieces) {
            piece.first = piece.first * 8 / bits(dtype);
            piece.count = piece.count * 8 / bits(dtype);
        }
        const std::uint64_t units = bytes.shape[0] / grain;
        const std::uint64_t first = below(random, units + 1);
        const std::uint64_t count = below(random, units - first + 1);
        const auto whole = reference::value_of(bytes);
        const auto from = whole.begin() + static_cast<std::ptrdiff_t>(first * grain);
        return {LazyTensor("t", stored_runs(dtype, {bytes.shape[0] * 8 / bits(dtype)}, pieces)),
                dtype,
                first * grain,
                {from, from + static_cast<std::ptrdiff_t>(count * grain)}};
    }
    const Described t = random_tensor(random, filled);
    const auto whole = reference::value_of(t);
    const std::uint64_t size = element_size(t.wanted);
    const std::uint64_t count = whole.size() / size;
    const bool all = below(random, 2) == 0;
    const std::uint64_t first = all ? 0 : below(random, count + 1);
    const std::uint64_t n = all ? count : below(random, count - first + 1);
    const auto from = whole.begin() + static_cast<std::ptrdiff_t>(first * size);
    return {lazy(t), t.wanted, first * size, {from, from + static_cast<std::ptrdiff_t>(n * size)}};
}

/// Returns `count` square matrices whose rows are cut over all sources, one behind the other in each.
std::vector<LazyTensor> experts(const Sources& sources, std::size_t count, Dtype dtype, std::uint64_t side) {
    const std::uint64_t elements = side * side;
    const std::uint64_t each = elements / sources.size();
    std::vector<LazyTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<RunPiece> runs;
        for (std::size_t s = 0; s < sources.size(); ++s)
            runs.push_back({sources[s], i * each * element_size(dtype), s * each, each});
        tensors.emplace_back("expert " + std::to_string(i), stored_runs(dtype, {side, side}, runs));
    }
    return tensors;
}

}  // namespace

TEST_CASE("random parts of tensors that are gathered together have the values of the slow reference") {
    const unsigned seed = soak::seed(20261123);
    CAPTURE(seed);
    Random random(seed);
    Gatherer together;
    Gatherer single;
    std::vector<std::byte> scratch(1_MiB);
    for (int round = 0; round < soak::rounds(400); ++round) {
        CAPTURE(round);
        Filled filled{make_sources(1 + below(random, 6), 300'000)};
        std::vector<Wanted> wanted;
        std::uint64_t size = 0;
        for (std::size_t i = below(random, 30); i > 0; --i)
            size += wanted.emplace_back(wanted_part(random, filled)).value.size();
        std::vector<std::byte> out(size);
        std::vector<CastCounts> counts(wanted.size());
        together.begin({.scratch = std::span(scratch).first(below(random, 2) * scratch.size())});
        std::span<std::byte> left = out;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            together.add(wanted[i].tensor, wanted[i].dtype, wanted[i].offset, left.first(wanted[i].value.size()),
                         &counts[i]);
            left = left.subspan(wanted[i].value.size());
        }
        together.flush();
        auto at = out.begin();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const Wanted& part = wanted[i];
            const auto end = at + static_cast<std::ptrdiff_t>(part.value.size());
            if (!std::equal(at, end, part.value.begin()))
                FAIL("round ", round, ": part ", i, " differs, shape ", to_string(part.tensor.shape()));
            at = end;
            std::vector<std::byte> alone(part.value.size());
            single.fill(part.tensor.cast(part.dtype), part.offset, alone);
            CHECK(alone == part.value);
            const CastCounts expected = single.take_counts();
            CHECK(counts[i].values == expected.values);
            CHECK(counts[i].overflowed == expected.overflowed);
            CHECK(counts[i].non_finite == expected.non_finite);
        }
        CHECK(together.take_counts().values == 0);
    }
}

TEST_CASE("more tensors and parts than are collected at once are gathered, and an unfinished gather is dropped") {
    const Sources sources = make_sources(3, 200'000);
    std::vector<LazyTensor> tensors;
    std::vector<std::byte> expected;
    for (std::uint64_t i = 0; i < 5'000; ++i) {
        std::vector<RunPiece> runs;
        for (std::uint64_t s = 0; s < 3; ++s) {
            runs.push_back({sources[s], i * 13 % 100'000, s * 4, 4});
            expected.resize(expected.size() + 4);
            sources[s]->read_at(i * 13 % 100'000, std::span(expected).last(4));
        }
        tensors.emplace_back("t", stored_runs(Dtype::u8, {12}, runs));
    }
    Gatherer gatherer;
    std::vector<std::byte> lost(12);
    gatherer.begin();
    gatherer.add(tensors[7], Dtype::u8, 0, lost);
    std::vector<std::byte> out(expected.size());
    gatherer.begin();
    for (std::size_t i = 0; i < tensors.size(); ++i)
        gatherer.add(tensors[i], Dtype::u8, 0, std::span(out).subspan(i * 12, 12));
    gatherer.flush();
    CHECK(out == expected);
    CHECK(lost == std::vector<std::byte>(12));
}

TEST_CASE("rows of two matrices that fill a window side by side are not taken for rows of one") {
    const Sources sources = make_sources(2, 256_KiB);
    constexpr std::uint64_t rows = 64;
    constexpr std::uint64_t half = 2048;  // two parts of 128 KiB fill the window for rows
    const auto matrix = [&](std::size_t left, std::uint64_t left_at, std::size_t right, std::uint64_t right_at) {
        Described t{.dtype = Dtype::u8, .shape = {rows, 2 * half}, .wanted = Dtype::u8};
        t.view = {t.shape, row_major(t.shape), 0};
        t.boxes = {{sources[left], left_at, {{0, 0}, {rows, half}}, {half, 1}},
                   {sources[right], right_at, {{0, half}, {rows, half}}, {half, 1}}};
        return t;
    };
    const Described matrices[] = {matrix(0, 0, 1, 128_KiB), matrix(1, 0, 0, 128_KiB)};
    const LazyTensor tensors[] = {lazy(matrices[0]), lazy(matrices[1])};
    std::vector<std::byte> out(2 * 256_KiB);
    Gatherer gatherer;
    gatherer.begin();
    for (std::size_t i = 0; i < 2; ++i)
        gatherer.add(tensors[i], Dtype::u8, 0, std::span(out).subspan(i * 256_KiB, 256_KiB));
    gatherer.flush();
    for (std::size_t i = 0; i < 2; ++i) {
        const auto expected = reference::value_of(matrices[i]);
        CHECK(std::memcmp(expected.data(), out.data() + i * 256_KiB, expected.size()) == 0);
    }
}

TEST_CASE("tensors in short runs over many sources take one read for each source, not one for each run") {
    constexpr std::size_t ranks = 64;
    constexpr std::size_t count = 16;
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        CAPTURE(dtype);
        const std::uint64_t side = dtype == Dtype::bf16 ? 512 : 256;
        const Sources sources = make_sources(ranks, count * side * side * element_size(dtype) / ranks);
        const std::vector<LazyTensor> tensors = experts(sources, count, dtype, side);
        const std::uint64_t each = side * side * 2;  // bytes as BF16
        std::vector<std::byte> alone(count * each);
        std::vector<std::byte> together(count * each);
        Gatherer gatherer;
        for (std::size_t i = 0; i < count; ++i)
            gatherer.fill(tensors[i].cast(Dtype::bf16), 0, std::span(alone).subspan(i * each, each));
        CHECK(reads_of(sources) == count * ranks);
        for (const auto& source : sources) source->reads = 0;

        std::vector<std::byte> scratch(dtype == Dtype::bf16 ? 0 : 2 * together.size());
        gatherer.begin({.scratch = scratch});
        for (std::size_t i = 0; i < count; ++i)
            gatherer.add(tensors[i], Dtype::bf16, 0, std::span(together).subspan(i * each, each));
        gatherer.flush();
        CHECK(reads_of(sources) == ranks);
        CHECK(together == alone);
    }
}

TEST_CASE("a failure in the middle of a common read has the tensor that cannot be read, and its file") {
    const Sources sources = make_sources(4, 100'000);
    const std::vector<LazyTensor> tensors = experts(sources, 8, Dtype::u8, 64);  // runs of 1 KiB
    std::vector<std::byte> out(8 * 4096);
    Gatherer gatherer;
    const auto gather = [&](std::size_t step) {
        gatherer.begin();
        for (std::size_t i = 0; i < tensors.size(); i += step)
            gatherer.add(tensors[i], Dtype::u8, 0, std::span(out).subspan(i * 4096, 4096));
        gatherer.flush();
    };
    sources[2]->bad = 5 * 1024 + 17;
    auto error = error_of([&] { gather(1); });
    check_error(error, {Errc::io_error}, {});
    CHECK(error->tensor() == "expert 5");
    CHECK(error->path() == "rank 2");
    // A gap that is read to save a read fails too.
    error = error_of([&] { gather(2); });
    REQUIRE(error);
    CHECK(error->tensor() == "expert 0");
    CHECK(error->path() == "rank 2");
    sources[2]->bad = UINT64_MAX;
    CHECK_OK(gather(1));
}

TEST_CASE("what cannot be added is refused with the tensor's name") {
    const Sources sources = make_sources(1, 1000);
    const LazyTensor tensor("w", stored_run(Dtype::f32, {10}, sources[0], 0));
    std::vector<std::byte> out(40);
    Gatherer gatherer;
    gatherer.begin();
    check_error(error_of([&] { gatherer.add(tensor, Dtype::f32, 4, out); }), {Errc::index_out_of_range}, {},
                {.tensor = "w"});
    CHECK_FAULT(gatherer.add(tensor, Dtype::bf16, 4, std::span(out).first(20)), Errc::index_out_of_range);
    CHECK_FAULT(gatherer.add(tensor, Dtype::bf16, 1, std::span(out).first(2)), Errc::invalid_argument);
}

TEST_CASE("a stop request ends a gather before the next read") {
    std::stop_source stop;
    const Monitor monitor{.stop = stop.get_token()};
    Watch watch(monitor, "converting", 0);
    const Sources sources = make_sources(4, 100'000);
    const std::vector<LazyTensor> tensors = experts(sources, 8, Dtype::u8, 64);
    for (const auto& source : sources) source->on_read = [&] { stop.request_stop(); };
    std::vector<std::byte> out(8 * 4096);
    Gatherer gatherer;
    gatherer.begin({.watch = &watch});
    for (std::size_t i = 0; i < tensors.size(); ++i)
        gatherer.add(tensors[i], Dtype::u8, 0, std::span(out).subspan(i * 4096, 4096));
    CHECK(reads_of(sources) == 0);
    CHECK_FAULT(gatherer.flush(), Errc::cancelled);
    CHECK(reads_of(sources) == 1);
    gatherer.begin({.watch = &watch});
    CHECK_FAULT(gatherer.add(tensors[0], Dtype::u8, 0, std::span(out).first(4096)), Errc::cancelled);
}

namespace {

/// Memory for tensors, and the targets in it. Bytes behind the memory of each tensor must stay as they are.
struct Memory {
    explicit Memory(const std::vector<LazyTensor>& tensors) {
        std::uint64_t size = 0;
        for (const LazyTensor& tensor : tensors) size += tensor.nbytes() + 1;
        bytes.resize(size, std::byte{0xA5});
        std::span<std::byte> left = bytes;
        for (const LazyTensor& tensor : tensors) {
            targets.push_back({tensor, left.first(tensor.nbytes())});
            left = left.subspan(tensor.nbytes() + 1);
        }
    }
    /// Returns true if all targets have the values that `value(i)` returns, and the bytes between them are as before.
    template <class Value> bool holds(Value&& value) const {
        for (std::size_t i = 0; i < targets.size(); ++i) {
            const std::span<const std::byte> into = targets[i].into;
            const std::vector<std::byte> expected = value(i);
            if (!std::equal(into.begin(), into.end(), expected.begin(), expected.end())) return false;
            if (into.data()[into.size()] != std::byte{0xA5}) return false;
        }
        return true;
    }
    bool holds_loaded() const {
        return holds([&](std::size_t i) {
            const TensorView loaded = targets[i].tensor.load();
            return std::vector<std::byte>(loaded.bytes().begin(), loaded.bytes().end());
        });
    }

    std::vector<std::byte> bytes;
    std::vector<LoadTarget> targets;
};

/// Returns `count` tensors of `size` bytes that follow each other in a source, in any order.
std::vector<LazyTensor> neighbours(const std::shared_ptr<Counting>& source, std::size_t count, std::uint64_t size) {
    std::vector<LazyTensor> tensors;
    for (std::size_t i = 0; i < count; ++i)
        tensors.emplace_back("n" + std::to_string(i), stored_run(Dtype::u8, {size}, source, i * size));
    std::shuffle(tensors.begin(), tensors.end(), Random(static_cast<unsigned>(count)));
    return tensors;
}

}  // namespace

TEST_CASE("load_into gives random tensors the values of the slow reference, whatever their order") {
    const unsigned seed = soak::seed(20261129);
    CAPTURE(seed);
    Random random(seed);
    for (int round = 0; round < soak::rounds(400); ++round) {
        CAPTURE(round);
        Filled filled{make_sources(1 + below(random, 6), 300'000)};
        std::vector<Described> described(below(random, 40));
        std::vector<LazyTensor> tensors;
        for (Described& t : described) {
            t = random_tensor(random, filled);
            tensors.push_back(lazy(t).cast(t.wanted));
        }
        if (!tensors.empty()) {
            tensors.push_back(tensors.front());  // one tensor may be loaded twice
            described.push_back(described.front());
        }
        const Memory memory(tensors);
        load_into(memory.targets, {.threads = 1 + static_cast<unsigned>(below(random, 3))});
        CHECK(memory.holds([&](std::size_t i) { return reference::value_of(described[i]); }));
    }
    CHECK_OK(load_into({}));
}

TEST_CASE("load_into cuts large tensors of every kind, and gives what load() gives") {
    const auto source = std::make_shared<Counting>("large", 5'300'000, 5);
    const auto matrix = stored_run(Dtype::f32, {1300, 1000}, source, 1);
    const LazyTensor whole("whole", matrix);
    const LazyTensor transposed("transposed", matrix, {{1000, 1300}, {1, 1000}, 0});
    const LazyTensor backwards = whole.slice({{.step = -1}});
    std::vector<RunPiece> runs;
    for (std::uint64_t i = 0; i < 130; ++i) runs.push_back({source, (129 - i) * 40'000 + 3, i * 10'000, 10'000});
    std::vector<BoxPiece> columns;
    for (std::uint64_t i = 0; i < 10; ++i)
        columns.push_back({source, i * 520'000 + 7, {{0, i * 100}, {1300, 100}}, {100, 1}});
    const LazyTensor in_runs("in runs", stored_runs(Dtype::f32, {1300, 1000}, runs));
    const LazyTensor in_boxes("in boxes", stored_boxes(Dtype::f32, {1300, 1000}, columns));
    std::vector<LazyTensor> tensors = {transposed, whole.cast(Dtype::bf16), backwards, in_runs, whole};
    for (const LazyTensor& each : {in_runs, in_boxes})
        for (const Dtype dtype : {Dtype::f64, Dtype::f8_e4m3}) tensors.push_back(each.cast(dtype));
    tensors.push_back(in_boxes);
    tensors.push_back(LazyTensor("swapped", matrix, {.byte_swap = true}));
    tensors.push_back(LazyTensor("f4", stored_run(Dtype::f4, {1300, 4000}, source, 11)));
    tensors.push_back(LazyTensor("f6", stored_run(Dtype::f6_e2m3, {1300, 4000}, source, 2)));
    const Memory memory(tensors);
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    const auto count = [&](const Progress& progress) {
        CHECK(progress.stage == "loading");
        CHECK(progress.bytes_done >= done);
        done = progress.bytes_done;
        total = progress.bytes_total;
        return true;
    };
    load_into(memory.targets, {.monitor = {.on_progress = count}, .threads = 8});
    CHECK(memory.holds_loaded());
    CHECK(done == memory.bytes.size() - tensors.size());
    CHECK(total == done);
}

TEST_CASE("load_into reads neighbours together, and the columns of a matrix about once") {
    const auto source = std::make_shared<Counting>("s", 8'000'000, 9);
    const Memory small(neighbours(source, 2000, 200));
    load_into(small.targets, {.threads = 2});
    CHECK(source->reads == 1);
    CHECK(source->bytes_read == 400'000);
    CHECK(small.holds_loaded());

    const auto matrix = stored_run(Dtype::f32, {1000, 2000}, source, 0);
    std::vector<LazyTensor> columns;
    for (std::uint64_t i = 0; i < 500; ++i)
        columns.emplace_back("c" + std::to_string(i), matrix, StridedView{{1000, 4}, {2000, 1}, std::int64_t(i * 4)});
    std::shuffle(columns.begin(), columns.end(), Random(3));
    const Memory memory(columns);
    source->reads = 0;
    source->bytes_read = 0;
    load_into(memory.targets, {.threads = 2});
    CHECK(source->bytes_read <= 8'800'000);
    CHECK(source->reads <= 20);
    CHECK(memory.holds_loaded());
}

TEST_CASE("several threads load one large tensor") {
    const auto source = std::make_shared<Counting>("s", 12'000'000, 9);
    std::mutex mutex;
    std::condition_variable another;
    unsigned inside = 0;
    source->on_read = [&] {
        std::unique_lock lock(mutex);
        ++inside;
        another.notify_all();
        CHECK(another.wait_for(lock, std::chrono::seconds(60), [&] { return inside > 1; }));
    };
    const LazyTensor tensor("w", stored_run(Dtype::u8, {12'000'000}, source, 0));
    const Memory memory({tensor});
    load_into(memory.targets, {.threads = 2});
}

TEST_CASE("load_into refuses memory of the wrong size before it reads anything") {
    const auto source = std::make_shared<Counting>("s", 100, 1);
    const LazyTensor tensor("w", stored_run(Dtype::f32, {10}, source, 0));
    const LazyTensor huge("huge", stored_run(Dtype::f32, {1}, source, 0), StridedView{{1ULL << 50}, {0}, 0});
    std::vector<std::byte> out(100);
    for (const std::size_t size : {std::size_t{0}, std::size_t{39}, std::size_t{41}}) {
        const LoadTarget targets[] = {{tensor, std::span(out).first(40)},
                                      {tensor.renamed("v"), std::span(out).first(size)}};
        check_error(error_of([&] { load_into(targets); }), {Errc::invalid_argument}, {"40", std::to_string(size)},
                    {.tensor = "v"});
    }
    const LoadTarget expanded[] = {{huge, out}};
    CHECK_FAULT(load_into(expanded), Errc::invalid_argument);
    CHECK(source->reads == 0);
}

TEST_CASE("a failure of any read ends load_into, with the tensor that cannot be read and its file") {
    const auto source = std::make_shared<Counting>("a file", 24'000'000, 9);
    std::vector<LazyTensor> tensors = neighbours(source, 1000, 2'000);  // read together
    tensors.emplace_back("large", stored_run(Dtype::u8, {22'000'000}, source, 2'000'000));
    const Memory memory(tensors);
    for (std::uint64_t bad = 123; bad < source->size(); bad += 997'003) {
        CAPTURE(bad);
        source->bad = bad;
        const std::string tensor = bad < 2'000'000 ? "n" + std::to_string(bad / 2'000) : "large";
        check_error(error_of([&] { load_into(memory.targets, {.threads = 3}); }), {Errc::io_error}, {},
                    {.tensor = tensor, .path = "a file"});
    }
    source->bad = UINT64_MAX;
    source->changed = true;
    check_error(error_of([&] { load_into(memory.targets); }), {Errc::file_changed}, {}, {.path = "a file"});
    source->changed = false;
    CHECK_OK(load_into(memory.targets));
    CHECK(memory.holds_loaded());
}

TEST_CASE("load_into is cancelled within a block of each thread") {
    const auto source = std::make_shared<Counting>("s", 20'000'000, 9);
    const LazyTensor tensor("w", stored_run(Dtype::u8, {20'000'000}, source, 0));
    const Memory memory({tensor});
    std::stop_source stop;
    source->on_read = [&] { stop.request_stop(); };
    CHECK_FAULT(load_into(memory.targets, {.monitor = {.stop = stop.get_token()}, .threads = 2}), Errc::cancelled);
    CHECK(source->reads <= 2);
    source->reads = 0;
    CHECK_FAULT(load_into(memory.targets, {.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
    CHECK_FAULT(load_into(memory.targets, {.monitor = {.on_progress = [](const Progress&) { return false; }}}),
                Errc::cancelled);
    const auto fail = [](const Progress&) -> bool { throw std::runtime_error("of the caller"); };
    CHECK_THROWS_AS(load_into(memory.targets, {.monitor = {.on_progress = fail}}), std::runtime_error);
    CHECK(source->reads == 0);
}

}  // namespace together_test
