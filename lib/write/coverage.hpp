// The set of bytes of a tensor that have been written.
#pragma once

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A set of bytes, kept as stretches that do not touch each other and take 16 bytes of memory each. Adding at the end
/// is fast. Adding elsewhere moves all later stretches.
class Coverage {
public:
    /// Returns the first bytes of `pieces` that are in the set already. `pieces` are in rising order, do not overlap
    /// and are not empty.
    std::optional<Extent> first_common(std::span<const Extent> pieces) const noexcept;
    /// Adds `pieces`, which must not be in the set. If it throws std::bad_alloc, nothing has changed.
    void add(std::span<const Extent> pieces);
    /// Returns the first bytes below `size` that are not in the set.
    std::optional<Extent> first_gap(std::uint64_t size) const noexcept;

    std::size_t stretches() const noexcept { return written_.size(); }

private:
    std::vector<Extent> written_;
};

}  // namespace safemap::SAFEMAP_ABI::write
