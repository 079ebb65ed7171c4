// An iterator points into its range: the range is kept, or this does not compile.
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
