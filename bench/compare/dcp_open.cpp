// Opens a checkpoint once, for dcp.py. Prints the wall-clock and processor seconds, and the anonymous memory of the
// process: the most while opening, and what is left afterwards.
//
//     dcp_open FOLDER
#include <safemap/safemap.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <thread>

namespace {

/// Returns RssAnon in bytes.
long long anonymous_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
    return 0;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 2) {
        std::fputs("dcp_open FOLDER\n", stderr);
        return 2;
    }
    std::atomic<bool> over = false;
    std::atomic<long long> peak = 0;
    std::thread watch([&] {
        while (!over) {
            peak = std::max(peak.load(), anonymous_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    });
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t busy_before = std::clock();
    const auto checkpoint = safemap::Checkpoint::open(argv[1]);
    const double busy = static_cast<double>(std::clock() - busy_before) / CLOCKS_PER_SEC;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    over = true;
    watch.join();
    std::size_t pieces = 0;
    for (const auto& tensor : checkpoint) pieces += tensor.piece_count();
    std::printf(
        "{\"seconds\": %.4f, \"busy\": %.4f, \"tensors\": %zu, \"pieces\": %zu, \"peak\": %lld, \"after\": %lld}\n",
        seconds.count(), busy, checkpoint.size(), pieces, peak.load(), anonymous_bytes());
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
