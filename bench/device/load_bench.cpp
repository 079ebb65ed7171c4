// Times Uploader::acquire(): the cost of a resident tensor, and of uploading one, compared with reading it.

#include "device/upload_engine.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/device.hpp>
#include <safemap/lazy_tensor.hpp>

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

using namespace safemap;
using device::Keep;
using device::UploadEngine;

namespace {

std::vector<LazyTensor> tensors_of(std::size_t count, std::uint64_t size) {
    std::vector<LazyTensor> tensors;
    const auto source = memory_source("memory", std::vector<std::byte>(size));
    for (std::size_t i = 0; i < count; ++i)
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {size}, source, 0));
    return tensors;
}

std::shared_ptr<UploadEngine> engine_of(std::uint64_t budget) {
    return std::make_shared<UploadEngine>(Device::open("host"), UploadOptions{.device_budget = budget});
}

void acquire_resident(benchmark::State& state) {
    const auto tensors = tensors_of(1000, 64);
    const auto engine = engine_of(1_MiB);
    engine->acquire(tensors, Keep::yes);
    std::size_t i = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(engine->acquire(std::span(&tensors[i], 1), Keep::yes));
        i = (i + 1) % tensors.size();
    }
    state.SetItemsProcessed(state.iterations());
}

/// Acquires one tensor after the other with a budget of four tensors, so that every acquire evicts.
void bring(benchmark::State& state) {
    const auto size = static_cast<std::uint64_t>(state.range(0));
    const auto tensors = tensors_of(8, size);
    const auto engine = engine_of(4 * size);
    std::size_t i = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(engine->acquire(std::span(&tensors[i], 1), Keep::yes));
        i = (i + 1) % tensors.size();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

/// The baseline: allocates fresh memory and fills it by memcpy.
void allocate_and_copy(benchmark::State& state) {
    const auto size = static_cast<std::uint64_t>(state.range(0));
    const std::vector<std::byte> from(size);
    const auto host = Device::open("host");
    for (auto _ : state) {
        const auto memory = host->allocate(size);
        std::memcpy(memory->host_bytes().data(), from.data(), size);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

}  // namespace

BENCHMARK(acquire_resident)->Name("acquire/resident");
BENCHMARK(bring)->Name("acquire/bring")->ArgName("bytes")->Arg(64 << 10)->Arg(64 << 20)->UseRealTime();
BENCHMARK(allocate_and_copy)->Name("memcpy/fresh")->ArgName("bytes")->Arg(64 << 10)->Arg(64 << 20)->UseRealTime();

BENCHMARK_MAIN();
