// Finds the names that a selection matches, without looking at all names of a checkpoint.
#pragma once

#include <safemap/advanced/names.hpp>
#include <safemap/checkpoint.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// The names of one checkpoint in alphabetical order: four bytes for each tensor, and more for a tied name. Sorting
/// takes as long as several looks at all names, so the first selections find nothing here. May be used from several
/// threads at once.
class SortedNames {
public:
    /// Returns what all_names() does for the checkpoint that this belongs to. Returns nothing if it is better to look
    /// at all names.
    std::optional<std::vector<NamedTensor>> find(const Checkpoint& checkpoint, const Selection& selection) const;

private:
    class Search;

    void sort(const Checkpoint& checkpoint) const;
    NamedTensor entry(const Checkpoint& checkpoint, std::uint32_t number) const noexcept;

    mutable std::atomic<unsigned> asked_ = 0;  // number of narrow selections so far, at most a few
    mutable std::once_flag sorted_;
    mutable std::vector<NamedTensor> tied_;     // other names of tied tensors, in the order of all_names()
    mutable std::vector<std::uint32_t> order_;  // numbers of tensors, and behind them of tied_
};

}  // namespace safemap::SAFEMAP_ABI::checkpoint
