// Hashes tensors while they are read: blocks of one tensor side by side, and fed in order.
#include <safemap/digest.hpp>

#include "base/ordered_digests.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "checkpoint/bulk.hpp"
#include "checkpoint/identity.hpp"
#include "lazy/blocks.hpp"
#include "lazy/page_cache.hpp"

#include <span>
#include <utility>

namespace safemap {

namespace {

using checkpoint::BlockRow;
using checkpoint::Workers;

class Hasher {
public:
    /// `tensors` and `watch` outlive it.
    Hasher(std::span<const LazyTensor* const> tensors, unsigned threads, Watch& watch)
        : tensors_(tensors), workers_(threads, 1), watch_(watch), digests_(tensors.size()) {
        for (const LazyTensor* tensor : tensors_) row_.add(blocks_of(*tensor).count());
    }

    void run() {
        watch_.tell();
        parallel_for(
            row_.size(), workers_.count(), [this](std::size_t i, unsigned worker) { do_block(row_.at(i), worker); },
            [this] { watch_.tick(); });
        watch_.tell();
    }

    const Digest& of(std::size_t tensor) const noexcept { return digests_.of(tensor); }

private:
    Blocks blocks_of(const LazyTensor& tensor) const { return Blocks::in_order(tensor, workers_.buffer_size()); }

    void do_block(BlockRow::Place place, unsigned worker) {
        try {
            watch_.check_stop();
            const LazyTensor& tensor = *tensors_[place.item];
            const Extent range = blocks_of(tensor).range(place.block);
            const auto bytes = workers_.buffer(worker).first(static_cast<std::size_t>(range.size));
            workers_.gatherer(worker).fill(tensor, range.offset, bytes);
            Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
            if (digests_.feed(place.item, tensor.nbytes(), range.offset, bytes, watch)) watch_.add(range.size);
        } catch (...) {
            digests_.abandon_all();
            throw;
        }
    }

    std::span<const LazyTensor* const> tensors_;
    Workers workers_;
    Watch& watch_;
    BlockRow row_;
    OrderedDigests digests_;
};

/// Tensors without repeats, and which of them each name is for.
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

}  // namespace

CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options) {
    const std::vector<NamedTensor> names = all_names(checkpoint, options.selection);
    const Hashed hashed = hashed_of(checkpoint, names);
    CheckpointDigests report;
    for (const LazyTensor* tensor : hashed.tensors) report.bytes += tensor->nbytes();  // at most total_bytes()
    Watch watch(options.monitor, "hashing", report.bytes);
    Hasher hasher(hashed.tensors, options.threads, watch);
    hasher.run();
    require_unchanged(std::span(checkpoint.begin(), checkpoint.size()));

    std::vector<checkpoint::NamedDigest> all;
    all.reserve(names.size());
    report.tensors.reserve(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
        const LazyTensor& tensor = *hashed.tensors[hashed.of_name[i]];
        const Digest& digest = hasher.of(hashed.of_name[i]);
        all.push_back({names[i].name, tensor.dtype(), &tensor.shape(), digest});
        report.tensors.push_back({std::string(names[i].name), hex(digest)});
    }
    report.checkpoint = hex(checkpoint::digest_of_all(std::move(all)));
    return report;
}

std::string digest(const LazyTensor& tensor) {
    const LazyTensor* const one = &tensor;
    const Monitor nobody;
    Watch watch(nobody, "hashing", tensor.nbytes());
    Hasher hasher({&one, 1}, 0, watch);
    hasher.run();
    require_unchanged({one, 1});
    return hex(hasher.of(0));
}

}  // namespace safemap
