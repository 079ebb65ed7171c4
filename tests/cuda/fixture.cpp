// Fills and reads memory of devices, and names the tests that a real GPU cannot run.
#include "cuda/fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

bool needs_the_stub(const StubCuda& stub, const char* why) {
    if (stub.is_real()) MESSAGE("not on a real GPU: ", why);
    return stub.is_real();
}

const char* other_device(StubCuda& stub) {
    if (stub.is_real()) return "cuda:0";
    stub.set("devices", 2);
    return "cuda:1";
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
    std::uint64_t value = seed * 0x9e3779b97f4a7c15 + 1;
    for (std::byte& byte : bytes) {
        value = value * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(value >> 56);
    }
}

std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device.copy_to_host(bytes, memory, 0);
    return bytes;
}

CudaGround::CudaGround(std::uint64_t size, std::shared_ptr<safemap::Device> of)
    : device(std::move(of)), memory(device->allocate(size)), staging(device->allocate_staging(size)) {
    fill(staging->bytes(), size);
}

bool CudaGround::arrived() const {
    const auto bytes = read_back(*device, *memory);
    return std::equal(bytes.begin(), bytes.end(), staging->bytes().begin(), staging->bytes().end());
}
