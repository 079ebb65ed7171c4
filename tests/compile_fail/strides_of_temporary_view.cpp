// Must not compile: strides() of a temporary view would dangle.
#include <safemap/lazy_tensor.hpp>

const safemap::Strides& use(const safemap::Strides& strides);

void strides(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    use(tensor.view().strides());
#else
    const auto view = tensor.view();
    use(view.strides());
#endif
}
