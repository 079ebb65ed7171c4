// Measures how close loading a checkpoint to a device comes to what this machine can do. Prints a table.
//
//     device_limits [--size 1GiB] [--rounds 7] [--tensors 75000] [--folder FOLDER]
//
// It makes a file of so many bytes, 16 layers of nine tensors, and a file of so many tensors of 16 bytes. Both are in
// the page cache while it measures. Ratios are of pairs in turn: the limit's time by that of Uploader, with two threads
// each. Other rows say what their numbers are. From top to bottom:
//   - the limits: threads that read blocks to memory
//   - the rows: whole passes, small tensors, a demand during a prefetch, memory
#include "device/made.hpp"
#include "device/measure.hpp"
#include "device/staged_device.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/layer_stream.hpp>
#include <safemap/source.hpp>
#include <safemap/uploader.hpp>

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace safemap;
using measure::Sample;

namespace {

constexpr std::uint64_t block = 8_MiB;
constexpr std::size_t layer_count = 16;
constexpr unsigned threads = 2;
constexpr std::uint64_t small_demand = 64_KiB;
constexpr std::size_t demands = 64;
constexpr std::uint64_t huge_page = 2_MiB;

struct Options {
    std::uint64_t size = 1_GiB;
    int rounds = 7;
    std::size_t tensors = 75'000;
    std::filesystem::path folder = std::filesystem::temp_directory_path();
};

// ---- The limits

/// Memory that the kernel hands out in huge pages, which nothing has touched yet.
class HugeMemory {
public:
    explicit HugeMemory(std::uint64_t size) : mapped_(size + huge_page) {
        at_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at_ == MAP_FAILED) measure::fail("mmap");
        const auto address = reinterpret_cast<std::uintptr_t>(at_);
        bytes_ = static_cast<char*>(at_) + (huge_page - address % huge_page) % huge_page;
        ::madvise(bytes_, size, MADV_HUGEPAGE);
    }
    ~HugeMemory() { ::munmap(at_, mapped_); }
    HugeMemory(const HugeMemory&) = delete;
    HugeMemory& operator=(const HugeMemory&) = delete;

    char* bytes() const noexcept { return bytes_; }

private:
    std::uint64_t mapped_;
    void* at_;
    char* bytes_;
};

void pread_all(const made::File& file, char* into, std::uint64_t size, std::uint64_t offset) {
    while (size > 0) {
        const ssize_t done = ::pread(file.descriptor(), into, size, static_cast<off_t>(offset));
        if (done <= 0) measure::fail("pread");
        into += done;
        offset += static_cast<std::uint64_t>(done);
        size -= static_cast<std::uint64_t>(done);
    }
}

/// A file of layers, whose bytes come first, and of small tensors.
struct Model {
    const made::File& file;
    std::uint64_t bytes;  // sum of all layers
    Checkpoint checkpoint;
};

/// Reads `bytes` of the layers of a model by threads that claim blocks: to `memory` of `room` bytes. At the end of
/// either they go on at its beginning. With `staged`, each thread reads to a buffer of its own, and copies that.
void read_blocks(const Model& model, std::uint64_t bytes, char* memory, std::uint64_t room, bool staged) {
    std::atomic<std::uint64_t> next = 0;
    const std::uint64_t blocks = std::max<std::uint64_t>(model.bytes / block, 1);
    const auto work = [&] {
        const HugeMemory buffer(staged ? block : huge_page);
        for (std::uint64_t at = next.fetch_add(block); at < bytes; at = next.fetch_add(block)) {
            const std::uint64_t size = std::min(block, bytes - at);
            char* const to = memory + at / block % (room / block) * block;
            const std::uint64_t from = model.file.data() + at / block % blocks * block;
            pread_all(model.file, staged ? buffer.bytes() : to, size, from);
            if (staged) std::memcpy(to, buffer.bytes(), size);
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
}

double seconds_to_fresh_memory(const Model& model) {
    const std::uint64_t room = (model.bytes + block - 1) / block * block;
    std::unique_ptr<HugeMemory> memory;  // freed after the time is taken
    return measure::seconds([&] {
        memory = std::make_unique<HugeMemory>(room);
        read_blocks(model, model.bytes, memory->bytes(), room, false);
    });
}

// ---- The model

/// Returns the tensors of a model: those of the layers, and then the small ones.
std::vector<made::Item> items_of(std::uint64_t size) {
    const std::uint64_t part = std::max<std::uint64_t>(size / layer_count / 64, 4_KiB);
    const std::pair<const char*, std::uint64_t> parts[] = {{"q", 6},     {"k", 2},   {"v", 2},    {"o", 6},
                                                           {"gate", 16}, {"up", 16}, {"down", 16}};
    std::vector<made::Item> items;
    for (std::size_t i = 0; i < layer_count; ++i) {
        const std::string layer = "layers." + std::to_string(i) + ".";
        items.emplace_back(layer + "norm_1", 4_KiB);
        for (const auto& [name, share] : parts) items.emplace_back(layer + name, share * part);
        items.emplace_back(layer + "norm_2", 4_KiB);
    }
    for (std::size_t i = 0; i < demands; ++i) items.emplace_back("small." + std::to_string(i), small_demand);
    return items;
}

std::uint64_t bytes_of_layers(const std::vector<made::Item>& items) {
    std::uint64_t sum = 0;
    for (const auto& [name, size] : items)
        if (name.starts_with("layers.")) sum += size;
    return sum;
}

std::vector<Bundle> bundles_of_layers(Uploader& uploader) {
    std::vector<Bundle> layers;
    for (std::size_t i = 0; i < layer_count; ++i)
        layers.push_back(uploader.bundle(Selection::prefix("layers." + std::to_string(i))));
    return layers;
}

/// Leases all layers in order, each while the next `ahead` ones are on their way.
void pass(Uploader& uploader, const std::vector<Bundle>& layers, std::size_t ahead) {
    const std::span all(layers);
    uploader.prefetch(all.first(ahead));
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const Lease lease = uploader.acquire(layers[i]);
        if (i + ahead < layers.size()) uploader.prefetch(layers[i + ahead]);
    }
}

/// Returns the bytes of the first half of the layers, all of equal size.
std::uint64_t half_budget(const Checkpoint& checkpoint) {
    Uploader uploader(Device::open("host"), checkpoint);
    return uploader.bundle(Selection::prefix("layers.0")).device_bytes() * (layer_count / 2);
}

// ---- The rows

/// Runs both in turn, `rounds` times and once before that without counting.
struct Pairs {
    measure::Times ours = {};
    measure::Times limit = {};
    Sample ratio = {};

    template <class Ours, class Limit> Pairs(int rounds, Ours&& run_ours, Limit&& run_limit) {
        for (int i = 0; i <= rounds; ++i) {
            const bool first = i % 2 == 0;
            if (first) add(ours, run_ours, i > 0);
            const double other = add(limit, run_limit, i > 0);
            if (!first) add(ours, run_ours, i > 0);
            if (i > 0) ratio.add(other / last_);
        }
    }
    void print(const char* what, std::uint64_t bytes) const {
        measure::print_ratio(what, static_cast<double>(bytes), ours, limit, ratio, 0.9);
    }

private:
    template <class Work> double add(measure::Times& times, Work&& work, bool counts) {
        const double processor = measure::processor_time();
        const double clock = work();
        if (counts) {
            times.processor.add(measure::processor_time() - processor);
            times.clock.add(clock);
        }
        if (&times == &ours) last_ = clock;
        return clock;
    }
    double last_ = 0;  // seconds by the clock
};

void first_pass(const Options& options, const Model& model) {
    const auto ours = [&] {
        std::unique_ptr<Uploader> uploader;
        return measure::seconds([&] {
            uploader = std::make_unique<Uploader>(Device::open("host"), model.checkpoint,
                                                  UploadOptions{.device_budget = 2 * model.bytes, .readers = 1});
            pass(*uploader, bundles_of_layers(*uploader), layer_count);
        });
    };
    Pairs(options.rounds, ours, [&] {
        return seconds_to_fresh_memory(model);
    }).print("host, first pass, beside pread to fresh memory", model.bytes);
}

void later_passes(const Options& options, const Model& model, bool staged) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    const std::shared_ptr<Device> device = staged ? std::make_shared<StagedDevice>() : Device::open("host");
    Uploader uploader(device, model.checkpoint, {.device_budget = budget, .readers = 1});
    const auto layers = bundles_of_layers(uploader);
    const std::uint64_t room = std::max(budget / block, std::uint64_t{1}) * block;
    const HugeMemory memory(room);
    // Layers that fit stay; the limit reads as many bytes as a pass uploads.
    for (int i = 0; i < 2; ++i) pass(uploader, layers, 2);
    const std::uint64_t before = uploader.stats().uploaded_bytes;
    pass(uploader, layers, 2);
    const std::uint64_t uploaded = uploader.stats().uploaded_bytes - before;
    Pairs(
        options.rounds, [&] { return measure::seconds([&] { pass(uploader, layers, 2); }); },
        [&] { return measure::seconds([&] { read_blocks(model, uploaded, memory.bytes(), room, staged); }); })
        .print(staged ? "ring, half the budget, beside pread and memcpy" : "host, half the budget, beside pread",
               uploaded);
}

/// Uses a processor for so many seconds.
void compute(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
    }
}

/// Walks a model of twice the budget with a LayerStream. Each layer computes for 0.75 of the time in which one reader
/// uploads it.
void stream(const Options& options, const Model& model) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    Sample slower, uploads;
    for (int round = 0; round < options.rounds; ++round) {
        Uploader uploader(Device::open("host"), model.checkpoint, {.device_budget = budget, .readers = 1});
        const auto layers = bundles_of_layers(uploader);
        LayerStream steps(uploader, layers);
        for (std::size_t i = 0; i < 2 * layer_count; ++i) steps.next();
        uploader.follow({});
        uploader.evict(layers.front());
        const double load = measure::seconds([&] {
            uploader.prefetch(layers.front());
            while (!uploader.try_acquire(layers.front())) std::this_thread::yield();
        });
        LayerStream again(uploader, layers);
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
    uploader->acquire(uploader->bundle(Selection()));
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
        bringing.add(measure::processor_seconds([&] { uploader.acquire(all); }) * 1e3);
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

/// Demands small bundles one after the other while the layers are on their way, by as many readers as Uploader chooses.
void demand(const Options& options, const Model& model, bool staged) {
    Sample medians, most;
    for (int round = 0; round < options.rounds; ++round) {
        const double blocks = static_cast<double>(model.bytes) / static_cast<double>(block);
        const double unit = seconds_to_fresh_memory(model) * threads / blocks;
        const std::shared_ptr<Device> device = staged ? std::make_shared<StagedDevice>() : Device::open("host");
        Uploader uploader(device, model.checkpoint, {.device_budget = 2 * model.bytes});
        const auto layers = bundles_of_layers(uploader);
        std::vector<Bundle> small;
        for (std::size_t i = 0; i < demands; ++i)
            small.push_back(uploader.bundle(Selection::names({"small." + std::to_string(i)})));
        uploader.prefetch(layers);
        Sample times;
        for (const Bundle& one : small) {
            const double time = measure::seconds([&] { uploader.acquire(one); });
            if (uploader.try_acquire(layers.back())) break;
            times.add(time / unit);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        if (times.empty()) continue;
        medians.add(times.median());
        most.add(times.most());
    }
    if (medians.empty()) return;
    const std::string what = std::string("64 KiB during a prefetch, ") + (staged ? "ring" : "host");
    measure::print_at_most(what + ", median, blocks of 8 MiB", medians, 2);
    measure::print_at_most(what + ", most of a round, blocks", most, 2);
}

void peak_memory(const Model& model, bool staged) {
    const std::uint64_t budget = half_budget(model.checkpoint);
    double staging = 0;
    Sample growth;
    const auto load = [&](bool want_staging) {
        const std::shared_ptr<Device> device = staged ? std::make_shared<StagedDevice>() : Device::open("host");
        Uploader uploader(device, model.checkpoint, {.device_budget = budget});
        pass(uploader, bundles_of_layers(uploader), 2);
        const UploadStats stats = uploader.stats();
        return static_cast<double>(want_staging ? stats.peak_staging_bytes : stats.peak_device_bytes);
    };
    growth.add(measure::peak_growth([&] { return load(false); }) / 1e6);
    staging = measure::in_child([&] { return load(true); });
    measure::print_at_most(std::string("peak RssAnon of loading, ") + (staged ? "ring" : "host") + ", MB", growth,
                           (staging + static_cast<double>(32_MiB)) / 1e6);
}

// ---- The command line

std::uint64_t bytes_of_text(const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const std::string_view unit = end;
    if (unit == "GiB") return static_cast<std::uint64_t>(number * static_cast<double>(1_GiB));
    if (unit == "MiB") return static_cast<std::uint64_t>(number * static_cast<double>(1_MiB));
    throw std::runtime_error("--size " + text + ": expected a number of MiB or GiB, such as 1GiB");
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) throw std::runtime_error(name + " needs a value");
        const std::string value = argv[i + 1];
        if (name == "--size") options.size = std::max<std::uint64_t>(bytes_of_text(value), 64_MiB);
        else if (name == "--rounds") options.rounds = std::max(std::stoi(value), 1);
        else if (name == "--tensors") options.tensors = std::stoul(value);
        else if (name == "--folder") options.folder = value;
        else throw std::runtime_error("unknown option " + name + "; expected --size, --rounds, --tensors or --folder");
    }
    return options;
}

void print_machine(const Options& options) {
    utsname system{};
    ::uname(&system);
    char date[32] = "";
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
    std::printf("%s, %u cores, Linux %s, %d rounds, %llu MiB in %zu layers\n\n", date,
                std::thread::hardware_concurrency(), system.release, options.rounds,
                static_cast<unsigned long long>(options.size / 1_MiB), layer_count);
}

void run(const Options& options) {
    print_machine(options);
    measure::print_head();
    const auto items = items_of(options.size);
    const made::File file(options.folder, items);
    const Model model{file, bytes_of_layers(items), Checkpoint::open(file.path())};
    // Memory first: a process that has done other work has memory that is not counted again.
    for (const bool staged : {false, true}) peak_memory(model, staged);
    small_tensors(options);
    first_pass(options, model);
    for (const bool staged : {false, true}) later_passes(options, model, staged);
    stream(options, model);
    for (const bool staged : {false, true}) demand(options, model, staged);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(parse(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "device_limits: %s\n", error.what());
        return 2;
    }
    return 0;
}
