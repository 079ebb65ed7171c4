// The state of an optimizer beside the local shards of OLMo: optimizer.state_dict() of each rank. Its groups name the
// parameters, and the files of the model say which elements of each parameter a rank has.
#pragma once

#include "distributed/flat/olmo_ranks.hpp"
#include "distributed/ranks/tree_values.hpp"
#include "state/contents.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The state that the file of one rank holds.
struct OlmoState {
    struct Entry {
        std::int64_t parameter = 0;  ///< number in `params` of the groups
        std::string key = {};        ///< "exp_avg"
        LazyTensor tensor;
    };
    std::string file = {};
    std::vector<Entry> entries = {};
};

/// Returns true for `optimizer.state_dict()` whose groups list `param_names`: a dictionary with `state` and
/// `param_groups`.
bool is_named_optimizer(const StateTree& tree);

/// Reads the file of a rank. Throws field_missing if a value of the state is not a tensor.
OlmoState read_olmo_state(const StateTree& tree, std::string file);

/// Throws ranks_differ if the groups of a rank are not those of the first one, whose file is `first_file`.
void compare_groups(const StateTree& first, const std::string& first_file, const StateTree& other);

/// Returns `state` and `param_groups` as the function of OLMo that joins shards does: the numbers of parameters stay,
/// and the tensors below them have the shapes of the parameters. `first` is the tree of the first rank. A tensor
/// without dimensions, such as `step`, is that of the first rank that has it; the others are `replicas`. Reads one of
/// them for each rank.
///
/// Throws field_missing if groups do not name a parameter or the model does not have it; ranks_differ if a rank counts
/// other steps than the first one, or has state of a parameter of which it has no elements; piece_mismatch if the state
/// has another number of elements than the rank has of the parameter; and what whole() throws.
StateTree optimizer_of_olmo(StateTree first, const std::vector<OlmoState>& ranks, const std::vector<OlmoRank>& model,
                            std::vector<state::Replica>& replicas);

}  // namespace safemap::SAFEMAP_ABI::distributed
