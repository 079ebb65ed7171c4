// Times parsing and validating headers with a fresh parser each time, and measures the memory that a hostile header
// takes.
#include "counting_source.hpp"
#include "generated.hpp"

#include <benchmark/benchmark.h>

#include <string>

using namespace safemap;

namespace {

void read_header(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const std::string header = generated::header_of(0, count);
    const auto file = counting_source("model.safetensors", header, header.size() + count * generated::tensor_bytes,
                                      std::make_shared<std::atomic<std::uint64_t>>(0));
    for (auto _ : state) {
        ThrowFirst faults;
        const auto read = safetensors::read_header(*file, safetensors::Rules::compatible, 100'000'000, faults);
        if (read.tensors.size() != count) return state.SkipWithError("tensors are missing");
        state.counters["header_bytes"] = static_cast<double>(header.size());
    }
    state.counters["tensor"] = benchmark::Counter(
        static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

}  // namespace

BENCHMARK(read_header)
    ->Name("header")
    ->ArgName("tensors")
    ->Arg(300)
    ->Arg(3'000)
    ->Arg(30'000)
    ->Arg(300'000)
    ->Arg(800'000);

BENCHMARK_MAIN();
