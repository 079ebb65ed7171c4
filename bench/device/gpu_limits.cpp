// Measures how close loading a checkpoint to a GPU comes to copies out of page-locked memory. Prints a table.
//
//     gpu_limits [--device cuda:0] [--size 4GiB] [--rounds 7] [--folder FOLDER]
//
// It makes a file of so many bytes, 16 layers of nine tensors, which is in the page cache while it measures. The limit
// is what the driver copies out of page-locked memory, in blocks of 8 MiB, and no file is read there. Ratios are of
// pairs in turn: the limit's time by that of Uploader.
#include "base/pool.hpp"
#include "device/layers.hpp"
#include "device/limits.hpp"
#include "device/made.hpp"
#include "device/measure.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device_budget.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace safemap;
using limits::block;
using limits::Model;
using measure::Pairs;
using measure::Sample;

namespace {

struct Options {
    std::string device = "cuda:0";
    std::uint64_t size = 4_GiB;
    int rounds = 7;
    std::filesystem::path folder = std::filesystem::temp_directory_path();
};

/// The GPU and what its limit is measured with: page-locked memory, and device memory to copy to.
class Gpu {
public:
    Gpu(const std::string& name, std::uint64_t size) : device(Device::open(name)) {
        const double seconds = measure::seconds([&] {
            pinned_ = device->allocate_staging(pinned_bytes);
            std::memset(pinned_->bytes().data(), 1, pinned_->bytes().size());
        });
        std::printf("page-locked memory, GB/s: %.2f\n", static_cast<double>(pinned_bytes) / seconds / 1e9);
        memory_ = device->allocate(size / block * block);
    }

    /// Returns the seconds in which so many bytes are copied.
    double copy(std::uint64_t bytes) {
        return measure::seconds([&] {
            DeviceQueue& queue = device->queue(Device::Lane::bulk);
            for (std::uint64_t at = 0; at < bytes; at += block) {
                const std::uint64_t size = std::min(block, bytes - at);
                queue.copy(*memory_, at % memory_->size(), *pinned_, {at % pinned_bytes, size});
            }
            queue.record()->wait();
        });
    }
    /// Returns the seconds in which so many threads read the layers to page-locked memory, each to two blocks in turn.
    /// With `copies`, each block is also copied to the GPU before it is read to again.
    double read(const Model& model, unsigned threads, bool copies) {
        std::atomic<std::uint64_t> next = 0;
        DeviceQueue& queue = device->queue(Device::Lane::bulk);
        const auto work = [&](unsigned number) {
            std::array<std::shared_ptr<DeviceEvent>, 2> copied;
            std::size_t turn = 0;
            for (std::uint64_t at = next.fetch_add(slab); at < model.bytes; at = next.fetch_add(slab)) {
                const std::uint64_t place = (number * copied.size() + turn) * slab;
                const std::uint64_t size = std::min(slab, model.bytes - at);
                if (copied[turn]) copied[turn]->wait();
                char* const to = reinterpret_cast<char*>(pinned_->bytes().data()) + place;
                limits::pread_all(model.file, to, size, model.file.data() + at);
                if (copies) queue.copy(*memory_, at % memory_->size(), *pinned_, {place, size});
                if (copies) copied[turn] = queue.record();
                turn = 1 - turn;
            }
            for (const auto& event : copied)
                if (event) event->wait();
        };
        return measure::seconds([&] {
            std::vector<std::thread> others;
            for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, i);
            work(0);
            for (std::thread& thread : others) thread.join();
        });
    }

    const std::shared_ptr<Device> device;

private:
    static constexpr std::uint64_t pinned_bytes = 256_MiB;
    static constexpr std::uint64_t slab = 4_MiB;
    std::shared_ptr<StagingBuffer> pinned_;
    std::shared_ptr<DeviceMemory> memory_;
};

void print_rate(const std::string& what, double bytes, const Sample& seconds) {
    std::printf("%-58s %9.2f (%.2f to %.2f)\n", (what + ", GB/s").c_str(), bytes / seconds.median() / 1e9,
                bytes / seconds.most() / 1e9, bytes / seconds.least() / 1e9);
    std::fflush(stdout);
}

/// Prints how fast threads read to page-locked memory, and how fast they do while that is copied to the GPU.
void reading(const Options& options, Gpu& gpu, const Model& model) {
    for (const bool copies : {false, true}) {
        for (const unsigned threads : {1U, 2U, 4U, 8U, 12U, 16U}) {
            if (threads > std::max(std::thread::hardware_concurrency(), 1U)) break;
            Sample seconds;
            for (int i = 0; i < options.rounds; ++i) seconds.add(gpu.read(model, threads, copies));
            print_rate((copies ? "pread and copies, " : "pread, ") + std::to_string(threads) + " threads",
                       static_cast<double>(model.bytes), seconds);
        }
    }
}

std::string with_readers(unsigned readers) { return readers == 0 ? "" : ", " + std::to_string(readers) + " readers"; }

/// The threads of an Uploader that is not told how many, with the one that acquires.
unsigned usual_threads() { return thread_count(0, gpu_uploading_threads) + 1; }

/// Loads all layers by a new Uploader. If the slabs are new, too, they are page-locked in the time that is taken.
void first_pass(const Options& options, Gpu& gpu, const Model& model, unsigned readers, bool new_slabs) {
    const DeviceBudget kept(gpu.device, {.device_bytes = 2 * model.bytes});
    const auto ours = [&] {
        std::unique_ptr<Uploader> uploader;
        return measure::seconds([&] {
            const UploadOptions upload{.device_budget = 2 * model.bytes, .readers = readers};
            uploader = new_slabs ? std::make_unique<Uploader>(gpu.device, model.checkpoint, upload)
                                 : std::make_unique<Uploader>(kept, model.checkpoint, upload);
            layers::pass(*uploader, layers::bundles_of_layers(*uploader), layers::layer_count);
        });
    };
    const std::string what = "load" + std::string(new_slabs ? ", page-locking slabs" : "") + with_readers(readers);
    const auto copies = [&] { return gpu.copy(model.bytes); };
    Pairs(options.rounds, ours, copies).print(what, model.bytes);
    if (new_slabs || readers > 0) return;
    const auto reads_and_copies = [&] { return gpu.read(model, usual_threads(), true); };
    Pairs(options.rounds, ours, reads_and_copies).print("load, beside pread and copies, same threads", model.bytes);
}

void later_passes(const Options& options, Gpu& gpu, const Model& model) {
    const std::uint64_t budget = layers::half_budget(model.checkpoint);
    Uploader uploader(gpu.device, model.checkpoint, {.device_budget = budget});
    const auto all = layers::bundles_of_layers(uploader);
    const auto walk = [&] { layers::pass(uploader, all, 2); };
    const std::uint64_t uploaded = layers::settle([&] { return uploader.stats().uploaded_bytes; }, walk);
    Pairs(
        options.rounds, [&] { return measure::seconds(walk); }, [&] { return gpu.copy(uploaded); })
        .print("half the budget", uploaded);
}

void fills(const Options& options, Gpu& gpu, const Model& model) {
    Uploader uploader(gpu.device, model.checkpoint);
    std::vector<std::shared_ptr<DeviceMemory>> own;
    const auto targets = layers::fill_targets(*gpu.device, model.checkpoint, own);
    Pairs(
        options.rounds, [&] { return measure::seconds([&] { uploader.fill(targets)->wait(); }); },
        [&] { return gpu.copy(model.bytes); })
        .print("fill", model.bytes);
}

/// Wakes from files, or from a host tier.
void wakes(const Options& options, Gpu& gpu, const Model& model, std::uint64_t host_bytes) {
    Uploader uploader(gpu.device, model.checkpoint, {.device_budget = 2 * model.bytes, .host_bytes = host_bytes});
    const auto all = layers::bundles_of_layers(uploader);
    const auto lease_all = [&] {
        for (const Bundle& layer : all) static_cast<void>(uploader.acquire(layer));
    };
    lease_all();
    Sample asleep;
    const auto wake = [&] {
        asleep.add(1e3 * measure::seconds([&] { uploader.sleep(); }));
        return measure::seconds([&] {
            uploader.wake();
            lease_all();
        });
    };
    Pairs(options.rounds, wake, [&] {
        return gpu.copy(model.bytes);
    }).print(host_bytes > 0 ? "wake from the host tier" : "wake", model.bytes);
    std::printf("%-58s %9.3g (%.3g to %.3g)\n", "sleep, ms", asleep.median(), asleep.least(), asleep.most());
}

/// Leases what is on the GPU: by a thread that waits for nothing, and on a stream.
void leases(Gpu& gpu, const Model& model) {
    Uploader uploader(gpu.device, model.checkpoint);
    const Bundle one = uploader.bundle(Selection::names({"small.0"}));
    constexpr int times = 100'000;
    for (const NativeStream stream : {NativeStream{}, NativeStream::cuda(nullptr)}) {
        uploader.acquire(one, stream).wait();
        const double seconds = measure::seconds([&] {
            for (int i = 0; i < times; ++i) static_cast<void>(uploader.acquire(one, stream));
        });
        std::printf("%-58s %9.3g\n", stream ? "lease and release on a stream, ns" : "lease and release, ns",
                    seconds / times * 1e9);
    }
}

/// Demands small bundles while all layers are on their way, in times of a block of the limit.
void demands(const Options& options, Gpu& gpu, const Model& model) {
    Sample medians, most;
    for (int round = 0; round < options.rounds; ++round) {
        const double unit = gpu.copy(model.bytes) * static_cast<double>(block) / static_cast<double>(model.bytes);
        Uploader uploader(gpu.device, model.checkpoint, {.device_budget = 2 * model.bytes});
        const auto all = layers::bundles_of_layers(uploader);
        const auto small = layers::small_bundles(uploader);
        static_cast<void>(uploader.acquire(all.front()));  // slabs are page-locked now
        std::jthread prefetching([&] { uploader.prefetch(all); });
        Sample times;
        for (const Bundle& bundle : small) {
            if (uploader.try_acquire(all.back())) break;
            times.add(measure::seconds([&] { static_cast<void>(uploader.acquire(bundle)); }) / unit);
        }
        prefetching.join();
        if (times.empty()) continue;
        medians.add(times.median());
        most.add(times.most());
    }
    if (medians.empty()) return;
    measure::print_at_most("64 KiB during a prefetch, median, blocks of 8 MiB", medians, 2);
    measure::print_at_most("64 KiB during a prefetch, most of a round, blocks", most, 2);
}

Options parse(int argc, char** argv) {
    Options options;
    const measure::OptionTable known = {
        {"--size", [&](const std::string& value) { options.size = std::max(measure::bytes_of_text(value), 64_MiB); }},
        {"--rounds", [&](const std::string& value) { options.rounds = std::max(std::stoi(value), 1); }},
        {"--device", [&](const std::string& value) { options.device = value; }},
        {"--folder", [&](const std::string& value) { options.folder = value; }},
    };
    measure::parse(argc, argv, known);
    return options;
}

void run(const Options& options) {
    measure::print_machine(options.rounds, options.size);
    const auto items = layers::items_of(options.size);
    const made::File file(options.folder, items);
    const Model model{file, layers::bytes_of_layers(items), Checkpoint::open(file.path())};
    Gpu gpu(options.device, options.size);
    reading(options, gpu, model);
    measure::print_head();
    for (const unsigned readers : {0U, 1U, 4U, 8U, 16U}) {
        if (readers > std::max(std::thread::hardware_concurrency(), 1U)) break;
        first_pass(options, gpu, model, readers, false);
    }
    first_pass(options, gpu, model, 0, true);
    later_passes(options, gpu, model);
    fills(options, gpu, model);
    for (const std::uint64_t host_bytes : {std::uint64_t{0}, 2 * model.bytes}) wakes(options, gpu, model, host_bytes);
    demands(options, gpu, model);
    leases(gpu, model);
}

}  // namespace

int main(int argc, char** argv) {
    return measure::exit_code("gpu_limits", [&] { run(parse(argc, argv)); });
}
