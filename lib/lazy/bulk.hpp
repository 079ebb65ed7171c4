// What reads tensors in bulk: workers with buffers of their own, and the blocks of many tensors in one row.
#pragma once

#include "lazy/gatherer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Buffers and gatherers for the workers of one parallel_for. They take 32 MiB together at most, whatever is read.
class Workers {
public:
    /// At most eight; 0: one per core. Each has `buffers` buffers.
    Workers(unsigned threads, unsigned buffers);

    unsigned count() const noexcept { return static_cast<unsigned>(workers_.size()); }
    /// Bytes of one buffer; a multiple of a page.
    std::size_t buffer_size() const noexcept { return buffer_size_; }

    /// Made when it is first asked for. Only for the thread that is this worker.
    std::span<std::byte> buffer(unsigned worker, unsigned which = 0);
    Gatherer& gatherer(unsigned worker) noexcept { return workers_[worker].gatherer; }

private:
    struct Worker {
        std::unique_ptr<std::byte[]> memory = {};
        Gatherer gatherer = {};
    };

    std::vector<Worker> workers_;
    unsigned buffers_;
    std::size_t buffer_size_;
};

/// The blocks of many items as one row, in order: parallel_for hands them out one after the other. Eight bytes an item.
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

private:
    std::vector<std::size_t> ends_;
};

}  // namespace safemap::SAFEMAP_ABI
