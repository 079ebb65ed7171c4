// Must not compile: a lease that is not kept ends at once, and its tensors may be evicted.
#include <safemap/uploader.hpp>

void bring(safemap::Uploader& uploader, const safemap::Bundle& layer) {
#ifdef MUST_NOT_COMPILE
    uploader.acquire(layer);
#else
    uploader.prefetch(layer);
#endif
}
