// Tests the host as a device, and digests of device memory.
#include "base/checksum.hpp"
#include "device/cache.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/device.hpp>
#include <safemap/uploader.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using safemap::Device;
using safemap::Errc;
using namespace safemap::literals;

TEST_CASE("the host opens, and nothing else does") {
    CHECK(Device::open("host")->name() == "host");
    for (const char* name : {"", "Host", "host ", "host:", "host:0", ":", "cuda:0", "opencl:1", "ho"}) {
        CAPTURE(name);
        CHECK_FAULT(Device::open(name), Errc::no_such_device);
    }
}

TEST_CASE("an unknown device is refused, and the error lists the known devices") {
    const auto error = error_of([] { Device::open("cuda:7\n"); });
    REQUIRE(error);
    CHECK(error->message() == "no device 'cuda:7\\x0a'; available: host");
}

TEST_CASE("host memory is aligned, writable and of the requested size") {
    const auto host = Device::open("host");
    CHECK(host->free_memory() > 1_MiB);
    for (const std::uint64_t size : {0_MB, 0_MB + 256, 1_KB, 1_MiB - 1, 1_MiB, 3_MiB + 5}) {
        CAPTURE(size);
        const auto memory = host->allocate(size);
        CHECK(memory->size() == size);
        CHECK(memory->host_bytes().size() == size);
        CHECK(memory->handle() == memory->host_bytes().data());
        if (size >= 256) CHECK(reinterpret_cast<std::uintptr_t>(memory->handle()) % 256 == 0);
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
    const auto event = host->copy_to_device(memory, 4, staging, {1, 4});
    CHECK(event->done());
    CHECK_OK(event->wait());
    std::array<char, 4> back{};
    host->copy_to_host(std::as_writable_bytes(std::span(back)), *memory, 4);
    CHECK(std::string_view(back.data(), 4) == "bcde");

    CHECK_OK(host->copy_to_device(memory, 10, staging, {6, 0}));
    CHECK_FAULT(host->copy_to_device(memory, 7, staging, {0, 4}), Errc::invalid_argument);
    CHECK_FAULT(host->copy_to_device(memory, 0, staging, {3, 4}), Errc::invalid_argument);
    CHECK_FAULT(host->copy_to_device(memory, UINT64_MAX, staging, {0, 2}), Errc::invalid_argument);
    CHECK_FAULT(host->copy_to_host(std::as_writable_bytes(std::span(back)), *memory, 7), Errc::invalid_argument);
}

TEST_CASE("rows are copied with their pitches, and stay inside their memory") {
    const auto host = Device::open("host");
    const auto memory = host->allocate(20);
    const auto staging = host->allocate_staging(12);
    std::memcpy(staging->bytes().data(), "abcdefghijkl", 12);
    std::memset(memory->host_bytes().data(), '.', 20);
    const auto text = [&] { return std::string(reinterpret_cast<const char*>(memory->handle()), 20); };
    const auto copy = [&](const safemap::RowCopy& rows) { return host->copy_rows_to_device(memory, staging, rows); };

    const auto event = copy({.to = 1, .to_pitch = 6, .from = 1, .from_pitch = 4, .row_bytes = 3, .rows = 3});
    CHECK_OK(event->wait());
    CHECK(event->done());
    CHECK(text() == ".bcd...fgh...jkl....");
    copy({.to = 0, .to_pitch = 2, .from = 0, .from_pitch = 2, .row_bytes = 2, .rows = 2});
    CHECK(text() == "abcd...fgh...jkl....");

    // Each number can lead outside.
    CHECK_FAULT(copy({.to = 6, .to_pitch = 6, .from = 1, .from_pitch = 4, .row_bytes = 3, .rows = 3}),
                Errc::invalid_argument);
    CHECK_FAULT(copy({.to = 1, .to_pitch = 9, .from = 1, .from_pitch = 4, .row_bytes = 3, .rows = 3}),
                Errc::invalid_argument);
    CHECK_FAULT(copy({.to = 1, .to_pitch = 6, .from = 2, .from_pitch = 4, .row_bytes = 3, .rows = 3}),
                Errc::invalid_argument);
    CHECK_FAULT(copy({.to = 1, .to_pitch = 6, .from = 1, .from_pitch = 5, .row_bytes = 3, .rows = 3}),
                Errc::invalid_argument);
    CHECK_FAULT(copy({.to = 0, .to_pitch = 4, .from = 0, .from_pitch = 3, .row_bytes = 3, .rows = 6}),
                Errc::invalid_argument);
}

TEST_CASE("a digest is that of the bytes, across block boundaries") {
    const auto host = Device::open("host");
    const auto readers = safemap::device::Readers::of_process();
    const auto cache =
        std::make_shared<safemap::device::Cache>(host, safemap::UploadOptions{.device_budget = 64_MiB}, *readers);
    for (const std::uint64_t size : {0_MB, 3_KB, 8_MiB, 8_MiB + 7, 17_MiB}) {
        CAPTURE(size);
        std::vector<std::byte> bytes(size);
        std::uint32_t state = 1;
        for (auto& byte : bytes) byte = static_cast<std::byte>((state = state * 69069 + 1) >> 24);
        safemap::Xxh3 whole;
        whole.update(bytes);
        const auto source = safemap::memory_source("memory", std::move(bytes));
        const auto bundle = cache->bundle({{"t", safemap::stored_run(safemap::Dtype::u8, {size}, source, 0)}});
        cache->lease(bundle, safemap::device::Keep::no);
        CHECK(safemap::digest(*host, bundle->tensors[0]) == whole.hex());
        safemap::device::Cache::release(*bundle);
    }
    cache->stop();
    // XXH3-128 of the empty input, as the reference implementation prints it.
    CHECK(safemap::Xxh3().hex() == "99aa06d3014798d86001c324468d497f");
}
