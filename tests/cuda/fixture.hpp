// Helpers of the tests of CUDA devices on the stub.
#pragma once

#include "cuda/stub_cuda.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

/// Returns true, and says why, if a test cannot hold on a real GPU and there is one.
inline bool needs_the_stub(const StubCuda& stub, const char* why) {
    if (stub.is_real()) MESSAGE("not on a real GPU: ", why);
    return stub.is_real();
}

/// Returns the name of a device beside the first one: a second one of the stub, or the first one again of a real GPU.
inline const char* other_device(StubCuda& stub) {
    if (stub.is_real()) return "cuda:0";
    stub.set("devices", 2);
    return "cuda:1";
}

/// Fills bytes with values that differ at each place and for each seed.
inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
    std::uint64_t value = seed * 0x9e3779b97f4a7c15 + 1;
    for (std::byte& byte : bytes) {
        value = value * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(value >> 56);
    }
}

inline std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device.copy_to_host(bytes, memory, 0);
    return bytes;
}

/// The first CUDA device, with memory, a filled staging buffer and both queues.
struct CudaGround {
    explicit CudaGround(std::uint64_t size, std::shared_ptr<safemap::Device> of = safemap::Device::open("cuda"))
        : device(std::move(of)), memory(device->allocate(size)), staging(device->allocate_staging(size)) {
        fill(staging->bytes(), size);
    }
    bool arrived() const {
        const auto bytes = read_back(*device, *memory);
        return std::equal(bytes.begin(), bytes.end(), staging->bytes().begin(), staging->bytes().end());
    }
    void copy_all(safemap::DeviceQueue& queue) { queue.copy(*memory, 0, *staging, {0, memory->size()}); }

    std::shared_ptr<safemap::Device> device;
    std::shared_ptr<safemap::DeviceMemory> memory;
    std::shared_ptr<safemap::StagingBuffer> staging;
    safemap::DeviceQueue& demand = device->queue(safemap::Device::Lane::demand);
    safemap::DeviceQueue& bulk = device->queue(safemap::Device::Lane::bulk);
};
