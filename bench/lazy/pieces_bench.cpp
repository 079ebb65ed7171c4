// Times tensors in pieces: describing where the pieces of a large training run are, and reading the same bytes when
// each file holds some columns, some rows and columns, or some rows.

#include "lazy/blocks.hpp"
#include "lazy/gatherer.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

using namespace safemap;

namespace {

/// Returns the element counts of the 1,137 parameters of Llama 3.1 405B.
std::vector<std::uint64_t> parameters() {
    constexpr std::uint64_t hidden = 16'384;
    constexpr std::uint64_t ffn = 53'248;
    constexpr std::uint64_t heads = 1'024;
    constexpr std::uint64_t words = 128'256;
    std::vector<std::uint64_t> sizes = {words * hidden, hidden, words * hidden};
    for (int layer = 0; layer < 126; ++layer)
        sizes.insert(sizes.end(), {hidden * hidden, heads * hidden, heads * hidden, hidden * hidden, ffn * hidden,
                                   ffn * hidden, hidden * ffn, hidden, hidden});
    return sizes;
}

/// The layout of ZeRO-3: each parameter is cut into one part per rank.
void describe(benchmark::State& state) {
    const auto ranks = static_cast<std::uint32_t>(state.range(0));
    std::vector<std::shared_ptr<const Source>> sources;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
        sources.push_back(callback_source("rank", 1ULL << 50, [](auto, auto) {}));
    const std::vector<std::uint64_t> sizes = parameters();
    for (auto _ : state) {
        const auto table = std::make_shared<const SourceTable>(sources);
        std::vector<std::shared_ptr<const StoredTensor>> tensors;
        std::vector<IndexedRun> runs;
        std::uint64_t offset = 0;
        for (const std::uint64_t size : sizes) {
            const std::uint64_t part = (size - 1) / ranks + 1;
            runs.clear();
            for (std::uint32_t rank = 0; rank * part < size; ++rank)
                runs.push_back({offset, rank * part, std::min(part, size - rank * part), rank});
            tensors.push_back(stored_runs(Dtype::bf16, {size}, table, runs));
            offset += part * 2;
        }
        state.PauseTiming();
        tensors.clear();
        state.ResumeTiming();
    }
}

constexpr std::uint64_t side = 8'192;
constexpr std::uint64_t total = side * side * 4;

/// A folder with one file per rank, each with the same number of bytes.
class Ranks {
public:
    explicit Ranks(std::uint64_t count) {
        std::filesystem::create_directories(folder_);
        const std::string bytes(static_cast<std::size_t>(total / count), 'x');
        for (std::uint64_t rank = 0; rank < count; ++rank) {
            const std::filesystem::path path = folder_ / std::to_string(rank);
            std::ofstream(path, std::ios::binary) << bytes;
            files.push_back(open_file(path));
        }
    }
    ~Ranks() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    std::vector<std::shared_ptr<const Source>> files;

private:
    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("safemap-pieces-bench-" + std::to_string(::getpid()));
};

/// Reads the whole tensor as a save does: ranges of 1 MiB, or whole rows of up to 8 MiB.
void read_all(benchmark::State& state, const LazyTensor& tensor) {
    const Blocks blocks = Blocks::for_disk(tensor, Blocks::wants_rows(tensor) ? 8_MiB : 1_MiB);
    std::vector<std::byte> buffer(8_MiB);
    Gatherer gatherer;
    for (auto _ : state)
        for (std::uint64_t i = 0; i < blocks.count(); ++i) {
            const Extent range = blocks.range(i);
            gatherer.fill(tensor, range.offset, std::span(buffer).first(range.size));
            benchmark::ClobberMemory();
        }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(total));
}

/// Each rank holds some whole rows.
void runs(benchmark::State& state) {
    const Ranks ranks(static_cast<std::uint64_t>(state.range(0)));
    const std::uint64_t each = side * side / ranks.files.size();
    std::vector<RunPiece> pieces;
    for (const auto& file : ranks.files) pieces.push_back({file, 0, pieces.size() * each, each});
    read_all(state, {"w", stored_runs(Dtype::f32, {side, side}, pieces)});
}

/// The ranks form a grid.
void boxes(benchmark::State& state) {
    const auto rows = static_cast<std::uint64_t>(state.range(0));
    const auto columns = static_cast<std::uint64_t>(state.range(1));
    const Ranks ranks(rows * columns);
    const Shape extent = {side / rows, side / columns};
    std::vector<BoxPiece> pieces;
    for (const auto& file : ranks.files) {
        const std::uint64_t rank = pieces.size();
        const Shape start = {rank / columns * extent[0], rank % columns * extent[1]};
        pieces.push_back({file, 0, {start, extent}, row_major(extent)});
    }
    read_all(state, {"w", stored_boxes(Dtype::f32, {side, side}, pieces)});
}

/// The loop that one would write by hand, on the same files and blocks: a read for each file that a block touches, and
/// a copy for each row of it. The difference from `boxes` is the overhead of the library, not of the machine.
void bare(benchmark::State& state) {
    const auto rows = static_cast<std::uint64_t>(state.range(0));
    const auto columns = static_cast<std::uint64_t>(state.range(1));
    const Ranks ranks(rows * columns);
    const std::uint64_t height = side / rows;
    const std::uint64_t width = side / columns * 4;
    const std::uint64_t at_once = std::min(height, 8_MiB / (side * 4));
    std::vector<std::byte> buffer(8_MiB);
    std::vector<std::byte> piece(static_cast<std::size_t>(at_once * width));
    for (auto _ : state)
        for (std::uint64_t first = 0; first < side; first += at_once)
            for (std::uint64_t column = 0; column < columns; ++column) {
                ranks.files[first / height * columns + column]->read_at(first % height * width, piece);
                for (std::uint64_t row = 0; row < at_once; ++row)
                    std::memcpy(&buffer[row * side * 4 + column * width], &piece[row * width], width);
                benchmark::ClobberMemory();
            }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(total));
}

BENCHMARK(describe)->ArgName("ranks")->Arg(192)->Arg(1'024)->Arg(4'096)->Unit(benchmark::kMillisecond);
BENCHMARK(runs)->ArgName("ranks")->Arg(8)->Arg(64)->Arg(1'024)->UseRealTime()->Unit(benchmark::kMillisecond);
/// The numbers of rows and columns in the grids that `boxes` and `bare` read.
void grids(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"rows", "columns"})->Args({2, 4})->Args({8, 8})->Args({32, 32})->Args({1, 64})->Args({1, 1'024});
    bench->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(boxes)->Apply(grids);
BENCHMARK(bare)->Apply(grids);

}  // namespace

BENCHMARK_MAIN();
