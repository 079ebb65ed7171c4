// Long loops, such as those that let every system call fail: complete in `./dev all`, sampled in quick runs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

namespace soak {

/// Returns true if everything is tried: with SAFEMAP_SOAK=whole in the environment.
inline bool whole() {
    const char* const text = std::getenv("SAFEMAP_SOAK");
    return text != nullptr && std::string_view(text) == "whole";
}

/// Returns the seed of a random test: `usual` in a whole run, otherwise a new one each time. SAFEMAP_SEED sets it, to
/// repeat a run.
inline unsigned seed(unsigned usual) {
    if (const char* const text = std::getenv("SAFEMAP_SEED"))
        return static_cast<unsigned>(std::strtoul(text, nullptr, 10));
    return whole() ? usual : std::random_device()();
}

/// Returns the distance to the next call that is tried: 1 in a whole run, otherwise 1 to 2 * mean - 1, new in each run.
/// SAFEMAP_SEED repeats a run.
inline int step(int mean) {
    if (whole()) return 1;
    static std::mt19937 random(seed(0));
    return std::uniform_int_distribution(1, 2 * mean - 1)(random);
}

/// Chooses about one of `mean` combinations of options, other ones in each run. A whole run tries all of them.
class Sample {
public:
    explicit Sample(int mean) : mean_(mean), left_(step(mean)) {}

    /// Returns true if the next combination is tried.
    bool next() {
        if (--left_ > 0) return false;
        left_ = step(mean_);
        return true;
    }

private:
    int mean_;
    int left_;
};

/// Returns the number of rounds of a long random test: `all` in a whole run, otherwise a quarter.
inline int rounds(int all) { return whole() ? all : (all + 3) / 4; }

/// Returns the same for a test with one thread. ThreadSanitizer finds nothing there, and is slow.
inline int rounds_of_one_thread(int all) {
#ifdef __SANITIZE_THREAD__
    return (all + 29) / 30;
#else
    return rounds(all);
#endif
}

}  // namespace soak
