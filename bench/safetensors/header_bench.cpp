// Parsing and validating headers, in a fresh parser each time; and what a hostile one takes of memory.
#include "safetensors/header.hpp"

#include <safemap/bytes.hpp>

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace safemap;

namespace {

/// A file that is a header of that many F32 tensors of [1024, 1024], and data that is never read.
std::shared_ptr<const Source> file_of(std::size_t count) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i)
        names.push_back("model.layers." + std::to_string(i / 9) + ".mlp.proj_" + std::to_string(i % 9) + ".weight");
    const Shape shape = {1024, 1024};
    std::vector<safetensors::TensorSpec> specs;
    for (const std::string& name : names) specs.push_back({.name = name, .dtype = Dtype::f32, .shape = &shape});
    const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
    const auto head = std::make_shared<const std::string>(safetensors::write_header(specs, metadata, true, 8));
    const std::uint64_t size = head->size() + count * 4_MiB;
    return callback_source("model.safetensors", size, [head](std::uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), head->data() + offset, into.size());
    });
}

void read_header(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const auto file = file_of(count);
    for (auto _ : state) {
        ThrowFirst faults;
        const auto header = safetensors::read_header(*file, safetensors::Rules::compatible, 100'000'000, faults);
        if (header.tensors.size() != count) return state.SkipWithError("tensors are missing");
        state.counters["header_bytes"] = static_cast<double>(header.data_offset);
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
