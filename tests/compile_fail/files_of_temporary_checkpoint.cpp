// Must not compile: files() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").files().size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.files().size();
#endif
}
