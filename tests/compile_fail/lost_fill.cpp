// Must not compile: without the event, nobody knows when the memory has its values.
#include <safemap/uploader.hpp>

void fill(safemap::Uploader& uploader, std::span<const safemap::FillTarget> targets) {
#ifdef MUST_NOT_COMPILE
    uploader.fill(targets);
#else
    uploader.fill(targets)->wait();
#endif
}
