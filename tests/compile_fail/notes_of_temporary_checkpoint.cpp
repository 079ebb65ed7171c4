// Must not compile: notes() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").notes().size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.notes().size();
#endif
}
