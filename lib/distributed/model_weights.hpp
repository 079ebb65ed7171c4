// The weights and the optimizer state of one model rank, or of the whole model: what the readers of ranks of data
// parallelism give, and what tensor and pipeline parallelism join.
#pragma once

#include "state/contents.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A trainable parameter, at its place in the flat buffer of its group.
struct Parameter {
    std::string name;
    Shape shape;
    std::uint64_t count = 0;  ///< elements
};
/// The parameters of an optimizer group or sub-group, in the order of the flat buffer.
using Group = std::vector<Parameter>;

/// Named tensors, in order.
using Named = std::vector<std::pair<std::string, LazyTensor>>;

using state::Replica;

/// The weights and the optimizer state of one model rank, or of the whole model: tensors are joined over the ranks of
/// data parallelism.
struct ModelWeights {
    struct Weight {
        std::string name;
        LazyTensor tensor;
        enum class Kind : std::uint8_t { master, frozen, buffer, plain } kind = Kind::plain;
        /// State of the parameter, such as exp_avg, each with the shape of the parameter. Only masters have any.
        Named state = {};
    };
    std::vector<Weight> weights = {};      ///< in the order of the model
    std::vector<AliasGroup> aliases = {};  ///< the stored name first
    std::vector<std::string> notes = {};
    std::vector<std::string> state_names = {};  ///< "exp_avg", "exp_avg_sq"
    std::vector<Replica> replicas = {};         ///< not compared yet
};

}  // namespace safemap::SAFEMAP_ABI::distributed
