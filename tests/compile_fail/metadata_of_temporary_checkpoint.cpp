// Must not compile: metadata() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").metadata().size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.metadata().size();
#endif
}
