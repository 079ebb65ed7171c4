// Compares the digest of Hugging Face shards. Tested by tests/write/reshard_test.cpp, which writes such files.
#include "check/whole_digest.hpp"

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "check/hasher.hpp"
#include "safetensors/digests.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::check {

namespace {

/// The digests that files store for their parts, by the place of the part.
class StoredDigests {
public:
    explicit StoredDigests(std::span<const FileDigests> files) {
        for (const FileDigests& file : files) files_.emplace(file.source, &file);
    }

    /// Returns the digest of a tensor that is stored as one part; nothing for a tensor in several parts.
    std::optional<Digest> find(const LazyTensor& tensor) const {
        const auto place = tensor.placement();
        const auto file = place ? files_.find(place->source.get()) : files_.end();
        if (file == files_.end()) return std::nullopt;
        const std::vector<StoredDigest>& all = file->second->tensors;
        auto each = std::lower_bound(all.begin(), all.end(), place->extent.offset,
                                     [](const StoredDigest& one, std::uint64_t at) { return one.extent.offset < at; });
        // A tensor without elements begins where the next one does.
        for (; each != all.end() && each->extent.offset == place->extent.offset; ++each)
            if (each->extent.size == place->extent.size) return each->digest;
        return std::nullopt;
    }

private:
    std::unordered_map<const Source*, const FileDigests*> files_;
};

}  // namespace

std::optional<WholeDigest> WholeDigest::of(state::Contents& contents, std::span<const FileDigests> files,
                                           const std::filesystem::path& path) {
    const std::string* const stored = state::find_value(contents.metadata, safetensors::checkpoint_digest_key);
    if (!holds_parts(contents) || stored == nullptr) return std::nullopt;
    WholeDigest whole;
    whole.path_ = path.native();
    whole.stored_ = *stored;
    whole.tensors_ = std::move(contents.tensors);
    whole.aliases_ = std::move(contents.aliases);
    const StoredDigests known(files);
    for (const LazyTensor& tensor : whole.tensors_) {
        whole.known_.push_back(known.find(tensor));
        if (!whole.known_.back()) whole.bytes_ += tensor.nbytes();  // at most the total, which fits
    }
    return whole;
}

void WholeDigest::compare(unsigned threads, Watch& watch, FaultSink& faults) const {
    std::vector<const LazyTensor*> cut;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
        if (!known_[i]) cut.push_back(&tensors_[i]);
    Hasher<Xxh3> hasher(cut, threads, watch);
    hasher.run();

    std::vector<safetensors::NamedDigest> all;
    all.reserve(tensors_.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
        all.push_back({tensors_[i].name(), tensors_[i].dtype(), &tensors_[i].shape(),
                       known_[i] ? *known_[i] : hasher.of(next++)});
    NameIndex names;
    names.add_all(NamesOf(tensors_));
    for (const AliasGroup& group : aliases_) {
        const auto number = names.find(group.front(), NamesOf(tensors_));
        for (std::size_t i = 1; number && i < group.size(); ++i) {
            safetensors::NamedDigest other = all[*number];
            other.name = group[i];
            all.push_back(other);
        }
    }
    const Digest found = safetensors::digest_of_all(std::move(all));
    if (hex(found) == stored_) return;
    Error error(Errc::checksum_mismatch,
                "the digest of the checkpoint is " + hex(found) + ", expected " + safemap::quoted(stored_));
    faults.fault(std::move(error.with_path(path_)));
}

}  // namespace safemap::SAFEMAP_ABI::check
