// Computes SHA-256 with libcrypto. No other file includes libcrypto.
#include "base/sha256.hpp"

#include <safemap/error.hpp>

#include <openssl/evp.h>

#include <new>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Throws io_error if a call of libcrypto failed: SHA-256 is forbidden by its configuration, or memory is short.
void require(int succeeded) {
    if (succeeded != 1) throw Error(Errc::io_error, "libcrypto does not compute SHA-256");
}

}  // namespace

struct Sha256::State {
    State() : context(EVP_MD_CTX_new()) {
        if (context == nullptr) throw std::bad_alloc();
    }
    ~State() { EVP_MD_CTX_free(context); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    EVP_MD_CTX* context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
    require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
    require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

Sha256Digest Sha256::digest() const {
    const State copy;  // a finished context accepts no more bytes
    require(EVP_MD_CTX_copy_ex(copy.context, state_->context));
    Sha256Digest digest;
    require(EVP_DigestFinal_ex(copy.context, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
    return digest;
}

}  // namespace safemap::SAFEMAP_ABI
