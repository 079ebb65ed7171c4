// Must not compile: globals() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").globals().size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.globals().size();
#endif
}
