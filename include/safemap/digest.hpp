// What tensors hold, as short numbers that are the same in every container.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap {

struct TensorDigest {
    std::string name;
    std::string digest;  ///< 32 hex digits
};

struct CheckpointDigests {
    /// Of the whole: of a line for each selected name, sorted by their bytes: name, NUL, dtype, NUL, shape, NUL,
    /// digest, LF. The shape is written as "2,3". The order of tensors does not count, nor does metadata, except that
    /// it names tied tensors. Two checkpoints can be made to have the same one by names with a NUL; Policy::strict
    /// refuses those.
    std::string checkpoint;
    /// Of each selected name, in the order of the checkpoint; the other names of a tied tensor follow it.
    std::vector<TensorDigest> tensors;
    std::uint64_t bytes = 0;  ///< that were read, tied tensors once
};

struct DigestOptions {
    Selection selection = {};
    Monitor monitor = {};
    unsigned threads = 0;  ///< 0: one per core; no more than eight work
};

/// XXH3-128 of the row-major little-endian bytes of each tensor, in canonical byte order: the same value has the same
/// digest in a `.pt`, in one file or in shards, and on a device. Tensors are read in parallel, and so are the blocks
/// of one tensor; memory does not grow with their size. Throws what reading throws, and cancelled.
SAFEMAP_API CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options = {});
/// Of any one tensor: a slice, a cast. Throws what reading throws; cannot be cancelled.
SAFEMAP_API std::string digest(const LazyTensor& tensor);

}  // namespace safemap
