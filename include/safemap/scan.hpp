// scan(): finds the checkpoints below folders, and opens each.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/error.hpp>
#include <safemap/open_options.hpp>
#include <safemap/verdict.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A checkpoint that scan() has found.
struct ScannedCheckpoint {
    /// The path for Checkpoint::open(): a file, a folder, an index, or a glob for the files of ranks.
    std::filesystem::path path;
    std::optional<Checkpoint> checkpoint = {};  ///< empty if it cannot be opened
    std::optional<Error> fault = {};            ///< set if it cannot be opened
    /// The files that were read, beginning with the path of the folder; those that their names show if it cannot be
    /// opened.
    std::vector<std::filesystem::path> files = {};
    std::uint64_t file_bytes = 0;  ///< size of these files
    Findings findings = {};        ///< also of files that cannot be opened
};

/// Options of scan().
struct ScanOptions {
    OpenOptions open = {};  ///< `open.work`: threads that open checkpoints, at most 256, and a stop token
    /// Globs for the files to open: their name matches, or their path inside the folder that was given. If empty, files
    /// are opened that end in .safetensors, .sft, .pt, .pth, .bin, .ckpt, .pkl, .pickle, .th, .pt.tar or .pth.tar. A
    /// checkpoint of several files is visited if one of its files matches.
    std::vector<std::string> includes = {};
    std::vector<std::string> excludes = {};  ///< the same for files that are left out, and folders that are not entered
    /// Enter hidden folders, `__pycache__` and folders with a CACHEDIR.TAG too, and open hidden files.
    bool hidden = false;
};

/// Opens every checkpoint that is one of `paths` or below them, in folders at any depth, and calls `visit` with each,
/// on the calling thread, in an order that depends on the names alone.
///
/// - A folder of ranks or of torch.distributed, and an index with its shards, are one checkpoint. Files that no such
///   checkpoint has read are checkpoints by themselves.
/// - Links to files are followed, links to folders are not, except if they are one of `paths`.
/// - A path that cannot be opened, or a folder that cannot be listed, is visited with its fault. Only its own state is
///   in doubt: the scan goes on.
/// - A file among `paths` is opened whatever its name.
///
/// Returns the number of files below the folders that were not opened, and that no checkpoint has read.
///
/// Reads no tensor, apart from those inside plain pickles. Up to 64 checkpoints are open at a time. Throws
/// path_not_found if one of `paths` does not exist, cancelled, and what `visit` throws.
///
/// Example:
///     const std::filesystem::path shelf[] = {"models/"};
///     safemap::scan(shelf, {}, [](const safemap::ScannedCheckpoint& found) {
///         std::cout << found.path << (found.fault ? ": damaged\n" : "\n");
///     });
SAFEMAP_API std::uint64_t scan(std::span<const std::filesystem::path> paths, const ScanOptions& options,
                               const std::function<void(const ScannedCheckpoint&)>& visit);

}  // namespace safemap::SAFEMAP_ABI
