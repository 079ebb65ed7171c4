// Evicts the sources of a save from the page cache while it runs.
#pragma once

#include "lazy/page_cache.hpp"

#include <safemap/bytes.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

using namespace literals;

/// The bytes of files that a save reads, and how far each file is done. The save is cut into *steps*: after each step,
/// it evicts of every file what lies before the first byte that a later step reads, and at the end the rest. It evicts
/// no bytes that the save does not read, except in pages that it shares.
///
/// First all units and tensors are announced, then plan() is called, then done() for each unit. Only done() may be
/// called from several threads. Memory: 16 bytes a tensor, 16 bytes for each range of a file, and at most 8 MiB for the
/// steps.
class Evictions {
public:
    /// A step writes about `step_bytes`, or more if there would be too many steps.
    explicit Evictions(std::uint64_t step_bytes = 64_MiB) noexcept : step_bytes_(step_bytes) {}

    /// Announces the next units of the save. Returns the number of the first of them.
    std::uint64_t add_units(std::uint64_t count) noexcept { return std::exchange(units_, units_ + count); }
    /// Announces the next tensor in the order of writing, and the last of the units that read it. The tensor must live
    /// as long as this object.
    void add(const LazyTensor& tensor, std::uint64_t last_unit);
    /// Finds the bytes to evict, and the steps.
    void plan();
    /// Says that a unit is written. Evicts what is no longer wanted.
    void done(std::uint64_t unit);

private:
    struct Planned {
        const LazyTensor* tensor;
        std::uint64_t last_unit;
    };
    /// A file, and how far it is evicted.
    struct File {
        const Source* source = nullptr;
        std::vector<Extent> wanted = {};  ///< sorted, at least a page apart
        std::size_t next = 0;             ///< first of `wanted` that is not evicted completely
        std::uint64_t evicted = 0;        ///< end of what is evicted
    };
    struct Step {
        std::uint64_t last_unit = 0;
        std::uint64_t units_left = 0;
    };

    void find_files();
    void find_steps();
    void find_ranges();
    std::size_t step_of(std::uint64_t bytes_before) const noexcept;
    std::vector<SourceRange> take(std::size_t step);
    static void take_before(File& file, std::uint64_t end, std::vector<SourceRange>& taken);

    std::uint64_t step_bytes_;
    std::uint64_t units_ = 0;
    std::vector<Planned> tensors_;
    std::uint64_t bytes_ = 0;
    std::vector<File> files_;  // sorted by address of the source
    std::vector<Step> steps_;
    // For each step and file: the first byte that a later step reads. Row-major.
    std::vector<std::uint64_t> wanted_later_;
    std::mutex mutex_;            // guards what follows, files_ and steps_ from the first done() on
    std::size_t steps_done_ = 0;  // all units of these steps, and of those before them, are written
};

/// Evicts ranges of sources. Ignores failures: if a file has changed, the end of a save says so.
void evict_quietly(std::span<const SourceRange> ranges) noexcept;

}  // namespace safemap::SAFEMAP_ABI::write
