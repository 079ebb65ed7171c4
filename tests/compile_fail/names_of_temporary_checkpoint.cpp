// Must not compile: all_names() of a temporary checkpoint would dangle.
#include <safemap/checkpoint.hpp>

#include <safemap/advanced/names.hpp>

std::string_view first() {
#ifdef MUST_NOT_COMPILE
    return safemap::all_names(safemap::Checkpoint::open("model.safetensors"))[0].name;
#else
    static const auto checkpoint = safemap::Checkpoint::open("model.safetensors");
    return safemap::all_names(checkpoint)[0].name;
#endif
}
