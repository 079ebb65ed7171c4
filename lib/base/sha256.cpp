// Chooses between libcrypto and the function that a caller has set.
#include "base/sha256.hpp"

#include <atomic>

namespace safemap::SAFEMAP_ABI {

namespace {

using BeginSha256 = std::unique_ptr<Sha256Stream> (*)();
std::atomic<BeginSha256> begin_sha256{nullptr};

std::unique_ptr<Sha256Stream> sha256_stream() {
    const BeginSha256 begin = begin_sha256;
    return begin != nullptr ? begin() : libcrypto_sha256();
}

}  // namespace

void set_sha256(std::unique_ptr<Sha256Stream> (*begin)()) noexcept { begin_sha256 = begin; }

Sha256::Sha256() : stream_(sha256_stream()) {}

}  // namespace safemap::SAFEMAP_ABI
