// SHA-256 by hashlib, so that the extension needs no libcrypto of its own.
#include "core.hpp"

#include <safemap/advanced/sha256.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace safemap::python {
namespace {

/// A hash of hashlib, which any thread may feed: hashlib lets go of the GIL for more than a few bytes.
class HashlibSha256 final : public Sha256Stream {
public:
    void update(std::span<const std::byte> bytes) override {
        const GilAcquire held;
        // Python reads it and keeps no reference.
        auto* const data = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
        const auto view = nb::steal(PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
        if (!view.is_valid()) throw nb::python_error();
        nb::borrow(hash_.get()).attr("update")(view);
    }

    std::array<std::byte, 32> digest() const override {
        const GilAcquire held;
        const auto bytes = nb::cast<nb::bytes>(nb::borrow(hash_.get()).attr("digest")());
        std::array<std::byte, 32> digest = {};
        const auto* const begin = static_cast<const std::byte*>(bytes.data());
        std::copy_n(begin, std::min(bytes.size(), digest.size()), digest.begin());
        return digest;
    }

private:
    static nb::object begin() {
        const GilAcquire held;
        return nb::module_::import_("hashlib").attr("sha256")();
    }

    Kept hash_{begin()};
};

}  // namespace

void bind_sha256(nb::module_& /*module*/) {
    set_sha256([]() -> std::unique_ptr<Sha256Stream> { return std::make_unique<HashlibSha256>(); });
}

}  // namespace safemap::python
