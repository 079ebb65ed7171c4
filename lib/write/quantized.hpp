// The dtype that each tensor is written as, and the refusal of casts that separate quantised numbers from their scales.
#pragma once

#include "state/quantization.hpp"
#include "write/file_layout.hpp"

#include <safemap/save.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

/// Returns the dtype that `options` ask for `tensor`, if they cast it.
std::optional<Dtype> asked_dtype(const LazyTensor& tensor, const SaveOptions& options);
/// Returns the dtype that `tensor` is written as.
Dtype written_dtype(const LazyTensor& tensor, const SaveOptions& options);

/// Returns true if `options` may cast tensors.
inline bool asks_for_casts(const SaveOptions& options) noexcept { return options.dtype || !options.dtype_of.empty(); }

/// Returns the quantised tensors among `input.tensors`.
QuantizedInput quantized_in(const Input& input);
/// Returns those of a checkpoint from select() or renamed(), by what its origin has: a name that was changed and a
/// scale that was not selected count, too. Returns null for any other checkpoint.
std::shared_ptr<const QuantizedInput> quantized_by_origin(const Checkpoint& checkpoint);

/// Throws quantized_cast if `options` would cast quantised numbers without their scales, or scales without the numbers.
/// The hint has the options that help. Returns a note on casts of what may be scales, by the name alone; it is empty
/// without such casts.
std::string require_whole_casts(const Input& input, const SaveOptions& options);

/// Returns the note on values that become an F8 dtype.
std::string note_on_fp8(Dtype to);

/// Returns globs that match the tensors at the indices `wanted`, and as few others that can be cast as possible. Ready
/// to be typed: " --keep-dtype 'GLOB'" for each.
std::string keep_options(std::span<const LazyTensor> tensors, std::span<const std::uint32_t> wanted);

}  // namespace safemap::SAFEMAP_ABI::write
