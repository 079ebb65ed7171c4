// Options of opening a checkpoint: how strict it is and how it gets at bytes. Also the formats that there are.
#pragma once

#include <safemap/api.hpp>
#include <safemap/progress.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// How strictly safetensors headers are read. `compatible` accepts and refuses exactly what the reference
/// implementation (safetensors 0.8) does; what the written specification does not have is told in notes(). `strict`
/// refuses that too: header_not_canonical, duplicate_name (also of an index that names a tensor twice), bad_name.
/// `lenient` also takes bytes after the last tensor, and tells.
enum class Policy : std::uint8_t { compatible, strict, lenient };

/// How view() gets at bytes. `mapped` maps files, `automatic` those on local disks (a server that goes away would kill
/// the process at the touch of a view). `copied` never maps. Where a file is not mapped view() throws no_view and
/// load() reads. `private_copy` is for callers who change weights in place: views are writable(), and the file never
/// changes. All views of one open (of all copies of the checkpoint) share the copy, and it is gone with the last of
/// them; another open has another. load(), read(), save() and uploading give what the file holds, not what was written
/// to views. Only files have one: a Source of the caller's gives what it gives.
///
/// A private copy maps the files that `automatic` maps: pages become memory of this process as they are written to, no
/// others. Of other files a view is read when it is first taken, as load() reads, one view after another: it costs its
/// bytes in memory, and stays what it is whatever becomes of the file. The bytes of tensors that no view was taken of
/// cost nothing.
enum class Access : std::uint8_t { automatic, mapped, copied, private_copy };

enum class Format : std::uint8_t { safetensors, torch };

struct OpenOptions {
    // What is allowed.
    Policy policy = Policy::compatible;
    Access access = Access::automatic;
    /// A longer safetensors header is refused; the reference implementation stops here too.
    std::uint64_t max_header_bytes = 100'000'000;
    /// Refuses files of torch whose pickles name anything that safemap does not know, wherever it stands:
    /// unknown_global. Unset, what it would make is an opaque object, in skipped(), and calls that would run code are
    /// in notes().
    bool strict_globals = false;
    /// Reads names that OLMo wrote, which are pickles in base64, as the paths that they spell; unset, as they stand.
    bool olmo_names = true;

    // How fast.
    /// For the headers of many files: at most 256 threads. A stop request cancels between two files; there is no
    /// progress to tell, because no tensor is read.
    Work work = {};
};

}  // namespace safemap::SAFEMAP_ABI
