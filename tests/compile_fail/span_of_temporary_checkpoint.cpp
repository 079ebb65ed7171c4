// Must not compile: a span of the tensors of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

#include <span>

std::size_t count_in_span() {
#ifdef MUST_NOT_COMPILE
    std::span<const safemap::LazyTensor> tensors = safemap::Checkpoint::open("model.safetensors");
#else
    const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    std::span<const safemap::LazyTensor> tensors = checkpoint;
#endif
    return tensors.size();
}
