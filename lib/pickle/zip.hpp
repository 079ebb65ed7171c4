// Reads the directory of a zip file as torch.save and re-packers write it, and finds the place of each record. Reads
// the end record, the central directory and each local header. Reads no payload, except small ones between headers.
#pragma once

#include "base/faults.hpp"
#include "base/name_index.hpp"

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A record of a zip, as the directory describes it.
struct ZipRecord {
    std::string_view name;   ///< a view that lives as long as the directory
    Extent packed;           ///< the payload, in the zip's source
    std::uint64_t size = 0;  ///< size of the data, uncompressed
    std::uint32_t crc32 = 0;
    bool deflated = false;

    /// Returns true if the record has a checksum. torch writes 0 if checksums are turned off, and for holes.
    bool has_crc32() const noexcept { return crc32 != 0 || size == 0; }
};

/// The uncompressed bytes of a record.
struct RecordData {
    std::shared_ptr<const Source> source;
    Extent extent;  ///< place in `source`
};

/// Returns true if the file ends in a zip directory, whatever it begins with.
bool ends_as_zip(const Source& source);

/// The directory of a zip. Immutable once read.
class ZipDirectory {
public:
    /// Reads the directory. Throws or reports zip_bad_directory, zip_bad_record, zip_overlap, zip_duplicate,
    /// zip_unsupported. If the directory cannot be read, it throws whatever the sink does. If the sink returns, a
    /// record with a fault is left out. Bytes before and after the zip are allowed, unless programs would then read
    /// different directories.
    static ZipDirectory read(std::shared_ptr<const Source> source, FaultSink& faults);
    /// Reads the directory of the zip that is `part` of the source, which must be inside the source. Places of records
    /// are places in the source. Reads bytes through `reader`, which has those of the source at the same offsets: a
    /// caller that reads many zips of a file may hold some of them already.
    static ZipDirectory read(std::shared_ptr<const Source> source, Extent part, const Source& reader,
                             FaultSink& faults);

    /// Returns the records in the order of the directory, without entries for folders.
    const std::vector<ZipRecord>& records() const& noexcept { return records_; }
    const std::vector<ZipRecord>& records() const&& = delete;
    /// Returns the number of bytes after the zip, which have no meaning.
    std::uint64_t trailing() const noexcept { return trailing_; }
    /// Returns the number of bytes before the zip, likewise.
    std::uint64_t preceding() const noexcept { return preceding_; }
    /// Returns the record with that name, or null.
    const ZipRecord* find(std::string_view name) const noexcept;
    /// Returns the place of a record's data. Reads nothing. A deflated record gives a stream of the size that the
    /// directory says. The stream compares the checksum when it is read to its end.
    RecordData open(const ZipRecord& record) const;

    // Not copied: the names of records are views into this object. It may be moved.
    ZipDirectory(ZipDirectory&&) noexcept = default;
    ZipDirectory& operator=(ZipDirectory&&) noexcept = default;

private:
    ZipDirectory() = default;
    void keep_names();

    std::shared_ptr<const Source> source_;
    std::vector<char> names_;  ///< names of the records, which hold views of them
    std::vector<ZipRecord> records_;
    NameIndex by_name_;  ///< index of records_
    std::uint64_t trailing_ = 0;
    std::uint64_t preceding_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
