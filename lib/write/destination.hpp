// Where the copy engine puts files: into the hidden sibling of a save, or into a sink of the caller's.
#pragma once

#include "io/replace.hpp"
#include "write/layout.hpp"

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
    /// May be called from several threads at once.
    virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const = 0;
    /// Reads what was written; only where Destination::reads_back().
    using Read = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;
    virtual Read reader() const = 0;
    /// All of it is written. To be called once.
    virtual void finish() {}
};

class Destination {
public:
    virtual ~Destination() = default;
    /// Returns what error messages call a file of the save.
    virtual std::string path_of(const PlannedFile& file) const = 0;
    /// Returns the file that a process which is dead has finished; then it is part of this save. To be asked in the
    /// order of the files.
    virtual std::unique_ptr<OpenFile> adopt(const PlannedFile&) { return nullptr; }
    /// Makes room for a file.
    virtual void allocate(const Layout& layout, const PlannedFile& file) = 0;
    /// Opens a file that has its room.
    virtual std::unique_ptr<OpenFile> open(const PlannedFile& file) = 0;
    /// Whether files can be read while they are written.
    virtual bool reads_back() const = 0;
    /// Everything is written.
    virtual void commit() {}
    /// Something has failed.
    virtual void abandon() noexcept {}
};

/// Files of a folder, or the one file, that `staging` brings to its place. Writes past the page cache where that is
/// faster for so much data as `layout` has.
std::unique_ptr<Destination> into_staging(io::Staging& staging, const Layout& layout);
/// The one file that goes to `sink`.
std::unique_ptr<Destination> into_sink(Sink& sink);

}  // namespace safemap::SAFEMAP_ABI::write
