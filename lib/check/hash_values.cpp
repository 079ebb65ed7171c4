// Digests of checkpoints, and of single tensors.
#include <safemap/digest.hpp>

#include "base/encodings.hpp"
#include "check/hasher.hpp"
#include "lazy/page_cache.hpp"
#include "safetensors/digests.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/error.hpp>

#include <span>
#include <type_traits>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using check::Hasher;

/// The tensors to hash, each of them once, and the number of the tensor of each name.
struct Hashed {
    std::vector<const LazyTensor*> tensors;
    std::vector<std::size_t> of_name;
};

Hashed hashed_of(const Checkpoint& checkpoint, const std::vector<NamedTensor>& names) {
    Hashed hashed;
    for (const NamedTensor& named : names) {
        const LazyTensor* const tensor = &checkpoint.tensor(named.tensor);
        if (hashed.tensors.empty() || hashed.tensors.back() != tensor) hashed.tensors.push_back(tensor);
        hashed.of_name.push_back(hashed.tensors.size() - 1);
    }
    return hashed;
}

template <class Hash> std::string hex_of_all(std::vector<safetensors::NamedDigest> tensors) {
    if constexpr (std::is_same_v<Hash, Xxh3>) return hex(safetensors::digest_of_all(std::move(tensors)));
    else return hex(safetensors::sha256_of_all(std::move(tensors)));
}

template <class Hash> CheckpointDigests digests_by(const Checkpoint& checkpoint, const DigestOptions& options) {
    const std::vector<NamedTensor> names = all_names(checkpoint, options.selection);
    const Hashed hashed = hashed_of(checkpoint, names);
    CheckpointDigests report;
    report.algorithm = options.algorithm;
    for (const LazyTensor* tensor : hashed.tensors) report.bytes += tensor->nbytes();  // at most total_bytes()
    Watch watch(options.work.monitor, "hashing", report.bytes);
    Hasher<Hash> hasher(hashed.tensors, options.work.threads, watch);
    hasher.run();
    require_unchanged(std::span(checkpoint.begin(), checkpoint.size()));

    std::vector<safetensors::NamedDigest> all;
    all.reserve(names.size());
    report.tensors.reserve(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
        const LazyTensor& tensor = *hashed.tensors[hashed.of_name[i]];
        const auto& digest = hasher.of(hashed.of_name[i]);
        all.push_back({names[i].name, tensor.dtype(), &tensor.shape(), digest});
        report.tensors.push_back({std::string(names[i].name), hex(digest)});
    }
    report.checkpoint = hex_of_all<Hash>(std::move(all));
    return report;
}

template <class Hash> std::string digest_by(const LazyTensor& tensor) {
    const LazyTensor* const one = &tensor;
    const Monitor nobody;
    Watch watch(nobody, "hashing", tensor.nbytes());
    Hasher<Hash> hasher({&one, 1}, 0, watch);
    hasher.run();
    require_unchanged({one, 1});
    return hex(hasher.of(0));
}

/// Returns the result of `work`, a template of the hash of an algorithm.
template <class Work> auto with_hash(DigestAlgorithm algorithm, Work&& work) {
    switch (algorithm) {
        case DigestAlgorithm::xxh3_128: return work.template operator()<Xxh3>();
        case DigestAlgorithm::sha256: return work.template operator()<Sha256>();
    }
    throw Error(Errc::invalid_argument, "unknown digest algorithm");
}

}  // namespace

std::string_view name(DigestAlgorithm algorithm) noexcept {
    switch (algorithm) {
        case DigestAlgorithm::xxh3_128: return "xxh3-128";
        case DigestAlgorithm::sha256: return "sha256";
    }
    return "unknown";
}

CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options) {
    return with_hash(options.algorithm, [&]<class Hash>() { return digests_by<Hash>(checkpoint, options); });
}

std::string digest(const LazyTensor& tensor, DigestAlgorithm algorithm) {
    return with_hash(algorithm, [&]<class Hash>() { return digest_by<Hash>(tensor); });
}

}  // namespace safemap::SAFEMAP_ABI
