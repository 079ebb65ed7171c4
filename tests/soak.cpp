#include "soak.hpp"

#include <cstdlib>
#include <random>
#include <string_view>

namespace soak {

bool whole() {
    const char* const text = std::getenv("SAFEMAP_SOAK");
    return text != nullptr && std::string_view(text) == "whole";
}

unsigned seed(unsigned usual) {
    if (const char* const text = std::getenv("SAFEMAP_SEED"))
        return static_cast<unsigned>(std::strtoul(text, nullptr, 10));
    return whole() ? usual : std::random_device()();
}

int step(int mean) {
    if (whole()) return 1;
    static std::mt19937 random(seed(0));
    return std::uniform_int_distribution(1, 2 * mean - 1)(random);
}

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
