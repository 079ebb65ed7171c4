// What a pickle of PyTorch means: a closed table of the functions that torch.save writes, each read as data. All
// else is an opaque object, whose tensors are found nevertheless.
#pragma once

#include "base/faults.hpp"
#include "pickle/pickle.hpp"
#include "pickle/zip.hpp"
#include "state/flat_dict.hpp"
#include "torch/named_globals.hpp"

#include <safemap/state_tree.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Where the bytes of storages are.
struct Storages {
    /// The bytes of the storage with that key. Throws zip_missing_record, zip_bad_record; bad_tensor where the file is
    /// no zip.
    std::function<RecordData(std::string_view key)> find;
    bool big_endian = false;
    /// In a tar of torch 0.1: the tensor with that key, which is what persistent ids are there; nothing where it is a
    /// storage's. Throws bad_tensor, shape_overflow, storage_too_short.
    std::function<std::optional<LazyTensor>(std::int64_t key)> tensor = {};
    /// The file that begins with the pickle's `bytes`, for storages that stand in it; null: they are in memory only.
    std::shared_ptr<const Source> file = {};
    std::span<const char> bytes = {};
    /// Where it is not null, it gets the names of the pickle. If it is strict, rebuild() throws unknown_global.
    NamedGlobals* globals = nullptr;
    std::string_view record = {};  ///< for `globals`: which pickle it is
};

struct Rebuilt {
    StateTree tree;
    std::optional<state::FlatDict> flat = {};  ///< in place of the tree
    std::vector<std::string> notes;            ///< human sentences: calls that were not made
};

/// Throws or reports bad_tensor, shape_overflow, storage_too_short and what `storages` throws, each with the
/// tensor's name; where `faults` returns, an opaque object stands in the tensor's place.
Rebuilt rebuild(const PickleGraph& pickle, const Storages& storages, FaultSink& faults);

/// The same, but a flat state dict in which nothing is wrong comes as one: in less time, and without a tree in memory
/// beside the graph.
Rebuilt rebuild_state(const PickleGraph& pickle, const Storages& storages, FaultSink& faults);

/// A part of a pickle, and the name that it is to have.
struct NamedValue {
    std::string name;
    PickleGraph::Id value;
};
/// The same of a dictionary of such parts, which the pickle itself has not.
Rebuilt rebuild(const PickleGraph& pickle, std::span<const NamedValue> parts, const Storages& storages,
                FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::torch
