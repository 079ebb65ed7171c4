// Replaces sha256.cpp in a build without libcrypto.
#include "base/sha256.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI {

struct Sha256::State {};

Sha256::Sha256() {
    throw Error(Errc::invalid_argument, "this build of safemap has no SHA-256")
        .with_hint("install libcrypto (Debian: libssl-dev) and build again with -Dsha256=enabled");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte>) {}
Sha256Digest Sha256::digest() const { return {}; }

}  // namespace safemap::SAFEMAP_ABI
