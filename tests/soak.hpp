// Loops that take long, such as those that let every system call fail or kill: whole in `./dev all`, sampled where
// somebody waits for the tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

namespace soak {

/// True where everything is tried: with SAFEMAP_SOAK=whole in the environment.
inline bool whole() {
    const char* const text = std::getenv("SAFEMAP_SOAK");
    return text != nullptr && std::string_view(text) == "whole";
}

/// The seed of a test of random cases: the usual one in a whole run, otherwise another one each time. SAFEMAP_SEED sets
/// it, which repeats a run.
inline unsigned seed(unsigned usual) {
    if (const char* const text = std::getenv("SAFEMAP_SEED"))
        return static_cast<unsigned>(std::strtoul(text, nullptr, 10));
    return whole() ? usual : std::random_device()();
}

/// The distance to the next call that is tried: 1 in a whole run, otherwise 1 to 2 * mean - 1. Other calls are tried in
/// each run; SAFEMAP_SEED repeats one.
inline int step(int mean) {
    if (whole()) return 1;
    static std::mt19937 random(seed(0));
    return std::uniform_int_distribution(1, 2 * mean - 1)(random);
}

/// The rounds of a test of random cases that takes long: `all` in a whole run, otherwise a quarter.
inline int rounds(int all) { return whole() ? all : (all + 3) / 4; }

}  // namespace soak
