// A file of torch.save (zip, torch 1.6 and later) as a StateTree, or one of TorchScript. Reads the zip directory, the
// local headers and data.pkl; reads no tensor byte, executes nothing.
#pragma once

#include "state/stored_places.hpp"
#include "torch/rebuild.hpp"

#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

struct Archive {
    StateTree tree;
    std::optional<state::FlatDict> flat = {};  ///< in place of the tree
    std::vector<std::string> notes;       ///< human sentences: opaque classes, calls that were not made, trailing bytes
    std::vector<StoredChecksum> records;  ///< of a zip, for verify
    std::vector<StoragePlace> storages;   ///< those that no tensor refers to too; none of a plain pickle

    /// The tree or flat dictionary, and notes beside those that are there.
    void take(Rebuilt rebuilt) {
        tree = std::move(rebuilt.tree);
        flat = std::move(rebuilt.flat);
        notes.insert(notes.end(), rebuilt.notes.begin(), rebuilt.notes.end());
    }
};

/// Throws or reports the zip_*, pickle_*, bad_tensor, storage_too_short and shape_overflow faults, and
/// checksum_mismatch of data.pkl; other records have their checksums looked at by verify. A tensor with a
/// fault is left out where `faults` returns. Where `globals` is strict, also unknown_global.
Archive read_archive(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
