// Opens a shared library with dlopen(), and looks its functions up with dlsym().
#include "drivers/library.hpp"

#include "base/text.hpp"

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::drivers {

LoadedLibrary load_library(const char* library, std::span<const LibraryFunction> functions) {
    constexpr std::size_t most_names = 4;  // a message needs no more of them
    // RTLD_NOW reports a broken library here, and not in the middle of a call.
    void* const opened = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
        const char* const why = ::dlerror();
        return {LibraryState::absent, why == nullptr ? std::string(library) + " cannot be opened" : why};
    }
    std::vector<std::string> missing;
    for (const LibraryFunction& function : functions) {
        void* const address = ::dlsym(opened, function.name);
        // A function pointer has the size and the bytes of a void*, which POSIX requires for dlsym().
        std::memcpy(function.pointer, &address, sizeof address);
        if (address == nullptr && function.required) missing.emplace_back(function.name);
    }
    if (missing.empty()) return {LibraryState::loaded, {}};
    return {LibraryState::incomplete, std::string(library) + " lacks " + names_text(missing, most_names)};
}

}  // namespace safemap::SAFEMAP_ABI::drivers
