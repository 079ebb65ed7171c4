// Must not compile: a range-for keeps the tensors alive, but not a temporary checkpoint that they are taken from.
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
