// What reads tensors in bulk: workers with a buffer and a gatherer each, and the blocks of many tensors in one row.
#pragma once

#include "base/pool.hpp"
#include "base/watch.hpp"
#include "lazy/gatherer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// What one thread of a bulk operation has to itself.
class Worker {
public:
    /// Buffers begin at multiples of this, so that they can be written past the page cache.
    static constexpr std::size_t page = 4096;

    /// `size` bytes, made when they are first asked for. When more are asked for than before, what they held is lost.
    std::span<std::byte> buffer(std::size_t size);

    Gatherer gatherer = {};

private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{page}); }
    };
    // Not a vector: that would write zeros into pages which the next read fills anyway.
    std::unique_ptr<std::byte[], Free> memory_ = {};
    std::size_t size_ = 0;
};

/// The workers of one parallel_for. Up to twelve take 32 MiB together at most, whatever is read.
class Workers {
public:
    static constexpr std::uint64_t all_memory = 32U << 20;

    /// As many as the option `threads` means. Each has `buffers` buffers of at most `largest` bytes. The limits must
    /// leave each of them enough, as those for bulk work do.
    explicit Workers(unsigned threads, unsigned buffers = 1, std::uint64_t largest = std::uint64_t{4} << 20,
                     ThreadLimits limits = bulk_threads);
    /// Bytes of a buffer of so many workers, a multiple of a page, and at least one.
    static constexpr std::size_t buffer_size(unsigned count, unsigned buffers, std::uint64_t largest) noexcept {
        const std::uint64_t each = std::max(all_memory / count, Gatherer::most_memory + buffers * Worker::page);
        const std::uint64_t room = (each - Gatherer::most_memory) / buffers;
        return static_cast<std::size_t>(std::min(largest, room / Worker::page * Worker::page));
    }

    unsigned count() const noexcept { return static_cast<unsigned>(workers_.size()); }
    std::size_t buffer_size() const noexcept { return buffer_size_; }

    /// Here and below, only for the thread that is this worker.
    std::span<std::byte> buffer(unsigned worker, unsigned which = 0) {
        return workers_[worker].buffer(buffers_ * buffer_size_).subspan(which * buffer_size_, buffer_size_);
    }
    Gatherer& gatherer(unsigned worker) noexcept { return workers_[worker].gatherer; }

private:
    std::vector<Worker> workers_;
    unsigned buffers_;
    std::size_t buffer_size_;
};

/// The blocks of many items as one row, in order. Eight bytes an item.
class BlockRow {
public:
    /// The next item has `blocks` blocks; there may be none.
    void add(std::uint64_t blocks) { ends_.push_back(size() + static_cast<std::size_t>(blocks)); }
    std::size_t size() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

    struct Place {
        std::size_t item = 0;
        std::uint64_t block = 0;
    };
    /// Number `i` of the row, below size().
    Place at(std::size_t i) const noexcept;
    /// Calls work(place, worker) for each, as parallel_for hands them out, and lets the watch tick meanwhile.
    void each(unsigned threads, Watch& watch, const std::function<void(Place, unsigned)>& work) const;

private:
    std::vector<std::size_t> ends_;
};

}  // namespace safemap::SAFEMAP_ABI
