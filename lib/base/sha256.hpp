// SHA-256, in builds with libcrypto.
#pragma once

#include <safemap/api.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// A digest in the byte order of FIPS 180-4: big-endian words.
using Sha256Digest = std::array<std::byte, 32>;

/// A streaming SHA-256 hash. The constructor throws invalid_argument in a build without libcrypto.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(Sha256&&) noexcept;
    Sha256& operator=(Sha256&&) noexcept;

    void update(std::span<const std::byte> bytes);
    /// Returns the digest of all bytes so far. May be called at any time.
    Sha256Digest digest() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace safemap::SAFEMAP_ABI
