// Turns a PyTorch pickle into a tree. A closed table lists the functions that torch.save writes; each of them is read
// as data. Everything else becomes an opaque object, and the tensors inside it are still found.
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

/// The storages of a file: how to find and decode their bytes.
struct Storages {
    /// Returns the bytes of the storage with that key. Throws zip_missing_record and zip_bad_record; bad_tensor if the
    /// file is not a zip.
    std::function<RecordData(std::string_view key)> find;
    bool big_endian = false;
    /// For a tar of torch 0.1, where persistent ids are keys of tensors: returns the tensor with that key, or nothing
    /// if it is the key of a storage. Throws bad_tensor, shape_overflow, storage_too_short.
    std::function<std::optional<LazyTensor>(std::int64_t key)> tensor = {};
    /// The file that begins with the pickle's `bytes`, for embedded storages. If null, these are copied to memory.
    std::shared_ptr<const Source> file = {};
    std::span<const char> bytes = {};
    /// Collects the globals of the pickle, if not null. If it is strict, rebuild() throws unknown_global.
    NamedGlobals* globals = nullptr;
    std::string_view record = {};  ///< name of the pickle, for `globals`
    /// If true, rebuild() throws unsafe_call if the pickle, or a file embedded in it, names a function that runs code,
    /// also if the value is not asked for. `globals` must not be null.
    bool refuses_code = false;
};

/// The value of a pickle: a tree or a flat dictionary.
struct Rebuilt {
    StateTree tree;
    std::optional<state::FlatDict> flat = {};  ///< if set, replaces the tree
    std::vector<std::string> notes;            ///< sentences for users: calls that were not made
    /// The nodes of lists that a ListReader took, in the order in which it took them; StateTree::no_node for one that
    /// is not in the tree. Each is a list of those items that are nodes of the pickle.
    std::vector<StateTree::NodeId> taken_lists = {};
};

/// Rebuilds the value of a pickle. Throws or reports bad_tensor, shape_overflow, storage_too_short and the faults of
/// `storages`, each with the tensor's name. If `faults` returns, an opaque object takes the tensor's place.
Rebuilt rebuild(const PickleGraph& pickle, const Storages& storages, FaultSink& faults);

/// Rebuilds as rebuild() does, but returns a flat state dict without faults as Rebuilt::flat. This takes less time, and
/// needs no tree in memory beside the graph.
Rebuilt rebuild_state(const PickleGraph& pickle, const Storages& storages, FaultSink& faults);

/// A part of a pickle, and the name to give it.
struct NamedValue {
    std::string name;
    PickleGraph::Id value;
};
/// Rebuilds a dictionary of these parts as rebuild() does; the pickle itself does not contain this dictionary. `known`
/// tells which globals are known.
Rebuilt rebuild(const PickleGraph& pickle, std::span<const NamedValue> parts, const Storages& storages,
                FaultSink& faults, NamedGlobals::Known* known);

/// A function that rebuilds the value of a file's pickle, or some of it, as rebuild() does.
using Interpret = std::function<Rebuilt(const PickleGraph& pickle, const Storages& storages, FaultSink& faults)>;

}  // namespace safemap::SAFEMAP_ABI::torch
