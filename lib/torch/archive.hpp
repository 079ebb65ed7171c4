// Reads a torch.save file (a zip, torch 1.6 and later) or a TorchScript archive into a StateTree. Reads the zip
// directory, the local headers, data.pkl and other small records. Reads no tensor bytes and executes nothing.
#pragma once

#include "state/stored_places.hpp"
#include "torch/archive_records.hpp"
#include "torch/rebuild.hpp"

#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// The contents of a PyTorch file in any of its formats.
struct Archive {
    StateTree tree;
    std::optional<state::FlatDict> flat = {};  ///< if set, replaces the tree
    std::vector<std::string> notes;  ///< sentences for users: opaque classes, calls that were not made, trailing bytes
    std::vector<StoredChecksum> records;  ///< checksums of zip records, for verify()
    std::string saved_as = {};  ///< name of the file when it was saved, without its extension; empty if not a zip
    std::vector<StateTree::NodeId> taken_lists = {};  ///< see Rebuilt::taken_lists
    std::vector<StoragePlace> storages;  ///< all storages, also those without tensors; empty for a plain pickle

    /// Takes the tree or the flat dictionary, and appends the notes.
    void take(Rebuilt rebuilt) {
        tree = std::move(rebuilt.tree);
        flat = std::move(rebuilt.flat);
        taken_lists = std::move(rebuilt.taken_lists);
        notes.insert(notes.end(), rebuilt.notes.begin(), rebuilt.notes.end());
    }
};

/// Reads an archive. Throws or reports the zip_*, pickle_*, bad_tensor, storage_too_short and shape_overflow faults,
/// and checksum_mismatch of data.pkl; verify() compares the checksums of other records. If `globals` is strict, the
/// faults include unknown_global. If `faults` returns, a tensor with a fault is left out: an opaque object takes its
/// place.
Archive read_archive(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

/// Reads the tree of an archive of torch.save with `interpret`. Lists no records and no storages.
Archive read_archive_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                          NamedGlobals* globals);
/// Reads an archive whose directory has been read.
Archive read_archive_with(const Interpret& interpret, ArchiveRecords records, FaultSink& faults, NamedGlobals* globals);

}  // namespace safemap::SAFEMAP_ABI::torch
