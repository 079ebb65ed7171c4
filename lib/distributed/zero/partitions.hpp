// Where each parameter lies in the partitions of the ranks: the formulas of ZeRO, for tensors of any kind that are
// partitioned like the parameters.
#pragma once

#include "distributed/zero/join_data_ranks.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Elements [first, first + count) of a parameter are in the partition of a group, from `from` on.
struct PartitionRun {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t from = 0;
    std::uint32_t rank = 0;
    std::uint32_t group = 0;
};

using VisitParameter = std::function<void(const Parameter& parameter, std::span<const PartitionRun> runs)>;

/// Calls visit() for every parameter, in the order of the groups. Stages 1 and 2: the parameters of a group stand one
/// after the other, with the gaps of `param_alignment_paddings`, and are cut into equal partitions; the padding at the
/// end may have been stripped. Stage 3: each parameter is cut into equal shares, one a rank. Throws not_covered and
/// piece_mismatch, with the file of a rank, if its partitions hold another number of elements; ranks_differ if
/// partitions that should be equal are not.
void each_parameter(const ModelRankFiles& ranks, const VisitParameter& visit);

/// Returns the names of the parameters of a group, in the whole model: with the experts of all ranks.
std::vector<std::string> names_of_group(const ModelRankFiles& ranks, std::size_t group);

/// Cuts a flat parameter of stage 3, such as a frozen one, whose shares are one tensor a rank.
std::vector<PartitionRun> shares_of(std::uint64_t count, std::size_t ranks);

}  // namespace safemap::SAFEMAP_ABI::distributed
