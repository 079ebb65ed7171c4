// Reads one file of a rank of DeepSpeed: keys of every version become a ModelFile or an OptimizerFile.
#pragma once

#include "distributed/values.hpp"
#include "distributed/zero/zero_file.hpp"
#include "torch/named_globals.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::distributed {

/// A digest of a list of names, to compare lists without keeping them.
class NameDigest {
public:
    void add(std::string_view name) {
        for (const char c : name) mix(static_cast<unsigned char>(c));
        mix(0x100);  // the end of a name
    }
    std::uint64_t value() const noexcept { return value_; }

private:
    void mix(std::uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }
    std::uint64_t value_ = 0xcbf29ce484222325;
};

/// Returns the ZeRO stage that a field gives: a number, a call of ZeroStageEnum with it, or the name of a member, as
/// Python 3.11.2 pickles enumerations. Throws field_missing for anything else, and for a number that is not 1 to 3.
int zero_stage(const Value& field);

/// How much of a file is read.
enum class Detail : std::uint8_t {
    all,    ///< everything: of the first file of a model rank
    share,  ///< the fields that differ between ranks, and those that are compared
};

/// Reads a file of model states. Throws field_missing, unsafe_call and whatever reading a `.pt` throws.
ModelFile read_model_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                          torch::NamedGlobals& globals);
/// Reads a file of optimizer states, likewise.
OptimizerFile read_optimizer_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                                  torch::NamedGlobals& globals);

/// Returns the dictionaries of the state of the groups, in `inner`, the optimizer_state_dict of a file. A group can
/// have none: where a part of the sub-groups is offloaded (Twin-Flow), DeepSpeed saves the state of that part only.
/// Numbers from `groups` on are passed by.
std::vector<std::optional<Value>> states_of(const Value& inner, int stage, std::size_t groups);

}  // namespace safemap::SAFEMAP_ABI::distributed
