// Must not compile: a tensor of a temporary lease may be evicted at any time.
#include <safemap/uploader.hpp>

std::uint64_t size(safemap::Uploader& uploader) {
#ifdef MUST_NOT_COMPILE
    return uploader.acquire(uploader.bundle("w"))["w"].nbytes();
#else
    const auto lease = uploader.acquire(uploader.bundle("w"));
    return lease["w"].nbytes();
#endif
}
