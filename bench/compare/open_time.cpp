// Times opening, for opening.py. Opens a first file, which is not timed, then a second one, and prints the wall-clock
// and processor seconds of the second.
//
//     open_time FIRST FILE
#include <safemap/safemap.hpp>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>

int main(int argc, char** argv) try {
    if (argc != 3) {
        std::fputs("open_time FIRST FILE\n", stderr);
        return 2;
    }
    static_cast<void>(safemap::Checkpoint::open(argv[1]));
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t busy_before = std::clock();
    const auto checkpoint = safemap::Checkpoint::open(argv[2]);
    const double busy = static_cast<double>(std::clock() - busy_before) / CLOCKS_PER_SEC;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("{\"seconds\": %.6f, \"busy\": %.6f, \"tensors\": %zu}\n", seconds.count(), busy, checkpoint.size());
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
