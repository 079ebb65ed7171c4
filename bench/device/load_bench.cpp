// Times Uploader: leases of resident tensors by handle and by name, planning a bundle of many tensors, and bringing a
// bundle into memory that another one had, beside memcpy. device_limits.cpp measures whole checkpoints.
#include "device/made.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/uploader.hpp>

#include <benchmark/benchmark.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace safemap;

namespace {

std::atomic<std::uint64_t> allocations{0};

/// Returns a checkpoint in memory of `count` tensors of 16 bytes.
Checkpoint small_tensors(std::size_t count) {
    const std::string header = made::header_of(made::small_items(count));
    std::vector<std::byte> file(header.size() + 16 * count);
    std::memcpy(file.data(), header.data(), header.size());
    return Checkpoint::open(memory_source("model.safetensors", std::move(file)));
}

/// A bundle for each of `count` tensors of `size` bytes, and an uploader with room for some of them. The calling thread
/// has one reader beside it.
struct Bundles {
    Bundles(std::size_t count, std::uint64_t size, std::uint64_t budget)
        : uploader(Device::open("host"), small_tensors(1), {.device_budget = budget, .readers = 1}) {
        // Until a process has had a second thread, shared_ptr counts without atomic steps.
        std::thread([] {}).join();
        const auto source = memory_source("memory", std::vector<std::byte>(size));
        for (std::size_t i = 0; i < count; ++i) {
            const LazyTensor tensor("t" + std::to_string(i), stored_run(Dtype::u8, {size}, source, 0));
            all.push_back(uploader.bundle(std::span(&tensor, 1)));
        }
    }
    Uploader uploader;
    std::vector<Bundle> all = {};
};

// ---- Resident tensors

/// Repeats `access(i)`, and fails if it allocates.
template <class Access> void repeat(benchmark::State& state, std::size_t count, Access&& access) {
    const std::uint64_t before = allocations;
    std::size_t i = 0;
    for (auto _ : state) {
        access(i);
        if (++i == count) i = 0;
    }
    if (allocations != before) state.SkipWithError("it allocates");
    state.SetItemsProcessed(state.iterations());
}

void acquire_resident(benchmark::State& state) {
    Bundles bundles(1000, 64, 1_MiB);
    for (const Bundle& bundle : bundles.all) static_cast<void>(bundles.uploader.acquire(bundle));
    repeat(state, bundles.all.size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(bundles.uploader.acquire(bundles.all[i])); });
}

void try_acquire_resident(benchmark::State& state) {
    Bundles bundles(1000, 64, 1_MiB);
    for (const Bundle& bundle : bundles.all) static_cast<void>(bundles.uploader.acquire(bundle));
    repeat(state, bundles.all.size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(bundles.uploader.try_acquire(bundles.all[i])); });
}

void acquire_name(benchmark::State& state) {
    const auto checkpoint = small_tensors(static_cast<std::size_t>(state.range(0)));
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 256_MiB, .readers = 1});
    std::thread([] {}).join();  // as in Bundles
    std::vector<std::string> names;
    for (std::size_t i = 0; i < checkpoint.size(); ++i) names.push_back(checkpoint.tensor(i).name());
    std::ranges::shuffle(names, std::minstd_rand(1));
    for (const std::string& name : names) static_cast<void>(uploader.acquire(uploader.bundle(name)));
    repeat(state, names.size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(uploader.acquire(uploader.bundle(names[i]))); });
}

/// Threads lease bundles of one uploader, each its own. The processor time of a lease grows if they disturb each other.
void acquire_in_threads(benchmark::State& state) {
    static const std::unique_ptr<Bundles> bundles = [] {
        auto made = std::make_unique<Bundles>(16, 64, 1_MiB);
        for (const Bundle& bundle : made->all) static_cast<void>(made->uploader.acquire(bundle));
        return made;
    }();
    const Bundle& own = bundles->all[static_cast<std::size_t>(state.thread_index())];
    for (auto _ : state) benchmark::DoNotOptimize(bundles->uploader.acquire(own));
    state.SetItemsProcessed(state.iterations());
}

/// The baseline: threads change counters of their own, as often as a lease does. Cores that share their units are
/// slower together.
void count_in_threads(benchmark::State& state) {
    struct alignas(64) Line {
        std::atomic<std::uint64_t> count = 0;
    };
    static Line lines[16];
    auto& own = lines[state.thread_index()].count;
    for (auto _ : state)
        for (int i = 0; i < 4; ++i) own.fetch_add(1, std::memory_order_acq_rel);
    state.SetItemsProcessed(state.iterations());
}

/// The same while an order is followed. If the order does not fit, half of it stays, and a lease tells where it is.
void acquire_planned(benchmark::State& state) {
    constexpr std::size_t count = 64;
    Bundles bundles(count, 64, state.range(0) != 0 ? 1_MiB : 64 * count / 2);
    const UploadOrder order = bundles.uploader.follow(bundles.all);
    for (int round = 0; round < 2; ++round)
        for (const Bundle& bundle : bundles.all) static_cast<void>(bundles.uploader.acquire(bundle));
    // Slots have bundles from the beginning of the order now, or from its end.
    const auto middle = std::span(bundles.all).subspan(count / 2);
    const auto stays =
        std::ranges::find_if(middle, [&](const Bundle& one) { return bundles.uploader.try_acquire(one).has_value(); });
    if (stays == middle.end()) return state.SkipWithError("no bundle stays");
    // Slots get the bundles that come after it. Its readers may have to wait for a processor.
    for (int quiet = 0; quiet < 10; ++quiet) {
        const std::uint64_t before = allocations;
        static_cast<void>(bundles.uploader.acquire(*stays));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (before != allocations) quiet = 0;
    }
    repeat(state, 1, [&](std::size_t) { benchmark::DoNotOptimize(bundles.uploader.acquire(*stays)); });
}

// ---- Planning and bringing

/// Makes a bundle of each tensor. Reports the bytes of memory that each takes.
void plan_each(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const auto checkpoint = small_tensors(count);
    std::vector<Bundle> bundles(count);
    double bytes = 0;
    for (auto _ : state) {
        state.PauseTiming();
        {
            Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 1_GiB});
            const auto before = static_cast<double>(::mallinfo2().uordblks);
            state.ResumeTiming();
            for (std::size_t i = 0; i < count; ++i) {
                const std::span one(&checkpoint.tensor(i), 1);
                bundles[i] = uploader.bundle(one);
            }
            state.PauseTiming();
            bytes = (static_cast<double>(::mallinfo2().uordblks) - before) / static_cast<double>(count);
            for (Bundle& bundle : bundles) bundle = {};
        }
        state.ResumeTiming();
    }
    state.counters["bytes"] = bytes;
}

/// Makes the bundle of a layer of nine tensors, among many.
void plan_layer(benchmark::State& state) {
    std::vector<made::Item> items;
    const auto layers = static_cast<std::size_t>(state.range(0)) / 9;
    for (std::size_t i = 0; i < 9 * layers; ++i)
        items.emplace_back("model.layers." + std::to_string(i / 9) + ".part." + std::to_string(i % 9), 16);
    const std::string header = made::header_of(items);
    std::vector<std::byte> file(header.size() + 16 * items.size());
    std::memcpy(file.data(), header.data(), header.size());
    Uploader uploader(Device::open("host"), Checkpoint::open(memory_source("model.safetensors", std::move(file))));
    std::vector<Bundle> bundles;
    const auto plan_next = [&] {
        bundles.push_back(
            uploader.bundle(Selection::prefix("model.layers." + std::to_string(bundles.size() % layers))));
        if (bundles.back().size() != 9) state.SkipWithError("the bundle has other tensors");
    };
    for (int i = 0; i < 20; ++i) plan_next();  // the names are sorted meanwhile
    for (auto _ : state) plan_next();
}

/// Acquires an absent bundle after each of the others was used since it left.
void miss_after_hits(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    Bundles bundles(count + 1, 8, 8 * count);  // a budget so small that each bundle has memory of its own
    for (const Bundle& bundle : bundles.all) static_cast<void>(bundles.uploader.acquire(bundle));
    for (auto _ : state) {
        state.PauseTiming();
        const Bundle* absent = nullptr;
        for (const Bundle& bundle : bundles.all)
            if (!bundles.uploader.try_acquire(bundle)) absent = &bundle;
        state.ResumeTiming();
        if (absent == nullptr) return state.SkipWithError("all bundles are there");
        benchmark::DoNotOptimize(bundles.uploader.acquire(*absent));
    }
}

void plan(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const auto checkpoint = small_tensors(count);
    for (auto _ : state) {
        state.PauseTiming();
        {
            Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 1_GiB});
            state.ResumeTiming();
            const Bundle bundle = uploader.bundle(Selection());
            state.PauseTiming();
            if (bundle.size() != count) state.SkipWithError("tensors are missing");
        }
        state.ResumeTiming();
    }
}

/// Acquires two bundles in turn with room for one, so that every acquire evicts one and gets its memory.
void bring(benchmark::State& state) {
    const auto size = static_cast<std::uint64_t>(state.range(0));
    Bundles bundles(2, size, size);
    for (const Bundle& bundle : bundles.all) static_cast<void>(bundles.uploader.acquire(bundle));
    std::size_t i = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(bundles.uploader.acquire(bundles.all[i]));
        i = (i + 1) % bundles.all.size();
    }
    const UploadStats stats = bundles.uploader.stats();
    if (stats.evictions + 1 != static_cast<std::uint64_t>(state.iterations()) + 2)
        state.SkipWithError("an acquire did not evict");
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

/// The baseline: copies to the memory of one bundle, which was met before, with one thread.
void copy(benchmark::State& state) {
    const auto size = static_cast<std::uint64_t>(state.range(0));
    const std::vector<std::byte> from(size);
    const auto memory = Device::open("host")->allocate(size);
    std::memset(memory->host_bytes().data(), 1, size);
    for (auto _ : state) {
        std::memcpy(memory->host_bytes().data(), from.data(), size);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

}  // namespace

// Not inlined: GCC would report a mismatched free.
[[gnu::noinline]] void* operator new(std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* const memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

BENCHMARK(acquire_resident)->Name("acquire/resident");
BENCHMARK(try_acquire_resident)->Name("try_acquire/resident");
BENCHMARK(acquire_name)->Name("acquire/name")->ArgName("names")->Arg(723)->Arg(75'000);
BENCHMARK(acquire_planned)->Name("acquire/planned")->ArgName("fits")->Arg(1)->Arg(0);
BENCHMARK(acquire_in_threads)->Name("acquire/resident")->ThreadRange(1, 4)->Threads(16)->UseRealTime();
BENCHMARK(count_in_threads)->Name("counters/own")->ThreadRange(1, 4)->Threads(16)->UseRealTime();
BENCHMARK(plan)->Name("bundle")->ArgName("tensors")->Arg(75'000)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_each)->Name("bundle/each")->ArgName("tensors")->Arg(75'000)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_layer)
    ->Name("bundle/layer")
    ->ArgName("tensors")
    ->Arg(75'000)
    ->Iterations(8000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(miss_after_hits)
    ->Name("acquire/miss_after_hits")
    ->ArgName("bundles")
    ->Arg(75'000)
    ->Iterations(10)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(bring)
    ->Name("acquire/bring")
    ->ArgName("bytes")
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(copy)
    ->Name("memcpy/met")
    ->ArgName("bytes")
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

BENCHMARK_MAIN();
