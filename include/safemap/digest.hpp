// What tensors hold, as short numbers that are the same in every container.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// How digests are computed.
enum class DigestAlgorithm : std::uint8_t {
    xxh3_128,  ///< finds accidents, at the speed of memory. Anybody can make two tensors with the same digest.
    sha256     ///< for data that an adversary may have made. Needs a build with libcrypto.
};
/// "xxh3-128" or "sha256".
SAFEMAP_API std::string_view name(DigestAlgorithm algorithm) noexcept;

struct TensorDigest {
    std::string name;
    std::string digest;  ///< 32 hex digits for XXH3-128, 64 for SHA-256
};

struct CheckpointDigests {
    DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128;
    /// Of the whole: of a line for each selected name, sorted by their bytes: name, NUL, dtype, NUL, shape, NUL,
    /// digest, LF. The shape is written as "2,3". The order of tensors does not count, nor does metadata, except that
    /// it names tied tensors. Equal checkpoints have the same digest. Different ones have different digests unless
    /// somebody made them not to: with XXH3-128, or with names that have a NUL, which Policy::strict refuses.
    std::string checkpoint;
    /// Of each selected name, in the order of the checkpoint; the other names of a tied tensor follow it.
    std::vector<TensorDigest> tensors;
    std::uint64_t bytes = 0;  ///< that were read, tied tensors once
};

struct DigestOptions {
    DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128;
    Selection selection = {};
    Work work = {};  ///< at most 8 threads
};

/// Computes a digest of the row-major little-endian bytes of each tensor, XXH3-128 in canonical byte order or SHA-256:
/// the same value has the same digest in a `.pt`, in one file or in shards, and on a device. Tensors are read in
/// parallel, and so are the blocks of one tensor, but each tensor is hashed in order; memory does not grow with their
/// size. Throws what reading throws, cancelled, and invalid_argument for SHA-256 in a build without libcrypto.
SAFEMAP_API CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options = {});
/// Computes the digest of one tensor: a slice, a cast. Throws as digests() does; cannot be cancelled.
SAFEMAP_API std::string digest(const LazyTensor& tensor, DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128);

}  // namespace safemap::SAFEMAP_ABI
