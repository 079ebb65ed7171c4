// The library's DLPack functions as plain C functions, for ctypes. tests/interop/dlpack.py makes capsules of the
// results.
#include <safemap/advanced/dlpack.hpp>
#include <safemap/safemap.hpp>

#include <cstdint>
#include <string>

namespace {

using namespace safemap;

thread_local std::string text;  // keeps the last returned text alive

const char* say(std::string what) {
    text = std::move(what);
    return text.c_str();
}

/// Returns null if `run` throws, and keeps the message for last_error().
template <class Run> auto guarded(Run&& run) -> decltype(run()) {
    try {
        text.clear();
        return run();
    } catch (const Error& error) {
        text = name(error.code());
    }
    return {};
}

}  // namespace

extern "C" {

SAFEMAP_API const char* last_error() { return text.c_str(); }

/// Returns the tensor `name` of a checkpoint, reversed along its first dimension if `flipped`.
SAFEMAP_API void* open_view(const char* path, const char* name, bool private_copy, bool flipped) {
    return guarded([&]() -> void* {
        const auto model = Checkpoint::open(path, {.access = private_copy ? Access::private_copy : Access::automatic});
        const LazyTensor tensor = model[name];
        return new TensorView(flipped ? tensor.slice({{.step = -1}}).view() : tensor.view());
    });
}

SAFEMAP_API void close_view(void* view) { delete static_cast<TensorView*>(view); }

SAFEMAP_API void* export_versioned(const void* view) {
    return guarded([&]() -> void* {
        return dlpack::export_versioned(*static_cast<const TensorView*>(view), dlpack::Float4::pairs);
    });
}

SAFEMAP_API void* export_unversioned(const void* view) {
    return guarded([&]() -> void* {
        return dlpack::export_unversioned(*static_cast<const TensorView*>(view), dlpack::Float4::pairs);
    });
}

SAFEMAP_API void* import_versioned(void* tensor) {
    return guarded([&]() -> void* {
        return new TensorView(dlpack::import_tensor(static_cast<dlpack::ManagedTensorVersioned*>(tensor)));
    });
}

SAFEMAP_API void* import_unversioned(void* tensor) {
    return guarded(
        [&]() -> void* { return new TensorView(dlpack::import_tensor(static_cast<dlpack::ManagedTensor*>(tensor))); });
}

/// Returns JSON: dtype, shape, address, whether it is writable, and its bytes in row-major order, in hexadecimal.
SAFEMAP_API const char* describe(const void* pointer) {
    const auto& view = *static_cast<const TensorView*>(pointer);
    std::string bytes;
    const auto append = [&](std::uint64_t i) {
        const auto size = static_cast<std::int64_t>(element_size(view.dtype()));
        std::int64_t at = 0;
        for (std::size_t d = view.shape().size(); d-- > 0; i /= view.shape()[d])
            at += static_cast<std::int64_t>(i % view.shape()[d]) * view.strides()[d];
        for (std::int64_t k = 0; k < size; ++k) {
            const auto byte = std::to_integer<unsigned>(view.data()[at * size + k]);
            bytes += "0123456789abcdef"[byte >> 4];
            bytes += "0123456789abcdef"[byte & 15U];
        }
    };
    for (std::uint64_t i = 0; i < view.element_count(); ++i) append(i);
    return say(R"({"dtype":")" + std::string(torch_name(view.dtype())) + R"(","shape":)" + to_string(view.shape()) +
               R"(,"data":)" + std::to_string(reinterpret_cast<std::uintptr_t>(view.data())) + R"(,"writable":)" +
               (view.writable() ? "true" : "false") + R"(,"bytes":")" + bytes + "\"}");
}
}
