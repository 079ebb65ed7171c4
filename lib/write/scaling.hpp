// SaveOptions::apply_scales: replaces quantised numbers by their products with their scales, before anything is laid
// out.
#pragma once

#include "write/file_layout.hpp"

#include <safemap/save.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The tensors of a save whose numbers are multiplied by their scales.
struct Scaling {
    std::vector<LazyTensor> tensors = {};     ///< the tensors to write, in the caller's order
    std::vector<std::uint32_t> kept = {};     ///< for each of them: its index in the caller's list
    std::vector<LazyTensor> factors = {};     ///< the numbers and scales that products are made of
    std::vector<SkippedObject> skipped = {};  ///< names of scales and other tensors that lose their meaning
    std::vector<AliasGroup> ties = {};        ///< the caller's ties without skipped names; the first name is written
    std::vector<std::string> notes = {};
    /// The scales of numbers that stay quantised, and what is beside them. They keep their dtypes, too, unless a
    /// dtype_of names them.
    std::vector<SaveOptions::DtypeOf> stay = {};
    bool any = false;  ///< false if no tensor has scales: then only `notes` and `stay` have a meaning
    bool all = false;  ///< true if no quantised tensor is left
};

/// Returns the products in a save of `tensors`, of which `quantized` are quantised. `block` is the block size that the
/// model states, for the last dimensions; it may be empty. A name of a scale that means something else, because a
/// tensor shares its storage with the scale, is written. Reads nothing. Throws quantized_cast if a quantised tensor has
/// no product, or if it is not clear which scale belongs to which number.
Scaling apply_scales(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties,
                     const QuantizedInput& quantized, const SaveOptions& options, std::span<const std::uint64_t> block);

/// Returns how many elements of each dimension of `numbers` have the same scale, for scales of the shape `scales`,
/// which has as many dimensions. Returns nothing if the shapes do not fit, or if several sizes would fit. `mx` is true
/// for scales that are powers of two.
std::optional<Shape> block_of(const Shape& numbers, const Shape& scales, bool mx, std::span<const std::uint64_t> block);

/// Returns the block size that the config.json in `extras` states: `weight_block_size` or compressed-tensors'
/// `block_structure`, of the model or of a part such as `text_config`. It is empty if none is stated. Throws
/// quantized_cast if there are several that differ.
std::vector<std::uint64_t> stated_block(const Extras& extras);
/// Removes what describes the quantisation from copied files: `quantization_config` and `compression_config` of
/// config.json, `quantization` of params.json, and hf_quant_config.json. Adds a note for each, and for a file that is
/// not a JSON object and so stays as it is.
Extras without_quantization(const Extras& extras, std::vector<std::string>& notes);

/// Returns `text`, a valid JSON document, without the members called `key` of objects at any depth. All other bytes
/// stay, except the comma and the space that belong to such a member.
std::string without_members(std::string_view text, std::string_view key);

}  // namespace safemap::SAFEMAP_ABI::write
