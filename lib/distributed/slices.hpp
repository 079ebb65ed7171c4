// Whole weights out of the slices of tensor parallelism. The rules are those of `universal_checkpoint_info`, which
// frameworks write for DeepSpeed's ds_to_universal. Where no rule says how slices fit together, they are not merged.
#pragma once

#include "distributed/pattern.hpp"
#include "distributed/zero.hpp"

#include <safemap/state_tree.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A list of patterns of `universal_checkpoint_info`. If one of them cannot be read, whether a name matches is unknown.
struct PatternList {
    std::vector<Pattern> patterns = {};
    std::string unreadable = {};  ///< a pattern that was not understood
};

/// Parameters that consist of several, one after the other along one dimension, each of which is cut on its own.
struct SubParameters {
    std::vector<std::pair<Pattern, std::string>> patterns = {};  ///< and their texts
    std::string unreadable = {};
    std::size_t dimension = 0;
    /// The sizes of the parameters along the dimension; without any, `count` equal ones.
    std::vector<std::uint64_t> sizes = {};
    std::uint64_t count = 0;
};

/// The rules of `universal_checkpoint_info`.
struct UniversalInfo {
    double version = 0;
    std::optional<std::uint64_t> vocabulary = {};  ///< original_vocab_size
    PatternList vocabulary_names = {};
    PatternList replicated = {};
    PatternList stage_replicated = {};  ///< in the first and the last stage of a pipeline
    PatternList rows = {};              ///< cut along dimension 1
    PatternList averaged = {};
    PatternList halves = {};       ///< two parameters, one after the other along dimension 0
    PatternList unsupported = {};  ///< that DeepSpeed itself does not merge
    PatternList placed = {};       ///< whose places an affine map describes
    std::vector<SubParameters> several = {};
    /// By the text of a pattern: for each of the several parameters, the size that each rank holds.
    std::vector<std::pair<std::string, std::vector<std::vector<std::uint64_t>>>> widths = {};
    std::string fault = {};  ///< why the rules cannot be used, for a note; empty if they can
};

/// Returns the rules at a node, the dictionary `universal_checkpoint_info` of a file of model states. Rules that have
/// not the form that DeepSpeed gives them are said in `fault`.
UniversalInfo read_universal_info(const StateTree& tree, StateTree::NodeId node);

/// What was gathered of one model rank.
struct ModelRank {
    std::uint64_t number = 0;  ///< mp_rank
    std::string file = {};     ///< of its model states, for errors
    Gathered gathered = {};
};

/// Returns the whole weights of all ranks of tensor parallelism, in ascending order of their numbers, with their
/// optimizer state. One rank is returned as it is. Weights that no rule describes, and all of them if `info` is null,
/// are listed as `mp_rank_00/NAME`, with a note why. Slices that a rule calls replicated become Gathered::replicas;
/// those of at most 64 KiB, up to 8 MiB in all, are compared here, and a difference is a note. Throws ranks_differ,
/// with both files, if a rank lacks a weight or a state of another, and what whole() and reading throw.
Gathered merge(std::vector<ModelRank> ranks, const UniversalInfo* info);

}  // namespace safemap::SAFEMAP_ABI::distributed
