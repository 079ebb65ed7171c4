// Must not compile: verify() returns faults, it does not throw them.
#include <safemap/verify.hpp>

bool is_valid() {
#ifdef MUST_NOT_COMPILE
    safemap::verify("model.safetensors");
    return true;
#else
    return safemap::verify("model.safetensors").ok();
#endif
}
