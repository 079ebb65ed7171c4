// Times saving: a hundred thousand small tensors, whose cost is in names, headers and the index; and 256 MiB of tensors
// that lie in memory, by save() and by a ShardWriter, whose cost is in bytes.
#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/save.hpp>
#include <safemap/source.hpp>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace safemap;

std::vector<LazyTensor> small_tensors(std::size_t count) {
    const auto source = memory_source("memory", std::vector<std::byte>(count * 4));
    std::vector<LazyTensor> tensors;
    tensors.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
        tensors.emplace_back("model.layers." + std::to_string(i / 12) + ".weight_" + std::to_string(i % 12),
                             stored_run(Dtype::f32, {1}, source, i * 4));
    return tensors;
}

/// Returns a path in /dev/shm if there is one.
std::filesystem::path output() {
    const std::filesystem::path folder =
        std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
    return folder / ("safemap-save-bench-" + std::to_string(::getpid()));
}

/// Calls write(out) for each round, and removes `out` after it.
template <class Write> void each_round(benchmark::State& state, Write&& write) {
    const std::filesystem::path out = output();
    for (auto _ : state) {
        write(out);
        state.PauseTiming();
        std::filesystem::remove_all(out);
        state.ResumeTiming();
    }
}

/// Saves to one file, or to a hundred shards and an index.
void save_many(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const std::vector<LazyTensor> tensors = small_tensors(count);
    SaveOptions options{.max_shard_size = count * 4 / static_cast<std::uint64_t>(state.range(1))};
    options.checksums = state.range(2) != 0;
    each_round(state, [&](const std::filesystem::path& out) { save(out, tensors, options); });
    state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(save_many)
    ->Name("save")
    ->ArgNames({"tensors", "shards", "checksums"})
    ->Args({100'000, 1, 0})
    ->Args({100'000, 100, 0})
    ->Args({100'000, 100, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Returns 256 MiB of tensors, each in memory of its own.
std::vector<LazyTensor> tensors_in_memory(std::uint64_t rows) {
    constexpr std::uint64_t columns = 4096;
    std::vector<LazyTensor> tensors;
    for (std::uint64_t left = (256U << 20) / (2 * columns); left >= rows; left -= rows)
        tensors.emplace_back("w" + std::to_string(left),
                             stored_run(Dtype::bf16, {rows, columns},
                                        memory_source("w", std::vector<std::byte>(2 * rows * columns)), 0));
    return tensors;
}

void save_memory(benchmark::State& state) {
    const std::vector<LazyTensor> tensors = tensors_in_memory(static_cast<std::uint64_t>(state.range(0)));
    SaveOptions options{.checksums = state.range(1) != 0, .durable = false};
    each_round(state, [&](const std::filesystem::path& out) { save(out, tensors, options); });
}

void write_memory(benchmark::State& state) {
    const std::vector<LazyTensor> tensors = tensors_in_memory(static_cast<std::uint64_t>(state.range(0)));
    std::vector<Declaration> declared;
    for (const LazyTensor& each : tensors) declared.push_back({each.name(), each.dtype(), each.shape()});
    SaveOptions options{.checksums = state.range(1) != 0, .durable = false};
    each_round(state, [&](const std::filesystem::path& out) {
        ShardWriter writer(out, declared, options);
        for (const LazyTensor& each : tensors) writer.write(each.name(), each.view());
        static_cast<void>(writer.commit());
    });
}

void sizes(benchmark::internal::Benchmark* bench) {
    for (const int checksums : {0, 1})
        for (const int rows : {64, 2048}) bench->Args({rows, checksums});
    bench->ArgNames({"rows", "checksums"})->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(save_memory)->Apply(sizes);
BENCHMARK(write_memory)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
