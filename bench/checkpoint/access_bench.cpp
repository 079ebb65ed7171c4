// Times access to tensors of an open checkpoint, by name and as views. Goals: 50 ns and 20 ns, without an allocation.

#include "generated.hpp"

#include <safemap/checkpoint.hpp>

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

using namespace safemap;

namespace {

std::atomic<std::uint64_t> allocations = 0;

/// A sparse file with the given number of tensors.
class Model {
public:
    explicit Model(std::size_t tensors) {
        if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        const std::string header = generated::header_of(0, tensors);
        std::ofstream(path(), std::ios::binary) << header;
        std::filesystem::resize_file(path(), header.size() + tensors * generated::tensor_bytes);
        for (std::size_t i = 0; i < tensors; ++i) names_.push_back(generated::name_of(i));
        std::shuffle(names_.begin(), names_.end(), std::minstd_rand(1));
    }
    ~Model() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    std::filesystem::path path() const { return std::filesystem::path(folder_) / "model.safetensors"; }
    /// Returns the names in shuffled order.
    const std::vector<std::string>& names() const { return names_; }

private:
    std::string folder_ = (std::filesystem::temp_directory_path() / "safemap-bench-XXXXXX").string();
    std::vector<std::string> names_;
};

/// Calls access(i) with all indices of names, again and again. Fails if that allocates.
template <class Access> void repeat(benchmark::State& state, std::size_t names, Access&& access) {
    access(0);  // work that is done only once
    const std::uint64_t before = allocations;
    for (std::size_t i = 0; i < names; ++i) access(i);
    if (allocations != before) return state.SkipWithError("it allocates");
    std::size_t i = 0;
    for (auto _ : state) {
        access(i);
        if (++i == names) i = 0;
    }
}

void find(benchmark::State& state) {
    const Model model(static_cast<std::size_t>(state.range(0)));
    const auto checkpoint = Checkpoint::open(model.path());
    repeat(state, model.names().size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(checkpoint.find(model.names()[i])); });
}

/// The same lookup with the standard library, for comparison.
void find_in_map(benchmark::State& state) {
    const Model model(static_cast<std::size_t>(state.range(0)));
    std::unordered_map<std::string, std::size_t> numbers;
    for (std::size_t i = 0; i < model.names().size(); ++i) numbers.emplace(generated::name_of(i), i);
    repeat(state, model.names().size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(numbers.find(model.names()[i])); });
}

void view(benchmark::State& state) {
    const Model model(static_cast<std::size_t>(state.range(0)));
    const auto checkpoint = Checkpoint::open(model.path());
    repeat(state, checkpoint.size(),
           [&](std::size_t i) { benchmark::DoNotOptimize(checkpoint.tensor(i).view().data()); });
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

BENCHMARK(find)->ArgName("tensors")->Arg(300)->Arg(3'000)->Arg(100'000);
BENCHMARK(find_in_map)->Name("find/unordered_map")->ArgName("tensors")->Arg(300)->Arg(3'000)->Arg(100'000);
BENCHMARK(view)->ArgName("tensors")->Arg(300)->Arg(3'000)->Arg(100'000);

BENCHMARK_MAIN();
