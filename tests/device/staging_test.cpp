// Tests staging buffers, whose reuse must wait for their copies.
#include "device/staging.hpp"

#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <optional>
#include <thread>

using safemap::Device;
using safemap::Errc;
using safemap::device::StagingRing;

TEST_CASE("the fake device detects a write to a staging buffer whose copy is not done") {
    const auto device = std::make_shared<FakeDevice>();
    device->pause(true);
    const auto memory = device->allocate(4);
    const auto staging = device->allocate_staging(4);
    auto& queue = device->queue(Device::Lane::bulk);
    queue.copy(*memory, 0, *staging, {0, 4});
    const auto copy = queue.record();
    CHECK_FALSE(copy->done());
    staging->bytes()[1] = std::byte{1};
    device->pause(false);
    copy->wait();
    CHECK(device->staging_was_touched);
}

TEST_CASE("a buffer is reused only after its copy is done") {
    const auto device = std::make_shared<FakeDevice>();
    device->copy_microseconds = 500;
    const auto memory = device->allocate(100);
    auto& queue = device->queue(Device::Lane::bulk);
    StagingRing ring(device, 100, 2);
    for (int i = 0; i < 50; ++i) {
        auto loan = ring.take();
        std::fill(loan.buffer()->bytes().begin(), loan.buffer()->bytes().end(), static_cast<std::byte>(i));
        queue.copy(*memory, 0, *loan.buffer(), {0, 100});
        loan.fence(queue.record());
    }
    CHECK_FALSE(device->staging_was_touched);
    CHECK(ring.allocated() <= 200);
    CHECK(device->staging == ring.allocated());
}

TEST_CASE("a copy with which the device fails returns its buffer too") {
    const auto device = std::make_shared<FakeDevice>();
    const auto memory = device->allocate(4);
    StagingRing ring(device, 4, 1);
    auto& queue = device->queue(Device::Lane::bulk);
    device->fail_device = 0;
    {
        auto loan = ring.take();
        queue.copy(*memory, 0, *loan.buffer(), {0, 4});
        loan.fence(queue.record());
    }
    CHECK_OK(ring.take());
    CHECK_OK(ring.take());
}

TEST_CASE("uploads continue with fewer buffers than requested") {
    const auto device = std::make_shared<FakeDevice>();
    StagingRing ring(device, 10, 3);
    device->fail_staging = 1;
    std::optional<StagingRing::Loan> first = ring.take();
    std::thread waits([&] { CHECK_OK(ring.take()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    first.reset();
    waits.join();
    CHECK(ring.allocated() == 10);
}

TEST_CASE("without any buffer, taking one fails, and succeeds when there is memory again") {
    const auto device = std::make_shared<FakeDevice>();
    StagingRing ring(device, 10, 2);
    device->fail_staging = 0;
    CHECK_FAULT(ring.take(), Errc::out_of_memory);
    CHECK_OK(ring.take());
}
