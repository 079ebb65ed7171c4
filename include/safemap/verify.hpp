// verify(): checks a checkpoint and collects every fault, not only the first.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

namespace safemap::SAFEMAP_ABI {

/// The result of verify().
///
/// Example:
///     safemap::VerifyReport report = safemap::verify(path);
///     for (const safemap::Error& fault : report.faults) std::cerr << fault.what() << '\n';
///     if (report.ok()) std::cout << report.checked_bytes << " bytes match their checksums\n";
struct [[nodiscard]] VerifyReport {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;          ///< bytes of tensor values
    std::uint64_t checked_bytes = 0;  ///< bytes compared with a stored checksum: of tensors, or of whole zip records
    std::vector<Error> faults;        ///< in the order found; empty if the checkpoint is valid
    std::vector<std::string> notes;
    /// True if unpickling would call functions that safemap does not know, or if the pickle names functions that run
    /// code.
    bool asks_for_code = false;
    /// The effect of unpickling the files. If they cannot be opened, as examine() finds it.
    Findings findings = {};

    Verdict verdict() const noexcept { return findings.verdict; }

    bool ok() const noexcept { return faults.empty(); }
};

/// Options of verify().
struct VerifyOptions {
    OpenOptions open = {};
    Work work = {};  ///< at most 256 threads; also used for opening, in place of `open.work`
};

/// Checks a checkpoint and returns all faults:
///
/// - headers, indexes and directories, as Checkpoint::open() checks them
/// - that every byte of every file can be read, and that deflated records inflate
/// - the CRC-32 of zip records, also of deflated ones
/// - the digests that SaveOptions::checksums wrote: of each tensor, and of all tensors together
///
/// If the folder `path` has a checkpoint in its folder `optimizer` (see SaveOptions::folders), or a model and its
/// optimizer in two folders, both are checked, and counts are those of both. Parts of an optimizer's state that no file
/// has names for (optimizer_unnamed) are a note and not a fault: their bytes are checked all the same.
///
/// A file of unknown format, or a zip whose directory cannot be read, is not read further. Faults of the data are in
/// the report; throws only "the call is wrong" codes, "the system failed" codes, and cancelled.
SAFEMAP_API VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options = {});

/// Returns what unpickling the files of a path would do, also if they cannot be opened as a checkpoint: a program
/// unpickles a damaged file up to the damage. Reads each pickle of each file as far as possible: every pickle of a zip,
/// also of one with a broken directory, pickles that follow each other, and pickles inside pickles. If `path` is a
/// folder, reads the files in it and in its inner folders, but not in hidden folders and behind links to folders. If it
/// is an index, reads the files beside it.
///
/// Executes nothing. Never throws for what a file contains: a part that cannot be read is a finding, `unknown`. Throws
/// path_not_found, the codes of the group "The system failed while working" of Errc, and cancelled. The cost grows with
/// the size of the pickles.
[[nodiscard]] SAFEMAP_API Findings examine(const std::filesystem::path& path, const OpenOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
