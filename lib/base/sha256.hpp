// SHA-256 by libcrypto, or by the function that a caller has set.
#pragma once

#include <safemap/advanced/sha256.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// A digest in the byte order of FIPS 180-4: big-endian words.
using Sha256Digest = std::array<std::byte, 32>;

/// Begins a SHA-256 of libcrypto. Throws invalid_argument in a build without it.
std::unique_ptr<Sha256Stream> libcrypto_sha256();

/// A streaming SHA-256 hash. The constructor throws invalid_argument if there is neither libcrypto nor a function of
/// set_sha256().
class Sha256 {
public:
    Sha256();

    void update(std::span<const std::byte> bytes) { stream_->update(bytes); }
    /// Returns the digest of all bytes so far. May be called at any time.
    Sha256Digest digest() const { return stream_->digest(); }

private:
    std::unique_ptr<Sha256Stream> stream_;
};

}  // namespace safemap::SAFEMAP_ABI
