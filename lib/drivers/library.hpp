// Functions of a shared library that is opened while the program runs, such as a GPU driver. The program starts without
// the library, and a machine without it has no such device.
#pragma once

#include <safemap/api.hpp>

#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

/// A function that a library should have.
struct LibraryFunction {
    const char* name;
    void* pointer;  ///< address of the function pointer that is set; null stays there if the library lacks the function
    bool required;
};

enum class LibraryState : unsigned char {
    loaded,      ///< all required functions are there
    absent,      ///< the library cannot be opened
    incomplete,  ///< the library lacks required functions
};

struct LoadedLibrary {
    LibraryState state = LibraryState::absent;
    std::string fault;  ///< the reason, if the state is not `loaded`: "libcuda.so.1 lacks cuInit, cuMemFree_v2"

    explicit operator bool() const noexcept { return state == LibraryState::loaded; }
};

/// Opens `library`, a name that the dynamic linker searches for or a path, and sets the pointers of all `functions`
/// that it has. The library is never closed: its threads may run until the process ends. Thread-safe, if no other
/// thread uses the pointers.
LoadedLibrary load_library(const char* library, std::span<const LibraryFunction> functions);

}  // namespace safemap::SAFEMAP_ABI::drivers
