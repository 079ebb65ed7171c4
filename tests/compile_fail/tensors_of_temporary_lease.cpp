// Must not compile: the tensors of a temporary lease are no longer leased.
#include <safemap/uploader.hpp>

std::size_t count(safemap::Uploader& uploader) {
#ifdef MUST_NOT_COMPILE
    return uploader.acquire(uploader.bundle("w")).tensors().size();
#else
    const auto lease = uploader.acquire(uploader.bundle("w"));
    return lease.tensors().size();
#endif
}
