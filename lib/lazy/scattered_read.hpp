// One read of several parts that are near each other in a source: long parts go straight to their places, short parts
// and gaps into a window.
#pragma once

#include "lazy/gatherer.hpp"

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The extent of one read. It grows by one part after the other, in the order of their offsets.
class ScatteredExtent {
public:
    /// Maximum of the pieces of memory that one read fills. The kernel accepts no more.
    static constexpr std::size_t most_pieces = 1024;
    /// Gap in bytes between two short parts that is cheaper to read than to skip: a warm pread costs about half a
    /// microsecond, the time to copy 8 KiB.
    static constexpr std::uint64_t worthwhile_gap = 8U << 10;

    /// Begins a read of a source. `file` is true if the source is a file: another source may make a request for each
    /// piece. At most `most_window` bytes go into the window, unless the first part is longer.
    ScatteredExtent(bool file, std::uint64_t most_window) noexcept : file_(file), most_window_(most_window) {}

    /// Adds a part. Returns false if it should be read separately.
    bool add(Extent part, bool straight) noexcept {
        const bool first = pieces_ == 0;
        if (first) extent_ = {part.offset, 0};
        const std::uint64_t high = std::max(extent_.end(), part.end());
        const std::uint64_t gap = part.offset > extent_.end() ? part.offset - extent_.end() : 0;
        const bool is_long = straight && part.size >= Gatherer::long_part;
        const std::uint64_t window = window_ + (straight ? gap : high - extent_.end());
        const std::size_t pieces = pieces_ + pieces_of(gap > 0, straight);
        if (!first && gap > most_gap(is_long)) return false;
        if (!first && (window > most_window_ || pieces > most_pieces)) return false;
        if (pieces > 1 && high - extent_.offset > most_bytes()) return false;
        extent_.size = high - extent_.offset;
        window_ = window;
        pieces_ = pieces;
        last_straight_ = straight;
        last_long_ = is_long;
        return true;
    }

    Extent extent() const noexcept { return extent_; }
    /// Returns the bytes that go into the window.
    std::uint64_t window() const noexcept { return window_; }

private:
    std::size_t pieces_of(bool gap, bool straight) const noexcept {
        const std::size_t new_stretch = pieces_ == 0 || last_straight_ ? 1 : 0;  // a stretch of the window
        return straight ? 1 + (gap ? new_stretch : 0) : new_stretch;
    }
    // Long parts are read well one by one, so that only a small gap is worth reading.
    std::uint64_t most_gap(bool is_long) const noexcept {
        if (!is_long && !last_long_) return worthwhile_gap;
        return file_ ? 4U << 10 : 0;
    }
    // Limits the time until a stop request is seen.
    std::uint64_t most_bytes() const noexcept { return file_ ? 8U << 20 : 1U << 20; }

    bool file_;
    bool last_straight_ = false;
    bool last_long_ = false;
    std::uint64_t most_window_;
    Extent extent_ = {0, 0};
    std::uint64_t window_ = 0;
    std::size_t pieces_ = 0;
};

/// Reads into one place or into several.
inline void read_pieces(const Source& source, std::uint64_t offset, std::span<const std::span<std::byte>> into) {
    if (into.size() == 1) source.read_at(offset, into.front());
    else source.read_scattered(offset, into);
}

/// The pieces of memory that one read fills.
class ScatteredRead {
public:
    /// Begins a read at `offset` of the source. The bytes without a place of their own go into `window`.
    void begin(std::uint64_t offset, std::span<std::byte> window) noexcept {
        pieces_.clear();
        offset_ = end_ = offset;
        window_ = window;
        filled_ = 0;
        last_straight_ = true;
    }
    /// Adds a part that has a place of its own. It does not overlap others.
    void add_straight(std::uint64_t offset, std::span<std::byte> place) {
        extend_window(offset);
        pieces_.push_back(place);
        last_straight_ = true;
        end_ = offset + place.size();
    }
    /// Adds a part, and returns its position in the window.
    std::size_t add_to_window(Extent part) {
        extend_window(std::max(end_, part.end()));
        return filled_ - static_cast<std::size_t>(end_ - part.offset);
    }
    /// Reads from the source, through `reader` if there is one.
    void read(const Source& source, SourceReader* reader) const {
        if (reader != nullptr) reader->read(source, offset_, pieces_);
        else read_pieces(source, offset_, pieces_);
    }

private:
    // Lets the window have all bytes from the last piece to `end`.
    void extend_window(std::uint64_t end) {
        if (end == end_) return;
        const auto size = static_cast<std::size_t>(end - end_);
        if (last_straight_) pieces_.push_back(window_.subspan(filled_, 0));
        pieces_.back() = {pieces_.back().data(), pieces_.back().size() + size};
        filled_ += size;
        end_ = end;
        last_straight_ = false;
    }

    std::vector<std::span<std::byte>> pieces_;
    std::uint64_t offset_ = 0;
    std::uint64_t end_ = 0;  // offset in the source at which the last piece ends
    std::span<std::byte> window_;
    std::size_t filled_ = 0;
    bool last_straight_ = true;
};

}  // namespace safemap::SAFEMAP_ABI
