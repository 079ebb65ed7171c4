// A file in memory: mapped, or as a private copy that is read on demand.
#pragma once

#include "io/file.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// Maps the whole `file`, read-only or as a private copy. The mapping lives as long as the returned owner; the file may
/// be closed before. Returns no bytes and a null address for an empty file. Throws out_of_memory, io_error.
SharedBytes map_whole(const File& file, Mapping mapping);

/// Returns a file as a Source. The first three parameters are those of File.
std::shared_ptr<const Source> file_source(Handle folder, std::string name, std::string path, Mapping mapping);

/// The counterpart of a private mapping, for file systems whose files are not mapped. Address space for the whole file
/// is reserved at once; memory is used only for the parts that are read. Each byte is read once, so changes of the
/// caller to a part persist. `file` must outlive this object; parts may outlive both. May be used from several threads
/// at once, which read one after another.
class OwnCopy {
public:
    /// Reserves address space; reads nothing. Throws out_of_memory.
    explicit OwnCopy(const File& file);

    /// Returns the bytes of `extent`, writable. Throws file_truncated if `extent` is not inside the file; file_changed
    /// if the file has changed since it was opened; the errors of reading. After an error, the next call reads the part
    /// again.
    SharedBytes part(Extent extent);

private:
    void read(Extent extent);

    const File& file_;
    std::shared_ptr<std::byte> memory_;
    std::mutex reading_;                              ///< guards is_read_, and the bytes outside its ranges
    std::map<std::uint64_t, std::uint64_t> is_read_;  ///< ranges [key, value), disjoint and not adjacent
};

}  // namespace safemap::SAFEMAP_ABI::io
