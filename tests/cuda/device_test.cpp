// Tests CUDA devices on the stub of the driver: names, memory, staging, copies and their order.
#include "drivers/cuda_device.hpp"

#include "check_error.hpp"
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "doctest_safemap.hpp"
#include "drivers/cuda_api.hpp"
#include "drivers/cuda_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace cuda_device_test {

using namespace std::chrono_literals;
using namespace safemap::literals;
using safemap::Device;
using safemap::Errc;
using safemap::RowCopy;
using safemap::drivers::CuResult;
using Clock = std::chrono::steady_clock;

namespace {

/// The list of devices may go on with those of OpenCL.
bool says(const safemap::Error& error, const std::string& text) {
    return error.message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("CUDA devices open by their numbers, and cuda is the first") {
    StubCuda stub;
    if (needs_the_stub(stub, "it has two devices, with the names of the stub")) return;
    stub.set("devices", 2);
    CHECK(Device::open("cuda")->name() == "cuda:0");
    CHECK(Device::open("cuda:0")->name() == "cuda:0");
    CHECK(Device::open("cuda:1")->name() == "cuda:1");
    for (const char* name :
         {"cuda:2", "cuda:-1", "cuda:", "cuda:x", "cuda:1x", "cuda: 1", "cuda:99999999999", "CUDA"}) {
        CAPTURE(name);
        const auto error = error_of([&] { return Device::open(name); });
        check_error(error, {Errc::no_such_device}, {});
        CHECK(says(*error, "; available: host, cuda:0 (Stub GPU 0), cuda:1 (Stub GPU 1)"));
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
}

TEST_CASE("a driver without devices has none") {
    StubCuda stub;
    stub.set("devices", 0);
    const auto error = error_of([] { return Device::open("cuda"); });
    REQUIRE(error);
    CHECK(says(*error, "no device 'cuda'; available: host"));
    CHECK_FALSE(says(*error, "cuda:"));
}

TEST_CASE("a driver that does not start is an error that says so, and lists no devices") {
    StubCuda stub;
    for (const char* const call : {"cuInit", "cuDeviceGetCount"}) {
        stub.fail_nth(call, 1, CuResult::unknown);
        const auto error = error_of([] { return Device::open("cuda:0"); });
        check_error(error, {Errc::no_such_device}, {});
        CHECK(says(*error, "no device 'cuda:0': the CUDA driver does not work: " + std::string(call) +
                               ": CUDA_ERROR_UNKNOWN (unknown error)"));
        stub.fail_nth(call, 1, CuResult::unknown);
        CHECK(safemap::drivers::list_cuda().empty());
    }
}

TEST_CASE("a library without the functions of the driver is incomplete") {
    safemap::drivers::CudaApi api;
    const auto loaded = safemap::drivers::load_cuda("libm.so.6", api);
    CHECK(loaded.state == safemap::drivers::LibraryState::incomplete);
    CHECK(loaded.fault.starts_with("libm.so.6 lacks cuInit, "));
    CHECK_FALSE(api.has_pools());
    CHECK(safemap::drivers::load_cuda("libno_such_library.so.1", api).state == safemap::drivers::LibraryState::absent);
}

TEST_CASE("the demand queue has the higher priority") {
    StubCuda stub;
    const auto device = Device::open("cuda");
    CHECK(stub.priority(stub.stream(0)) < stub.priority(stub.stream(1)));
    CHECK(&device->queue(Device::Lane::demand) != &device->queue(Device::Lane::bulk));
}

TEST_CASE("device memory has the requested size and alignment, and comes back") {
    StubCuda stub;
    for (const std::uint64_t pools : {0U, 1U}) {
        CAPTURE(pools);
        stub.set("pools", pools);
        const auto device = Device::open("cuda");
        const std::uint64_t before = device->free_memory();
        for (const std::uint64_t size : {0_MB, 1_KB, 1_MiB + 1}) {
            const auto memory = device->allocate(size);
            CHECK(memory->size() == size);
            CHECK((memory->handle() == nullptr) == (size == 0));
            CHECK(reinterpret_cast<std::uintptr_t>(memory->handle()) % 256 == 0);
            CHECK(memory->host_bytes().empty());
            if (!stub.is_real()) CHECK(device->free_memory() == before - size);  // real drivers round up
            CHECK(stub.get("live_memory") == size);
        }
        if (!stub.is_real()) CHECK(device->free_memory() == before);
        CHECK(stub.get("cuMemFree_v2") == 2);  // only without pools
        CHECK(stub.get("reserved") == 0);
    }
    CHECK(stub.get("live_allocations") == 0);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("memory that is freed goes back to the device, and the pool keeps none of it") {
    StubCuda stub;
    const auto device = Device::open("cuda");
    const std::uint64_t before = device->free_memory();
    auto small = device->allocate(1_MiB);
    static_cast<void>(device->allocate(100_MiB));
    const std::uint64_t with_small = device->free_memory();
    // A real pool takes memory in large pieces.
    CHECK((stub.is_real() ? stub.get("reserved") < 100_MiB : stub.get("reserved") == 1_MiB));
    CHECK((stub.is_real() ? with_small > before - 8_MiB : with_small == before - 1_MiB));
    small.reset();
    CHECK(stub.get("reserved") == 0);
    const std::uint64_t without = device->free_memory();
    CHECK((stub.is_real() ? without > before - 8_MiB : without == before));
}

TEST_CASE("an allocation that does not fit is out_of_memory, and the device goes on") {
    StubCuda stub;
    stub.set("memory", 10_MiB);
    for (const std::uint64_t pools : {0U, 1U}) {
        stub.set("pools", pools);
        const auto device = Device::open("cuda");
        const auto memory = device->allocate(4_MiB);
        check_error(
            error_of([&] { return device->allocate(7_MiB); }), {Errc::out_of_memory}, {},
            {.message = "the device 'cuda:0' has no memory for 7340032 bytes; 6291456 of 10485760 bytes are free"});
        CHECK_FAULT(device->allocate(UINT64_MAX), Errc::out_of_memory);
        CHECK_FAULT(device->allocate_staging(std::uint64_t{1} << 62), Errc::out_of_memory);
        CHECK(device->allocate(6_MiB)->size() == 6_MiB);
    }
    CHECK(stub.live() == 0);
}

TEST_CASE("the pool gives back what it keeps before an allocation fails") {
    StubCuda stub;
    const auto device = Device::open("cuda");
    stub.fail_nth("cuMemAllocFromPoolAsync", 1, CuResult::out_of_memory);
    CHECK(device->allocate(1_MiB)->size() == 1_MiB);
    CHECK(stub.get("cuMemAllocFromPoolAsync") == 2);
}

TEST_CASE("staging is locked in pieces, and copies stay in a piece") {
    StubCuda stub;
    constexpr std::uint64_t piece = safemap::drivers::CudaStaging::piece;
    CudaGround ground(piece + 4_MiB);
    CHECK(stub.get("live_registrations") == 2);
    CHECK(stub.get("registered_bytes") == piece + 4_MiB);
    ground.copy_all(ground.bulk);
    ground.bulk.record()->wait();
    CHECK(stub.get("copies") == 2);
    CHECK(ground.arrived());
    // Rows on both sides of the border.
    ground.bulk.copy_rows(
        *ground.memory, *ground.staging,
        {.to = 100, .to_pitch = 3_KiB, .from = piece - 4_KiB, .from_pitch = 2_KiB, .row_bytes = 1_KiB, .rows = 5});
    ground.bulk.record()->wait();
    const auto bytes = read_back(*ground.device, *ground.memory);
    for (std::uint64_t row = 0; row < 5; ++row)
        CHECK(std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(100 + row * 3_KiB),
                         bytes.begin() + static_cast<std::ptrdiff_t>(100 + row * 3_KiB + 1_KiB),
                         ground.staging->bytes().begin() + static_cast<std::ptrdiff_t>(piece - 4_KiB + row * 2_KiB)));
    ground.staging.reset();
    CHECK(stub.get("live_registrations") == 0);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("memory that the driver does not lock is used unlocked") {
    StubCuda stub;
    constexpr std::uint64_t piece = safemap::drivers::CudaStaging::piece;
    const auto copies_well = [&](std::uint64_t size, std::uint64_t locked) {
        CudaGround ground(size);
        CHECK(stub.get("registered_bytes") == locked);
        ground.copy_all(ground.demand);
        ground.demand.record()->wait();
        CHECK(ground.arrived());
    };
    stub.set("lockable", 0);
    copies_well(1_MiB, 0);
    stub.set("lockable", piece);
    copies_well(piece + 1_MiB, piece);
    stub.set("lockable", UINT64_MAX);
    for (const CuResult refusal : {CuResult::not_permitted, CuResult::not_supported, CuResult::invalid_value,
                                   CuResult::operating_system, CuResult::host_memory_already_registered}) {
        stub.fail_nth("cuMemHostRegister_v2", 1, refusal);
        copies_well(1_KiB, 0);
    }
    CHECK(stub.live() == 0);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("an empty staging buffer and empty copies need nothing of the driver") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    CHECK(ground.device->allocate_staging(0)->bytes().empty());
    ground.demand.copy(*ground.memory, 1_KiB, *ground.staging, {1_KiB, 0});
    ground.demand.copy_rows(*ground.memory, *ground.staging, {.rows = 3});
    ground.device->copy_to_host({}, *ground.memory, 1_KiB);
    CHECK(stub.get("copies") == 0);
}

TEST_CASE("rows arrive at their places, however far apart they are") {
    StubCuda stub;
    const auto arrives = [&](const RowCopy& rows, std::uint64_t copies) {
        CudaGround ground(64_KiB);
        const std::uint64_t before = stub.get("copies");
        ground.copy_all(ground.bulk);
        ground.bulk.copy_rows(*ground.memory, *ground.staging, rows);
        ground.bulk.record()->wait();
        CHECK(stub.get("copies") - before == copies + 1);
        std::vector<std::byte> expected(ground.staging->bytes().begin(), ground.staging->bytes().end());
        for (std::uint64_t row = 0; row < rows.rows; ++row)
            std::copy_n(
                ground.staging->bytes().begin() + static_cast<std::ptrdiff_t>(rows.from + row * rows.from_pitch),
                rows.row_bytes, expected.begin() + static_cast<std::ptrdiff_t>(rows.to + row * rows.to_pitch));
        CHECK(read_back(*ground.device, *ground.memory) == expected);
    };
    const RowCopy rows{.to = 5, .to_pitch = 700, .from = 3, .from_pitch = 300, .row_bytes = 100, .rows = 20};
    arrives(rows, 1);
    arrives({.to = 9, .to_pitch = 100, .from = 7, .from_pitch = 100, .row_bytes = 100, .rows = 20}, 1);
    arrives({.to = 1, .to_pitch = 60000, .from = 0, .from_pitch = 50000, .row_bytes = 50, .rows = 1}, 1);
    stub.set("max_pitch", 699);
    arrives(rows, 20);
    stub.set("max_pitch", 700);
    arrives(rows, 1);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("copies outside of their memory are refused before the driver is asked") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    const std::uint64_t before = stub.get("calls");
    auto& queue = ground.demand;
    std::vector<std::byte> host(10);
    CHECK_FAULT(queue.copy(*ground.memory, 1, *ground.staging, {0, 1_KiB}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*ground.memory, 0, *ground.staging, {1, 1_KiB}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*ground.memory, UINT64_MAX, *ground.staging, {0, 2}), Errc::invalid_argument);
    CHECK_FAULT(ground.device->copy_to_host(host, *ground.memory, 1_KiB - 9), Errc::invalid_argument);
    const RowCopy good{.to = 0, .to_pitch = 10, .from = 0, .from_pitch = 10, .row_bytes = 10, .rows = 102};
    const auto refused = [&](auto change) {
        RowCopy rows = good;
        change(rows);
        CHECK_FAULT(queue.copy_rows(*ground.memory, *ground.staging, rows), Errc::invalid_argument);
    };
    refused([](RowCopy& rows) { rows.rows = 0; });
    refused([](RowCopy& rows) { rows.rows = 103; });
    refused([](RowCopy& rows) { rows.rows = UINT64_MAX; });
    refused([](RowCopy& rows) { rows.to = 5; });
    refused([](RowCopy& rows) { rows.from = 5; });
    refused([](RowCopy& rows) { rows.to_pitch = 9; });
    refused([](RowCopy& rows) { rows.from_pitch = 9; });
    refused([](RowCopy& rows) { rows.to_pitch = std::uint64_t{1} << 63; });
    CHECK(stub.get("calls") == before);
    queue.copy_rows(*ground.memory, *ground.staging, good);
    CHECK(stub.get("copies") == 1);
    queue.record()->wait();
}

TEST_CASE("an event is done when its copies are, and a wait ends at its deadline") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    stub.hold(stub.stream(1));
    ground.copy_all(ground.bulk);
    const auto held = ground.bulk.record();
    CHECK_FALSE(held->done());
    const auto start = Clock::now();
    CHECK_FALSE(held->wait_until(start + 20ms));
    CHECK(Clock::now() - start >= 20ms);
    CHECK_FALSE(held->wait_until(start));  // a deadline that has passed is one question
    // The other queue does not wait.
    const auto other = ground.demand.record();
    CHECK(other->wait_until(Clock::now() + 10s));
    std::thread releaser([&] {
        std::this_thread::sleep_for(5ms);
        stub.release(stub.stream(1));
    });
    held->wait();
    releaser.join();
    CHECK(held->done());
    const std::uint64_t calls = stub.get("calls");
    CHECK(held->done());
    CHECK(held->wait_until(Clock::now()));
    CHECK(stub.get("calls") == calls);  // the driver is not asked twice
    CHECK(ground.arrived());
    CHECK(stub.take_findings() == "");
}

TEST_CASE("a wait with a deadline asks again until the event is done") {
    StubCuda stub;
    stub.set("lag", 5);
    CudaGround ground(1_KiB);
    ground.copy_all(ground.demand);
    const auto event = ground.demand.record();
    CHECK(event->wait_until(Clock::now() + 10s));
    const std::uint64_t queries = stub.get("cuEventQuery");
    CHECK((stub.is_real() ? queries >= 6 : queries == 6));  // the copy itself takes time, too
}

TEST_CASE("handles of events are used again") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    for (int i = 0; i < 100; ++i) ground.demand.record()->wait();
    CHECK(stub.get("live_events") == 1);
    std::vector<std::shared_ptr<safemap::DeviceEvent>> events;
    for (int i = 0; i < 10; ++i) events.push_back(ground.bulk.record());
    CHECK(stub.get("live_events") == 10);
}

TEST_CASE("a queue waits for events of other queues and devices") {
    StubCuda stub;
    const char* const other = other_device(stub);
    CudaGround ground(1_KiB);
    const auto second = Device::open(other);
    stub.hold(stub.stream(1));
    ground.copy_all(ground.bulk);
    const auto first_copy = ground.bulk.record();
    ground.demand.wait_for(*first_copy);
    ground.copy_all(ground.demand);
    second->queue(Device::Lane::bulk).wait_for(*first_copy);
    const auto after = ground.demand.record();
    const auto on_second = second->queue(Device::Lane::bulk).record();
    CHECK_FALSE(after->done());
    CHECK_FALSE(on_second->done());
    stub.release(stub.stream(1));
    after->wait();
    on_second->wait();
    CHECK(first_copy->done());
    const auto of_host = Device::open("host")->queue(Device::Lane::demand).record();
    ground.demand.wait_for(*of_host);
    CHECK(stub.get("cuStreamWaitEvent") == 2);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("draining a queue waits for its copies") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    stub.hold(stub.stream(1));
    ground.copy_all(ground.bulk);
    std::thread releaser([&] {
        std::this_thread::sleep_for(5ms);
        stub.release(stub.stream(1));
    });
    ground.bulk.drain();
    releaser.join();
    ground.staging.reset();  // no copy needs it
    CHECK(stub.take_findings() == "");
}

TEST_CASE("memory, staging and events outlive their device") {
    StubCuda stub;
    auto ground = std::make_unique<CudaGround>(1_KiB);
    ground->copy_all(ground->demand);
    const auto event = ground->demand.record();
    auto memory = ground->memory;
    auto staging = ground->staging;
    ground.reset();
    CHECK(stub.get("retained") == 1);
    event->wait();
    CHECK(event->done());
    memory.reset();
    staging.reset();
    CHECK(stub.get("live_allocations") == 0);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("memory of the caller is borrowed, and stays the caller's") {
    StubCuda stub;
    CudaGround ground(10_KiB);
    const auto borrowed = ground.device->borrow(ground.memory->handle(), 1_KiB);
    CHECK(borrowed->handle() == ground.memory->handle());
    CHECK(borrowed->size() == 1_KiB);
    CHECK(borrowed->has_address());
    ground.bulk.copy(*borrowed, 24, *ground.staging, {0, 1000});
    CHECK_FAULT(ground.bulk.copy(*borrowed, 25, *ground.staging, {0, 1000}), Errc::invalid_argument);
    ground.bulk.record()->wait();
    const auto bytes = read_back(*ground.device, *borrowed);
    CHECK(std::equal(bytes.begin() + 24, bytes.end(), ground.staging->bytes().begin()));
    CHECK_FAULT(ground.device->borrow(nullptr, 1), Errc::invalid_argument);
    CHECK(stub.get("live_allocations") == 1);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("without a driver there is no CUDA device" * doctest::skip()) {
    if (safemap::drivers::cuda_driver().library) {
        MESSAGE("this machine has a driver");
        return;
    }
    const auto error = error_of([] { return Device::open("cuda:0"); });
    check_error(error, {Errc::no_such_device}, {});
    CHECK(error->message().starts_with("no device 'cuda:0': there is no CUDA driver: libcuda.so.1: "));
    CHECK(error->message().ends_with("; available: host"));
    CHECK(safemap::drivers::list_cuda().empty());
}

}  // namespace cuda_device_test
