// The local shards that OLMo saves, one file for each rank: flat parameters of FSDP1 that carry the names and shapes of
// the parameters in them, and which elements of each the rank has.
#pragma once

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Elements [first, first + count) of a parameter, which are in the flat tensor from `from` on.
struct OlmoSlice {
    std::uint32_t parameter = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t from = 0;
};

/// A flat tensor of one rank.
struct OlmoHandle {
    LazyTensor data;
    std::vector<OlmoSlice> slices = {};
    std::uint64_t elements = 0;  ///< number of elements of its parameters
};

struct OlmoParameter {
    std::string name = {};
    Shape shape = {};
};

/// The file of one rank.
struct OlmoRank {
    std::vector<OlmoParameter> parameters = {};  ///< in the order of the handles
    std::vector<OlmoHandle> handles = {};
};

/// Returns true if a tree is that of such a file: a dictionary with a list `modules`, whose items have `handles`.
bool is_olmo_rank(const StateTree& tree);

/// Reads a file: `_shard_param_infos` (torch 2.1 and later), or `_shard_param_offsets` and `_shard_indices` (before).
/// Throws field_missing; piece_outside if elements are outside their parameter or the flat tensor; pieces_overlap if
/// two parameters have the same elements of it.
OlmoRank read_olmo_rank(const StateTree& tree);

/// Throws ranks_differ if a rank lists other parameters than the first one, whose file is `first_file`, or has other
/// dtypes. Frees the list of the rank.
void compare_and_drop(const OlmoRank& first, const std::string& first_file, OlmoRank& rank);

/// Returns the least number of ranks that hold all elements of the parameters: each has as many as this one.
std::uint64_t ranks_wanted(const OlmoRank& rank);

/// Returns a dictionary of the parameters, which the first rank lists. Throws what whole() throws.
StateTree parameters_of_olmo(const std::vector<OlmoRank>& ranks);

}  // namespace safemap::SAFEMAP_ABI::distributed
