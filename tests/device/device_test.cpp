// Tests the host as a device, and digests of device memory.
#include "base/checksum.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>
#include <safemap/uploader.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace device_test {

using safemap::Device;
using safemap::Errc;
using namespace safemap::literals;

TEST_CASE("the host opens, and nothing else does") {
    CHECK(Device::open("host")->name() == "host");
    for (const char* name : {"", "Host", "host ", "host:", "host:0", ":", "cuda:9999", "opencl:9999", "ho"}) {
        CAPTURE(name);
        CHECK_FAULT(Device::open(name), Errc::no_such_device);
    }
}

TEST_CASE("an unknown device is refused, and the error lists the known devices") {
    const auto error = error_of([] { return Device::open("cuda:7\n"); });
    REQUIRE(error);
    CHECK(error->message().starts_with("no device 'cuda:7\\x0a'; available: host"));
}

TEST_CASE("host memory is aligned, writable and of the requested size") {
    const auto host = Device::open("host");
    CHECK(host->free_memory() > 1_MiB);
    for (const std::uint64_t size : {0_MB, 1_KB, 1_MiB - 1, 1_MiB, 3_MiB + 5}) {
        CAPTURE(size);
        const auto memory = host->allocate(size);
        CHECK(memory->size() == size);
        CHECK(memory->host_bytes().size() == size);
        CHECK(memory->handle() == memory->host_bytes().data());
        CHECK(reinterpret_cast<std::uintptr_t>(memory->handle()) % (size < 256 ? 64 : 256) == 0);
        if (size == 0) continue;
        memory->host_bytes().front() = std::byte{1};
        memory->host_bytes().back() = std::byte{2};
        CHECK(memory->host_bytes().back() == std::byte{2});
    }
}

TEST_CASE("an allocation that is too large is out_of_memory") {
    const auto host = Device::open("host");
    for (const std::uint64_t size : {std::uint64_t{1} << 62, UINT64_MAX}) {
        CHECK_FAULT(host->allocate(size), Errc::out_of_memory);
        CHECK_FAULT(host->allocate_staging(size), Errc::out_of_memory);
    }
}

TEST_CASE("copies to the host and back stay inside their memory") {
    const auto host = Device::open("host");
    const auto memory = host->allocate(10);
    const auto staging = host->allocate_staging(6);
    std::memcpy(staging->bytes().data(), "abcdef", 6);
    auto& queue = host->queue(Device::Lane::bulk);
    queue.copy(*memory, 4, *staging, {1, 4});
    const auto event = queue.record();
    CHECK(event->done());
    CHECK(event->wait_until(std::chrono::steady_clock::now()));
    CHECK_OK(event->wait());
    std::array<char, 4> back{};
    host->copy_to_host(std::as_writable_bytes(std::span(back)), *memory, 4);
    CHECK(std::string_view(back.data(), 4) == "bcde");

    CHECK_OK(queue.copy(*memory, 10, *staging, {6, 0}));
    CHECK_FAULT(queue.copy(*memory, 7, *staging, {0, 4}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*memory, 0, *staging, {3, 4}), Errc::invalid_argument);
    CHECK_FAULT(queue.copy(*memory, UINT64_MAX, *staging, {0, 2}), Errc::invalid_argument);
    CHECK_FAULT(host->copy_to_host(std::as_writable_bytes(std::span(back)), *memory, 7), Errc::invalid_argument);
}

TEST_CASE("rows are copied from their distances in the staging buffer to their distances in the memory") {
    const auto host = Device::open("host");
    const auto memory = host->allocate(12);
    std::memset(memory->host_bytes().data(), '.', 12);
    const auto staging = host->allocate_staging(10);
    std::memcpy(staging->bytes().data(), "abcdefghij", 10);
    const auto rows = [](std::uint64_t to, std::uint64_t from, std::uint64_t count) {
        return safemap::RowCopy{.to = to, .to_pitch = 4, .from = from, .from_pitch = 3, .row_bytes = 2, .rows = count};
    };
    auto& queue = host->queue(Device::Lane::demand);
    queue.copy_rows(*memory, *staging, rows(1, 1, 3));
    std::array<char, 12> back{};
    host->copy_to_host(std::as_writable_bytes(std::span(back)), *memory, 0);
    CHECK(std::string_view(back.data(), 12) == ".bc..ef..hi.");
    CHECK_FAULT(queue.copy_rows(*memory, *staging, rows(3, 1, 3)), Errc::invalid_argument);
    CHECK_FAULT(queue.copy_rows(*memory, *staging, rows(1, 3, 3)), Errc::invalid_argument);
}

TEST_CASE("a digest is that of the bytes, across block boundaries") {
    const auto host = Device::open("host");
    for (const std::uint64_t size : {0_MB, 3_KB, 8_MiB, 8_MiB + 7, 17_MiB}) {
        CAPTURE(size);
        const Bytes bytes("t", size);
        const CacheFixture cache(host, 20_MiB);
        const Held held = cache.acquire(bytes.tensor);
        safemap::Xxh3 whole;
        whole.update(held[0].host_bytes());
        CHECK(held[0].host_bytes().size() == size);
        CHECK(safemap::digest(*host, held[0]) == whole.hex());
    }
    // XXH3-128 of the empty input, as the reference implementation prints it.
    CHECK(safemap::Xxh3().hex() == "99aa06d3014798d86001c324468d497f");
}

}  // namespace device_test
