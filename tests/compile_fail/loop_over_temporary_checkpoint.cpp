// A loop keeps the tensors of its checkpoint, not the checkpoint of a call inside it.
#include <safemap/checkpoint.hpp>

std::uint64_t bytes() {
    std::uint64_t sum = 0;
#ifdef MUST_NOT_COMPILE
    const auto* first = safemap::Checkpoint::open("model.safetensors").begin();
    sum += first->nbytes();
#else
    for (const auto& tensor : safemap::Checkpoint::open("model.safetensors")) sum += tensor.nbytes();
#endif
    return sum;
}
