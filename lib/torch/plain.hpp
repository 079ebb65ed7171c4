// Reads plain pickles, as pickle.dump writes a state dict. Each storage is embedded in the pickle, as a file of its
// own.
#pragma once

#include "torch/archive.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::torch {

/// Reads the whole file, because the tensors are in the pickle. If the pickle holds their bytes unchanged (protocol 3
/// and later), none are kept in memory. Throws or reports the pickle_* faults, file_truncated, and the faults of
/// tensors, as read_legacy() does. If `globals` is strict, the faults include unknown_global, and trailing_bytes for
/// bytes after the pickle.
Archive read_plain(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

/// Reads the file as read_plain() does, but its value with `interpret`.
Archive read_plain_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                        NamedGlobals* globals);

}  // namespace safemap::SAFEMAP_ABI::torch
