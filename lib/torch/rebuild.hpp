// What a pickle of PyTorch means: a closed table of the functions that torch.save writes, each read as data. All
// else is an opaque object, whose tensors are found nevertheless.
#pragma once

#include "base/faults.hpp"
#include "torch/pickle.hpp"
#include "torch/zip.hpp"

#include <safemap/state_tree.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::torch {

/// Where the bytes of storages are.
struct Storages {
    /// The bytes of the storage with that key. Throws zip_missing_record, zip_bad_record.
    std::function<RecordData(std::string_view key)> find;
    bool big_endian = false;
};

struct Rebuilt {
    StateTree tree;
    std::vector<std::string> notes;  ///< human sentences: calls that were not made, attributes that are dropped
};

/// Throws or reports bad_tensor, shape_overflow, storage_too_short and what `storages` throws, each with the
/// tensor's name; where `faults` returns, an opaque object stands in the tensor's place.
Rebuilt rebuild(const PickleGraph& pickle, const Storages& storages, FaultSink& faults);

}  // namespace safemap::torch
