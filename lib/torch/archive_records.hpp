// The records of an archive of torch.save: its pickles, its storages and its byte order.
#pragma once

#include "base/faults.hpp"
#include "pickle/pickle.hpp"
#include "pickle/pickle_stream.hpp"
#include "pickle/zip.hpp"

#include <safemap/source.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// The records of one archive. Reads small records and compares their checksums; reads no storage.
class ArchiveRecords {
public:
    /// Reads the directory of a file.
    ArchiveRecords(const std::shared_ptr<const Source>& source, FaultSink& faults);
    /// Reads the directory of the zip that is `part` of the file. Reads small records through `reader`, which has the
    /// bytes of the source at the same offsets and must outlive this object. Throws zip_bad_directory if the part has
    /// bytes before or after the zip.
    ArchiveRecords(const std::shared_ptr<const Source>& source, Extent part, const Source& reader, FaultSink& faults);

    const ZipDirectory& zip() const noexcept { return zip_; }
    /// Returns the folder that begins every record name, with its slash. torch names it after the file at the time of
    /// the save, so it may differ from the file's name now. It is "/", which begins no record name, if the first record
    /// is not in a folder.
    const std::string& root() const noexcept { return root_; }
    /// Returns the record of that name in the root, or null.
    const ZipRecord* find(std::string_view name) const;

    /// Returns the record of the pickle. Returns null if the zip has none and the sink returns; the error names other
    /// kinds of zip. Reports zip_bad_record for records outside the root.
    const ZipRecord* pickle(FaultSink& faults) const;
    /// Returns the file, or its part, if it does not begin with a record: torch.load does not take it for a zip.
    std::optional<RecordData> with_second_format() const;
    /// Returns the number of records without a checksum.
    std::size_t unchecked() const;

    /// Returns the data of a small record. Throws checksum_mismatch, and what reading throws.
    std::vector<char> bytes(const ZipRecord& record);
    /// Throws pickle_too_large if the record is larger than a pickle may be.
    static void require_pickle(const ZipRecord& record);
    /// Sets the reader of lists for the pickles. It must outlive this object.
    void take_lists(ListReader* lists) noexcept { lists_ = lists; }
    /// Reads a pickle; without `checked`, does not compare the checksum. Throws pickle_too_large and what reading
    /// throws.
    HeldPickle read(const ZipRecord& record, bool checked = true);
    /// Returns true if bytes() has thrown for the record.
    bool is_faulty(const ZipRecord& record) const { return faulty_.contains(&record); }
    /// Reads the byte order; little-endian if there is no record. Throws zip_bad_record.
    bool big_endian();
    /// Returns the place of a storage's data, which is in the record of that key in a folder such as "data/". Throws
    /// zip_bad_record for a key that cannot be a record, zip_missing_record.
    RecordData storage(std::string_view folder, std::string_view key);
    /// Opens a record. All callers share one source of a deflated record.
    RecordData open(const ZipRecord& record) const;

private:
    std::vector<char> read_all(const ZipRecord& record) const;
    const ZipRecord* record_called(std::string_view name);
    Error without_pickle() const;

    ZipDirectory zip_;
    RecordData all_;                  ///< the zip, and bytes around it
    const Source* reader_ = nullptr;  ///< if not null, has the bytes of stored records
    std::string root_;
    mutable std::map<const ZipRecord*, RecordData> inflated_;
    std::set<const ZipRecord*> faulty_;
    ListReader* lists_ = nullptr;
    std::string name_;       ///< record name of the current storage; a member, so that all names share its memory
    std::size_t after_ = 0;  ///< index of the record after the last storage's
};

}  // namespace safemap::SAFEMAP_ABI::torch
