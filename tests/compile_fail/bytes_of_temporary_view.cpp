// Must not compile: bytes() of a temporary view would dangle.
#include <safemap/lazy_tensor.hpp>

std::byte first(const safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    return tensor.load().bytes()[0];
#else
    const auto view = tensor.load();
    return view.bytes()[0];
#endif
}
