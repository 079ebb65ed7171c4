// Times gathering from memory, relative to memcpy of the same bytes, for each storage layout.

#include "lazy/blocks.hpp"
#include "lazy/gatherer.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

using namespace safemap;

namespace {

constexpr std::uint64_t side = 4096;
constexpr std::uint64_t bytes_in_all = side * side * 4;

/// Returns ordinary floats, generated once.
const std::vector<std::byte>& stored_bytes() {
    static const std::vector<std::byte> bytes = [] {
        std::vector<std::byte> made(bytes_in_all);
        for (std::uint64_t i = 0; i < side * side; ++i) {
            const float value = static_cast<float>(i * 2654435761U % 1000) / 1000.0F - 0.5F;
            std::memcpy(made.data() + i * 4, &value, 4);
        }
        return made;
    }();
    return bytes;
}

LazyTensor matrix() {
    static const auto source = memory_source("memory", SharedBytes{stored_bytes(), nullptr});
    static const auto stored = stored_run(Dtype::f32, {side, side}, source, 0);
    return {"w", stored};
}

LazyTensor contiguous() { return matrix(); }
LazyTensor rows() { return matrix().slice({{.start = 1000, .stop = 3000}}); }
LazyTensor columns() { return matrix().slice({Slice{}, {.start = 1000, .stop = 3000}}); }
LazyTensor transposed() { return {"w", matrix().stored(), StridedView{{side, side}, {1, side}, 0}}; }
LazyTensor cast() { return matrix().cast(Dtype::bf16); }

/// Gathers block by block into one buffer, as save() and the Uploader do.
void gather(benchmark::State& state, LazyTensor (*make)()) {
    const LazyTensor tensor = make();
    const Blocks blocks(tensor, 8_MiB);
    std::vector<std::byte> buffer(8_MiB);
    Gatherer gatherer;
    for (auto _ : state) {
        for (std::uint64_t i = 0; i < blocks.count(); ++i) {
            if (blocks.ranges()) {
                const Extent range = blocks.range(i);
                gatherer.fill(tensor, range.offset, std::span(buffer).first(range.size));
            } else {
                const Box box = blocks.box(i);
                std::uint64_t size = element_size(tensor.dtype());
                for (const std::uint64_t extent : box.extent) size *= extent;
                gatherer.fill(tensor, box, std::span(buffer).first(size));
            }
            benchmark::ClobberMemory();
        }
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(tensor.nbytes()));
}

/// The baseline: copies the same number of bytes.
void copy(benchmark::State& state, LazyTensor (*make)()) {
    const std::uint64_t size = make().nbytes();
    const std::byte* const from = stored_bytes().data();
    std::vector<std::byte> buffer(8_MiB);
    for (auto _ : state) {
        for (std::uint64_t at = 0; at < size; at += buffer.size()) {
            std::memcpy(buffer.data(), from + at, std::min<std::uint64_t>(buffer.size(), size - at));
            benchmark::ClobberMemory();
        }
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size));
}

}  // namespace

// The two of a pair run one after the other, so that both meet the same machine load.
#define GATHER(kind)                                                                             \
    BENCHMARK_CAPTURE(gather, kind, kind)->Name("gather/" #kind)->Unit(benchmark::kMillisecond); \
    BENCHMARK_CAPTURE(copy, kind, kind)->Name("memcpy/" #kind)->Unit(benchmark::kMillisecond)

GATHER(contiguous);
GATHER(rows);
GATHER(columns);
GATHER(transposed);
GATHER(cast);

BENCHMARK_MAIN();
