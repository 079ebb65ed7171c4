// Must not compile: mutable_as() of a temporary view would dangle.
#include <safemap/lazy_tensor.hpp>

void clear(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    tensor.load().mutable_as<float>()[0] = 0;
#else
    const auto view = tensor.load();
    view.mutable_as<float>()[0] = 0;
#endif
}
