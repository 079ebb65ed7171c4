// Changes the metadata and the tensor names of a safetensors file, and rewrites non-conforming files.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The changes that edit() makes, and how it reads and writes.
struct EditOptions {
    std::map<std::string, std::string> set = {};     ///< metadata to add or to replace
    std::vector<std::string> unset = {};             ///< metadata keys to remove
    std::map<std::string, std::string> rename = {};  ///< tensor names, including names of tied tensors: from, to
    OpenOptions open = {};                           ///< `max_header_bytes` is also the limit for the new header
    Work work = {};                                  ///< as in SaveOptions
};

/// The result of edit().
struct EditReport {
    bool changed = false;       ///< true if the file was written; false if it already was as requested
    std::uint64_t renamed = 0;  ///< number of names that changed
    std::vector<std::pair<std::string, std::string>> metadata = {};  ///< the metadata after the edit, sorted by key
    /// Sentences for a person: leftover files that could not be removed, or a file that could not be reopened.
    std::vector<std::string> notes = {};
};

/// Changes the metadata and tensor names of a safetensors file whose name ends in ".safetensors" or ".sft". Returns
/// what changed; if nothing differs, the file is not written. Linear in the size of the file; tensor bytes are copied
/// from file to file, not kept in memory.
///
/// The new file is written beside the old one and replaces it by a rename, as save() does with `overwrite`. After a
/// crash the path has the old file or the new one, each complete. Permissions are kept. Processes that have the old
/// file mapped continue to see the old bytes.
///
/// - Alignment: the data keeps the alignment that it had, up to 4096 bytes.
/// - "format": "pt" is added if the metadata has no "format".
/// - Metadata that names tied tensors follows the new names.
/// - Digests: if the file has digests, they are verified first, and new digests are written. Neither digests nor the
///   structure document can be set or unset.
///
/// Throws path_not_found; invalid_argument if the file is not a safetensors file, or if a key to unset or a name to
/// change does not exist; name_collision; checksum_mismatch; and the codes of open() and save().
///
/// Example:
///     safemap::EditOptions options{.set = {{"license", "apache-2.0"}}, .rename = {{"w", "weight"}}};
///     safemap::EditReport report = safemap::edit("model.safetensors", options);
///     bool written = report.changed;
SAFEMAP_API EditReport edit(const std::filesystem::path& file, const EditOptions& options);

/// The result of repair().
struct RepairReport {
    std::vector<std::string> repairs;  ///< sentences, one per fault repaired; empty if the input was conforming
    SaveReport saved;                  ///< the report of the save to `out`
};

/// Rewrites a non-conforming safetensors checkpoint: reads `in` and writes a conforming copy to `out`, laid out as the
/// reference implementation does. Use it for files that the specification forbids, that the reference implementation
/// refuses, or that it would not have written. Returns the faults repaired and the report of the save. Options are
/// those of save().
///
/// Repairs:
/// - gaps between tensors, tensors that share bytes, and bytes after the last tensor;
/// - tensors in another order, and data whose offset is not a multiple of eight;
/// - headers in a form that the specification does not have;
/// - duplicate names and keys: the last one counts;
/// - an index with a wrong total, or without some tensors of its shards.
///
/// Digests in the metadata are not compared; they are left out, with an entry in the report.
///
/// Does not guess: missing bytes and unreadable headers throw the same errors as open(). Also throws the codes of
/// save().
///
/// Example:
///     safemap::RepairReport report = safemap::repair("broken.safetensors", "repaired.safetensors");
///     for (const std::string& fault : report.repairs) std::puts(fault.c_str());
///     std::uint64_t tensors = report.saved.tensors;
SAFEMAP_API RepairReport repair(const std::filesystem::path& in, const std::filesystem::path& out,
                                const SaveOptions& options = {}, const OpenOptions& open = {});

}  // namespace safemap::SAFEMAP_ABI
