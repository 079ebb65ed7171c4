// Times gathers of tensors that are neighbours in a warm file into places at multiples of 256 bytes, as the memory of a
// device wants them. Arguments: number of tensors, bytes of each, bytes between two in the file. For comparison, also
// times gathers of one tensor.

#include "lazy/gatherer.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/lazy_tensor.hpp>

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace safemap;

namespace {

constexpr std::uint64_t alignment = 256;
constexpr std::uint64_t most_at_once = 8U << 20;  // bytes of a gather, as save() and the Uploader make them

/// A file of `size` bytes in the page cache, without a name.
std::shared_ptr<const Source> warm_file(std::uint64_t size) {
    std::string path = (std::filesystem::temp_directory_path() / "safemap-bench-XXXXXX").native();
    const int descriptor = ::mkstemp(path.data());
    const std::vector<char> block(1U << 20, 'x');
    std::ofstream out(path);
    for (std::uint64_t left = size; left > 0;) {
        const std::uint64_t count = std::min<std::uint64_t>(left, block.size());
        out.write(block.data(), static_cast<std::streamsize>(count));
        left -= count;
    }
    out.close();
    auto source = open_descriptor(descriptor, path);
    std::filesystem::remove(path);
    ::close(descriptor);
    return source;
}

void neighbours(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const auto size = static_cast<std::uint64_t>(state.range(1));
    const std::uint64_t step = size + static_cast<std::uint64_t>(state.range(2));
    const auto source = warm_file(count * step);
    std::vector<LazyTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.emplace_back("t", stored_run(Dtype::u8, {size}, source, i * step));
    const std::uint64_t apart = (size + alignment - 1) / alignment * alignment;
    const std::uint64_t most = most_at_once / apart;
    std::vector<std::byte> out(most_at_once);
    Gatherer gatherer;
    for (auto _ : state) {
        for (std::size_t first = 0; first < count; first += most) {
            gatherer.begin();
            for (std::size_t i = first; i < std::min<std::size_t>(count, first + most); ++i)
                gatherer.add(tensors[i], Dtype::u8, 0, std::span(out).subspan((i - first) * apart, size));
            gatherer.flush();
        }
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count * size));
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
}

/// Gathers of one tensor each, for which there is nothing to join.
void alone(benchmark::State& state) {
    const auto size = static_cast<std::uint64_t>(state.range(0));
    const LazyTensor tensor("t", stored_run(Dtype::u8, {size}, warm_file(size), 0));
    std::vector<std::byte> out(size);
    Gatherer gatherer;
    for (auto _ : state) {
        gatherer.fill(tensor, 0, out);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size));
}

}  // namespace

BENCHMARK(neighbours)
    ->ArgNames({"tensors", "bytes", "gap"})
    ->Args({75'000, 16, 0})
    ->Args({75'000, 512, 0})
    ->Args({75'000, 1024, 0})
    ->Args({75'000, 2048, 0})
    ->Args({75'000, 4096, 0})
    ->Args({75'000, 1024, 128})
    ->Args({75'000, 2048, 128})
    ->Args({75'000, 4096, 128})
    ->Args({20'000, 8192, 0})
    ->Args({20'000, 8192, 128})
    ->Args({10'000, 16384, 0})
    ->Args({10'000, 16384, 128})
    ->Args({2'000, 65536, 0})
    ->Args({2'000, 65536, 4096})
    ->Args({32, 8 << 20, 0})
    ->Unit(benchmark::kMillisecond);

BENCHMARK(alone)->ArgName("bytes")->Arg(16)->Arg(4096)->Arg(16 << 10)->Arg(1 << 20);

BENCHMARK_MAIN();
