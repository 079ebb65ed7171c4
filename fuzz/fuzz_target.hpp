// Defines the function that a fuzz target consists of: the one that libFuzzer calls, or in ordinary builds one that
// replay.cpp finds by the target's name.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef SAFEMAP_REPLAY

namespace replay {

using Run = int (*)(const std::uint8_t* data, std::size_t size);

/// Makes a target known to the program before its main() begins.
struct Registered {
    Registered(const char* name, Run run);
};

}  // namespace replay

#define FUZZ_TARGET(name, data, size)                                        \
    static int run_##name(const std::uint8_t* data, std::size_t size);       \
    static const ::replay::Registered registered_##name(#name, &run_##name); \
    static int run_##name(const std::uint8_t* data, std::size_t size)

#else

#define FUZZ_TARGET(name, data, size) extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)

#endif
