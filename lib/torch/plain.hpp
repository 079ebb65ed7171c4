// Plain pickles: what pickle.dump makes of a state dict. Each storage stands in the pickle, as a file of its own.
#pragma once

#include "torch/archive.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::torch {

/// Reads all of the file, for the tensors are in it, but keeps none of it where they stand there as they are (protocol
/// 3 and later). Throws or reports the pickle_* faults, file_truncated, and what tensors can have, as read_legacy does.
Archive read_plain(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
