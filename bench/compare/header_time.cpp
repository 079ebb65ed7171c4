// Times header parsing, each file with a fresh parser: reads a path per line of input, prints nanoseconds for each.
#include "safetensors/header.hpp"

#include <safemap/advanced/file.hpp>

#include <chrono>
#include <iostream>
#include <string>

int main() {
    using Clock = std::chrono::steady_clock;
    for (std::string path; std::getline(std::cin, path);) {
        const auto begin = Clock::now();
        const auto source = safemap::open_file(path);
        safemap::ThrowFirst faults;
        const auto header =
            safemap::safetensors::read_header(*source, safemap::safetensors::Rules::compatible, 100'000'000, faults);
        const std::chrono::nanoseconds took = Clock::now() - begin;
        if (header.tensors.size() == 0) return 1;
        std::cout << took.count() << std::endl;
    }
}
