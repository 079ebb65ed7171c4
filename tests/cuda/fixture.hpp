// Helpers of the tests of CUDA devices on the stub.
#pragma once

#include "cuda/stub_cuda.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

/// Returns true, and says why, if a test cannot hold on a real GPU and there is one.
bool needs_the_stub(const StubCuda& stub, const char* why);

/// Returns the name of a device beside the first one: a second one of the stub, or the first one again of a real GPU.
const char* other_device(StubCuda& stub);

/// Fills bytes with values that differ at each place and for each seed.
void fill(std::span<std::byte> bytes, std::uint64_t seed);

std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceMemory& memory);

/// The first CUDA device, with memory, a filled staging buffer and both queues.
struct CudaGround {
    explicit CudaGround(std::uint64_t size, std::shared_ptr<safemap::Device> of = safemap::Device::open("cuda"));
    bool arrived() const;
    void copy_all(safemap::DeviceQueue& queue) { queue.copy(*memory, 0, *staging, {0, memory->size()}); }

    std::shared_ptr<safemap::Device> device;
    std::shared_ptr<safemap::DeviceMemory> memory;
    std::shared_ptr<safemap::StagingBuffer> staging;
    safemap::DeviceQueue& demand = device->queue(safemap::Device::Lane::demand);
    safemap::DeviceQueue& bulk = device->queue(safemap::Device::Lane::bulk);
};
