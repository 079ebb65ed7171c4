// SHA-256, in builds that have libcrypto.
#pragma once

#include <safemap/api.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// As FIPS 180-4 prints it: big-endian words.
using Sha256Digest = std::array<std::byte, 32>;

/// SHA-256 of bytes that stream past. The constructor throws invalid_argument in a build without libcrypto.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(Sha256&&) noexcept;
    Sha256& operator=(Sha256&&) noexcept;

    void update(std::span<const std::byte> bytes);
    /// May be asked for at any time.
    Sha256Digest digest() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace safemap::SAFEMAP_ABI
