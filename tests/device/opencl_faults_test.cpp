// Tests what becomes of a device of OpenCL after a failure: of a command, of a caller's event, of any function.
#include "check_error.hpp"
#include "device/opencl_fixture.hpp"
#include "doctest_safemap.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <type_traits>
#include <vector>

namespace opencl_faults_test {

using namespace opencl_test;
using namespace safemap::literals;
using safemap::Device;
using safemap::Errc;
using Lane = Device::Lane;

namespace {

/// The functions of OpenCL, of which one call fails.
struct Failing {
    static inline OpenclDriver driver;
    static inline std::atomic<int> calls = 0;
    static inline int failing_call = 0;  // counts from 1
    static inline ClResult failure = ClResult::out_of_resources;

    /// Makes a call fail: that of this number, counted from now on, or none for 0.
    static void fail(int call) {
        calls = 0;
        failing_call = call;
    }
};

void give_result(...) {}

template <class Last> void give_result(Last* last) {
    if constexpr (std::is_same_v<Last, ClResult>) {
        if (last != nullptr) *last = Failing::failure;
    }
}

template <auto Member, class Function> struct Counting;
template <auto Member, class Result, class... Arguments> struct Counting<Member, Result (*)(Arguments...)> {
    static Result call(Arguments... arguments) {
        if (++Failing::calls != Failing::failing_call) return (opencl_driver().api.*Member)(arguments...);
        if constexpr (std::is_same_v<Result, ClResult>) return Failing::failure;
        else {
            (give_result(arguments), ...);
            return nullptr;
        }
    }
};

const OpenclDriver& counting_driver() {
    Failing::driver.library = opencl_driver().library;
#define SAFEMAP_COUNTING(name, result, parameters) \
    Failing::driver.api.name = Counting<&OpenclApi::name, decltype(OpenclApi::name)>::call;
    SAFEMAP_OPENCL_FUNCTIONS(SAFEMAP_COUNTING)
#undef SAFEMAP_COUNTING
    return Failing::driver;
}

/// Uses every function of a device, with memory of this size. Returns the bytes that have arrived.
std::vector<std::byte> use(Device& device, const Caller& caller, std::uint64_t size) {
    const auto memory = device.allocate(size);
    const auto staging = device.allocate_staging(4096);
    std::fill(staging->bytes().begin(), staging->bytes().end(), std::byte{5});
    auto& queue = device.queue(Lane::bulk);
    queue.wait_for(*device.record(caller.stream()));
    queue.copy(*memory, 0, *staging, {0, 4096});
    queue.copy_rows(*memory, *staging, {.to_pitch = 20, .from_pitch = 10, .row_bytes = 10, .rows = 100});
    const auto event = queue.record();
    device.make_wait(caller.stream(), *event);
    event->wait();
    const auto mapped = queue.map(*memory);
    std::fill(mapped.begin(), mapped.end(), std::byte{5});
    queue.unmap(*memory, mapped);
    queue.record()->wait();
    return bytes_of(device, *device.borrow(memory->handle(), 4096));
}

/// Checks that nothing can be done with a device that failed.
void check_failed(Device& device) {
    CHECK_FAULT(device.allocate(1), Errc::device_failed);
    CHECK_FAULT(device.allocate_staging(1), Errc::device_failed);
    CHECK_FAULT(device.queue(Lane::demand).record(), Errc::device_failed);
    CHECK_FAULT(device.free_memory(), Errc::device_failed);
}

/// Lets each call fail that a device makes with memory of this size.
void fail_each_call(const Caller& caller, std::uint64_t size) {
    const auto run = [&](std::shared_ptr<Device>& device) {
        device = adopt_opencl(counting_driver(), caller.context, caller.device);
        return use(*device, caller, size);
    };
    Failing::fail(0);
    std::shared_ptr<Device> device;
    const std::vector<std::byte> expected(4096, std::byte{5});
    CHECK(run(device) == expected);
    device.reset();
    const int calls = Failing::calls;
    CHECK(calls > 30);
    int failures = 0;
    for (int call = 1; call <= calls; ++call) {
        CAPTURE(call);
        Failing::fail(call);
        std::vector<std::byte> arrived;
        const auto error = error_of([&] { arrived = run(device); });
        Failing::fail(0);
        if (!error) {  // a function that releases something
            CHECK(arrived == expected);
        } else if (error->code() == Errc::device_failed && device) {
            ++failures;
            CHECK(error->message().find("CL_OUT_OF_RESOURCES") != std::string::npos);
            check_failed(*device);
        } else {
            const bool known = error->code() == Errc::no_such_device || error->code() == Errc::device_failed ||
                               error->code() == Errc::out_of_memory || error->code() == Errc::invalid_argument;
            CHECK_MESSAGE(known, std::string(error->what()));
            if (device) CHECK(use(*device, caller, size) == expected);
        }
        device.reset();
    }
    CHECK(failures >= 10);
    CHECK_OK(use(*caller.adopted(), caller, size));
}

}  // namespace

TEST_CASE("OpenCL: whichever call fails, there is one error, and a device that failed stays so") {
    if (!available()) return;
    const Caller caller;
    fail_each_call(caller, 4_KiB);
    fail_each_call(caller, 4_MiB);  // a processor makes large buffers of memory of the process
}

TEST_CASE("OpenCL: rows that an implementation refuses to copy together arrive one by one") {
    if (!available()) return;
    const auto refuse = [](ClQueue, ClMemory, ClBool, const std::size_t*, const std::size_t*, const std::size_t*,
                           std::size_t, std::size_t, std::size_t, std::size_t, const void*, std::uint32_t,
                           const ClEvent*, ClEvent*) { return ClResult::invalid_value; };
    static OpenclDriver driver = opencl_driver();
    driver.api.clEnqueueWriteBufferRect = refuse;
    const auto device = open_opencl(driver, "");
    const auto memory = device->allocate(100);
    const auto staging = device->allocate_staging(100);
    for (std::size_t i = 0; i < 100; ++i) staging->bytes()[i] = static_cast<std::byte>(i);
    auto& queue = device->queue(Lane::demand);
    queue.copy(*memory, 0, *staging, {0, 100});
    queue.copy_rows(*memory, *staging,
                    {.to = 5, .to_pitch = 30, .from = 1, .from_pitch = 7, .row_bytes = 3, .rows = 3});
    queue.record()->wait();
    const auto arrived = bytes_of(*device, *memory);
    for (std::size_t i = 0; i < 100; ++i) {
        const std::size_t row = (i - 5) / 30;
        const bool copied = i >= 5 && (i - 5) % 30 < 3 && row < 3;
        CHECK(arrived[i] == static_cast<std::byte>(copied ? 1 + 7 * row + (i - 5) % 30 : i));
    }
}

TEST_CASE("OpenCL: work of the caller that fails is a failure of the device") {
    if (!available()) return;
    for (const bool deadline : {true, false}) {
        const Caller caller;
        const auto device = caller.adopted();
        const auto memory = device->allocate(1000);
        const auto staging = device->allocate_staging(1000);
        Gate gate(caller);
        const auto event = device->record(caller.stream());
        CHECK_FALSE(event->done());
        gate.fail();
        check_error(
            error_of([&] {
                if (deadline)
                    static_cast<void>(event->wait_until(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
                else event->wait();
            }),
            {Errc::device_failed}, {});
        check_failed(*device);
        CHECK_FAULT(event->done(), Errc::device_failed);
        CHECK_FAULT(event->wait(), Errc::device_failed);
        auto& queue = device->queue(Lane::bulk);
        CHECK_FAULT(queue.copy(*memory, 0, *staging, {0, 1000}), Errc::device_failed);
        CHECK_FAULT(device->make_wait(caller.stream(), *event), Errc::device_failed);
        queue.drain();
    }
    CHECK_OK(Device::open("opencl")->allocate(1000));
}

TEST_CASE("OpenCL: a copy that fails is a failure of the device") {
    if (!available()) return;
    static const Caller* user = nullptr;
    static ClEvent copied = nullptr;
    const auto write = [](ClQueue, ClMemory, ClBool, std::size_t, std::size_t, const void*, std::uint32_t,
                          const ClEvent*, ClEvent* event) {
        ClResult result = ClResult::success;
        *event = copied = user->more.clCreateUserEvent(user->context, &result);
        require(user->more.clRetainEvent(copied));
        return result;
    };
    static OpenclDriver driver = opencl_driver();
    driver.api.clEnqueueWriteBuffer = write;
    const Caller caller;
    user = &caller;
    const auto device = adopt_opencl(driver, caller.context, caller.device);
    const auto memory = device->allocate(1000);
    const auto staging = device->allocate_staging(1000);
    device->queue(Lane::bulk).copy(*memory, 0, *staging, {0, 1000});
    CHECK_OK(device->queue(Lane::demand).record()->wait());
    const auto event = device->queue(Lane::bulk).record();
    CHECK_FALSE(event->done());
    require(caller.more.clSetUserEventStatus(copied, static_cast<std::int32_t>(ClResult::out_of_resources)));
    CHECK_FAULT(event->wait(), Errc::device_failed);
    check_failed(*device);
}

TEST_CASE("OpenCL: the error of a command that failed is the error of its event") {
    if (!available()) return;
    static bool fails = false;
    const auto status = [](ClEvent event, ClEventInfo info, std::size_t size, void* value, std::size_t* needed) {
        const ClResult result = opencl_driver().api.clGetEventInfo(event, info, size, value, needed);
        if (fails) *static_cast<std::int32_t*>(value) = static_cast<std::int32_t>(ClResult::out_of_resources);
        return result;
    };
    static OpenclDriver driver = opencl_driver();
    driver.api.clGetEventInfo = status;
    for (const bool deadline : {true, false}) {
        const auto device = open_opencl(driver, "0");
        const auto event = device->queue(Lane::bulk).record();
        fails = true;
        const auto error = error_of([&] {
            if (deadline) static_cast<void>(event->done());
            else event->wait();
        });
        fails = false;
        REQUIRE(error);
        CHECK(error->code() == Errc::device_failed);
        CHECK(error->message() == "the device 'opencl:0' failed: a command: CL_OUT_OF_RESOURCES");
        check_failed(*device);
    }
}

TEST_CASE("OpenCL: a child of the process that opened a device cannot use it") {
    if (!available()) return;
    const auto device = Device::open("opencl");
    const auto event = device->queue(Lane::demand).record();
    event->wait();
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const auto lost = [](auto&& run) {
            const auto error = error_of(run);
            return error && error->code() == Errc::device_failed;
        };
        device->queue(Lane::demand).drain();
        const bool all = lost([&] { return device->allocate(1); }) && lost([&] { return event->done(); }) &&
                         lost([&] { return device->queue(Lane::bulk).record(); });
        ::_exit(all ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK_OK(device->allocate(1));
}

}  // namespace opencl_faults_test
