// Must not compile: an iterator points into its range, which must not be a temporary.
#include <safemap/lazy_tensor.hpp>

float first(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    const auto first = tensor.view().unaligned<float>().begin();
#else
    const auto elements = tensor.view().unaligned<float>();
    const auto first = elements.begin();
#endif
    return *first;
}
