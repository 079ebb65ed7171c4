// Reads the tar archives of torch 0.1. The members `storages` and `tensors` are lists; each entry is a pickle and raw
// numbers. The member `pickle` is the object; its persistent ids are keys of tensors.
#pragma once

#include "torch/archive.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::torch {

/// Reads an archive. Throws or reports unknown_format if a member is missing, file_truncated, the pickle_* faults, and
/// bad_tensor, shape_overflow and storage_too_short for tensors. If `globals` is strict, the faults include
/// unknown_global. Reads no tensor bytes.
Archive read_tar(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
