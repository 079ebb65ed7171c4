// The rules of `universal_checkpoint_info`, by which slices of tensor parallelism fit together. Frameworks write them
// into files of model states for DeepSpeed's ds_to_universal; what they mean is what that script does.
#pragma once

#include "distributed/parallel/pattern.hpp"
#include "distributed/values.hpp"

#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Several parameters in one, one after the other along a dimension, each of which is cut on its own.
struct SubParameters {
    std::size_t dimension = 0;
    std::vector<std::optional<std::uint64_t>> shape = {};  ///< sizes that must hold; nothing at the dimension itself
    std::vector<std::uint64_t> sizes = {};                 ///< along the dimension; if empty, `count` equal ones
    std::uint64_t count = 0;
};

/// For each of several parameters, the size that each rank holds along the dimension.
using ShardWidths = std::vector<std::vector<std::uint64_t>>;

/// Where the elements of a parameter are: DeepSpeed's affine map, if it consists of boxes.
struct Placement {
    struct Piece {
        std::size_t rank = 0;
        Shape start = {};  ///< in the whole
        Shape extent = {};
        Shape from = {};  ///< in the slice of the rank
    };
    Shape shape = {};                ///< shape of the whole
    std::vector<Shape> slices = {};  ///< shapes that the ranks hold
    std::vector<Piece> pieces = {};
    std::string fault = {};  ///< why it cannot be used; empty if it can
};

/// The rules. Lists of patterns have the names of DeepSpeed's keys behind them.
/// `pipeline_replicated_parameter_patterns` is not read: stages say by their names what they share.
struct UniversalInfo {
    double version = 0;
    std::optional<std::uint64_t> vocabulary = {};  ///< original_vocab_size
    PatternList vocabulary_names = {};             ///< vocabulary_parameter_patterns
    PatternList replicated = {};                   ///< tp_replicated_parameter_patterns
    PatternList rows = {};                         ///< parameter_with_row_parallelism_patterns
    PatternList averaged = {};                     ///< parameter_to_average_patterns
    PatternList halves = {};                       ///< parameter_with_2_sub_params_cat_dim_0
    PatternList unsupported = {};                  ///< autotp_unsupported_parameter_patterns
    PatternList several = {};                      ///< all patterns of parameter_with_sub_params
    std::vector<std::shared_ptr<const SubParameters>> several_parts = {};  ///< by the number of the pattern
    std::unordered_map<std::string, ShardWidths> widths = {};  ///< sub_param_shard_widths, by the text of a pattern
    PatternList placed = {};                                   ///< affine_map
    std::vector<Placement> placements = {};                    ///< by the number of the pattern
    std::string fault = {};  ///< why the rules cannot be used, for a note; empty if they can
};

/// Reads the dictionary `universal_checkpoint_info` of a file of model states. If it does not have the form that
/// DeepSpeed gives it, or a pattern is not understood, `fault` says so.
UniversalInfo read_universal_info(const Value& info);

/// How the slices of one parameter fit together.
struct Rule {
    enum class How : std::uint8_t {
        joined,      ///< one after the other along `dimension`
        replicated,  ///< each rank has all
        averaged,    ///< the whole is the mean of all
        equal,       ///< all ranks must hold the same; no rule says so
        halves,      ///< two parameters in one, along dimension 0
        several,     ///< SubParameters
        placed,      ///< Placement
        unknown      ///< `why` says what is wrong
    } how = How::joined;
    std::size_t dimension = 0;
    bool vocabulary = false;  ///< is cut to the size of the vocabulary
    bool said = false;        ///< false if no pattern matches, and slices are joined along dimension 0
    const SubParameters* parts = nullptr;
    const ShardWidths* widths = nullptr;
    const Placement* placement = nullptr;
    std::string why = {};
};

/// Returns the rule for a parameter. Takes from `steps` what the patterns need, and throws unsupported_layout if it
/// does not suffice. `info` must live as long as the rule.
Rule rule_of(const UniversalInfo& info, const std::string& name, std::uint64_t& steps);

}  // namespace safemap::SAFEMAP_ABI::distributed
