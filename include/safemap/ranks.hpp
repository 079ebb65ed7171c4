// tensors_of_rank(): the tensors that one rank of tensor or expert parallelism needs, by a table of rules.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// One of the ranks that share a model.
struct Rank {
    std::uint64_t number = 0;  ///< from 0 to `of` - 1
    std::uint64_t of = 1;      ///< number of ranks
};

/// A row of a table that says how ranks share tensors. Weights of linear layers are [out, in], as in PyTorch;
/// `dimension` is for others. docs/ranks.md has a table for models like Llama.
///
/// Example:
///     const RankRule rules[] = {
///         {.names = "*.qkv_proj.weight", .split = RankRule::Split::column,
///          .sections = {{.heads = 32}, {.heads = 8, .repeat = true}, {.heads = 8, .repeat = true}}},
///         {.names = "*.o_proj.weight", .split = RankRule::Split::row, .sections = {{.heads = 32}}},
///         {.names = "*.gate_up_proj.weight", .split = RankRule::Split::column, .sections = {{}, {}}},
///         {.names = "*.down_proj.weight", .split = RankRule::Split::row},
///         {.names = "*norm*"}};
struct RankRule {
    enum class Split : std::uint8_t {
        replicated,  ///< each rank gets the whole tensor
        column,      ///< dimension 0, of weight and bias; a tensor without dimensions is replicated
        row,         ///< dimension 1; a tensor with fewer than two dimensions, such as the bias, is replicated
        /// Whole experts: N ranks get blocks of `experts` / N. If "experts.17" or "expert_17" is in the name of a
        /// tensor, the number chooses the rank, and the other ranks lack the tensor. Other tensors hold all experts,
        /// stacked along dimension 0.
        experts,
    };
    /// A part of the dimension that is split by itself, such as Q of a fused QKV.
    struct Section {
        /// Number of equal blocks that are never cut, such as heads. 0: the section may be cut at any index.
        std::uint64_t heads = 0;
        /// True if each head may go to several ranks: of N ranks, rank r gets the head r * heads / N. Otherwise, fewer
        /// heads than ranks are an error.
        bool repeat = false;
        /// Size in proportion to the sizes of the other sections. 0: `heads`, or 1 if that is 0 too.
        std::uint64_t size = 0;
    };

    std::string names = {};  ///< pattern as in Selection::glob()
    Split split = Split::replicated;
    /// Sections of the dimension, in order. Empty: one section, which may be cut at any index.
    std::vector<Section> sections = {};
    /// Number of equal groups that the dimension consists of, each with all sections: QKV of Megatron has a group for
    /// each head of K. Ranks get whole groups. If they are more than the groups, the ranks of a group share its
    /// sections.
    std::uint64_t groups = 1;
    /// The dimension to split, in place of the one that `split` says. A tensor without it is then an error.
    std::optional<std::size_t> dimension = std::nullopt;
    /// Number of experts; required for Split::experts.
    std::uint64_t experts = 0;
    /// True if ranks get ceil(size / N) indices or experts, as torch.chunk splits: the last ranks fewer, or none.
    /// Otherwise, a size that the ranks cannot share evenly is an error. Not with sections.
    bool uneven = false;
    /// Size of the dimension with the padding that the model adds at its end, such as that of a vocabulary; 0: no
    /// padding. N ranks get `padded_size` / N indices, the last ranks only those that the tensor has: the padding is
    /// left to the caller. Not with sections.
    std::uint64_t padded_size = 0;
};

/// Returns the tensors of one rank, in the order of `tensors` and under their names. The first rule that matches a name
/// counts. Reads nothing. Reading the results reads only the bytes of the rank, besides gaps of at most 8 KiB between
/// them. A rank that has no index of an uneven dimension gets a tensor without elements. Equal tensors that are cut
/// alike in one call stay tied: an Uploader uploads them once.
///
/// The result may be cut again: first for the ranks of expert parallelism, then for those of tensor parallelism.
///
/// Throws:
/// - invalid_argument, with the tensor, if no rule matches it, or if the ranks cannot share it as the rule says
/// - invalid_argument for a rank that is not below the number of ranks, and for a rule that contradicts itself
/// - partial_byte_slice and piece_mismatch if a tensor of a sub-byte dtype cannot be cut there
/// - piece_mismatch if sections are cut out of a tensor of several pieces that is strided backwards
///
/// Takes time in proportion to the number of tensors, of their pieces, and of rules.
///
/// Example:
///     const RankRule rules[] = {{.names = "*norm*"}, {.names = "*", .split = RankRule::Split::column}};
///     safemap::Bundle mine = uploader.bundle(tensors_of_rank(checkpoint, rules, {.number = 3, .of = 8}));
[[nodiscard]] SAFEMAP_API std::vector<LazyTensor> tensors_of_rank(std::span<const LazyTensor> tensors,
                                                                  std::span<const RankRule> rules, Rank rank);
/// Returns those of all tensors of the checkpoint, under all names: for a tied tensor, the rule of each name counts.
[[nodiscard]] SAFEMAP_API std::vector<LazyTensor> tensors_of_rank(const Checkpoint& checkpoint,
                                                                  std::span<const RankRule> rules, Rank rank);

}  // namespace safemap::SAFEMAP_ABI
