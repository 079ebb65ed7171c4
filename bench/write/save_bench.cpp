// Times saving a hundred thousand small tensors: the cost is in names, headers and the index, not in bytes.
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

/// Saves to one file, or to a hundred shards and an index; in /dev/shm if there is one.
void save_many(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const std::vector<LazyTensor> tensors = small_tensors(count);
    SaveOptions options{.max_shard_size = count * 4 / static_cast<std::uint64_t>(state.range(1))};
    options.checksums = state.range(2) != 0;
    const std::filesystem::path folder =
        std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
    const std::filesystem::path out = folder / ("safemap-save-bench-" + std::to_string(::getpid()));
    for (auto _ : state) {
        save(out, tensors, options);
        state.PauseTiming();
        std::filesystem::remove_all(out);
        state.ResumeTiming();
    }
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

}  // namespace

BENCHMARK_MAIN();
