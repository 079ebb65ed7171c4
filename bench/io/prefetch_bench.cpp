// Times reading cold tensors into the page cache: prefetch() against the best of several hand-written ways, in the same
// rounds. `of_best` is the median time of the best way divided by that of prefetch(); the goal is 0.9.

#include "safetensors/header.hpp"

#include <safemap/checkpoint.hpp>

#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace safemap;

namespace {

constexpr std::uint64_t tensor_bytes = 64_MiB;
constexpr std::uint64_t tensors = 8;
constexpr int rounds = 5;
constexpr int populate_read = 22;  // MADV_POPULATE_READ

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void write_all(int descriptor, const void* bytes, std::uint64_t size, std::uint64_t offset) {
    if (::pwrite(descriptor, bytes, size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size)) fail("pwrite");
}

/// A file of tensors on the disk that holds temporary files.
class Model {
public:
    Model() {
        descriptor_ = ::mkstemps(path_.data(), 12);
        if (descriptor_ < 0) fail("mkstemps");
        const Shape shape = {tensor_bytes / 4};
        std::vector<std::string> names;
        for (std::uint64_t i = 0; i < tensors; ++i) names.push_back("w" + std::to_string(i));
        std::vector<safetensors::TensorSpec> specs;
        for (const std::string& name : names) specs.push_back({.name = name, .dtype = Dtype::f32, .shape = &shape});
        const std::string header = safetensors::write_header(specs, {}, false, 8);
        write_all(descriptor_, header.data(), header.size(), 0);

        std::vector<std::uint32_t> data(8_MiB / 4);
        std::minstd_rand random(1);
        for (std::uint32_t& word : data) word = static_cast<std::uint32_t>(random());
        size_ = header.size();
        for (; size_ < header.size() + tensors * tensor_bytes; size_ += 8_MiB)
            write_all(descriptor_, data.data(), 8_MiB, size_);
        if (::fsync(descriptor_) != 0) fail("fsync");
    }
    ~Model() {
        ::close(descriptor_);
        ::unlink(path_.c_str());
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    const std::string& path() const { return path_; }
    int descriptor() const { return descriptor_; }
    std::uint64_t size() const { return size_; }

private:
    std::string path_ = (std::filesystem::temp_directory_path() / "safemap-bench-XXXXXX.safetensors").string();
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

template <class Work> double seconds(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

/// One way to read a whole file: a number of threads that claim blocks.
struct Way {
    enum class Kind { pread, populate, touch } kind;
    const char* name;
    std::uint64_t block;
    unsigned threads;
    std::vector<double> times = {};

    void run(const Model& model) {
        void* const mapped = ::mmap(nullptr, model.size(), PROT_READ, MAP_SHARED, model.descriptor(), 0);
        if (mapped == MAP_FAILED) fail("mmap");
        std::vector<std::vector<char>> buffers(threads, std::vector<char>(kind == Kind::pread ? block : 0));
        std::atomic<std::uint64_t> next = 0;
        const auto work = [&](char* buffer) {
            for (std::uint64_t at = next.fetch_add(block); at < model.size(); at = next.fetch_add(block))
                read(model, static_cast<char*>(mapped) + at, at, std::min(block, model.size() - at), buffer);
        };
        times.push_back(seconds([&] {
            std::vector<std::jthread> running;
            for (auto& buffer : buffers) running.emplace_back(work, buffer.data());
        }));
        ::munmap(mapped, model.size());
    }

private:
    void read(const Model& model, char* mapped, std::uint64_t at, std::uint64_t size, char* buffer) const {
        switch (kind) {
            case Kind::pread:
                benchmark::DoNotOptimize(::pread(model.descriptor(), buffer, size, static_cast<off_t>(at)));
                break;
            case Kind::populate: benchmark::DoNotOptimize(::madvise(mapped, size, populate_read)); break;
            case Kind::touch:
                // volatile, so that the read is not optimised away
                for (std::uint64_t i = 0; i < size; i += 4_KiB)
                    static_cast<void>(*static_cast<volatile char*>(mapped + i));
        }
    }
};

/// Returns true if nearly all of the file has been evicted from memory.
bool cool(const Model& model, const Checkpoint& checkpoint) {
    checkpoint.evict();
    ::posix_fadvise(model.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    return checkpoint.residency().resident < checkpoint.total_bytes() / 100;
}

void cold(benchmark::State& state) {
    const Model model;
    const auto checkpoint = Checkpoint::open(model.path());
    const unsigned cores = std::max(2U, std::thread::hardware_concurrency());
    std::vector<Way> ways;
    for (const std::uint64_t block : {1_MiB, 8_MiB})
        for (const unsigned threads : {1U, cores}) {
            ways.push_back({Way::Kind::pread, "pread", block, threads});
            ways.push_back({Way::Kind::populate, "populate", block, threads});
            ways.push_back({Way::Kind::touch, "touch", block, threads});
        }

    std::vector<double> times;
    for (auto _ : state) {
        // Rotating by 5 makes each way follow each other way once.
        std::rotate(ways.begin(), ways.begin() + 5, ways.end());
        for (Way& way : ways) {
            if (!cool(model, checkpoint)) return state.SkipWithError("what was read does not leave memory: a tmpfs?");
            way.run(model);
        }
        if (!cool(model, checkpoint)) return state.SkipWithError("what was mapped does not leave memory");
        times.push_back(seconds([&] { checkpoint.prefetch(); }));
        state.SetIterationTime(times.back());
        if (checkpoint.residency().resident < checkpoint.total_bytes() / 100 * 99)
            return state.SkipWithError("what was prefetched is not in memory");
    }
    const auto bytes = static_cast<double>(checkpoint.total_bytes());
    double best = median(ways.front().times);
    for (const Way& way : ways) {
        best = std::min(best, median(way.times));
        const std::string name = way.name + std::to_string(way.block / 1_MiB) + "x" + std::to_string(way.threads);
        state.counters[name] = bytes / median(way.times) / 1e9;
    }
    state.counters["of_best"] = best / median(times);
    state.counters["GB/s"] = bytes / median(times) / 1e9;
    state.counters["best_GB/s"] = bytes / best / 1e9;
}

void warm(benchmark::State& state) {
    const Model model;
    const auto checkpoint = Checkpoint::open(model.path());
    for (auto _ : state) checkpoint.prefetch();
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(checkpoint.total_bytes()));
}

}  // namespace

BENCHMARK(cold)->Name("prefetch/cold")->Iterations(rounds)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(warm)->Name("prefetch/warm")->UseRealTime()->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
