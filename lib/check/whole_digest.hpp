// The digest of a checkpoint whose files hold parts of tensors. The files have digests of the parts; the digest of the
// checkpoint is over whole tensors, which have to be read once more.
#pragma once

#include "base/faults.hpp"
#include "base/watch.hpp"
#include "check/stored_digests.hpp"
#include "state/contents.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

class WholeDigest {
public:
    /// Takes the tensors and their other names out of `contents`. Returns nothing if its files hold no parts of
    /// tensors, or no digest of the checkpoint.
    static std::optional<WholeDigest> of(state::Contents& contents, std::span<const FileDigests> files,
                                         const std::filesystem::path& path);

    /// Returns the number of bytes that compare() reads: those of tensors that are in several parts.
    std::uint64_t bytes() const noexcept { return bytes_; }
    /// Reports checksum_mismatch, with the path. Requires that the parts match their digests. Throws cancelled, and
    /// what reading throws.
    void compare(unsigned threads, Watch& watch, FaultSink& faults) const;

private:
    std::string path_;
    std::string stored_;
    std::vector<LazyTensor> tensors_;
    std::vector<AliasGroup> aliases_;
    std::vector<std::optional<Digest>> known_;  // for tensors that are stored as one part
    std::uint64_t bytes_ = 0;
};

/// Returns true if the files hold parts of tensors, and not whole tensors.
inline bool holds_parts(const state::Contents& contents) {
    return contents.layout && contents.layout->kind == "hf_shards";
}

}  // namespace safemap::SAFEMAP_ABI::check
