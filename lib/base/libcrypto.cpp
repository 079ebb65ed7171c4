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

class Context {
public:
    Context() : context_(EVP_MD_CTX_new()) {
        if (context_ == nullptr) throw std::bad_alloc();
    }
    ~Context() { EVP_MD_CTX_free(context_); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    EVP_MD_CTX* get() const noexcept { return context_; }

private:
    EVP_MD_CTX* context_;
};

class LibcryptoSha256 final : public Sha256Stream {
public:
    LibcryptoSha256() { require(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr)); }

    void update(std::span<const std::byte> bytes) override {
        require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
    }

    Sha256Digest digest() const override {
        const Context copy;  // a finished context accepts no more bytes
        require(EVP_MD_CTX_copy_ex(copy.get(), context_.get()));
        Sha256Digest digest;
        require(EVP_DigestFinal_ex(copy.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr));
        return digest;
    }

private:
    Context context_;
};

}  // namespace

std::unique_ptr<Sha256Stream> libcrypto_sha256() { return std::make_unique<LibcryptoSha256>(); }

}  // namespace safemap::SAFEMAP_ABI
