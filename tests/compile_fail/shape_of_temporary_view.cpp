// Must not compile: shape() of a temporary view would dangle.
#include <safemap/lazy_tensor.hpp>

const safemap::Shape& use(const safemap::Shape& shape);

void shape(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    use(tensor.view().shape());
#else
    const auto view = tensor.view();
    use(view.shape());
#endif
}
