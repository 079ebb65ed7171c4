// Long loops, such as those that let every system call fail: complete in `./dev all`, sampled in quick runs.
#pragma once

#include <cstddef>

namespace soak {

/// Returns true if everything is tried: with SAFEMAP_SOAK=whole in the environment.
bool whole();

/// Returns the seed of a random test: `usual` in a whole run, otherwise a new one each time. SAFEMAP_SEED sets it, to
/// repeat a run.
unsigned seed(unsigned usual);

/// Returns the distance to the next call that is tried: 1 in a whole run, otherwise 1 to 2 * mean - 1, new in each run.
/// SAFEMAP_SEED repeats a run.
int step(int mean);
/// Returns the same for loops over bytes.
inline std::size_t stride(int mean) { return static_cast<std::size_t>(step(mean)); }

/// Chooses about one of `mean` combinations of options, other ones in each run. A whole run tries all of them.
class Sample {
public:
    explicit Sample(int mean) : mean_(mean), left_(step(mean)) {}

    /// Returns true if the next combination is tried.
    bool next();

private:
    int mean_;
    int left_;
};

/// Returns the number of rounds of a long random test: `all` in a whole run, otherwise one of `mean`.
inline int rounds(int all, int mean = 8) { return whole() ? all : (all + mean - 1) / mean; }

/// Returns the same for a test with one thread. ThreadSanitizer finds nothing there, and is slow.
int rounds_of_one_thread(int all);

}  // namespace soak
