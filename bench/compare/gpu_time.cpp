// Times loading to a GPU, for gpu.py. Loads a checkpoint several times, each time anew, and prints the seconds of each.
// The device is open before. The first time, memory is page-locked.
//
//     gpu_time PATH DEVICE TIMES
#include <safemap/device_budget.hpp>
#include <safemap/safemap.hpp>
#include <safemap/uploader.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

using namespace safemap;

int main(int argc, char** argv) try {
    if (argc != 4) {
        std::fputs("gpu_time PATH DEVICE TIMES\n", stderr);
        return 2;
    }
    const std::shared_ptr<Device> device = Device::open(argv[2]);
    const DeviceBudget budget(device);
    const int times = std::atoi(argv[3]);
    std::fputs("{\"seconds\": [", stdout);
    std::uint64_t bytes = 0;
    for (int i = 0; i < times; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const Checkpoint checkpoint = Checkpoint::open(argv[1]);
        Uploader uploader(budget, checkpoint);
        const Lease lease = uploader.acquire(uploader.bundle(Selection()));
        lease.wait();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::printf("%s%.6f", i == 0 ? "" : ", ", seconds.count());
        bytes = uploader.stats().uploaded_bytes;
    }
    std::printf("], \"bytes\": %llu}\n", static_cast<unsigned long long>(bytes));
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
