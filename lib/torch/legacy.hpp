// Reads files of torch.save before 1.6, a format that later versions still write on request. A file is a sequence of
// pickles: a magic number, a version, the machine, the object and the keys of its storages. The storages follow, each a
// count and its elements, little-endian. The place of a storage follows from the storages before it, of which only the
// counts are read.
#pragma once

#include "pickle/pickle_stream.hpp"
#include "pickle/zip.hpp"
#include "state/stored_places.hpp"
#include "torch/archive.hpp"
#include "torch/storage_types.hpp"

#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns true if `head`, the beginning of a file, begins with the magic number, in any protocol.
bool is_legacy(std::string_view head);
/// Returns true if a pickle's value is the magic number that legacy files begin with.
bool is_magic_number(const PickleGraph& pickle);

/// A legacy file: its object, and the places of its storages.
class LegacyFile {
public:
    /// Reads the file in `part` of the source; `part` must be inside the source. Calls `seen` with each pickle. Throws
    /// the pickle_* faults, file_truncated, unknown_format if the magic number or the version is wrong, and bad_tensor
    /// if the storages do not match the object.
    LegacyFile(const std::shared_ptr<const Source>& source, Extent part, PickleStream::Seen seen = {});
    // Not copied: keys are views into the pickle.
    LegacyFile(const LegacyFile&) = delete;
    LegacyFile& operator=(const LegacyFile&) = delete;

    const PickleGraph& object() const noexcept { return object_.graph; }
    /// Returns the bytes of the storage with that key. Throws bad_tensor if it is missing.
    RecordData storage(std::string_view key) const;
    std::vector<StoragePlace> storages() const;
    /// Returns the number of bytes after the last storage.
    std::uint64_t trailing() const noexcept { return trailing_; }

private:
    struct Stored {
        StorageType type;
        std::uint64_t elements = 0;
        bool found = false;
        Extent place = {};
    };

    void list_storages();
    void place_storages(PickleStream& stream, const PickleGraph& keys);
    void place_storage(PickleStream& stream, std::string_view key);

    std::shared_ptr<const Source> source_;
    HeldPickle object_;
    std::unordered_map<std::string_view, Stored, NameHash> storages_;  ///< by key, a view into the pickle
    std::uint64_t trailing_ = 0;
};

/// Reads a legacy file. Throws or reports what LegacyFile throws, and bad_tensor, shape_overflow and storage_too_short
/// for tensors. If `globals` is strict, the faults include unknown_global. If `faults` returns, a tensor with a fault
/// is left out: an opaque object takes its place.
Archive read_legacy(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

/// Reads a legacy file as read_legacy() does, but its value with `interpret`.
Archive read_legacy_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                         NamedGlobals* globals);

}  // namespace safemap::SAFEMAP_ABI::torch
