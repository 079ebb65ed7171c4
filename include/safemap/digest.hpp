// digests(): digests of tensor values, which are the same in every format and on a device.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The algorithm of a digest.
enum class DigestAlgorithm : std::uint8_t {
    xxh3_128,  ///< as fast as memory; detects accidents, not attacks: two tensors with one digest are easy to make
    sha256     ///< for data from an adversary; needs a build with libcrypto, or set_sha256()
};
/// Returns "xxh3-128" or "sha256".
[[nodiscard]] SAFEMAP_API std::string_view name(DigestAlgorithm algorithm) noexcept;

/// The digest of one tensor.
struct TensorDigest {
    std::string name;
    std::string digest;  ///< 32 hex digits for XXH3-128, 64 for SHA-256
};

/// The result of digests().
///
/// Example:
///     safemap::CheckpointDigests found = safemap::digests(checkpoint);
///     for (const safemap::TensorDigest& one : found.tensors) std::cout << one.digest << ' ' << one.name << '\n';
///     std::cout << found.checkpoint << '\n';
struct [[nodiscard]] CheckpointDigests {
    DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128;
    /// Digest of the whole checkpoint. It is computed over one line for each selected name, and the lines are sorted by
    /// their bytes. A line is: name, NUL, dtype, NUL, shape ("2,3"), NUL, digest, LF. The digest does not depend on the
    /// order of tensors, nor on metadata, except that metadata names tied tensors. Equal checkpoints have equal
    /// digests. Different checkpoints have different digests, except by intent: with XXH3-128, or with names that
    /// contain a NUL, which Policy::strict rejects.
    std::string checkpoint;
    /// Digests of all selected names, in the order of the checkpoint; the aliases of a tied tensor follow it.
    std::vector<TensorDigest> tensors;
    std::uint64_t bytes = 0;  ///< bytes that were read; tied tensors count once
};

/// Options of digests().
struct DigestOptions {
    DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128;
    Selection selection = {};
    Work work = {};  ///< at most 8 threads
};

/// Computes a digest of the row-major little-endian bytes of each selected tensor, with XXH3-128 in canonical byte
/// order or with SHA-256. Equal values have equal digests in a `.pt`, in one file or in shards, and on a device. Throws
/// cancelled, invalid_argument for SHA-256 in a build without libcrypto (set_sha256() in safemap/advanced/sha256.hpp
/// replaces it), and whatever reading throws. Tensors, and blocks of one tensor, are read in parallel, but each tensor
/// is hashed in order. Memory does not grow with the size of tensors.
SAFEMAP_API CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options = {});
/// Returns the digest of one tensor, which may be a slice or a cast. Throws as digests() does. Cannot be cancelled.
[[nodiscard]] SAFEMAP_API std::string digest(const LazyTensor& tensor,
                                             DigestAlgorithm algorithm = DigestAlgorithm::xxh3_128);

}  // namespace safemap::SAFEMAP_ABI
