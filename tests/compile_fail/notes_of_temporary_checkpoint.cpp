// What a checkpoint that is gone knew would dangle: notes().
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.safetensors").notes().size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return checkpoint.notes().size();
#endif
}
