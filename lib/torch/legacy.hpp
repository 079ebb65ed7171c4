// Files as torch.save wrote them before 1.6, and still does where it is told to: pickles of a magic number, a
// version, the machine, the object and the keys of its storages, then the storages, each as a count and its elements,
// little-endian. Where a storage is follows from those before it: nothing of them is read but their counts.
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

/// Whether a file that begins with `head` begins with the magic number, in any protocol.
bool is_legacy(std::string_view head);
/// Returns true where a pickle's value is the magic number that such files begin with.
bool is_magic_number(const PickleGraph& pickle);

class LegacyFile {
public:
    /// Of `part` of the source, which lies inside it. Tells `seen` of its pickles. Throws the pickle_* faults,
    /// file_truncated, unknown_format where there is no magic number or another version, and bad_tensor where the
    /// storages are not those of the object.
    LegacyFile(const std::shared_ptr<const Source>& source, Extent part, PickleStream::Seen seen = {});
    // Keys are views into the pickle.
    LegacyFile(const LegacyFile&) = delete;
    LegacyFile& operator=(const LegacyFile&) = delete;

    const PickleGraph& object() const noexcept { return object_.graph; }
    /// The bytes of the storage with that key. Throws bad_tensor where there is none.
    RecordData storage(std::string_view key) const;
    std::vector<StoragePlace> storages() const;
    /// Bytes after the last storage.
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
    std::unordered_map<std::string_view, Stored, NameHash> storages_;  ///< keys are texts of the object's pickle
    std::uint64_t trailing_ = 0;
};

/// Throws or reports what LegacyFile throws, and bad_tensor, shape_overflow and storage_too_short of tensors. A tensor
/// with a fault is left out where `faults` returns.
Archive read_legacy(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals = nullptr);

}  // namespace safemap::SAFEMAP_ABI::torch
