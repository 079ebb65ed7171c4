// Must not compile: as() of a temporary view would dangle.
#include <safemap/lazy_tensor.hpp>

float first(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    return tensor.view().as<float>()[0];
#else
    const auto view = tensor.view();
    return view.as<float>()[0];
#endif
}
