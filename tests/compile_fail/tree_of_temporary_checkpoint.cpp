// Must not compile: tree() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

std::size_t count() {
#ifdef MUST_NOT_COMPILE
    return safemap::Checkpoint::open("model.pt").tree()->size();
#else
    const auto checkpoint = safemap::Checkpoint::open("model.pt");
    return checkpoint.tree()->size();
#endif
}
