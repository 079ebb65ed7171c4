// Makes the objects of the program that uses OpenCL, and skips tests where no device is installed.
#include "device/opencl_fixture.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace opencl_test {

bool available() {
    if (!list_opencl(opencl_driver()).empty()) return true;
    const char* const ci = std::getenv("CI");
    CHECK_MESSAGE((ci == nullptr || std::string_view(ci) != "true"), "CI has a device of OpenCL");
    MESSAGE("skipped: this machine has no device of OpenCL");
    return false;
}

CallerApi::CallerApi() {
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

void require(ClResult result) { REQUIRE(text(result) == text(ClResult::success)); }

Caller::Caller() {
    ClPlatform platform = nullptr;
    require(api.clGetPlatformIDs(1, &platform, nullptr));
    require(api.clGetDeviceIDs(platform, cl_device_type_all, 1, &device, nullptr));
    ClResult result = ClResult::success;
    context = api.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &result);
    require(result);
    queue = api.clCreateCommandQueue(context, device, 0, &result);
    require(result);
}

Caller::~Caller() {
    api.clReleaseCommandQueue(queue);
    api.clReleaseContext(context);
}

std::shared_ptr<safemap::Device> Caller::adopted() const { return safemap::Device::from_opencl(context, device); }

void Caller::finish() const { require(api.clFinish(queue)); }

Gate::Gate(const Caller& caller) : caller_(caller) {
    ClResult result = ClResult::success;
    event_ = caller.more.clCreateUserEvent(caller.context, &result);
    require(result);
    // PoCL 3.1 aborts if an event fails on which a command depends whose own event nobody holds.
    require(caller.api.clEnqueueBarrierWithWaitList(caller.queue, 1, &event_, &barrier_));
}

Gate::~Gate() {
    open();  // nothing else lets the queues end
    caller_.api.clReleaseEvent(barrier_);
    caller_.api.clReleaseEvent(event_);
}

void Gate::set(std::int32_t status) {
    if (!set_) caller_.more.clSetUserEventStatus(event_, status);
    set_ = true;
}

AddOne::AddOne(const Caller& caller) : caller_(caller) {
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

AddOne::~AddOne() {
    caller_.more.clReleaseKernel(kernel_);
    caller_.more.clReleaseProgram(program_);
}

void AddOne::launch(ClQueue queue, const safemap::DeviceMemory& from, std::uint64_t offset,
                    const safemap::DeviceMemory& to) const {
    void* const handles[] = {from.handle(), to.handle()};
    require(caller_.more.clSetKernelArg(kernel_, 0, sizeof(void*), &handles[0]));
    require(caller_.more.clSetKernelArg(kernel_, 1, sizeof offset, &offset));
    require(caller_.more.clSetKernelArg(kernel_, 2, sizeof(void*), &handles[1]));
    const std::size_t items = to.size();
    require(caller_.more.clEnqueueNDRangeKernel(queue, kernel_, 1, nullptr, &items, nullptr, 0, nullptr, nullptr));
    require(caller_.api.clFlush(queue));
}

std::vector<std::byte> bytes_of(safemap::Device& device, const safemap::DeviceMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device.copy_to_host(bytes, memory, 0);
    return bytes;
}

}  // namespace opencl_test
