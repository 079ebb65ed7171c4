// A program that uses OpenCL itself: a context, a queue, events as gates, and kernels. Tests share them with a device.
#pragma once

#include "drivers/opencl_api.hpp"
#include "drivers/opencl_device.hpp"

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace opencl_test {

using namespace safemap::drivers;

/// Returns true if this machine has a device of OpenCL. If it has none, the test is skipped, which fails on CI.
inline bool available() {
    if (!list_opencl(opencl_driver()).empty()) return true;
    const char* const ci = std::getenv("CI");
    CHECK_MESSAGE((ci == nullptr || std::string_view(ci) != "true"), "CI has a device of OpenCL");
    MESSAGE("skipped: this machine has no device of OpenCL");
    return false;
}

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

    CallerApi() {
        const std::array functions = {LibraryFunction{"clCreateUserEvent", &clCreateUserEvent, true},
                                      LibraryFunction{"clSetUserEventStatus", &clSetUserEventStatus, true},
                                      LibraryFunction{"clRetainEvent", &clRetainEvent, true},
                                      LibraryFunction{"clCreateProgramWithSource", &clCreateProgramWithSource, true},
                                      LibraryFunction{"clBuildProgram", &clBuildProgram, true},
                                      LibraryFunction{"clCreateKernel", &clCreateKernel, true},
                                      LibraryFunction{"clSetKernelArg", &clSetKernelArg, true},
                                      LibraryFunction{"clEnqueueNDRangeKernel", &clEnqueueNDRangeKernel, true},
                                      LibraryFunction{"clReleaseKernel", &clReleaseKernel, true},
                                      LibraryFunction{"clReleaseProgram", &clReleaseProgram, true}};
        REQUIRE(load_library("libOpenCL.so.1", functions));
    }
};

inline void require(ClResult result) { REQUIRE(text(result) == text(ClResult::success)); }

/// A context with a queue of the caller.
class Caller {
public:
    Caller() {
        ClPlatform platform = nullptr;
        require(api.clGetPlatformIDs(1, &platform, nullptr));
        require(api.clGetDeviceIDs(platform, cl_device_type_all, 1, &device, nullptr));
        ClResult result = ClResult::success;
        context = api.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &result);
        require(result);
        queue = api.clCreateCommandQueue(context, device, 0, &result);
        require(result);
    }
    ~Caller() {
        api.clReleaseCommandQueue(queue);
        api.clReleaseContext(context);
    }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    std::shared_ptr<safemap::Device> adopted() const { return safemap::Device::from_opencl(context, device); }
    safemap::NativeStream stream() const { return safemap::NativeStream::opencl(queue); }
    void finish() const { require(api.clFinish(queue)); }

    const OpenclApi& api = opencl_driver().api;
    const CallerApi more;
    ClDevice device = nullptr;
    ClContext context = nullptr;
    ClQueue queue = nullptr;
};

/// Holds up all work that is put into the caller's queue later, until it is opened or fails.
class Gate {
public:
    explicit Gate(const Caller& caller) : caller_(caller) {
        ClResult result = ClResult::success;
        event_ = caller.more.clCreateUserEvent(caller.context, &result);
        require(result);
        // PoCL 3.1 aborts if an event fails on which a command depends whose own event nobody holds.
        require(caller.api.clEnqueueBarrierWithWaitList(caller.queue, 1, &event_, &barrier_));
    }
    ~Gate() {
        open();  // nothing else lets the queues end
        caller_.api.clReleaseEvent(barrier_);
        caller_.api.clReleaseEvent(event_);
    }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    void open() { set(cl_complete); }
    void fail() { set(-9999); }

private:
    void set(std::int32_t status) {
        if (!set_) caller_.more.clSetUserEventStatus(event_, status);
        set_ = true;
    }

    const Caller& caller_;
    ClEvent event_ = nullptr;
    ClEvent barrier_ = nullptr;
    bool set_ = false;
};

/// Adds 1 to bytes of device memory, and puts them into other memory.
class AddOne {
public:
    explicit AddOne(const Caller& caller) : caller_(caller) {
        const char* source =
            "kernel void add_one(global const uchar* from, ulong offset, global uchar* to) {"
            "    const size_t i = get_global_id(0); to[i] = from[offset + i] + 1; }";
        ClResult result = ClResult::success;
        program_ = caller.more.clCreateProgramWithSource(caller.context, 1, &source, nullptr, &result);
        require(result);
        require(caller.more.clBuildProgram(program_, 1, &caller.device, "", nullptr, nullptr));
        kernel_ = caller.more.clCreateKernel(program_, "add_one", &result);
        require(result);
    }
    ~AddOne() {
        caller_.more.clReleaseKernel(kernel_);
        caller_.more.clReleaseProgram(program_);
    }
    AddOne(const AddOne&) = delete;
    AddOne& operator=(const AddOne&) = delete;

    void launch(ClQueue queue, const safemap::DeviceMemory& from, std::uint64_t offset,
                const safemap::DeviceMemory& to) const {
        void* const handles[] = {from.handle(), to.handle()};
        require(caller_.more.clSetKernelArg(kernel_, 0, sizeof(void*), &handles[0]));
        require(caller_.more.clSetKernelArg(kernel_, 1, sizeof offset, &offset));
        require(caller_.more.clSetKernelArg(kernel_, 2, sizeof(void*), &handles[1]));
        const std::size_t items = to.size();
        require(caller_.more.clEnqueueNDRangeKernel(queue, kernel_, 1, nullptr, &items, nullptr, 0, nullptr, nullptr));
        require(caller_.api.clFlush(queue));
    }

private:
    const Caller& caller_;
    void* program_ = nullptr;
    void* kernel_ = nullptr;
};

inline std::vector<std::byte> bytes_of(safemap::Device& device, const safemap::DeviceMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device.copy_to_host(bytes, memory, 0);
    return bytes;
}

}  // namespace opencl_test
