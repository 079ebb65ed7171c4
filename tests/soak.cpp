// Reads SAFEMAP_SOAK and SAFEMAP_SEED, and draws the steps of sampled loops.
#include "soak.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>

namespace soak {

namespace {

std::string_view extent() {
    const char* const text = std::getenv("SAFEMAP_SOAK");
    return text == nullptr ? "" : text;
}

/// Returns the mean distance of this run for the one of a quick run.
int distance(int mean) { return whole() ? 1 : extent() == "more" ? std::max(1, mean / 4) : mean; }

}  // namespace

bool whole() { return extent() == "whole"; }

unsigned seed(unsigned usual) {
    if (const char* const text = std::getenv("SAFEMAP_SEED"))
        return static_cast<unsigned>(std::strtoul(text, nullptr, 10));
    return whole() ? usual : std::random_device()();
}

int step(int mean) {
    if (whole()) return 1;
    static std::mt19937 random = [] {
        const unsigned chosen = seed(0);
        std::fprintf(stderr, "steps of SAFEMAP_SEED=%u\n", chosen);
        return std::mt19937(chosen);
    }();
    return std::uniform_int_distribution(1, 2 * distance(mean) - 1)(random);
}

int rounds(int all, int mean) { return (all + distance(mean) - 1) / distance(mean); }

bool Sample::next() {
    if (--left_ > 0) return false;
    left_ = step(mean_);
    return true;
}

int rounds_of_one_thread(int all) {
#ifdef __SANITIZE_THREAD__
    return (all + 29) / 30;
#else
    return rounds(all);
#endif
}

}  // namespace soak
