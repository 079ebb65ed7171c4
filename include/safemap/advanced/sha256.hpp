// SHA-256 by a function of the caller's, where the library is built without libcrypto: Python has one of its own.
#pragma once

#include <safemap/api.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// A SHA-256 (FIPS 180-4) that is being computed. One thread at a time calls it, and not always the same one.
class Sha256Stream {
public:
    virtual ~Sha256Stream() = default;
    /// Adds bytes. May throw; then the digests that need it fail with the same exception.
    virtual void update(std::span<const std::byte> bytes) = 0;
    /// Returns the digest of all bytes so far, as big-endian words. May be called at any time.
    [[nodiscard]] virtual std::array<std::byte, 32> digest() const = 0;
};

/// Sets which function begins each SHA-256 of this process from now on, from any thread. Null, which is the default,
/// stands for libcrypto. Thread-safe.
SAFEMAP_API void set_sha256(std::unique_ptr<Sha256Stream> (*begin)()) noexcept;

}  // namespace safemap::SAFEMAP_ABI
