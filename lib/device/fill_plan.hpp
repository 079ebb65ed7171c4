// The jobs that fill a range of device memory with its tensors.
#pragma once

#include "device/layout.hpp"
#include "device/paths.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// The work of filling a layout, cut into jobs that threads can do in any order. A job is one of two things:
/// - a range of the layout: all tensors in it are gathered to their places together, so neighbours in a file are read
///   together, and the result is a picture of the range
/// - a tile of a transposed tensor, whose rows go to different places
class FillPlan {
public:
    FillPlan() = default;
    /// Cuts `layout`. No job has more than `most_bytes`, which is at least 4 KiB, and no tile more than `tile_bytes`.
    FillPlan(const Layout& layout, std::uint64_t most_bytes, std::uint64_t tile_bytes);

    std::size_t jobs() const noexcept { return jobs_.size(); }
    /// Returns the first tensor of job `i`.
    const LazyTensor& tensor(const Layout& layout, std::size_t i) const noexcept {
        return layout.tensors[jobs_[i].tensor];
    }

    /// Returns the range of the layout that job `i` is, or nothing for a tile.
    std::optional<Extent> range(std::size_t i) const noexcept {
        return is_tile(jobs_[i]) ? std::nullopt : std::optional(jobs_[i].range);
    }
    /// Returns where the tensors are that consist of tiles.
    std::vector<Extent> tiled(const Layout& layout) const;
    /// Returns the bytes that job `i` reads.
    std::uint64_t bytes(std::size_t i) const noexcept { return jobs_[i].range.size; }

    /// Returns where byte `at` of tensor number `tensor` belongs, in memory of the host. The bytes of a tensor are next
    /// to each other.
    using PlaceOf = std::function<std::byte*(std::size_t tensor, std::uint64_t at)>;
    /// Reads job `i` straight to the places of its tensors. Throws what reading throws: errors have the tensor.
    void fill(const Layout& layout, std::size_t i, Paths& paths, Worker& worker, const PlaceOf& place_of) const;

    /// The copies that take the bytes of a job from a slab to the device: `ranges` and `rows` with places in the
    /// layout.
    struct Copies {
        std::function<void(std::uint64_t to, Extent from)> range;
        std::function<void(const RowCopy& rows)> rows;
    };
    /// Reads job `i` into `slab`, which has at least `most_bytes`, and calls the functions of `copies` for what is to
    /// be copied: once for a range, and once or a few times for a tile. Throws as above; no function was called if
    /// reading throws.
    void fill(const Layout& layout, std::size_t i, Paths& paths, Worker& worker, std::span<std::byte> slab,
              const Copies& copies) const;

private:
    static constexpr std::uint32_t none = UINT32_MAX;

    struct Job {
        Extent range;          // in the layout; of a tile: its size only
        std::uint32_t tensor;  // the first one in the range, or the one that the tile is of
        std::uint32_t blocks;  // the number in blocks_; none: a range of several tensors
        std::uint64_t block;
    };
    void add_range(Extent range, std::size_t first);
    void add_blocks(const Layout& layout, std::size_t tensor, std::uint64_t most_bytes, std::uint64_t tile_bytes);
    bool is_tile(const Job& job) const noexcept { return job.blocks != none && !blocks_[job.blocks].ranges(); }

    std::vector<Job> jobs_;
    std::vector<Blocks> blocks_;  // for tensors that are not simply stored
};

}  // namespace safemap::SAFEMAP_ABI::device
