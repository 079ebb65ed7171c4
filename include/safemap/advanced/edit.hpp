// Changes what a safetensors file says of its tensors, and mends files that others wrote wrongly.
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

struct EditOptions {
    std::map<std::string, std::string> set = {};     ///< metadata that is added, or replaces what has the same key
    std::vector<std::string> unset = {};             ///< keys that go
    std::map<std::string, std::string> rename = {};  ///< tensors' names, also those of tied ones: from, to
    OpenOptions open = {};
    Work work = {};  ///< as SaveOptions has it
};

struct EditReport {
    bool changed = false;  ///< false: the file was as it should be, and was not written
    std::uint64_t renamed = 0;
    std::vector<std::pair<std::string, std::string>> metadata = {};  ///< as the file has it now, sorted
    std::vector<std::string> notes = {};  ///< in sentences: what could not be cleared away, or read again
};

/// Changes metadata and names of a safetensors file, whose name ends in ".safetensors" or ".sft". The file is written
/// anew beside itself and takes its own place by a rename, as save() does with `overwrite`: a crash leaves the old or
/// the new, the permissions stay, and whoever has it mapped keeps the old. Values are copied, not read into memory; the
/// data begins at a multiple of what it began at before (at most 4096). "format": "pt" is added where metadata has no
/// format; names of tied tensors in metadata follow the tensors. A file with digests is checked first, and has digests
/// afterwards.
///
/// Throws path_not_found, invalid_argument (no safetensors file, a key to unset that is not there, a name to change
/// that is not there), name_collision, checksum_mismatch, and what open() and save() throw. Linear.
SAFEMAP_API EditReport edit(const std::filesystem::path& file, const EditOptions& options);

struct RepairReport {
    std::vector<std::string> repairs;  ///< what was mended, in sentences; empty where nothing was wrong
    SaveReport saved;
};

/// Reads a checkpoint of safetensors files that the format, or the reference implementation, refuses or would not have
/// written, and writes it to `out` as the reference writes. What is mended: gaps between tensors, tensors that share
/// bytes, bytes behind the last tensor, tensors in another order, data that begins at no multiple of eight, headers in
/// forms that the specification lacks, names and keys that are there twice (the last one counts), an index that has a
/// wrong total or lacks tensors of its shards. What cannot be mended without guessing is thrown as open() throws it:
/// bytes that are missing, headers that cannot be read. Options are as for save().
SAFEMAP_API RepairReport repair(const std::filesystem::path& in, const std::filesystem::path& out,
                                const SaveOptions& options = {}, const OpenOptions& open = {});

}  // namespace safemap::SAFEMAP_ABI
