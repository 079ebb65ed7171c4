// Writes DeepSpeed checkpoints as DeepSpeed 0.19 writes them, and older ones, and says what every tensor must be. It
// cuts parameters as DeepSpeed does, element by element, so it is also the slow twin of the formulas of the reader.
//
// All padding is NaN, and no value is: a reader that lets padding through shows it at once.
#pragma once

#include "forge/value.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero_forge {

using safemap::Dtype;
using safemap::Shape;

struct Param {
    std::string name;
    Shape shape;
};
struct Buffer {
    std::string name;
    Dtype dtype;
    Shape shape;
};

/// The parts of a checkpoint.
struct Spec {
    int stage = 2;
    bool bf16_optimizer = false;  ///< stage 1 with fp32 gradients: no `zero_stage`, partitions keep their padding
    std::uint64_t world = 2;
    Dtype dtype = Dtype::bf16;  ///< dtype of the weights that the engine computes with
    std::vector<std::vector<Param>> groups = {};
    std::vector<Param> frozen = {};  ///< without a master; those without elements are never excluded by DeepSpeed
    std::vector<Buffer> buffers = {};
    std::vector<std::pair<std::string, std::string>> ties = {};  ///< second name, first name
    std::uint64_t sub_group_size = 0;                            ///< stage 3: elements of a rank; 0 means no limit
    std::uint64_t alignment = 1;    ///< alignment of parameters in the flat buffer, in elements; stages 1 and 2
    bool round_robin = false;       ///< stages 1 and 2: the flat order is not the order of the model
    bool elastic = false;           ///< the optimizer state is a list without padding; stages 1 and 2
    bool integer_steps = false;     ///< as DeepSpeedCPUAdam counts them
    bool keep_frozen = true;        ///< false: exclude_frozen_parameters
    bool old_names = false;         ///< no prefix, one dict of shapes for one group, few keys
    bool stage_by_name = false;     ///< `zero_stage` as Python 3.11.2 pickles enumerations
    bool all_ranks_prefix = false;  ///< bf16_ before the optimizer files, whatever the dtype
    std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"};
    pt::Container container = pt::Container::zip;
    std::string tag = "global_step7";
    std::string version = "0.19.8";
};

/// The value that a tensor must have.
struct Expected {
    Dtype dtype;
    Shape shape;
    std::string bytes;
    bool operator==(const Expected&) const = default;
};
using Tensors = std::map<std::string, Expected>;

namespace detail {

/// Returns the bytes of a tensor, a function of its name and of what it is.
std::string values(Dtype dtype, std::string_view what, std::string_view name, std::uint64_t count);

}  // namespace detail

/// A checkpoint as files, which a test can change before it writes them.
struct Run {
    Spec spec;
    std::map<std::string, pt::Value> files = {};  ///< paths in the tag's folder
    std::optional<std::string> latest = {};
    std::map<std::string, std::string> others = {};  ///< further files, by their paths in the root

    pt::Value& model(std::uint64_t rank = 0) { return files.at(model_name(rank)); }
    pt::Value& optimizer_file(std::uint64_t rank) { return files.at(optimizer_name(rank)); }
    /// Returns the `optimizer_state_dict` of a rank.
    pt::Value& state(std::uint64_t rank) { return optimizer_file(rank)["optimizer_state_dict"]; }
    /// Returns the list of a rank's flat masters.
    pt::Value& masters(std::uint64_t rank) {
        return state(rank)[spec.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups"];
    }
    /// Returns what torch's optimizer says of itself in the file of a rank.
    pt::Value& adam(std::uint64_t rank) {
        return state(rank)[spec.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"];
    }
    /// Returns the moments and the step of a group.
    pt::Value& moments(std::uint64_t rank, std::string_view group = "0") { return adam(rank)["state"][group]; }

    /// Changes the file of model states of each rank that has one.
    template <class Change> void each_model(Change&& change) {
        for (auto& [name, file] : files)
            if (name.ends_with("_model_states.pt")) change(file);
    }
    /// Changes the `optimizer_state_dict` of each rank.
    template <class Change> void each_state(Change&& change) {
        for (std::uint64_t rank = 0; rank < spec.world; ++rank) change(state(rank));
    }
    /// Adds a second model rank, whose files are alike.
    void double_model_ranks();

    std::string model_name(std::uint64_t rank = 0) const {
        if (spec.stage != 3) return "mp_rank_00_model_states.pt";
        return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt";
    }
    std::string optimizer_name(std::uint64_t rank) const {
        const bool prefix = (spec.dtype == Dtype::bf16 && !spec.old_names) || spec.all_ranks_prefix;
        return (prefix ? "bf16_" : "") + ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
    }

    /// Returns all files by their paths in the root.
    std::map<std::string, std::string> packed() const;
    void write(const std::filesystem::path& root) const;
};

/// Forges a checkpoint. Parameters of a spec must have names of their own.
class Forge {
public:
    static Run run(const Spec& spec);

    // The values that the reader must give.

    /// Returns the tensors of an ordinary open.
    static Tensors weights(const Spec& spec);
    /// Returns the 16-bit weights, which stages 0 to 2 have.
    static Tensors module(const Spec& spec);
    /// Returns what zero_to_fp32 gives, or nothing if it refuses the folder.
    static std::optional<Tensors> compat(const Spec& spec);
    /// Returns the moments of all parameters with elements, by their names in the checkpoint of the optimizer.
    static Tensors moments(const Spec& spec);
    static Expected master_of(const Param& param);
    /// Returns the names that exist in the model and in no file.
    static std::vector<std::string> not_saved(const Spec& spec);
};

/// Returns a spec of two groups, with everything that a small model can have.
Spec small(int stage, std::uint64_t world = 2);

/// Returns a spec of random parameters: some with fewer elements than ranks, some with none.
Spec random_spec(std::mt19937& random, int stage, std::uint64_t world);

}  // namespace zero_forge
