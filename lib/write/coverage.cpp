// Keeps the stretches of a set sorted and joined.
#include "write/coverage.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::write {

namespace {

bool begins_before(const Extent& a, const Extent& b) noexcept { return a.offset < b.offset; }

}  // namespace

std::optional<Extent> Coverage::first_common(std::span<const Extent> pieces) const noexcept {
    if (pieces.empty()) return std::nullopt;
    auto stretch = std::upper_bound(written_.begin(), written_.end(), pieces.front(), begins_before);
    if (stretch != written_.begin()) --stretch;
    for (const Extent& piece : pieces) {
        while (stretch != written_.end() && stretch->end() <= piece.offset) ++stretch;
        if (stretch == written_.end()) return std::nullopt;
        const std::uint64_t first = std::max(piece.offset, stretch->offset);
        const std::uint64_t end = std::min(piece.end(), stretch->end());
        if (first < end) return Extent{first, end - first};
    }
    return std::nullopt;
}

void Coverage::add(std::span<const Extent> pieces) {
    if (pieces.empty()) return;
    // The stretches between the pieces, or adjacent to them. They and the pieces are joined to new stretches.
    const auto first = std::partition_point(
        written_.begin(), written_.end(), [&](const Extent& stretch) { return stretch.end() < pieces.front().offset; });
    const auto last = std::partition_point(
        first, written_.end(), [&](const Extent& stretch) { return stretch.offset <= pieces.back().end(); });
    std::vector<Extent> joined(static_cast<std::size_t>(last - first) + pieces.size());
    std::merge(first, last, pieces.begin(), pieces.end(), joined.begin(), begins_before);
    auto end = joined.begin();
    for (auto next = joined.begin() + 1; next != joined.end(); ++next) {
        if (next->offset == end->end()) end->size += next->size;
        else *++end = *next;
    }
    joined.erase(end + 1, joined.end());

    const auto replaced = static_cast<std::size_t>(last - first);
    const auto at = first - written_.begin();
    if (joined.size() > replaced) written_.insert(last, joined.size() - replaced, Extent{});
    else written_.erase(last - static_cast<std::ptrdiff_t>(replaced - joined.size()), last);
    std::copy(joined.begin(), joined.end(), written_.begin() + at);
}

std::optional<Extent> Coverage::first_gap(std::uint64_t size) const noexcept {
    // Bytes that are written from byte 0 on are one stretch, since no two stretches touch.
    const bool begun = !written_.empty() && written_.front().offset == 0;
    const std::uint64_t from = begun ? written_.front().end() : 0;
    if (from >= size) return std::nullopt;
    const std::size_t next = begun ? 1 : 0;
    const std::uint64_t to = next < written_.size() ? written_[next].offset : size;
    return Extent{from, to - from};
}

}  // namespace safemap::SAFEMAP_ABI::write
