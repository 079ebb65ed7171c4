// Times opening. Checks that only headers are read, whatever the size of the tensors.

#include "counting_source.hpp"
#include "generated.hpp"

#include <safemap/checkpoint.hpp>

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace safemap;
using generated::header_of;
using generated::tensor_bytes;

namespace {

/// 1,000 tensors in 30 sparse files, 4 GB in total.
class ShardedModel {
public:
    static constexpr std::size_t tensors = 1000;
    static constexpr std::size_t shards = 30;

    ShardedModel() {
        std::string pattern = (std::filesystem::temp_directory_path() / "safemap-bench-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = pattern;
        for (std::size_t i = 0; i < shards; ++i) {
            const std::size_t first = i * tensors / shards;
            const std::size_t count = (i + 1) * tensors / shards - first;
            const auto file = path_ / ("model-" + std::to_string(i) + ".safetensors");
            const std::string header = header_of(first, count);
            std::ofstream(file, std::ios::binary) << header;
            std::filesystem::resize_file(file, header.size() + count * tensor_bytes);
            header_bytes_ += header.size();
            add_to_index(file.filename().string(), first, count);
        }
        std::ofstream(path_ / "model.safetensors.index.json")
            << R"({"metadata":{},"weight_map":{)" << weight_map_ << "}}";
    }
    ~ShardedModel() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }
    std::uint64_t header_bytes() const { return header_bytes_; }

private:
    void add_to_index(const std::string& file, std::size_t first, std::size_t count) {
        for (std::size_t i = first; i < first + count; ++i)
            weight_map_ += (weight_map_.empty() ? "\"" : ",\"") + generated::name_of(i) + "\":\"" + file + '"';
    }

    std::filesystem::path path_;
    std::string weight_map_;
    std::uint64_t header_bytes_ = 0;
};

/// Returns the number of bytes that this process has requested from the kernel.
std::uint64_t bytes_read_so_far() {
    std::ifstream io("/proc/self/io");
    std::string key;
    std::uint64_t value = 0;
    while (io >> key >> value)
        if (key == "rchar:") return value;
    return 0;
}

void open_shards(benchmark::State& state) {
    const ShardedModel model;
    std::uint64_t read = 0;
    for (auto _ : state) {
        const std::uint64_t before = bytes_read_so_far();
        const Checkpoint checkpoint = Checkpoint::open(model.path());
        read = bytes_read_so_far() - before;
        if (checkpoint.size() != ShardedModel::tensors) return state.SkipWithError("tensors are missing");
    }
    // The allowance is for the index and for /proc itself.
    if (read > model.header_bytes() + 256_KiB) return state.SkipWithError("more than headers was read");
    state.counters["bytes_read"] = static_cast<double>(read);
    state.counters["header_bytes"] = static_cast<double>(model.header_bytes());
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ShardedModel::tensors));
}

void open_file(benchmark::State& state) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const std::string header = header_of(0, count);
    const auto read = std::make_shared<std::atomic<std::uint64_t>>(0);
    const auto source = counting_source("model.safetensors", header, header.size() + count * tensor_bytes, read);
    for (auto _ : state) {
        *read = 0;
        const Checkpoint checkpoint = Checkpoint::open(source);
        if (checkpoint.size() != count) return state.SkipWithError("tensors are missing");
    }
    // Format detection may read the end of a file, where a zip has its directory.
    if (*read > header.size() + 256_KiB) return state.SkipWithError("more than the header was read");
    state.counters["bytes_read"] = static_cast<double>(*read);
    state.counters["header_bytes"] = static_cast<double>(header.size());
    state.SetItemsProcessed(state.iterations() * state.range(0));
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(header.size()));
}

}  // namespace

BENCHMARK(open_shards)->Name("open/1000_tensors_in_30_files")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(open_file)
    ->Name("open/one_file")
    ->ArgName("tensors")
    ->Arg(300)
    ->Arg(3'000)
    ->Arg(30'000)
    ->Unit(benchmark::kMicrosecond);

BENCHMARK_MAIN();
