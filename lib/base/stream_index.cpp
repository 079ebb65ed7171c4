// Chooses which states of a decoder to keep. Tested by tests/base/stream_index_test.cpp.
#include "base/stream_index.hpp"

#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI {

/// Returns true if there is a state in the `spacing` bytes to which `position` belongs, at or before the position.
bool StreamIndex::holds(const States& states, std::uint64_t position, std::uint64_t spacing) {
    const auto after = states.upper_bound(position);
    return after != states.begin() && std::prev(after)->first >= position - position % spacing;
}

bool StreamIndex::wants(std::uint64_t position) const {
    if (position < block) return false;
    const bool fine = fine_spacing() < spacing_ && !holds(fine_, position, fine_spacing());
    return !holds(coarse_, position, spacing_) || (fine && !holds(coarse_, position, fine_spacing()));
}

void StreamIndex::add(std::uint64_t position, std::unique_ptr<StreamState> state) {
    if (!holds(coarse_, position, spacing_)) {
        coarse_.emplace(position, std::move(state));
        while (coarse_.size() > most_coarse) widen();
        return;
    }
    const std::uint64_t begin = position - position % spacing_;
    if (!fine_.empty() && fine_.begin()->first / spacing_ != begin / spacing_) fine_.clear();
    fine_.emplace(position, std::move(state));
}

std::optional<StreamIndex::Found> StreamIndex::best(std::uint64_t offset) const {
    std::optional<Found> found;
    for (const States* const states : {&coarse_, &fine_}) {
        const auto after = states->upper_bound(offset);
        if (after == states->begin()) continue;
        const auto last = std::prev(after);
        if (!found || last->first > found->position) found = Found{last->first, last->second.get()};
    }
    return found;
}

/// Doubles the spacing, and keeps the first state of each of the wider ranges.
void StreamIndex::widen() {
    spacing_ *= 2;
    fine_.clear();
    for (auto each = coarse_.begin(); each != coarse_.end();) {
        const bool later = each != coarse_.begin() && std::prev(each)->first / spacing_ == each->first / spacing_;
        each = later ? coarse_.erase(each) : std::next(each);
    }
}

std::size_t StreamIndex::thin() {
    const std::size_t before = count();
    if (before <= 1) clear();
    while (count() > before / 2) {
        // A spacing of more than any stream, so that this ends.
        if (spacing_ >= std::uint64_t{1} << 62) clear();
        else widen();
    }
    return count();
}

void StreamIndex::clear() {
    coarse_.clear();
    fine_.clear();
    spacing_ = block;
}

}  // namespace safemap::SAFEMAP_ABI
