// Destinations of the copy engine: the hidden sibling of a save, or a sink of the caller.
#pragma once

#include "io/pending_save.hpp"
#include "io/staging.hpp"
#include "write/file_layout.hpp"

#include <safemap/sink.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

/// A file that is being written.
class OpenFile {
public:
    virtual ~OpenFile() = default;
    /// Writes bytes at an offset. May be called from several threads at once.
    virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const = 0;
    /// Returns true if it makes no difference at which address the bytes are. False if only bytes with the same offset
    /// in a page as in the file are written past the page cache.
    virtual bool takes_any_address() const noexcept { return true; }
    /// A function that reads back what was written. Available only if Destination::reads_back().
    using Read = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;
    virtual Read reader() const = 0;
    /// Completes the file after its last byte is written. Called once.
    virtual void finish() {}
    /// Flushes the bytes that this process has written to a file that another process completes. Called last.
    virtual void release() {}
};

/// The place where the files of a save are written.
class Destination {
public:
    virtual ~Destination() = default;
    /// Returns the name that error messages use for a file of the save.
    virtual std::string path_of(const PlannedFile& file) const = 0;
    /// Returns the file if a process that was killed had finished it; the file is then part of this save. Returns null
    /// otherwise. Called in the order of the files.
    virtual std::unique_ptr<OpenFile> adopt(const PlannedFile&) { return nullptr; }
    /// Reserves the space of a file.
    virtual void allocate(const Layout& layout, const PlannedFile& file) = 0;
    /// Records that another process has completed a file.
    virtual void finished_by_other(const PlannedFile&) {}
    /// Opens a file whose space is reserved.
    virtual std::unique_ptr<OpenFile> open(const PlannedFile& file) = 0;
    /// Returns true if files can be read while they are written.
    virtual bool reads_back() const = 0;
    /// Commits the save after every file is complete.
    virtual void commit() {}
    /// Discards the save after a failure.
    virtual void abandon() noexcept {}
};

/// Returns the destination of the files, or of the one file, that `staging` moves into place. Writes past the page
/// cache if that is faster for the amount of data in `layout`.
std::unique_ptr<Destination> into_staging(io::Staging& staging, const Layout& layout);
/// Returns the destination of files that another process has reserved.
std::unique_ptr<Destination> into_joined(const io::JoinedSibling& files, const Layout& layout);
/// Returns the destination of the one file that goes to `sink`.
std::unique_ptr<Destination> into_sink(Sink& sink);

}  // namespace safemap::SAFEMAP_ABI::write
