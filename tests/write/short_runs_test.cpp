// Tests of saves from many sources: how files are cut, how many reads a save takes, and that bytes, digests, counts and
// faults are those of tensors in one piece. From top to bottom: tensors cut over sources, cuts, reads, bytes, faults.
#include "write/cuts.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include "base/pool.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"
#include "write/samples.hpp"
#include "write/write_files.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

namespace short_runs_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;
using write::Cut;

namespace {

struct Log {
    std::atomic<std::uint64_t> reads = 0;
    std::atomic<std::uint64_t> longest = 0;
};

std::shared_ptr<const Source> logged(const std::shared_ptr<Log>& log, std::string name, std::vector<std::byte> bytes) {
    const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return callback_source(std::move(name), shared->size(), [=](std::uint64_t offset, std::span<std::byte> into) {
        ++log->reads;
        log->longest = std::max<std::uint64_t>(log->longest, into.size());
        std::memcpy(into.data(), shared->data() + offset, into.size());
    });
}

/// Tensors over many sources: the n-th piece of each is in the n-th source, behind that of the tensor before. Twins are
/// the same tensors, each in one piece in memory.
struct Sharded {
    std::vector<LazyTensor> tensors = {};
    std::vector<LazyTensor> twins = {};
    std::shared_ptr<Log> log = std::make_shared<Log>();

    Sharded(std::size_t ranks, const std::vector<LazyTensor>& whole) : twins(whole) {
        std::vector<std::vector<std::byte>> files(ranks);
        std::vector<std::vector<IndexedRun>> runs;
        for (const LazyTensor& tensor : whole) runs.push_back(cut(tensor, files));
        std::vector<std::shared_ptr<const Source>> sources;
        for (std::size_t r = 0; r < ranks; ++r)
            sources.push_back(logged(log, "rank " + std::to_string(r), std::move(files[r])));
        const auto table = std::make_shared<const SourceTable>(std::move(sources));
        for (std::size_t i = 0; i < whole.size(); ++i)
            tensors.emplace_back(whole[i].name(), stored_runs(whole[i].dtype(), whole[i].shape(), table, runs[i]));
    }

private:
    static std::vector<IndexedRun> cut(const LazyTensor& tensor, std::vector<std::vector<std::byte>>& files) {
        const std::uint64_t size = element_size(tensor.dtype());
        const std::uint64_t count = tensor.element_count();
        const std::uint64_t each = (count + files.size() - 1) / files.size();
        std::vector<std::byte> bytes(static_cast<std::size_t>(count * size));
        tensor.read(0, bytes);
        std::vector<IndexedRun> runs;
        for (std::uint64_t first = 0, r = 0; first < count; first += each, ++r) {
            const std::uint64_t n = std::min(each, count - first);
            runs.push_back({files[r].size(), first, n, static_cast<std::uint32_t>(r)});
            const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(first * size);
            files[r].insert(files[r].end(), from, from + static_cast<std::ptrdiff_t>(n * size));
        }
        return runs;
    }
};

std::string numbered(std::string_view name, std::size_t i) {
    const std::string digits = std::to_string(i);
    return std::string(name) + std::string(4 - digits.size(), '0') + digits;
}

std::vector<LazyTensor> experts(std::size_t count, Dtype dtype, std::uint64_t side) {
    std::vector<LazyTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(tensor(numbered("e", i), dtype, {side, side}, i + 1));
    return tensors;
}

/// Many small tensors of several dtypes, tensors without elements, and large ones between them.
std::vector<LazyTensor> mixed() {
    std::vector<LazyTensor> tensors;
    constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::u8, Dtype::f64, Dtype::f16};
    for (std::size_t i = 0; i < 300; ++i) {
        const std::uint64_t rows = i % 17 == 0 ? 0 : 1 + i * 7 % 60;
        const std::uint64_t columns = i % 100 == 50 ? 20'000 : 1 + i * 11 % 300;
        tensors.push_back(tensor(numbered("t", i), dtypes[i % std::size(dtypes)], {rows, columns}, i));
    }
    return tensors;
}

write::PlannedFile file_of(std::span<const LazyTensor> tensors, std::uint64_t head) {
    write::PlannedFile file;
    file.size = head;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        file.tensors.push_back({.offset = file.size, .number = i, .dtype = tensors[i].dtype()});
        file.size += tensors[i].nbytes();
    }
    return file;
}

LazyTensor in_runs(std::string name, std::uint64_t size, std::uint64_t run) {
    static const auto source = callback_source("never read", 1_GiB, [](std::uint64_t, std::span<std::byte>) {});
    std::vector<RunPiece> runs;
    for (std::uint64_t first = 0; first < size; first += run)
        runs.push_back({source, first % 2 * 512_MiB + first, first, std::min(run, size - first)});
    return {std::move(name), stored_runs(Dtype::u8, {size}, runs)};
}

std::uint64_t buffer_of(unsigned threads) { return Workers::buffer_size(threads, 1, write::largest_buffer); }

}  // namespace

TEST_CASE("stretches of short runs have large blocks, and all others have blocks of 1 MiB") {
    const std::vector<LazyTensor> tensors = {in_runs("a", 20_MiB, 1_MiB), in_runs("b", 20_MiB, 4000),
                                             in_runs("c", 40_MiB, 40'000)};
    const write::PlannedFile file = file_of(tensors, 1000);
    const std::vector<Cut> cuts = write::cuts_of(tensors, file, buffer_of(2));
    REQUIRE(cuts.size() == 3);
    CHECK(cuts[0].bytes == Extent{1000, 16_MiB - 1000});
    CHECK(cuts[0].block == 1_MiB);
    CHECK(cuts[0].units() == 16);
    CHECK(cuts[1].bytes == Extent{16_MiB, 24_MiB});  // half of the first window is of the first tensor
    CHECK(cuts[1].block == 8_MiB);
    CHECK(cuts[1].first == 0);
    CHECK(cuts[1].count == 2);
    CHECK(cuts[1].units() == 3);
    CHECK(cuts[2].bytes == Extent{40_MiB, 40_MiB + 1000});
    CHECK(cuts[2].block == 1_MiB);
}

TEST_CASE("a tensor of any size is cut at once") {
    const auto source = callback_source("never read", UINT64_MAX, [](std::uint64_t, std::span<std::byte>) {});
    const std::vector<LazyTensor> tensors = {
        {"small", stored_run(Dtype::u8, {1000}, source, 0)},
        {"large", stored_run(Dtype::u8, {std::uint64_t{1} << 60}, source, 1000)},
    };
    const write::PlannedFile file = file_of(tensors, 500);
    const std::vector<Cut> cuts = write::cuts_of(tensors, file, buffer_of(2));
    REQUIRE(cuts.size() == 1);
    CHECK(cuts[0].bytes == Extent{500, (std::uint64_t{1} << 60) + 1000});
    CHECK(cuts[0].block == 1_MiB);
}

TEST_CASE("the stored elements of casts get a place in the buffer, and the blocks are smaller") {
    const std::vector<LazyTensor> tensors = experts(20, Dtype::f32, 60);
    write::PlannedFile file = file_of(tensors, 800);
    for (write::PlannedTensor& tensor : file.tensors) tensor.dtype = Dtype::bf16;
    struct Row {
        unsigned threads;
        std::uint64_t block;
        std::uint64_t scratch;
    };
    for (const Row& row : {Row{1, 4_MiB, 8_MiB}, Row{2, 4_MiB, 8_MiB}, Row{4, 1_MiB, 2_MiB}, Row{8, 1_MiB, 0}}) {
        CAPTURE(row.threads);
        const std::vector<Cut> cuts = write::cuts_of(tensors, file, buffer_of(row.threads));
        REQUIRE(cuts.size() == 1);
        CHECK(cuts[0].block == row.block);
        CHECK(cuts[0].scratch == row.scratch);
    }
}

TEST_CASE("the units of all stretches cover every byte of every tensor once") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 200; ++round) {
        CAPTURE(round);
        std::vector<LazyTensor> tensors;
        for (std::uint64_t i = random() % 20; i > 0; --i) {
            const std::uint64_t size = random() % 3 == 0 ? random() % 30'000'000 : random() % 300'000 / 8 * 8;
            tensors.push_back(
                in_runs("t", random() % 9 == 0 ? 0 : size, std::max<std::uint64_t>(size / 700, 8) << random() % 6));
        }
        const std::uint64_t head = 8 + random() % 20'000'000;
        const write::PlannedFile file = file_of(tensors, head);
        const std::uint64_t buffer = buffer_of(1 + static_cast<unsigned>(random() % 8));
        std::uint64_t covered = head;
        for (const Cut& cut : write::cuts_of(tensors, file, buffer)) {
            CHECK(cut.bytes.offset == covered);
            REQUIRE(cut.count > 0);
            CHECK(file.tensors[cut.first].offset <= cut.bytes.offset);
            CHECK(cut.bytes.offset < write::end_of(file, cut.first));
            CHECK(cut.bytes.end() <= write::end_of(file, cut.first + cut.count - 1));
            for (std::uint64_t i = 0; i < cut.units(); ++i) {
                const Extent unit = cut.unit(i);
                CHECK(unit.offset == covered);
                CHECK(unit.size > 0);
                CHECK(unit.size + cut.scratch + Worker::page <= buffer);
                covered = unit.end();
                CHECK((covered % cut.block == 0 || covered == cut.bytes.end()));
            }
            CHECK(covered == cut.bytes.end());
        }
        CHECK(covered == file.size);
    }
}

TEST_CASE("small tensors in short runs over 64 sources are saved with one read for each block and source") {
    const TempDir dir;
    const Sharded model(64, experts(48, Dtype::bf16, 512));  // 24 MiB, in 3,072 runs of 8 KiB
    save(dir / "out.safetensors", model.tensors, {.work = {.threads = 1}});
    CHECK(model.log->reads <= 64 * 4);  // a block at the end has the bytes that the header moved
    const auto stored = read_file(dir / "out.safetensors");
    for (const LazyTensor& twin : model.twins) {
        std::vector<std::byte> value(static_cast<std::size_t>(twin.nbytes()));
        twin.read(0, value);
        REQUIRE(stored.at(twin.name()).bytes == value);
    }
}

TEST_CASE("small tensors in short runs that are cast are saved with few reads") {
    const TempDir dir;
    const Sharded model(64, experts(96, Dtype::f32, 256));  // 24 MiB as F32, in 6,144 runs of 4 KiB
    save(dir / "out.safetensors", model.tensors, {.dtype = Dtype::bf16, .work = {.threads = 1}});
    CHECK(model.log->reads <= 64 * 4);
}

TEST_CASE("tensors in long runs are read in blocks of 1 MiB") {
    const TempDir dir;
    const Sharded model(4, experts(4, Dtype::f32, 1024));
    save(dir / "out.safetensors", model.tensors);
    CHECK(model.log->longest <= 1_MiB);
    CHECK(model.log->reads >= 16);
}

TEST_CASE("tensors over many sources give the bytes, digests and reports of tensors in one piece") {
    const TempDir dir;
    soak::Sample sample(3);
    for (const std::vector<LazyTensor>& whole : {mixed(), experts(70, Dtype::f32, 300)})
        for (const std::optional<Dtype> dtype :
             {std::optional<Dtype>(), std::optional(Dtype::bf16), std::optional(Dtype::f64)})
            for (const unsigned threads : {1U, 2U, 8U}) {
                if (!sample.next()) continue;
                CAPTURE(threads);
                CAPTURE(dtype.has_value());
                const Sharded model(61, whole);
                SaveOptions options{.dtype = dtype, .max_shard_size = 15'000'000, .checksums = true, .overwrite = true};
                options.work.threads = threads;
                const SaveReport report = save(dir / "out", model.tensors, options);
                const SaveReport expected = save(dir / "twin", model.twins, options);
                REQUIRE(report.files == expected.files);
                for (const std::string& file : report.files)
                    REQUIRE(TempDir::read(dir / "out" / file) == TempDir::read(dir / "twin" / file));
                CHECK(report.bytes_read == expected.bytes_read);
                REQUIRE(report.casts.size() == expected.casts.size());
                for (std::size_t i = 0; i < report.casts.size(); ++i) {
                    CHECK(report.casts[i].from == expected.casts[i].from);
                    CHECK(report.casts[i].tensors == expected.casts[i].tensors);
                    CHECK(report.casts[i].values == expected.casts[i].values);
                    CHECK(report.casts[i].overflowed == expected.casts[i].overflowed);
                    CHECK(report.casts[i].non_finite == expected.casts[i].non_finite);
                }
                CHECK(report.layout.buffer_bytes <= 33_MiB);
            }
}

TEST_CASE("the plan counts large blocks, and the place for the elements of casts") {
    const TempDir dir;
    const Sharded model(64, experts(64, Dtype::f32, 256));
    const auto planned = [&](SaveOptions options) {
        options.plan_only = true;
        options.work.threads = 1;
        return save(dir / "out", model.tensors, options).layout.buffer_bytes;
    };
    CHECK(planned({}) >= 8_MiB);
    CHECK(planned({}) <= 12_MiB);
    CHECK(planned({.dtype = Dtype::bf16}) >= 12_MiB);
    CHECK(planned({.dtype = Dtype::bf16}) <= 16_MiB);
}

TEST_CASE("a source that fails in the middle of a block is reported with the tensor and the file") {
    const TempDir dir;
    const auto good = memory_source("good", random_bytes(1'000'000, 1));
    const auto bad = callback_source("bad", 1'000'000, [](std::uint64_t offset, std::span<std::byte> into) {
        if (offset <= 345'678 && offset + into.size() > 345'678) throw Error(Errc::io_error, "a bad sector");
        std::memset(into.data(), 0, into.size());
    });
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 100; ++i)
        tensors.emplace_back(numbered("t", i), stored_runs(Dtype::u8, {20'000},
                                                           std::vector<RunPiece>{{good, i * 10'000, 0, 10'000},
                                                                                 {bad, i * 10'000, 10'000, 10'000}}));
    for (const unsigned threads : {1U, 2U}) {
        const auto error =
            error_of([&] { save(dir / "out", tensors, {.checksums = true, .work = {.threads = threads}}); });
        REQUIRE(error);
        CHECK(error->code() == Errc::io_error);
        CHECK(error->tensor() == "t0034");
        CHECK(error->path() == "bad");
        CHECK(fs::is_empty(dir.path()));
    }
}

TEST_CASE("a stop request ends a save between two tensors of a block") {
    const TempDir dir;
    for (const std::uint64_t size : {20'000U, 2'000U}) {  // read one by one, and together
        CAPTURE(size);
        std::stop_source stop;
        std::atomic<int> reads = 0;
        std::vector<LazyTensor> tensors;
        for (std::size_t i = 0; i < 40; ++i) {
            auto source = callback_source("slow", size, [&](std::uint64_t, std::span<std::byte> into) {
                ++reads;
                std::memset(into.data(), 0, into.size());
                stop.request_stop();
            });
            tensors.emplace_back(numbered("t", i), stored_run(Dtype::u8, {size}, std::move(source), 0));
        }
        SaveOptions options;
        options.work = {.monitor = {.stop = stop.get_token()}, .threads = 1};
        check_error(error_of([&] { save(dir / "out", tensors, options); }), {Errc::cancelled}, {},
                    {.tensor = "", .path = ""});
        CHECK(reads == 1);
        CHECK(fs::is_empty(dir.path()));
    }
}

TEST_CASE("two hundred files of ranks are read with sixty-four descriptors") {
    const TempDir dir;
    const std::vector<LazyTensor> whole = experts(30, Dtype::f32, 100);
    std::vector<std::shared_ptr<const Source>> sources;
    std::vector<std::vector<std::byte>> files(200);
    for (const LazyTensor& tensor : whole) {
        std::vector<std::byte> bytes(40'000);
        tensor.read(0, bytes);
        for (std::size_t r = 0; r < 200; ++r) files[r].insert(files[r].end(), &bytes[r * 200], &bytes[r * 200] + 200);
    }
    for (std::size_t r = 0; r < 200; ++r) {
        const auto* const bytes = reinterpret_cast<const char*>(files[r].data());
        dir.write(std::to_string(r), {bytes, files[r].size()});
    }
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
        if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
        const auto error = error_of([&] {
            for (std::size_t r = 0; r < 200; ++r) sources.push_back(open_file(dir / std::to_string(r)));
            std::vector<LazyTensor> tensors;
            for (std::size_t i = 0; i < whole.size(); ++i) {
                std::vector<RunPiece> runs;
                for (std::size_t r = 0; r < 200; ++r) runs.push_back({sources[r], i * 200, r * 50, 50});
                tensors.emplace_back(whole[i].name(), stored_runs(Dtype::f32, {100, 100}, runs));
            }
            save(dir / "out", tensors);
        });
        ::_exit(error ? 1 : 0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    save(dir / "twin", whole);
    CHECK(TempDir::read(dir / "out/model.safetensors") == TempDir::read(dir / "twin/model.safetensors"));
}

}  // namespace short_runs_test
