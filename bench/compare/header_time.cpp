// Times reading the header of a file, each time in a fresh parser:
//
//     header_time FILE ROUNDS        prints the nanoseconds of each round
#include "safetensors/header.hpp"

#include <safemap/file.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
    if (count != 3) {
        std::fputs("usage: header_time FILE ROUNDS\n", stderr);
        return 2;
    }
    using Clock = std::chrono::steady_clock;
    for (long round = std::strtol(arguments[2], nullptr, 10); round > 0; --round) {
        const auto begin = Clock::now();
        const auto source = safemap::open_file(arguments[1]);
        safemap::ThrowFirst faults;
        const auto header =
            safemap::safetensors::read_header(*source, safemap::safetensors::Rules::compatible, 100'000'000, faults);
        const std::chrono::nanoseconds took = Clock::now() - begin;
        if (header.tensors.size() == 0) return 1;
        std::printf("%lld\n", static_cast<long long>(took.count()));
    }
}
