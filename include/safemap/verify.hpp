// Every fault of a checkpoint, not only the first.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

namespace safemap::SAFEMAP_ABI {

struct VerifyReport {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;          ///< of tensor values
    std::uint64_t checked_bytes = 0;  ///< compared with a stored checksum: of tensors, or of whole zip records
    std::vector<Error> faults;        ///< in the order found; empty when all is well
    std::vector<std::string> notes;
    /// True if unpickling would call functions that safemap does not know, or has names of functions that run code.
    bool asks_for_code = false;

    bool ok() const noexcept { return faults.empty(); }
};

struct VerifyOptions {
    OpenOptions open = {};
    Work work = {};  ///< at most 256 threads; for opening, too, whatever `open.work` is
};

/// Checks everything there is to check: headers, indexes and directories as open() does, but collecting; that every
/// byte of every file can be read, and that deflated records inflate; stored checksums: CRC-32 of zip records, deflated
/// ones too, and of tensors what SaveOptions::checksums wrote, and of all of them together. The checkpoint in a folder
/// `optimizer` of the folder `path` (see SaveOptions::folders) is checked with the other; counts are of both. A file of
/// no known format, and a zip whose directory cannot be read, are not read further. Throws only for calls that are
/// wrong, for faults of the system, and cancelled.
SAFEMAP_API VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
