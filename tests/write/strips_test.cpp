// Tests of saves and digests of many views of one storage, such as its columns: bytes against each view read alone, and
// against an element at a time; how much is read. From top to bottom: random views, the twin, cuts, reads.
#include "lazy/strips.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/digest.hpp>

#include "base/checksum.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"
#include "write/cuts.hpp"
#include "write/samples.hpp"
#include "write/thread_team.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

namespace strips_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;
using write::Cut;

namespace {

using Random = std::mt19937;

std::uint64_t below(Random& random, std::uint64_t n) { return random() % n; }

std::string name_of(std::uint64_t i) {
    const std::string digits = std::to_string(i);
    return "v" + std::string(5 - digits.size(), '0') + digits;
}

/// A matrix in memory, and views of it.
struct Views {
    Dtype dtype;
    std::uint64_t rows;
    std::uint64_t columns;
    std::vector<std::byte> bytes;
    std::shared_ptr<std::atomic<std::uint64_t>> read = std::make_shared<std::atomic<std::uint64_t>>(0);
    std::shared_ptr<const StoredTensor> stored = {};
    std::vector<LazyTensor> tensors = {};

    Views(Dtype dtype_, std::uint64_t rows_, std::uint64_t columns_, std::uint64_t seed)
        : dtype(dtype_),
          rows(rows_),
          columns(columns_),
          bytes(random_bytes(static_cast<std::size_t>(rows * columns * element_size(dtype)), seed)) {
        const auto shared = std::make_shared<const std::vector<std::byte>>(bytes);
        auto source =
            callback_source("matrix", bytes.size(), [=, read = read](std::uint64_t at, std::span<std::byte> into) {
                *read += into.size();
                std::memcpy(into.data(), shared->data() + at, into.size());
            });
        stored = stored_run(dtype, {rows, columns}, std::move(source), 0);
    }

    void add(StridedView view) { tensors.emplace_back(name_of(tensors.size()), stored, std::move(view)); }
    void add_columns(std::uint64_t count) {
        for (std::uint64_t i = 0; i < count; ++i)
            add({{rows}, {static_cast<std::int64_t>(columns)}, static_cast<std::int64_t>(i)});
    }
};

/// Returns views that are columns, strips of columns, every n-th row of them, and others between them.
Views random_views(Random& random) {
    constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::u8, Dtype::f64, Dtype::c64};
    Views views(dtypes[below(random, std::size(dtypes))], 1 + below(random, 3'000), 1 + below(random, 300), random());
    const auto pitch = static_cast<std::int64_t>(views.columns);
    while (views.tensors.size() < 40) {
        const std::uint64_t width = 1 + below(random, std::min<std::uint64_t>(views.columns, 4));
        const std::uint64_t step = 1 + below(random, 3);
        const std::uint64_t rows = (views.rows - 1) / step + 1;
        for (std::uint64_t n = 1 + below(random, 30); n > 0; --n) {
            const auto first = static_cast<std::int64_t>(below(random, views.columns - width + 1));
            StridedView view{{rows, width}, {pitch * static_cast<std::int64_t>(step), 1}, first};
            if (below(random, 20) == 0)
                std::swap(view.shape[0], view.shape[1]), std::swap(view.strides[0], view.strides[1]);
            if (below(random, 20) == 0) view = {{rows, 2}, {pitch * static_cast<std::int64_t>(step), 0}, first};
            if (below(random, 40) == 0) view = {{0, 5}, {5, 1}, 0};
            views.add(std::move(view));
        }
    }
    return views;
}

void check_file(const Views& views, const fs::path& path) {
    const auto file = read_file(path);
    REQUIRE(file.size() == views.tensors.size());
    for (const LazyTensor& tensor : views.tensors) {
        CAPTURE(tensor.name());
        REQUIRE(file.at(tensor.name()).bytes == value_of(tensor, views.bytes));
    }
}

void check_digests(const Views& views, const fs::path& path) {
    const CheckpointDigests found = digests(Checkpoint::open(path));
    for (const TensorDigest& each : found.tensors)
        for (const LazyTensor& tensor : views.tensors)
            if (tensor.name() == each.name) CHECK(digest(tensor) == each.digest);
}

write::PlannedFile file_of(const Views& views) {
    write::PlannedFile file;
    file.size = 4096;
    for (std::uint32_t i = 0; i < views.tensors.size(); ++i) {
        file.tensors.push_back({.offset = file.size, .number = i, .dtype = views.dtype});
        file.size += views.tensors[i].nbytes();
    }
    return file;
}

}  // namespace

TEST_CASE("random views of one storage are written as each is read alone") {
    const TempDir dir;
    Random random(soak::seed(14));
    for (int round = 0; round < soak::rounds(60); ++round) {
        const Views views = random_views(random);
        SaveOptions options{.checksums = below(random, 2) == 0, .overwrite = true};
        options.work.threads = static_cast<unsigned>(1 + below(random, 12));
        save(dir / "out.safetensors", views.tensors, options);
        check_file(views, dir / "out.safetensors");
        for (const LazyTensor& tensor : views.tensors) {
            std::vector<std::byte> alone(static_cast<std::size_t>(tensor.nbytes()));
            tensor.read(0, alone);
            REQUIRE(alone == value_of(tensor, views.bytes));
        }
        if (options.checksums) check_digests(views, dir / "out.safetensors");
    }
}

TEST_CASE("strips are cast, hashed and written by several processes as each is alone") {
    const TempDir dir;
    Views views(Dtype::f32, 20'000, 40, 3);
    views.add_columns(40);
    const SaveOptions options{.dtype = Dtype::bf16, .checksums = true};
    std::vector<LazyTensor> alone;
    for (const LazyTensor& tensor : views.tensors) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.nbytes()));
        tensor.read(0, bytes);
        alone.emplace_back(tensor.name(),
                           stored_run(Dtype::f32, tensor.shape(), memory_source("m", std::move(bytes)), 0));
    }
    const SaveReport expected = save(dir / "alone.safetensors", alone, options);
    const std::string bytes = TempDir::read(dir / "alone.safetensors");
    for (const unsigned threads : {1U, 3U, 12U}) {
        SaveOptions own = options;
        own.work.threads = threads;
        own.overwrite = true;
        const SaveReport report = save(dir / "out.safetensors", views.tensors, own);
        CHECK(TempDir::read(dir / "out.safetensors") == bytes);
        REQUIRE(report.casts.size() == 1);
        CHECK(report.casts[0].values == expected.casts[0].values);
    }
    for (const unsigned ranks : {2U, 3U, 7U}) {
        for (const auto& error : thread_team::on_ranks(ranks, [&](thread_team::Member& team) {
                 SaveOptions own = options;
                 own.team = &team;
                 own.overwrite = true;
                 save(dir / "team.safetensors", views.tensors, own);
             }))
            CHECK(error == nullptr);
        CHECK(TempDir::read(dir / "team.safetensors") == bytes);
    }
}

TEST_CASE("units of strips have every byte of every strip once, and fit the buffer") {
    Random random(soak::seed(5));
    for (int round = 0; round < soak::rounds_of_one_thread(2'000); ++round) {
        Views views(Dtype::f32, 2 + below(random, 3'000), 2 + below(random, 20), 1);
        views.add_columns(1);
        const auto count = static_cast<std::size_t>(1 + below(random, 5'000));
        const std::uint64_t buffer = 16 + below(random, 9'000'000);
        const Strips strips(views.tensors[0], Dtype::f32, count, buffer);
        std::vector<std::uint64_t> done(count, 0);
        for (std::uint64_t i = 0; i < strips.units(); ++i) {
            const Strips::Unit unit = strips.unit(i);
            REQUIRE(unit.bytes() > 0);
            REQUIRE(unit.bytes() <= buffer);
            REQUIRE(unit.part.offset % 4 == 0);
            for (std::size_t k = 0; k < unit.count; ++k) {
                REQUIRE(done[unit.first + k] == unit.part.offset);
                done[unit.first + k] = unit.part.end();
                if (unit.part.end() == views.tensors[0].nbytes()) CHECK(strips.last_unit_of(unit.first + k) == i);
            }
        }
        CHECK(std::all_of(done.begin(), done.end(), [&](auto end) { return end == views.tensors[0].nbytes(); }));
    }
}

TEST_CASE("columns of one matrix are one stretch, and views of other kinds are not in it") {
    Views views(Dtype::f32, 20'000, 40, 1);
    views.add_columns(20);
    views.add({{20'000, 39}, {40, 1}, 0});  // another shape
    views.add_columns(1);
    views.add({{20'000, 30}, {40, 1}, 0});
    const std::vector<Cut> cuts = write::cuts_of(views.tensors, file_of(views), 12_MiB);
    REQUIRE(cuts.size() == 4);
    CHECK(cuts[0].kind == Cut::Kind::strips);
    CHECK(cuts[0].count == 20);
    CHECK(cuts[0].bytes == Extent{4096, 20 * 80'000});
    for (std::size_t i = 1; i < 4; ++i) CHECK(cuts[i].kind == Cut::Kind::blocks);
}

TEST_CASE("the columns of a matrix are read once to write them, and once to hash them") {
    const TempDir dir;
    Views views(Dtype::f32, 20'000, 200, 1);  // 16 MB
    views.add_columns(200);
    SaveOptions options{.checksums = true};
    options.work.threads = 1;
    save(dir / "out.safetensors", views.tensors, options);
    CHECK(*views.read <= views.bytes.size() + 1_MiB);
    check_file(views, dir / "out.safetensors");
}

TEST_CASE("a narrow matrix is written transposed in long parts") {
    const TempDir dir;
    Views views(Dtype::bf16, 1'000'000, 3, 1);
    views.add({{3, 1'000'000}, {1, 3}, 0});
    save(dir / "out.safetensors", views.tensors);
    CHECK(*views.read <= views.bytes.size() + 1_MiB);
    check_file(views, dir / "out.safetensors");
}

}  // namespace strips_test
