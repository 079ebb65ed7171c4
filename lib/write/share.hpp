// How the work on files is divided over processes: each gets a range of all bytes, in the order of the files.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Units of one file that follow each other: the first has `lead` bytes, the others `block`, except the last.
struct UnitRun {
    std::uint32_t file = 0;
    std::uint64_t bytes = 0;
    std::uint64_t units = 0;
    std::uint64_t lead = 0;
    std::uint64_t block = 0;
};

/// The units [first, last), counted over all runs.
struct Share {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
};

/// Returns the first unit of a rank; for rank `ranks`, the number of all units. Ranks get about the same number of
/// bytes. A boundary near the end of a file is moved there, so that fewer files are written by two processes.
std::uint64_t first_unit_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks);
inline Share share_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks) {
    return {first_unit_of(runs, rank, ranks), first_unit_of(runs, rank + 1, ranks)};
}

}  // namespace safemap::SAFEMAP_ABI::write
