// Compares two tensors at a time, with two buffers of 1 MiB. Names the files that differ.
#include "check/replicas.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace safemap::SAFEMAP_ABI::check {

namespace {

/// Compares tensors of the same dtype and shape. `blocks` are two buffers of the same size.
bool are_equal(const LazyTensor& first, const LazyTensor& other, std::vector<std::byte> (&blocks)[2], Watch& watch) {
    for (std::uint64_t offset = 0; offset < first.nbytes(); offset += blocks[0].size()) {
        watch.check_stop();
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(blocks[0].size(), first.nbytes() - offset));
        first.read(offset, std::span(blocks[0]).first(size));
        other.read(offset, std::span(blocks[1]).first(size));
        if (std::memcmp(blocks[0].data(), blocks[1].data(), size) != 0) return false;
    }
    return true;
}

}  // namespace

std::vector<std::string> compare_replicas(const state::Contents& contents, Watch& watch) {
    constexpr std::size_t most_notes = 1000;
    constexpr std::size_t block = 1 << 20;
    std::vector<std::string> notes;
    std::size_t different = 0;
    std::vector<std::byte> blocks[2];
    const auto compare = [&](const state::Replica& replica) {
        for (std::vector<std::byte>& one : blocks) one.resize(block);
        bool equal = replica.first.dtype() == replica.other.dtype() && replica.first.shape() == replica.other.shape();
        try {
            equal = equal && are_equal(replica.first, replica.other, blocks, watch);
        } catch (const Error& error) {
            if (remedy(error.code()) != Remedy::reject_data) throw;
            return;
        }
        if (equal || ++different > most_notes) return;
        notes.push_back(excerpt(replica.name) + " should be the same in all ranks, but " + excerpt(replica.first_file) +
                        " and " + excerpt(replica.other_file) + " have different values");
    };
    for (const state::Replica& replica : contents.replicas) compare(replica);
    if (contents.each_replica) contents.each_replica(compare);
    if (different > most_notes)
        notes.push_back("and " + std::to_string(different - most_notes) + " more that differ between ranks");
    return notes;
}

}  // namespace safemap::SAFEMAP_ABI::check
