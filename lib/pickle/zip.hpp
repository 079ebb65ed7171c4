// The directory of a zip file, as torch.save and re-packers write them: which record stands where. Reads the end
// record, the central directory and each local header; of payloads none but what is as small as headers, between them.
#pragma once

#include "base/faults.hpp"
#include "base/name_index.hpp"

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

struct ZipRecord {
    std::string_view name;   ///< lives as long as its directory
    Extent packed;           ///< the payload, in the zip's source
    std::uint64_t size = 0;  ///< of the data, uncompressed
    std::uint32_t crc32 = 0;
    bool deflated = false;

    /// torch writes checksum 0 when it is told to compute none, and for holes.
    bool has_crc32() const noexcept { return crc32 != 0 || size == 0; }
};

/// Bytes of a record, uncompressed.
struct RecordData {
    std::shared_ptr<const Source> source;
    Extent extent;  ///< in `source`
};

/// Whether there is a directory where zips have it, whatever the file begins with.
bool ends_as_zip(const Source& source);

/// Immutable once read.
class ZipDirectory {
public:
    /// Throws or reports zip_bad_directory, zip_bad_record, zip_overlap, zip_duplicate, zip_unsupported. Without a
    /// readable directory it throws whatever the sink does; a record with a fault is left out where the sink returns.
    /// Bytes before and behind the zip are allowed, but where programs would read different directories.
    static ZipDirectory read(std::shared_ptr<const Source> source, FaultSink& faults);

    /// In the order of the directory, without entries for folders.
    const std::vector<ZipRecord>& records() const& noexcept { return records_; }
    const std::vector<ZipRecord>& records() const&& = delete;
    /// Bytes behind the zip, of no meaning.
    std::uint64_t trailing() const noexcept { return trailing_; }
    /// Null where there is none of that name.
    const ZipRecord* find(std::string_view name) const noexcept;
    /// Where the data of a record is read. Reads nothing; a deflated record gives a stream with the directory's
    /// size, which compares the checksum when it is read to its end.
    RecordData open(const ZipRecord& record) const;

    // The records' names are views into it, which may move but not be copied.
    ZipDirectory(ZipDirectory&&) noexcept = default;
    ZipDirectory& operator=(ZipDirectory&&) noexcept = default;

private:
    ZipDirectory() = default;
    void keep_names();

    std::shared_ptr<const Source> source_;
    std::vector<char> names_;  ///< of the records, which have views of them
    std::vector<ZipRecord> records_;
    NameIndex by_name_;  ///< of records_
    std::uint64_t trailing_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
