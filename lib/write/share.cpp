// Divides units by bytes. Tested by tests/write/share_test.cpp.
#include "write/share.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::write {

namespace {

std::uint64_t bytes_of(std::span<const UnitRun> runs) {
    std::uint64_t bytes = 0;
    for (const UnitRun& run : runs) bytes += run.bytes;  // bytes of files, whose sum was checked
    return bytes;
}

/// Returns the end of a file that is nearest to `target`, or the beginning of the first, counted in bytes.
std::uint64_t nearest_edge(std::span<const UnitRun> runs, std::uint64_t target) {
    const auto distance = [target](std::uint64_t edge) { return edge < target ? target - edge : edge - target; };
    std::uint64_t nearest = 0;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        end += runs[i].bytes;
        const bool last_of_file = i + 1 == runs.size() || runs[i + 1].file != runs[i].file;
        if (last_of_file && distance(end) < distance(nearest)) nearest = end;
    }
    return nearest;
}

}  // namespace

std::uint64_t first_unit_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks) {
    constexpr std::uint64_t part_of_share = 16;
    const std::uint64_t total = bytes_of(runs);
    std::uint64_t target = total / ranks * rank + total % ranks * rank / ranks;
    const std::uint64_t edge = nearest_edge(runs, target);
    const std::uint64_t near = total / ranks / part_of_share;
    if (rank > 0 && rank < ranks && (edge < target ? target - edge : edge - target) <= near) target = edge;

    std::uint64_t units = 0;
    for (const UnitRun& run : runs) {
        if (target < run.bytes) {
            const std::uint64_t inside = target < run.lead ? 0 : 1 + (target - run.lead) / run.block;
            return units + std::min(inside, run.units);
        }
        target -= run.bytes;
        units += run.units;
    }
    return units;
}

}  // namespace safemap::SAFEMAP_ABI::write
