// Long loops, such as those that let every system call fail. A quick run samples them. SAFEMAP_SOAK=whole tries
// everything, as `./dev all` does; SAFEMAP_SOAK=more tries four times as much as a quick run, as `./dev all` does under
// sanitizers.
#pragma once

#include <cstddef>

namespace soak {

/// Returns true if everything is tried.
bool whole();

/// Returns the seed of a random test: `usual` in a whole run, otherwise a new one each time. SAFEMAP_SEED sets it, to
/// repeat a run.
unsigned seed(unsigned usual);

/// Returns the distance to the next call that is tried, about `mean` in a quick run and 1 in a whole run. A program
/// that asks for one prints the SAFEMAP_SEED that repeats its run.
int step(int mean);
/// Returns the same for loops over bytes.
inline std::size_t stride(int mean) { return static_cast<std::size_t>(step(mean)); }

/// Chooses about one of `mean` combinations of options in a quick run, other ones in each run.
class Sample {
public:
    explicit Sample(int mean) : mean_(mean), left_(step(mean)) {}

    /// Returns true if the next combination is tried.
    bool next();

private:
    int mean_;
    int left_;
};

/// Returns the number of rounds of a long random test: `all` in a whole run, one of `mean` in a quick one.
int rounds(int all, int mean = 8);

/// Returns the same for a test with one thread. ThreadSanitizer finds nothing there, and is slow.
int rounds_of_one_thread(int all);

}  // namespace soak
