// Must not compile: a request that is not kept is cancelled at once.
#include <safemap/uploader.hpp>

void bring_soon(safemap::Uploader& uploader, const safemap::Bundle& layer) {
#ifdef MUST_NOT_COMPILE
    uploader.request(layer);
#else
    const safemap::Lease lease = uploader.request(layer);
#endif
}
