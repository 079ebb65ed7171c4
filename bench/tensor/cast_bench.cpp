// Times casts from memory to memory, relative to memcpy of the same number of bytes.

#include "tensor/convert.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/dtype.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using namespace safemap;

namespace {

constexpr std::size_t elements = 32 << 20;  // larger than caches, even at one byte each

constexpr Dtype castables[] = {Dtype::f64,     Dtype::f32,     Dtype::f16,         Dtype::bf16,
                               Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz};

/// Returns ordinary weights, some of them subnormal in the narrow formats.
std::vector<std::byte> weights(Dtype dtype) {
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i * 2654435761U % 1000) / 1000.0F - 0.5F;
    std::vector<std::byte> bytes(elements * element_size(dtype));
    convert(Dtype::f32, std::as_bytes(std::span(values)), dtype, bytes);
    return bytes;
}

void cast(benchmark::State& state, Dtype from, Dtype to) {
    const std::vector<std::byte> in = weights(from);
    std::vector<std::byte> out(elements * element_size(to));
    for (auto _ : state) {
        benchmark::DoNotOptimize(convert(from, in, to, out));
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(elements));
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(in.size() + out.size()));
}

/// The baseline: the same number of bytes in total, half of them read and half written.
void copy(benchmark::State& state, Dtype from, Dtype to) {
    const std::vector<std::byte> in(elements * (element_size(from) + element_size(to)) / 2, std::byte{1});
    std::vector<std::byte> out(in.size());
    for (auto _ : state) {
        std::memcpy(out.data(), in.data(), in.size());
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(elements));
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * in.size()));
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    for (const Dtype from : castables)
        for (const Dtype to : castables) {
            if (from == to) continue;
            // The two of a pair run one after the other, so that both meet the same machine load.
            const std::string pair = std::string(name(from)) + "/" + std::string(name(to));
            benchmark::RegisterBenchmark(("cast/" + pair).c_str(), cast, from, to)->Unit(benchmark::kMillisecond);
            benchmark::RegisterBenchmark(("memcpy/" + pair).c_str(), copy, from, to)->Unit(benchmark::kMillisecond);
        }
    benchmark::RunSpecifiedBenchmarks();
}
