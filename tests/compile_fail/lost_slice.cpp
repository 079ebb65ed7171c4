// Must not compile: a slice is another tensor, and does not change the one that it is taken from.
#include <safemap/lazy_tensor.hpp>

void cut(safemap::LazyTensor& tensor) {
#ifdef MUST_NOT_COMPILE
    tensor.slice({{.stop = 1}});
#else
    tensor = tensor.slice({{.stop = 1}});
#endif
}
