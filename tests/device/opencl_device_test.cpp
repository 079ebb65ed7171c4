// Tests devices of OpenCL with an implementation that is installed, such as PoCL, which runs on processors.
#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/opencl_fixture.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/uploader.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <span>
#include <thread>

namespace opencl_device_test {

using namespace opencl_test;
using namespace safemap::literals;
using safemap::Device;
using safemap::Errc;
using safemap::NativeStream;
using Lane = Device::Lane;
using Data = std::vector<std::byte>;

namespace {

constexpr Lane lanes[] = {Lane::demand, Lane::bulk};

std::chrono::steady_clock::time_point in_a_moment() {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
}

Data random_bytes(std::uint64_t size, unsigned seed) {
    std::mt19937 engine(seed);
    Data bytes(size);
    for (std::byte& each : bytes) each = static_cast<std::byte>(engine());
    return bytes;
}

std::shared_ptr<safemap::StagingBuffer> staged(Device& device, const Data& bytes) {
    auto staging = device.allocate_staging(bytes.size());
    std::copy(bytes.begin(), bytes.end(), staging->bytes().begin());
    return staging;
}

/// Fills all of `memory` in a queue, and waits.
void fill(Device& device, safemap::DeviceMemory& memory, std::byte value, Lane lane = Lane::demand) {
    const auto staging = staged(device, Data(memory.size(), value));
    device.queue(lane).copy(memory, 0, *staging, {0, memory.size()});
    device.queue(lane).record()->wait();
}

}  // namespace

TEST_CASE("OpenCL: devices are numbered, and other names are refused") {
    if (!available()) return;
    CHECK(Device::open("opencl")->name() == "opencl:0");
    CHECK(Device::open("opencl:0")->name() == "opencl:0");
    for (const char* name :
         {"opencl:", "opencl:x", "opencl:0x", "opencl:-1", "opencl:99", "opencl:99999999999999999999"}) {
        CAPTURE(name);
        CHECK_FAULT(Device::open(name), Errc::no_such_device);
    }
    const auto error = error_of([] { return Device::open("opencl:99"); });
    REQUIRE(error);
    CHECK(error->message().starts_with("no device 'opencl:99'; available: host, "));
    CHECK(error->message().ends_with(", " + list_opencl(opencl_driver())));  // GPUs of CUDA may be in between
}

TEST_CASE("OpenCL: without a library that works there is no device, and the error says why") {
    for (const char* library : {"libno_such_library.so.1", "libm.so.6"}) {
        CAPTURE(library);
        OpenclDriver driver;
        driver.library = load_opencl(library, driver.api);
        CHECK(list_opencl(driver).empty());
        check_error(error_of([&] { open_opencl(driver, "0"); }), {Errc::no_such_device}, {library});
        int none = 0;
        CHECK_FAULT(adopt_opencl(driver, &none, &none), Errc::no_such_device);
    }
}

TEST_CASE("OpenCL: a host without memory is no missing device") {
    if (!available()) return;
    OpenclDriver driver = opencl_driver();
    driver.api.clGetDeviceIDs = [](auto...) { return ClResult::out_of_host_memory; };
    CHECK(list_opencl(driver).empty());
    const auto error = error_of([&] { open_opencl(driver, "0"); });
    check_error(error, {Errc::out_of_memory}, {});
    CHECK(error->message().ends_with("clGetDeviceIDs: CL_OUT_OF_HOST_MEMORY"));
}

TEST_CASE("OpenCL: copies of both queues arrive byte for byte, at any offset") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const Data source = random_bytes(3_MiB + 5, 1);
    const auto staging = staged(*device, source);
    for (const Lane lane : lanes) {
        const auto memory = device->allocate(source.size());
        fill(*device, *memory, std::byte{7});
        Data expected(source.size(), std::byte{7});
        std::mt19937 engine(2);
        for (int i = 0; i < 50; ++i) {
            const std::uint64_t size = engine() % (i % 2 == 0 ? 300 : 100'000);
            const std::uint64_t to = engine() % (expected.size() - size);
            const std::uint64_t from = engine() % (expected.size() - size);
            device->queue(lane).copy(*memory, to, *staging, {from, size});
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), size,
                        expected.begin() + static_cast<std::ptrdiff_t>(to));
        }
        const auto event = device->queue(lane).record();
        event->wait();
        CHECK(event->done());
        CHECK(bytes_of(*device, *memory) == expected);
        Data part(1000);
        device->copy_to_host(part, *memory, 777);
        CHECK(std::equal(part.begin(), part.end(), expected.begin() + 777));
    }
}

TEST_CASE("OpenCL: rows arrive at their pitches, and the bytes between them stay") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const Data source = random_bytes(200'000, 3);
    const auto staging = staged(*device, source);
    std::mt19937 engine(4);
    for (int i = 0; i < 60; ++i) {
        safemap::RowCopy rows;
        rows.rows = 1 + engine() % 20;
        rows.row_bytes = engine() % 500;
        rows.to_pitch = rows.row_bytes + (i % 3 == 0 ? 0 : engine() % 1000);
        rows.from_pitch = rows.row_bytes + (i % 5 == 0 ? 0 : engine() % 1000);
        rows.to = engine() % 5000;
        rows.from = engine() % 5000;
        const auto memory = device->allocate(rows.to + rows.rows * rows.to_pitch + 100);
        fill(*device, *memory, std::byte{9});
        Data expected(memory->size(), std::byte{9});
        for (std::uint64_t row = 0; row < rows.rows; ++row)
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(rows.from + row * rows.from_pitch), rows.row_bytes,
                        expected.begin() + static_cast<std::ptrdiff_t>(rows.to + row * rows.to_pitch));
        auto& queue = device->queue(lanes[i % 2]);
        queue.copy_rows(*memory, *staging, rows);
        queue.record()->wait();
        CHECK(bytes_of(*device, *memory) == expected);
    }
}

TEST_CASE("OpenCL: copies that reach outside their memory are refused, and the device goes on") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const auto memory = device->allocate(100);
    const auto staging = device->allocate_staging(50);
    auto& queue = device->queue(Lane::demand);
    CHECK_FAULT(queue.copy(*memory, 51, *staging, {0, 50}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*memory, 0, *staging, {1, 50}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*memory, 0, *staging, {0, UINT64_MAX}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy_rows(*memory, *staging, {.to_pitch = 10, .from_pitch = 10, .row_bytes = 10, .rows = 6}),
                Errc::invalid_argument);
    CHECK_FAULT(queue.copy_rows(*memory, *staging, {.to_pitch = 40, .from_pitch = 10, .row_bytes = 10, .rows = 4}),
                Errc::invalid_argument);
    CHECK_FAULT(queue.copy_rows(*memory, *staging, {.to_pitch = 9, .from_pitch = 10, .row_bytes = 10, .rows = 2}),
                Errc::invalid_argument);
    CHECK_FAULT(
        queue.copy_rows(*memory, *staging, {.to_pitch = UINT64_MAX, .from_pitch = 10, .row_bytes = 10, .rows = 3}),
        Errc::invalid_argument);
    CHECK_FAULT(queue.copy_rows(*memory, *staging, {}), Errc::invalid_argument);
    Data bytes(2);
    CHECK_FAULT(device->copy_to_host(bytes, *memory, 99), Errc::invalid_argument);
    const auto other = Device::open("host")->allocate(100);
    CHECK_FAULT(queue.copy(*other, 0, *staging, {0, 50}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*Device::open("opencl")->allocate(100), 0, *staging, {0, 50}), Errc::invalid_argument);
    CHECK_OK(queue.copy(*memory, 50, *staging, {0, 50}));
    CHECK_OK(queue.record()->wait());
}

TEST_CASE("OpenCL: memory of no bytes has no handle, and everything can be done with it") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const auto memory = device->allocate(0);
    const auto staging = device->allocate_staging(0);
    CHECK(memory->size() == 0);
    CHECK(memory->handle() == nullptr);
    CHECK(memory->host_bytes().empty());
    CHECK(staging->bytes().empty());
    CHECK_OK(device->queue(Lane::bulk).copy(*memory, 0, *staging, {0, 0}));
    CHECK_OK(device->queue(Lane::bulk).copy_rows(*memory, *staging, {.rows = 3}));
    CHECK_OK(device->queue(Lane::bulk).record()->wait());
    CHECK_OK(device->copy_to_host({}, *memory, 0));
}

TEST_CASE("OpenCL: memory that the device does not have is out_of_memory, with its largest allocation") {
    if (!available()) return;
    const Caller caller;
    const auto device = caller.adopted();
    std::uint64_t largest = 0;
    require(
        caller.api.clGetDeviceInfo(caller.device, ClDeviceInfo::max_mem_alloc_size, sizeof largest, &largest, nullptr));
    for (const std::uint64_t size : {largest + 1, std::uint64_t{1} << 62, UINT64_MAX}) {
        check_error(error_of([&] { return device->allocate(size); }), {Errc::out_of_memory}, {std::to_string(largest)});
    }
    CHECK_FAULT(device->allocate_staging(std::uint64_t{1} << 62), Errc::out_of_memory);
    const std::uint64_t free = device->free_memory();
    CHECK(free > 1_MiB);
    const auto memory = device->allocate(1_MiB);
    CHECK(device->free_memory() == free - 1_MiB);
}

TEST_CASE("OpenCL: a buffer of the caller is borrowed, and lives as long as its memory") {
    if (!available()) return;
    const Caller caller;
    const Caller stranger;
    const auto device = caller.adopted();
    ClResult result = ClResult::success;
    const ClMemory buffer = caller.api.clCreateBuffer(caller.context, cl_mem_read_write, 1000, nullptr, &result);
    require(result);
    const std::uint64_t free = device->free_memory();
    auto memory = device->borrow(buffer, 900);
    CHECK(device->free_memory() == free);
    CHECK(memory->handle() == buffer);
    CHECK(memory->size() == 900);
    CHECK_FAULT(device->borrow(nullptr, 1), Errc::invalid_argument);
    CHECK_FAULT(device->borrow(buffer, 1001), Errc::invalid_argument);
    CHECK_FAULT(stranger.adopted()->borrow(buffer, 900), Errc::invalid_argument);
    require(caller.api.clReleaseMemObject(buffer));
    fill(*device, *memory, std::byte{3});
    CHECK(bytes_of(*device, *memory) == Data(900, std::byte{3}));
    memory.reset();
    CHECK(device->free_memory() == free);
}

TEST_CASE("OpenCL: a buffer that a program retains outlives its memory, and takes no memory when it is released") {
    if (!available()) return;
    const Caller caller;
    ClFlags type = 0;
    require(caller.api.clGetDeviceInfo(caller.device, ClDeviceInfo::type, sizeof type, &type, nullptr));
    if ((type & cl_device_type_cpu) == 0) return;  // where the memory lies is the business of the driver
    const auto device = caller.adopted();
    auto memory = device->allocate(4_MiB);
    if (!memory->can_be_mapped()) return;
    fill(*device, *memory, std::byte{7});
    auto& queue = device->queue(Lane::bulk);
    const auto mapped = queue.map(*memory);
    REQUIRE(mapped.size() == 4_MiB);
    std::fill(mapped.begin(), mapped.end(), std::byte{8});
    queue.unmap(*memory, mapped);
    queue.record()->wait();
    const auto buffer = static_cast<ClMemory>(memory->handle());
    require(caller.api.clRetainMemObject(buffer));
    memory.reset();
    CHECK(bytes_of(*device, *device->borrow(buffer, 4_MiB)) == Data(4_MiB, std::byte{8}));
    const auto is_there = [&] {
        unsigned char resident = 0;
        return ::mincore(mapped.data() + 2_MiB, 1, &resident) == 0;
    };
    CHECK(is_there());
    require(caller.api.clReleaseMemObject(buffer));
    CHECK(soon([&] { return !is_there(); }));  // the callback may be of another thread
}

TEST_CASE("OpenCL: a copy waits for an event of a caller's queue, and the other queue goes on") {
    if (!available()) return;
    const Caller caller;
    const auto device = caller.adopted();
    const auto held = device->allocate(1000);
    const auto free = device->allocate(1000);
    const auto ones = staged(*device, Data(1000, std::byte{1}));
    const auto twos = staged(*device, Data(1000, std::byte{2}));
    fill(*device, *held, std::byte{0});
    Gate gate(caller);
    auto& bulk = device->queue(Lane::bulk);
    auto& demand = device->queue(Lane::demand);
    bulk.wait_for(*device->record(caller.stream()));
    bulk.copy(*held, 0, *ones, {0, 1000});
    const auto after_ones = bulk.record();
    demand.copy(*free, 0, *ones, {0, 1000});
    demand.record()->wait();
    CHECK(bytes_of(*device, *free) == Data(1000, std::byte{1}));
    demand.wait_for(*after_ones);
    demand.copy(*held, 0, *twos, {0, 1000});
    const auto after_twos = demand.record();
    CHECK_FALSE(after_ones->done());
    CHECK_FALSE(after_ones->wait_until(in_a_moment()));
    CHECK_FALSE(after_twos->wait_until(in_a_moment()));
    CHECK(bytes_of(*device, *held) == Data(1000, std::byte{0}));
    gate.open();
    CHECK(after_twos->wait_until(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    CHECK(after_ones->done());
    CHECK(bytes_of(*device, *held) == Data(1000, std::byte{2}));
}

TEST_CASE("OpenCL: a kernel of the caller reads what was copied before it") {
    if (!available()) return;
    const Caller caller;
    const auto device = caller.adopted();
    const AddOne add_one(caller);
    const Data source = random_bytes(5000, 5);
    const auto staging = staged(*device, source);
    const auto memory = device->allocate(6000);
    const auto sums = device->allocate(5000);
    fill(*device, *memory, std::byte{0});
    fill(*device, *sums, std::byte{0});
    Gate gate(caller);
    auto& bulk = device->queue(Lane::bulk);
    bulk.wait_for(*device->record(caller.stream()));  // so the copy has not begun when the kernel is put behind it
    bulk.copy(*memory, 512, *staging, {0, 5000});

    ClResult result = ClResult::success;
    const ClQueue kernels = caller.api.clCreateCommandQueue(caller.context, caller.device, 0, &result);
    require(result);
    device->make_wait(NativeStream::opencl(kernels), *bulk.record());
    add_one.launch(kernels, *memory, 512, *sums);
    const auto computed = device->record(NativeStream::opencl(kernels));
    CHECK_FALSE(computed->wait_until(in_a_moment()));
    gate.open();
    computed->wait();
    require(caller.api.clReleaseCommandQueue(kernels));
    Data expected = source;
    for (std::byte& each : expected) each = static_cast<std::byte>(std::to_integer<unsigned>(each) + 1);
    CHECK(bytes_of(*device, *sums) == expected);
}

TEST_CASE("OpenCL: a hook computes with what arrived, in the queue of the copies") {
    if (!available()) return;
    const Caller caller;
    const auto device = caller.adopted();
    const AddOne add_one(caller);
    const Bytes bytes("t", 5000);
    std::vector<std::byte> expected = value_of(bytes.tensor);
    for (std::byte& each : expected) each = static_cast<std::byte>(std::to_integer<unsigned>(each) + 1);
    for (const std::uint64_t budget :
         {std::uint64_t{10'000}, std::uint64_t{10'000'000}}) {  // in memory of its own, and in a block
        const auto sums = device->allocate(5000);
        const auto hook = [&](NativeStream stream, std::span<const safemap::FillTarget> tensors) {
            CHECK(stream.kind == NativeStream::Kind::opencl);
            const auto memory = device->borrow(tensors[0].address, tensors[0].size);
            add_one.launch(static_cast<ClQueue>(stream.handle), *memory, tensors[0].offset, *sums);
        };
        safemap::Uploader uploader(device, no_tensors(), {.device_budget = budget, .on_arrival = hook});
        const safemap::Lease lease = uploader.acquire(uploader.bundle(std::span(&bytes.tensor, 1)));
        CHECK(bytes_of(*device, *sums) == expected);
    }
}

TEST_CASE("OpenCL: streams of other kinds, contexts and devices are refused, and the device goes on") {
    if (!available()) return;
    const Caller caller;
    const Caller stranger;
    const auto device = caller.adopted();
    const auto event = device->queue(Lane::demand).record();
    int none = 0;
    for (const NativeStream stream :
         {NativeStream{}, NativeStream::cuda(&none), NativeStream::opencl(nullptr), stranger.stream()}) {
        CHECK_FAULT(device->make_wait(stream, *event), Errc::invalid_argument);
        CHECK_FAULT(device->record(stream), Errc::invalid_argument);
        CHECK_FAULT(device->is_capturing(stream), Errc::invalid_argument);
    }
    CHECK_FALSE(device->is_capturing(caller.stream()));
    CHECK_OK(device->make_wait(caller.stream(), *stranger.adopted()->queue(Lane::bulk).record()));
    CHECK_OK(device->make_wait(caller.stream(), *Device::open("host")->queue(Lane::bulk).record()));
    CHECK_FAULT(Device::from_opencl(nullptr, caller.device), Errc::invalid_argument);
    CHECK_FAULT(Device::from_opencl(caller.context, nullptr), Errc::invalid_argument);
    CHECK(device->name() == "opencl:0");
    CHECK_OK(device->record(caller.stream())->wait());
}

TEST_CASE("OpenCL: what a device gave out can be used after it, and after the caller's context") {
    if (!available()) return;
    std::shared_ptr<safemap::DeviceMemory> memory;
    std::shared_ptr<safemap::StagingBuffer> staging;
    std::shared_ptr<safemap::DeviceEvent> event;
    {
        const Caller caller;
        const auto device = caller.adopted();
        memory = device->allocate(1_MiB);
        staging = device->allocate_staging(1_MiB);
        device->queue(Lane::bulk).copy(*memory, 0, *staging, {0, 1_MiB});
        event = device->queue(Lane::bulk).record();
    }
    CHECK_OK(event->wait());
    staging->bytes()[0] = std::byte{1};
    memory.reset();
    CHECK(event->done());
}

TEST_CASE("OpenCL: threads copy in both queues at once") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            const Data source = random_bytes(200'000 + i, i);
            for (unsigned round = 0; round < 10; ++round) {
                const auto staging = staged(*device, source);
                const auto memory = device->allocate(source.size());
                auto& queue = device->queue(lanes[(i + round) % 2]);
                queue.copy(*memory, 0, *staging, {0, source.size()});
                queue.record()->wait();
                if (bytes_of(*device, *memory) == source) ++right;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 40);
}

TEST_CASE("OpenCL: bundles arrive through a cache, whole and in the memory that they share") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const Counted source(6, 3_MiB);
    const CacheFixture cache(device, 4_MiB);
    std::vector<safemap::LazyTensor> tensors;
    tensors.push_back(source.tensor("bytes", safemap::Dtype::u8, {1'000'001}));
    tensors.push_back(source.tensor("floats", safemap::Dtype::f32, {300, 401}));
    tensors.emplace_back("transposed", tensors.back().stored(), safemap::StridedView{{401, 300}, {1, 401}, 0});
    const BundlePtr bundle = cache.bundle(tensors);
    const Held held = cache.acquire(bundle);
    REQUIRE(held.tensors().size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(read_back(*device, held[i]) == value_of(tensors[i]));
}

TEST_CASE("OpenCL: files are read into the memory of a bundle where the device uses the memory of the host") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    if (!device->allocate(1)->can_be_mapped()) return;
    const Counted source(6, 20_MiB);
    const CacheFixture cache(device, 40_MiB);
    const BundlePtr large = cache.bundle(source.tensor("large", safemap::Dtype::u8, {20_MiB}));
    for (int i = 0; i < 3; ++i) {
        const Held held = cache.acquire(large);
        CHECK(read_back(*device, held[0]) == value_of(source.tensor("large", safemap::Dtype::u8, {20_MiB})));
        CHECK_FALSE(cache.try_acquire(large)->tensors().empty());
        cache.evict(large);
    }
    CHECK(cache.stats().peak_staging_bytes == 0);
    // Small bundles share memory, which is in use while others arrive.
    const BundlePtr small = cache.bundle(source.tensor("small", safemap::Dtype::u8, {1000}));
    const Held held = cache.acquire(small);
    CHECK(read_back(*device, held[0]) == value_of(source.tensor("small", safemap::Dtype::u8, {1000})));
    CHECK(cache.stats().peak_staging_bytes > 0);
}

TEST_CASE("OpenCL: memory is mapped, written and seen by the device, and other memory is refused") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const auto memory = device->allocate(5000);
    auto& queue = device->queue(Lane::bulk);
    const Data bytes = random_bytes(5000, 3);
    for (int i = 0; i < 2; ++i) {
        fill(*device, *memory, std::byte{9});
        const auto mapped = queue.map(*memory);
        REQUIRE(mapped.size() == 5000);
        std::copy(bytes.begin(), bytes.end(), mapped.begin());
        queue.unmap(*memory, mapped);
        queue.record()->wait();
        CHECK(bytes_of(*device, *memory) == bytes);
    }
    const auto other = Device::open("host")->allocate(100);
    CHECK_FAULT(queue.map(*other), Errc::invalid_argument);
    CHECK_FAULT(queue.unmap(*other, other->host_bytes()), Errc::invalid_argument);
    CHECK(queue.map(*device->allocate(0)).empty());
    CHECK_FAULT(Device::open("host")->queue(Lane::bulk).map(*other), Errc::invalid_argument);
    CHECK_FAULT(Device::open("host")->queue(Lane::bulk).unmap(*other, {}), Errc::invalid_argument);
}

TEST_CASE("OpenCL: a bundle takes the memory of another one after the caller's kernel has read that") {
    if (!available()) return;
    const Caller caller;
    const auto device = caller.adopted();
    const AddOne add_one(caller);
    const auto sums = device->allocate(20'000);
    fill(*device, *sums, std::byte{0});
    const Counted first(8, sums->size());
    const Counted second(9, sums->size());
    const CacheFixture cache(device, sums->size());
    const BundlePtr one = cache.bundle(first.tensor("one", safemap::Dtype::u8, {20'000}));
    const BundlePtr two = cache.bundle(second.tensor("two", safemap::Dtype::u8, {20'000}));
    Gate gate(caller);
    {
        const Held held = cache.acquire(one, caller.stream());
        add_one.launch(caller.queue, *held[0].memory(), held[0].offset(), *sums);
    }
    const Held held = cache.acquire(two, caller.stream());
    CHECK(bytes_of(*device, *sums) == Data(20'000));  // the kernel has not run, and is the first to read the memory
    gate.open();
    caller.finish();
    CHECK(read_back(*device, held[0]) == value_of(second.tensor("two", safemap::Dtype::u8, {20'000})));
    Data expected = value_of(first.tensor("one", safemap::Dtype::u8, {20'000}));
    for (std::byte& each : expected) each = static_cast<std::byte>(std::to_integer<unsigned>(each) + 1);
    CHECK(bytes_of(*device, *sums) == expected);
}

TEST_CASE("OpenCL: a DLPack tensor has the buffer, and its place in it") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    CHECK_FALSE(device->allocate(1)->has_address());  // the handle is an object of OpenCL
    safemap::Uploader uploader(device, no_tensors(), {.device_budget = 1_MiB, .readers = 1});
    const Counted source(7, 1_MiB);
    const std::vector<safemap::LazyTensor> tensors = {source.tensor("first", safemap::Dtype::u8, {100}),
                                                      source.tensor("second", safemap::Dtype::u8, {300})};
    const auto lease = std::make_shared<safemap::Lease>(uploader.acquire(uploader.bundle(tensors)));
    const safemap::DeviceTensor& second = (*lease)["second"];
    auto* const out = safemap::dlpack::export_versioned(lease, second);
    CHECK(out->dl_tensor.device.type == safemap::dlpack::DeviceType::opencl);
    CHECK(out->dl_tensor.device.id == 0);
    CHECK(out->dl_tensor.data == second.memory()->handle());
    CHECK(out->dl_tensor.byte_offset == second.offset());
    CHECK(second.offset() >= 256);
    out->deleter(out);
}

}  // namespace opencl_device_test
