// A program that uses OpenCL itself: a context, a queue, events as gates, and kernels. Tests share them with a device.
#pragma once

#include "drivers/opencl_api.hpp"
#include "drivers/opencl_device.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace opencl_test {

using namespace safemap::drivers;

/// Returns true if this machine has a device of OpenCL. If it has none, the test is skipped, which fails on CI.
bool available();

/// Functions that only callers need.
struct CallerApi {
    ClEvent (*clCreateUserEvent)(ClContext, ClResult*) = nullptr;
    ClResult (*clSetUserEventStatus)(ClEvent, std::int32_t) = nullptr;
    ClResult (*clRetainEvent)(ClEvent) = nullptr;
    void* (*clCreateProgramWithSource)(ClContext, std::uint32_t, const char**, const std::size_t*, ClResult*) = nullptr;
    ClResult (*clBuildProgram)(void*, std::uint32_t, const ClDevice*, const char*, void*, void*) = nullptr;
    void* (*clCreateKernel)(void*, const char*, ClResult*) = nullptr;
    ClResult (*clSetKernelArg)(void*, std::uint32_t, std::size_t, const void*) = nullptr;
    ClResult (*clEnqueueNDRangeKernel)(ClQueue, void*, std::uint32_t, const std::size_t*, const std::size_t*,
                                       const std::size_t*, std::uint32_t, const ClEvent*, ClEvent*) = nullptr;
    ClResult (*clReleaseKernel)(void*) = nullptr;
    ClResult (*clReleaseProgram)(void*) = nullptr;

    CallerApi();
};

void require(ClResult result);

/// A context with a queue of the caller.
class Caller {
public:
    Caller();
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    std::shared_ptr<safemap::Device> adopted() const;
    safemap::NativeStream stream() const { return safemap::NativeStream::opencl(queue); }
    void finish() const;

    const OpenclApi& api = opencl_driver().api;
    const CallerApi more;
    ClDevice device = nullptr;
    ClContext context = nullptr;
    ClQueue queue = nullptr;
};

/// Holds up all work that is put into the caller's queue later, until it is opened or fails.
class Gate {
public:
    explicit Gate(const Caller& caller);
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    void open() { set(cl_complete); }
    void fail() { set(-9999); }

private:
    void set(std::int32_t status);

    const Caller& caller_;
    ClEvent event_ = nullptr;
    ClEvent barrier_ = nullptr;
    bool set_ = false;
};

/// Adds 1 to bytes of device memory, and puts them into other memory.
class AddOne {
public:
    explicit AddOne(const Caller& caller);
    ~AddOne();
    AddOne(const AddOne&) = delete;
    AddOne& operator=(const AddOne&) = delete;

    void launch(ClQueue queue, const safemap::DeviceMemory& from, std::uint64_t offset,
                const safemap::DeviceMemory& to) const;

private:
    const Caller& caller_;
    void* program_ = nullptr;
    void* kernel_ = nullptr;
};

std::vector<std::byte> bytes_of(safemap::Device& device, const safemap::DeviceMemory& memory);

}  // namespace opencl_test
