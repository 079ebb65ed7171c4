// Which bytes of a tensor have been written.
#pragma once

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A set of bytes as stretches that do not touch each other, 16 bytes each. Adding at the end is fast; adding
/// elsewhere moves what stands behind.
class Coverage {
public:
    /// The first bytes of `pieces`, which rise, do not overlap and are not empty, that are in the set already.
    std::optional<Extent> first_common(std::span<const Extent> pieces) const noexcept;
    /// Adds `pieces`, none of which is in the set. Nothing has changed where it throws std::bad_alloc.
    void add(std::span<const Extent> pieces);
    /// The first bytes below `size` that are not in the set.
    std::optional<Extent> first_gap(std::uint64_t size) const noexcept;

    std::size_t stretches() const noexcept { return written_.size(); }

private:
    std::vector<Extent> written_;
};

}  // namespace safemap::SAFEMAP_ABI::write
