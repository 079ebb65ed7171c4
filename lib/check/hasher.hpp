// Hashes tensors while they are read. Blocks of one tensor are read in parallel and hashed in order.
#pragma once

#include "base/ordered_digests.hpp"
#include "base/watch.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI::check {

/// Hashes tensors with a number of workers, by Xxh3 or Sha256.
template <class Hash> class Hasher {
public:
    /// Keeps references to `tensors` and `watch`.
    Hasher(std::span<const LazyTensor* const> tensors, unsigned threads, Watch& watch)
        : tensors_(tensors), workers_(threads), watch_(watch), digests_(tensors.size()) {
        for (const LazyTensor* tensor : tensors_) row_.add(blocks_of(*tensor).count());
    }

    /// Reads and hashes all tensors. Throws cancelled, and what reading throws.
    void run() {
        watch_.tell();
        row_.each(workers_.count(), watch_, [this](auto place, unsigned worker) { do_block(place, worker); });
        watch_.tell();
    }

    /// Returns the digest of a tensor. Requires that run() has returned.
    const auto& of(std::size_t tensor) const noexcept { return digests_.of(tensor); }

private:
    Blocks blocks_of(const LazyTensor& tensor) const { return Blocks::in_order(tensor, workers_.buffer_size()); }

    void do_block(BlockRow::Place place, unsigned worker) {
        try {
            watch_.check_stop();
            const LazyTensor& tensor = *tensors_[place.item];
            const Blocks blocks = blocks_of(tensor);
            const auto bytes = blocks.gather(place.block, tensor, workers_.gatherer(worker), workers_.buffer(worker));
            Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
            const std::uint64_t offset = blocks.range(place.block).offset;
            if (digests_.feed(place.item, tensor.nbytes(), offset, bytes, watch)) watch_.add(bytes.size());
        } catch (...) {
            digests_.abandon_all();
            throw;
        }
    }

    std::span<const LazyTensor* const> tensors_;
    Workers workers_;
    Watch& watch_;
    BlockRow row_;
    OrderedHashes<Hash> digests_;
};

}  // namespace safemap::SAFEMAP_ABI::check
