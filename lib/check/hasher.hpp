// Hashes tensors while they are read. Blocks of one tensor are read in parallel and hashed in order. Tensors that are
// strips of one storage are read together.
#pragma once

#include "base/ordered_digests.hpp"
#include "base/watch.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "lazy/strips.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

/// Hashes tensors with a number of workers, by Xxh3 or Sha256.
template <class Hash> class Hasher {
public:
    /// Keeps references to `tensors` and `watch`.
    Hasher(std::span<const LazyTensor* const> tensors, unsigned threads, Watch& watch)
        : tensors_(tensors), workers_(threads), watch_(watch), digests_(tensors.size()) {
        for (std::size_t first = 0; first < tensors_.size(); first += groups_.back().count) {
            groups_.push_back({first, count_strips(first, tensors_.size(), tensor_at())});
            row_.add(groups_.back().count > 1 ? strips_of(groups_.back()).units()
                                              : blocks_of(*tensors_[first]).count());
        }
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
    /// Tensors that are read together: strips, or one of any kind.
    struct Group {
        std::size_t first;
        std::size_t count;
    };

    auto tensor_at() const {
        return [this](std::size_t i) -> const LazyTensor& { return *tensors_[i]; };
    }
    Strips strips_of(const Group& group) const {
        const LazyTensor& tensor = *tensors_[group.first];
        return {tensor, tensor.dtype(), group.count, workers_.buffer_size()};
    }
    Blocks blocks_of(const LazyTensor& tensor) const { return Blocks::in_order(tensor, workers_.buffer_size()); }

    void do_block(BlockRow::Place place, unsigned worker) {
        try {
            watch_.check_stop();
            const Group& group = groups_[place.item];
            if (group.count > 1) read_strips(group, place.block, worker);
            else read_block(group.first, place.block, worker);
        } catch (...) {
            digests_.abandon_all();
            throw;
        }
    }

    void read_block(std::size_t number, std::uint64_t block, unsigned worker) {
        const LazyTensor& tensor = *tensors_[number];
        const Blocks blocks = blocks_of(tensor);
        const auto bytes = blocks.gather(block, tensor, workers_.gatherer(worker), workers_.buffer(worker));
        feed(number, blocks.range(block).offset, bytes, worker);
    }

    void read_strips(const Group& group, std::uint64_t number, unsigned worker) {
        const Strips strips = strips_of(group);
        const Strips::Unit unit = strips.unit(number);
        const auto bytes = workers_.buffer(worker).first(static_cast<std::size_t>(unit.bytes()));
        strips.gather(unit, workers_.gatherer(worker), bytes, {.watch = &watch_},
                      [&](std::size_t i) -> const LazyTensor& { return *tensors_[group.first + i]; });
        const auto part = static_cast<std::size_t>(unit.part.size);
        for (std::size_t i = 0; i < unit.count; ++i)
            feed(group.first + unit.first + i, unit.part.offset, bytes.subspan(i * part, part), worker);
    }

    void feed(std::size_t number, std::uint64_t offset, std::span<const std::byte> bytes, unsigned worker) {
        Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
        if (digests_.feed(number, tensors_[number]->nbytes(), offset, bytes, watch)) watch_.add(bytes.size());
    }

    std::span<const LazyTensor* const> tensors_;
    Workers workers_;
    Watch& watch_;
    std::vector<Group> groups_;
    BlockRow row_;  // blocks of all groups
    OrderedHashes<Hash> digests_;
};

}  // namespace safemap::SAFEMAP_ABI::check
