// Reads tensors in bulk: workers, each with buffers and a gatherer, and the blocks of many tensors as one sequence.
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

/// Memory that begins at a page.
class PageBuffer {
public:
    static constexpr std::size_t page = 4096;

    /// Returns `size` bytes, allocated on first use. A larger request than before loses the contents.
    std::span<std::byte> get(std::size_t size);

private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{page}); }
    };
    // Not a vector: that writes zeros into pages that the next read fills anyway.
    std::unique_ptr<std::byte[], Free> memory_ = {};
    std::size_t size_ = 0;
};

/// The memory of one thread of a bulk operation.
class Worker {
public:
    /// Alignment of the buffers, so that they can be read and written past the page cache.
    static constexpr std::size_t page = PageBuffer::page;
    static constexpr std::size_t direct_bytes = std::size_t{2} << 20;

    /// Returns a buffer of `size` bytes, allocated on first use. A larger request than before loses the contents.
    std::span<std::byte> buffer(std::size_t size) { return buffer_.get(size); }
    /// Returns another buffer, of direct_bytes, for Source::read_direct(). Allocated on first use.
    std::span<std::byte> direct_buffer() { return direct_.get(direct_bytes); }

    Gatherer gatherer = {};

private:
    PageBuffer buffer_;
    PageBuffer direct_;
};

/// The workers of one parallel_for(). Up to twelve workers use 32 MiB in total, whatever they read.
class Workers {
public:
    static constexpr std::uint64_t all_memory = 32U << 20;

    /// Makes as many workers as the option `threads` asks for. Each has `buffers` buffers of at most `largest` bytes.
    /// `limits` must leave enough memory for each worker; the limits for bulk work do.
    explicit Workers(unsigned threads, unsigned buffers = 1, std::uint64_t largest = std::uint64_t{4} << 20,
                     ThreadLimits limits = bulk_threads);
    /// Returns the size of a buffer in bytes for `count` workers: a multiple of a page, at least one page.
    static constexpr std::size_t buffer_size(unsigned count, unsigned buffers, std::uint64_t largest) noexcept {
        const std::uint64_t each = std::max(all_memory / count, Gatherer::most_memory + buffers * Worker::page);
        const std::uint64_t room = (each - Gatherer::most_memory) / buffers;
        return static_cast<std::size_t>(std::min(largest, room / Worker::page * Worker::page));
    }

    unsigned count() const noexcept { return static_cast<unsigned>(workers_.size()); }
    std::size_t buffer_size() const noexcept { return buffer_size_; }

    /// Returns a buffer of a worker. Only the thread of that worker may call buffer() and gatherer().
    std::span<std::byte> buffer(unsigned worker, unsigned which = 0) {
        return workers_[worker].buffer(buffers_ * buffer_size_).subspan(which * buffer_size_, buffer_size_);
    }
    Gatherer& gatherer(unsigned worker) noexcept { return workers_[worker].gatherer; }

private:
    std::vector<Worker> workers_;
    unsigned buffers_;
    std::size_t buffer_size_;
};

/// The blocks of many items as one sequence, in order. Uses eight bytes per item.
class BlockRow {
public:
    /// Appends an item with `blocks` blocks, which may be 0.
    void add(std::uint64_t blocks) { ends_.push_back(size() + static_cast<std::size_t>(blocks)); }
    std::size_t size() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
    /// Returns the position behind the last block of an item.
    std::size_t end_of(std::size_t item) const noexcept { return ends_[item]; }

    struct Place {
        std::size_t item = 0;
        std::uint64_t block = 0;
    };
    /// Returns the item and block at position `i`, which is below size().
    Place at(std::size_t i) const noexcept;
    /// Calls work(place, worker) for each block in the order of parallel_for(), and calls watch.tick() meanwhile.
    void each(unsigned threads, Watch& watch, const std::function<void(Place, unsigned)>& work) const {
        each(threads, watch, 0, size(), work);
    }
    /// Does so for the blocks at the positions [first, last).
    void each(unsigned threads, Watch& watch, std::size_t first, std::size_t last,
              const std::function<void(Place, unsigned)>& work) const;

private:
    std::vector<std::size_t> ends_;
};

}  // namespace safemap::SAFEMAP_ABI
