// Lists every name of a checkpoint, including the other names of tied tensors.
#pragma once

#include <safemap/checkpoint.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A name, and the index of the tensor that it refers to. Owns neither.
struct NamedTensor {
    std::string_view name;  ///< valid while the checkpoint or a copy of it lives
    std::size_t tensor;     ///< argument of Checkpoint::tensor()
};
/// Returns every selected name, including the other names of tied tensors, in the order of the tensors. For each tensor
/// its own name comes first, then the others in the order of aliases(). The names point into the checkpoint. May be
/// called from several threads at once.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("model");
///     for (const safemap::NamedTensor& entry : safemap::all_names(checkpoint))
///         std::printf("%s %zu\n", std::string(entry.name).c_str(), entry.tensor);
[[nodiscard]] SAFEMAP_API std::vector<NamedTensor> all_names(const Checkpoint& checkpoint,
                                                             const Selection& selection = {});
std::vector<NamedTensor> all_names(const Checkpoint&& checkpoint, const Selection& selection = {}) = delete;

}  // namespace safemap::SAFEMAP_ABI
