// Must not compile: find() in a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

bool has() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").find("w") != nullptr;
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.find("w") != nullptr;
#endif
}
