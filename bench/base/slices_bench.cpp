// Times slices of one deflated storage of 100 MB: in rising, falling and random order, and all of it at once. The goal
// for falling order is twice the time of rising order.
#include "base/inflate.hpp"

#include <benchmark/benchmark.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using namespace safemap;

namespace {

constexpr std::size_t storage_bytes = 100'000'000;

/// Returns the stream of a storage of bf16 weights that are kept as floats: about half of its size.
const std::vector<std::byte>& packed() {
    static const std::vector<std::byte> stream = [] {
        std::mt19937 random(1);
        std::normal_distribution<float> weight(0, 0.02F);
        std::vector<std::uint32_t> words(storage_bytes / 4);
        for (std::uint32_t& word : words) {
            const float value = weight(random);
            std::memcpy(&word, &value, sizeof(word));
            word &= 0xFFFF'0000;
        }
        z_stream out{};
        if (deflateInit2(&out, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
        std::vector<std::byte> made(deflateBound(&out, storage_bytes));
        out.next_in = reinterpret_cast<Bytef*>(words.data());
        out.avail_in = storage_bytes;
        out.next_out = reinterpret_cast<Bytef*>(made.data());
        out.avail_out = static_cast<uInt>(made.size());
        if (deflate(&out, Z_FINISH) != Z_STREAM_END) std::abort();
        made.resize(out.total_out);
        deflateEnd(&out);
        return made;
    }();
    return stream;
}

enum Order : std::uint8_t { rising, falling, shuffled };

/// Reads all slices of a stream that is opened anew, each once.
void slices(benchmark::State& state, Order order, std::size_t count) {
    const std::size_t each = storage_bytes / count;
    const auto file = memory_source("zip", packed());
    std::vector<std::size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    if (order == falling) std::reverse(numbers.begin(), numbers.end());
    if (order == shuffled) std::shuffle(numbers.begin(), numbers.end(), std::mt19937(2));
    std::vector<std::byte> out(each);
    for (auto _ : state) {
        const auto source = inflated_source("r", file, {0, file->size()}, storage_bytes);
        for (const std::size_t number : numbers) source->read_at(number * each, out);
        benchmark::DoNotOptimize(out.data());
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(each * count));
}

}  // namespace

BENCHMARK_CAPTURE(slices, whole, rising, std::size_t{1})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(slices, rising, rising, std::size_t{2000})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(slices, falling, falling, std::size_t{2000})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(slices, shuffled, shuffled, std::size_t{2000})->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
