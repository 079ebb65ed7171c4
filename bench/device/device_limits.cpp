// Measures how close loading a checkpoint to a device comes to what this machine can do. Prints a table.
//
//     device_limits [--size 1GiB] [--rounds 7] [--tensors 75000] [--folder FOLDER]
//
// It makes a file of so many bytes, 16 layers of nine tensors, and a file of so many tensors of 16 bytes. Both are in
// the page cache while it measures. Ratios are of pairs in turn: the limit's time by that of Uploader, with two threads
// each. Other rows say what their numbers are. From top to bottom:
//   - the model
//   - the rows: whole passes, fills, small tensors, a demand during a prefetch, memory
#include "device/layers.hpp"
#include "device/limits.hpp"
#include "device/made.hpp"
#include "device/measure.hpp"
#include "device/staged_device.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/device_budget.hpp>
#include <safemap/error.hpp>
#include <safemap/source.hpp>
#include <safemap/upload_order.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace safemap;
using layers::bundles_of_layers;
using layers::half_budget;
using layers::layer_count;
using layers::pass;
using limits::block;
using limits::HugeMemory;
using limits::Model;
using limits::read_blocks;
using limits::seconds_to_fresh_memory;
using limits::threads;
using measure::Sample;

namespace {

struct Options {
    std::uint64_t size = 1_GiB;
    int rounds = 7;
    std::size_t tensors = 75'000;
    std::filesystem::path folder = std::filesystem::temp_directory_path();
};

// ---- The model

/// The destination of the layers: memory of the host, a device that hides its memory, or OpenCL.
enum class To : std::uint8_t { host, ring, opencl };

std::shared_ptr<Device> open(To to) {
    if (to == To::ring) return std::make_shared<StagedDevice>();
    return Device::open(to == To::host ? "host" : "opencl");
}
std::string text(To to) { return to == To::host ? "host" : to == To::ring ? "ring" : "OpenCL"; }

// ---- The rows

void first_pass(const Options& options, const Model& model, To to) {
    const auto device = open(to);
    const auto ours = [&] {
        std::unique_ptr<Uploader> uploader;
        return measure::seconds([&] {
            uploader = std::make_unique<Uploader>(device, model.checkpoint,
                                                  UploadOptions{.device_budget = 2 * model.bytes, .readers = 1});
            pass(*uploader, bundles_of_layers(*uploader), layer_count);
        });
    };
    measure::Pairs(options.rounds, ours, [&] {
        return seconds_to_fresh_memory(model);
    }).print(text(to) + ", first pass, beside pread to fresh memory", model.bytes);
}

void later_passes(const Options& options, const Model& model, To to) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    Uploader uploader(open(to), model.checkpoint, {.device_budget = budget, .readers = 1});
    const auto layers = bundles_of_layers(uploader);
    const std::uint64_t room = std::max(budget / block, std::uint64_t{1}) * block;
    const HugeMemory memory(room);
    const auto walk = [&] { pass(uploader, layers, 2); };
    // Layers that fit stay; the limit reads as many bytes as a pass uploads.
    const std::uint64_t uploaded = layers::settle([&] { return uploader.stats().uploaded_bytes; }, walk);
    measure::Pairs(
        options.rounds, [&] { return measure::seconds(walk); },
        [&] { return measure::seconds([&] { read_blocks(model, uploaded, memory.bytes(), room, to == To::ring); }); })
        .print(text(to) + ", half the budget, beside pread" + (to == To::ring ? " and memcpy" : ""), uploaded);
}

/// Writes all layers into memory of the caller again and again, as a server does that reloads the weights of its model.
void fills(const Options& options, const Model& model, To to) {
    const auto device = open(to);
    Uploader uploader(device, model.checkpoint, {.readers = 1});
    std::vector<std::shared_ptr<DeviceMemory>> own;
    const auto targets = layers::fill_targets(*device, model.checkpoint, own);
    const std::uint64_t room = model.bytes / block * block;
    const HugeMemory memory(room);
    measure::Pairs(
        options.rounds, [&] { return measure::seconds([&] { uploader.fill(targets)->wait(); }); },
        [&] {
            return measure::seconds([&] { read_blocks(model, model.bytes, memory.bytes(), room, to == To::ring); });
        })
        .print(text(to) + ", fill, beside pread" + (to == To::ring ? " and memcpy" : ""), model.bytes);
}

/// Copies all layers from memory to fresh memory, by threads that claim blocks.
double seconds_to_copy(const Model& model, const HugeMemory& from) {
    return measure::seconds([&] {
        const HugeMemory to(model.bytes);
        std::atomic<std::uint64_t> next = 0;
        std::vector<std::thread> copying;
        for (unsigned i = 0; i < threads; ++i)
            copying.emplace_back([&] {
                for (std::uint64_t at = next.fetch_add(block); at < model.bytes; at = next.fetch_add(block))
                    std::memcpy(to.bytes() + at, from.bytes() + at, std::min(block, model.bytes - at));
            });
        for (std::thread& thread : copying) thread.join();
    });
}

/// Brings everything back from the host tier. Of two threads, one is a reader.
void wakes(const Options& options, const Model& model) {
    Uploader uploader(open(To::ring), model.checkpoint,
                      {.device_budget = 2 * model.bytes, .host_bytes = 2 * model.bytes, .readers = 1});
    const auto all = bundles_of_layers(uploader);
    const auto lease_all = [&] {
        for (const Bundle& layer : all) static_cast<void>(uploader.acquire(layer));
    };
    lease_all();
    const HugeMemory from(model.bytes);
    std::memset(from.bytes(), 1, model.bytes);
    const auto wake = [&] {
        uploader.sleep();
        return measure::seconds([&] {
            uploader.wake();
            lease_all();
        });
    };
    measure::Pairs(options.rounds, wake, [&] {
        return seconds_to_copy(model, from);
    }).print("ring, wake from the host tier, beside memcpy to fresh memory", model.bytes);
}

/// Passes over two models of which both together are twice the budget that they share, each layer of one followed by
/// that of the other.
void shared_budget(const Options& options, const Model& model) {
    const std::uint64_t budget = 2 * half_budget(model.checkpoint);
    DeviceBudget shared(Device::open("host"), {.device_bytes = budget});
    const UploadOptions readers{.readers = 1};
    Uploader one(shared, model.checkpoint, readers), other(shared, model.checkpoint, readers);
    const auto layers = bundles_of_layers(one), others = bundles_of_layers(other);
    const auto walk = [&] {
        for (std::size_t i = 0; i < layer_count; ++i) {
            const Lease first = one.acquire(layers[i]);
            if (i + 1 < layer_count) one.prefetch(layers[i + 1]);
            const Lease second = other.acquire(others[i]);
            if (i + 1 < layer_count) other.prefetch(others[i + 1]);
        }
    };
    const std::uint64_t uploaded =
        layers::settle([&] { return one.stats().uploaded_bytes + other.stats().uploaded_bytes; }, walk);
    const std::uint64_t room = budget / block * block;
    const HugeMemory memory(room);
    measure::Pairs(
        options.rounds, [&] { return measure::seconds(walk); },
        [&] { return measure::seconds([&] { read_blocks(model, uploaded, memory.bytes(), room, false); }); })
        .print("host, two models in one budget, beside pread", uploaded);
}

/// Uses a processor for so many seconds.
void compute(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
    }
}

/// Walks a model of twice the budget in order. Each layer computes for 0.75 of the time in which one reader uploads it.
void stream(const Options& options, const Model& model) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    Sample slower, uploads;
    for (int round = 0; round < options.rounds; ++round) {
        Uploader uploader(Device::open("host"), model.checkpoint, {.device_budget = budget, .readers = 1});
        const auto layers = bundles_of_layers(uploader);
        UploadOrder steps = uploader.follow(layers);
        for (std::size_t i = 0; i < 2 * layer_count; ++i) static_cast<void>(steps.next());
        steps.end();
        uploader.evict(layers.front());
        const double load = measure::seconds([&] {
            uploader.prefetch(layers.front());
            while (!uploader.try_acquire(layers.front())) std::this_thread::yield();
        });
        UploadOrder again = uploader.follow(layers);
        const auto walk = [&] {
            for (std::size_t i = 0; i < layer_count; ++i) {
                const Lease layer = again.next();
                compute(0.75 * load);
            }
        };
        walk();
        const std::uint64_t before = uploader.stats().uploaded_bytes;
        slower.add(measure::seconds(walk) / (0.75 * load * layer_count));
        const double window = 2.0 * static_cast<double>(budget) / (layer_count / 2);
        const double least = static_cast<double>(model.bytes) - (static_cast<double>(budget) - window);
        uploads.add(static_cast<double>(uploader.stats().uploaded_bytes - before) / least);
    }
    measure::print_at_most("layers of twice the budget, time of a pass in its compute", slower, 1.05);
    measure::print_at_most("... uploaded bytes, in S - (B - W)", uploads, 1.02);
}

/// Counts the reads of a file.
class CountedFile final : public Source {
public:
    explicit CountedFile(const std::string& path) : file_(open_file(path)) {}
    const std::string& name() const noexcept override { return file_->name(); }
    std::uint64_t size() const noexcept override { return file_->size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        ++reads;
        file_->read_at(offset, into);
    }
    void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const override {
        ++reads;
        file_->read_scattered(offset, into);
    }
    bool is_file() const noexcept override { return true; }
    mutable std::atomic<std::uint64_t> reads = 0;

private:
    const std::shared_ptr<const Source> file_;
};

/// Brings the tensors of a checkpoint as one bundle, and returns the uploader.
std::unique_ptr<Uploader> bring_all(const std::shared_ptr<Device>& device, const Checkpoint& checkpoint) {
    auto uploader = std::make_unique<Uploader>(device, checkpoint);
    static_cast<void>(uploader->acquire(uploader->bundle(Selection())));
    return uploader;
}

void small_tensors(const Options& options) {
    const made::File file(options.folder, made::small_items(options.tensors));
    const auto counted = std::make_shared<CountedFile>(file.path());
    const auto checkpoint = Checkpoint::open(std::shared_ptr<const Source>(counted));
    Sample memory, planning, bringing, reads, copies;
    memory.add(measure::peak_growth([&] {
                   const auto uploader = bring_all(Device::open("host"), checkpoint);
                   return static_cast<double>(uploader->stats().peak_device_bytes);
               }) /
               1e6);
    for (int i = 0; i < options.rounds; ++i) {
        Uploader uploader(Device::open("host"), checkpoint);
        Bundle all;
        planning.add(measure::processor_seconds([&] { all = uploader.bundle(Selection()); }) * 1e3);
        const std::uint64_t before = counted->reads;
        bringing.add(measure::processor_seconds([&] { static_cast<void>(uploader.acquire(all)); }) * 1e3);
        reads.add(static_cast<double>(counted->reads - before));
        const auto staged = std::make_shared<StagedDevice>();
        bring_all(staged, checkpoint);
        copies.add(static_cast<double>(staged->copies));
    }
    const std::string many = std::to_string(options.tensors) + " tensors of 16 bytes: ";
    measure::print_at_most(many + "planning, ms", planning, 50);
    measure::print_at_most(many + "bringing, ms of processor", bringing, 50);
    measure::print_at_most(many + "peak RssAnon, MB", memory, 32);
    measure::print_at_most(many + "reads", reads, 100);
    measure::print_at_most(many + "copies to a staged device", copies, 10);
}

/// A way to demand small bundles: how many at once, and how to get them.
struct Demand {
    const char* name;
    std::size_t count;
    void (*get)(Uploader& uploader, std::span<const Bundle> bundles);
};

void get_one(Uploader& uploader, std::span<const Bundle> bundles) {
    static_cast<void>(uploader.acquire(bundles.front()));
}

/// Leaves the reading to the reader threads.
void get_in_time(Uploader& uploader, std::span<const Bundle> bundles) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    static_cast<void>(uploader.acquire(bundles.front(), {}, {.deadline = deadline}));
}

void get_by_requests(Uploader& uploader, std::span<const Bundle> bundles) {
    std::vector<Lease> leases;
    for (const Bundle& bundle : bundles) leases.push_back(uploader.request(bundle, {.priority = 1}));
    for (Lease& lease : leases) lease.wait();
}

const Demand one = {"64 KiB during a prefetch, ", 1, get_one};
const Demand demands[] = {one, {"64 KiB with a deadline, ", 1, get_in_time}, {"8 requests, ", 8, get_by_requests}};

/// Demands small bundles one after the other while the layers are on their way. Uploader chooses how many readers.
void measure_demand(const Options& options, const Model& model, To to, const Demand& demand) {
    Sample medians, most;
    for (int round = 0; round < options.rounds; ++round) {
        const double blocks = static_cast<double>(model.bytes) / static_cast<double>(block);
        const double unit = seconds_to_fresh_memory(model) * threads / blocks;
        Uploader uploader(open(to), model.checkpoint, {.device_budget = 2 * model.bytes});
        const auto layers = bundles_of_layers(uploader);
        const auto small = layers::small_bundles(uploader);
        uploader.prefetch(layers);
        Sample times;
        for (std::size_t i = 0; i + demand.count <= small.size(); i += demand.count) {
            const std::span some(&small[i], demand.count);
            const double time = measure::seconds([&] { demand.get(uploader, some); });
            if (uploader.try_acquire(layers.back())) break;
            times.add(time / unit);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        if (times.empty()) continue;
        medians.add(times.median());
        most.add(times.most());
    }
    if (medians.empty()) return;
    measure::print_at_most(demand.name + text(to) + ", median, blocks of 8 MiB", medians, 2);
    measure::print_at_most(demand.name + text(to) + ", most of a round, blocks", most, 2);
}

void peak_memory(const Model& model, To to) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    double staging = 0;
    Sample growth;
    const auto load = [&](bool want_staging) {
        Uploader uploader(open(to), model.checkpoint, {.device_budget = budget});
        pass(uploader, bundles_of_layers(uploader), 2);
        const UploadStats stats = uploader.stats();
        return static_cast<double>(want_staging ? stats.peak_staging_bytes : stats.peak_device_bytes);
    };
    growth.add(measure::peak_growth([&] { return load(false); }) / 1e6);
    staging = measure::in_child([&] { return load(true); });
    measure::print_at_most("peak RssAnon of loading, " + text(to) + ", MB", growth,
                           (staging + static_cast<double>(32_MiB)) / 1e6);
}

// ---- The command line

Options parse(int argc, char** argv) {
    Options options;
    const measure::OptionTable known = {
        {"--size", [&](const std::string& value) { options.size = std::max(measure::bytes_of_text(value), 64_MiB); }},
        {"--rounds", [&](const std::string& value) { options.rounds = std::max(std::stoi(value), 1); }},
        {"--tensors", [&](const std::string& value) { options.tensors = std::stoul(value); }},
        {"--folder", [&](const std::string& value) { options.folder = value; }},
    };
    measure::parse(argc, argv, known);
    return options;
}

/// Measures the first device of OpenCL, if there is one.
void run_opencl(const Options& options, const Model& model) {
    try {
        open(To::opencl);
    } catch (const Error& error) {
        std::printf("OpenCL: not measured: %s\n", error.what());
        return;
    }
    first_pass(options, model, To::opencl);
    later_passes(options, model, To::opencl);
    fills(options, model, To::opencl);
    measure_demand(options, model, To::opencl, one);
}

void run(const Options& options) {
    measure::print_machine(options.rounds, options.size);
    measure::print_head();
    const auto items = layers::items_of(options.size);
    const made::File file(options.folder, items);
    const Model model{file, layers::bytes_of_layers(items), Checkpoint::open(file.path())};
    // Memory first: a process that has done other work has memory that is not counted again.
    for (const To to : {To::host, To::ring}) peak_memory(model, to);
    small_tensors(options);
    first_pass(options, model, To::host);
    for (const To to : {To::host, To::ring}) later_passes(options, model, to);
    for (const To to : {To::host, To::ring}) fills(options, model, to);
    wakes(options, model);
    shared_budget(options, model);
    stream(options, model);
    for (const To to : {To::host, To::ring})
        for (const Demand& demand : demands) measure_demand(options, model, to, demand);
    run_opencl(options, model);
}

}  // namespace

int main(int argc, char** argv) {
    return measure::exit_code("device_limits", [&] { run(parse(argc, argv)); });
}
