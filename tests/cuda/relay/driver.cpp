// The real driver: its functions, its primary contexts, and what it answers.

#include "cuda/relay/relay.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace relay {
namespace {

constexpr const char* usual_paths[] = {"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
                                       "/usr/local/nvidia/lib64/libcuda.so.1",   "/usr/local/nvidia/lib/libcuda.so.1",
                                       "/usr/lib/wsl/lib/libcuda.so.1",          "/usr/lib/libcuda.so.1"};

[[noreturn]] void give_up(const std::string& why) {
    complain(why);
    std::_Exit(2);
}

/// Opens the real driver: by its path, since its name is that of the relay.
void* open_driver() {
    if (const char* const path = std::getenv("SAFEMAP_REAL_CUDA")) {
        void* const library = std::string(path).find('/') == std::string::npos ? nullptr : ::dlopen(path, RTLD_NOW);
        if (library == nullptr) give_up("SAFEMAP_REAL_CUDA is not the path of a library: " + std::string(path));
        return library;
    }
    for (const char* const path : usual_paths)
        if (void* const library = ::dlopen(path, RTLD_NOW)) return library;
    give_up("there is no driver in the usual places; set SAFEMAP_REAL_CUDA to its path");
}

template <class Function> void look_up(void* library, const char* name, Function*& pointer, bool required) {
    pointer = reinterpret_cast<Function*>(::dlsym(library, name));
    if (pointer == nullptr && required) give_up("the real driver lacks " + std::string(name));
}

Driver load() {
    // Streams that share a channel of the device wait for each other. A held stream must not stop the others.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    void* const library = open_driver();
    if (::dlsym(library, "stub_is_real") == reinterpret_cast<void*>(&stub_is_real))
        give_up("the real driver is the relay itself");
    Driver driver;
#define SAFEMAP_RELAY_LOOK_UP(name, required, parameters) look_up(library, #name, driver.name, true);
    SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_RELAY_LOOK_UP)
    SAFEMAP_RELAY_FUNCTIONS(SAFEMAP_RELAY_LOOK_UP)
#undef SAFEMAP_RELAY_LOOK_UP
    look_up(library, "stub_finding", driver.stub_finding, false);
    look_up(library, "stub_clear_findings", driver.stub_clear_findings, false);
    return driver;
}

}  // namespace

const Driver& real() {
    static const Driver& driver = *new Driver(load());  // threads that end late still have it
    return driver;
}

int real_devices() {
    static const int devices = [] {
        int count = 0;
        const CuResult started = SAFEMAP_RELAY_FORWARD(cuInit, 0U);
        if (started == CuResult::success) SAFEMAP_RELAY_FORWARD(cuDeviceGetCount, &count);
        return count;
    }();
    return devices;
}

CuContext primary_context(int device) {
    static std::mutex& mutex = *new std::mutex;
    static auto& contexts = *new std::map<int, CuContext>;
    if (device >= real_devices()) give_up("there is no device " + std::to_string(device));
    const std::lock_guard lock(mutex);
    const auto found = contexts.find(device);
    if (found != contexts.end()) return found->second;
    CuDevice handle = 0;
    CuContext made = nullptr;
    SAFEMAP_RELAY_FORWARD(cuDeviceGet, &handle, device);
    if (SAFEMAP_RELAY_FORWARD(cuDevicePrimaryCtxRetain, &made, handle) != CuResult::success)
        give_up("the device has no context");
    contexts[device] = made;
    return made;
}

void complain(const std::string& text) { std::fprintf(stderr, "relay: %s\n", text.c_str()); }

CuResult reported(const char* call, CuResult result, Clock::time_point start) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    if (took > 2000) complain(std::string(call) + " took " + std::to_string(took) + " ms");
    if (result != CuResult::success && result != CuResult::not_ready)
        complain(std::string(call) + " returned " + std::to_string(static_cast<int>(result)));
    return result;
}

Entry::Entry(int device) {
    const CuContext context = primary_context(device);
    if (SAFEMAP_RELAY_FORWARD(cuCtxPushCurrent_v2, context) != CuResult::success)
        give_up("the context does not become current");
    SAFEMAP_RELAY_FORWARD(cuThreadExchangeStreamCaptureMode, &mode_);
    static const bool is_prepared = [] {
        holds().prepare();
        prepare_kernels();
        return true;
    }();
    static_cast<void>(is_prepared);
}

Entry::~Entry() {
    SAFEMAP_RELAY_FORWARD(cuThreadExchangeStreamCaptureMode, &mode_);
    CuContext popped = nullptr;
    SAFEMAP_RELAY_FORWARD(cuCtxPopCurrent_v2, &popped);
}

}  // namespace relay
