// Replaces libcrypto.cpp in a build without libcrypto.
#include "base/sha256.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI {

std::unique_ptr<Sha256Stream> libcrypto_sha256() {
    throw Error(Errc::invalid_argument, "this build of safemap has no SHA-256")
        .with_hint("install libcrypto (Debian: libssl-dev) and build again with -Dsha256=enabled");
}

}  // namespace safemap::SAFEMAP_ABI
