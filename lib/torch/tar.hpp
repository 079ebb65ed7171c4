// The tar archives of torch 0.1. Members `storages` and `tensors` are lists, each entry a pickle and raw numbers;
// `pickle` is the object, whose persistent ids are keys of tensors.
#pragma once

#include "torch/archive.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::torch {

/// Throws or reports unknown_format where a member is missing, file_truncated, the pickle_* faults, and bad_tensor,
/// shape_overflow and storage_too_short of tensors. Where `globals` is strict, also unknown_global. Reads no tensor
/// byte.
Archive read_tar(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
