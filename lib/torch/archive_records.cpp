// Finds the records of an archive by name, and reads the small ones. Tested by tests/torch/rebuild_test.cpp and
// fixtures_test.cpp.
#include "torch/archive_records.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"
#include "pickle/memory_share.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

std::string root_of(const ZipDirectory& zip) {
    const std::string_view first = zip.records().empty() ? std::string_view() : zip.records().front().name;
    const std::size_t end = first.find('/');
    return end == first.npos ? "/" : std::string(first.substr(0, end + 1));
}

constexpr std::string_view of_export = "torch.save(torch.export.load(FILE).state_dict, NEW) writes its weights";

Error not_saved(std::string_view looks_like, std::string_view hint) {
    Error error(Errc::unknown_format, "it looks like " + std::string(looks_like) + ", not a file of torch.save");
    return std::move(error.with_hint(hint));
}

/// Throws if bytes that have no meaning are around the zip.
void require_exact(const ZipDirectory& zip, Extent part) {
    if (zip.preceding() == 0 && zip.trailing() == 0) return;
    throw Error(Errc::zip_bad_directory, "the part of " + bytes_text(part.size) + " at " + std::to_string(part.offset) +
                                             " is longer than the zip in it");
}

}  // namespace

ArchiveRecords::ArchiveRecords(const std::shared_ptr<const Source>& source, FaultSink& faults)
    : zip_(ZipDirectory::read(source, faults)), all_{source, {0, source->size()}}, root_(root_of(zip_)) {}

ArchiveRecords::ArchiveRecords(const std::shared_ptr<const Source>& source, Extent part, const Source& reader,
                               FaultSink& faults)
    : zip_(ZipDirectory::read(source, part, reader, faults)),
      all_{source, part},
      reader_(&reader),
      root_(root_of(zip_)) {
    require_exact(zip_, part);
}

const ZipRecord* ArchiveRecords::find(std::string_view name) const {
    std::string full(root_);
    full += name;
    return zip_.find(full);
}

const ZipRecord* ArchiveRecords::pickle(FaultSink& faults) const {
    const ZipRecord* const found = find("data.pkl");
    if (found == nullptr) {
        faults.fault(without_pickle());
        return nullptr;
    }
    for (const ZipRecord& record : zip_.records()) {
        if (record.name.starts_with(root_)) continue;
        faults.fault({Errc::zip_bad_record, "record " + safemap::quoted(record.name) + " is not in " +
                                                safemap::quoted(root_) + " like the others"});
    }
    return found;
}

/// Returns the error for a zip without data.pkl. Other kinds of zip are recognized by a record that only they have.
Error ArchiveRecords::without_pickle() const {
    struct Kind {
        std::string_view record, hint, looks_like;
    };
    constexpr std::array kinds{
        Kind{"archive_format", of_export, "a program of torch.export"},
        Kind{".data/extern_modules",
             "torch.package.PackageImporter(FILE).load_pickle(PACKAGE, RESOURCE) loads the objects in it",
             "a package of torch.package"},
        Kind{"model.json",
             "torch.jit.save(torch.jit.load(FILE), NEW) with torch 1.4 or later writes an archive that safemap "
             "reads",
             "a TorchScript archive of torch 1.0 to 1.3"},
    };
    for (const Kind& kind : kinds)
        if (find(kind.record) != nullptr) return not_saved(kind.looks_like, kind.hint);
    if (zip_.find("serialized_exported_program.json") != nullptr)
        return not_saved("a program of torch.export", of_export);
    const std::string missing = "no record data.pkl in the folder of the first record";
    const bool foreign = !zip_.records().empty() && find("version") == nullptr && find("byteorder") == nullptr;
    if (!foreign) return {Errc::zip_missing_record, missing};
    Error error(Errc::zip_missing_record, "a zip that torch did not write: " + missing);
    return error.with_hint("if it is a packed folder, unzip it and give the folder");
}

std::optional<RecordData> ArchiveRecords::with_second_format() const {
    constexpr std::string_view zip_begins = "PK\x03\x04";
    std::string head(std::min<std::uint64_t>(zip_begins.size(), all_.extent.size), '\0');
    const Source& reader = reader_ != nullptr ? *reader_ : *all_.source;
    reader.read_at(all_.extent.offset, std::as_writable_bytes(std::span(head.data(), head.size())));
    return head == zip_begins ? std::nullopt : std::optional(all_);
}

std::size_t ArchiveRecords::unchecked() const {
    const auto& records = zip_.records();
    return static_cast<std::size_t>(
        std::count_if(records.begin(), records.end(), [](const ZipRecord& each) { return !each.has_crc32(); }));
}

std::vector<char> ArchiveRecords::read_all(const ZipRecord& record) const {
    const RecordData data = zip_.open(record);
    const Source& source = reader_ != nullptr && !record.deflated ? *reader_ : *data.source;
    std::vector<char> bytes(data.extent.size);
    source.read_at(data.extent.offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

void ArchiveRecords::require_pickle(const ZipRecord& record) {
    const PickleLimits limits = PickleLimits::of_packed(record.packed.size);
    if (record.size <= limits.max_bytes) return;
    MemoryShare::exceed();
    throw Error(Errc::pickle_too_large, safemap::quoted(record.name) + " has " + bytes_text(record.size) + " in " +
                                            bytes_text(record.packed.size) + "; the limit is " +
                                            bytes_text(limits.max_bytes));
}

HeldPickle ArchiveRecords::read(const ZipRecord& record, bool checked) {
    require_pickle(record);
    HeldPickle held{.bytes = checked ? bytes(record) : read_all(record), .graph = {}};
    PickleLimits limits = PickleLimits::of_packed(record.packed.size);
    limits.lists = lists_;
    held.graph = read_pickle(held.bytes, limits);
    return held;
}

std::vector<char> ArchiveRecords::bytes(const ZipRecord& record) {
    try {
        std::vector<char> read = read_all(record);
        const std::uint32_t found = crc32(0, std::as_bytes(std::span(read)));
        if (record.has_crc32() && found != record.crc32) throw crc32_mismatch(record.name, found, record.crc32);
        return read;
    } catch (const Error&) {
        faulty_.insert(&record);
        throw;
    }
}

bool ArchiveRecords::big_endian() {
    const ZipRecord* const record = find("byteorder");
    if (record == nullptr) return false;
    constexpr std::uint64_t longest = 16;
    const std::vector<char> read = record->size <= longest ? bytes(*record) : std::vector<char>();
    const std::string_view order(read.data(), read.size());
    if (order == "big") return true;
    if (order == "little") return false;
    throw Error(Errc::zip_bad_record,
                "record byteorder has " + safemap::quoted(order) + "; expected \"little\" or \"big\"");
}

RecordData ArchiveRecords::storage(std::string_view folder, std::string_view key) {
    if (key.empty() || key.find('/') != key.npos || key.find("..") != key.npos)
        throw Error(Errc::zip_bad_record, "storage key " + safemap::quoted(key) + " is not a valid record name");
    name_.assign(root_).append(folder).append(key);
    const ZipRecord* const record = record_called(name_);
    if (record == nullptr)
        throw Error(Errc::zip_missing_record,
                    "record " + std::string(folder) + excerpt(key) + " of a storage is missing");
    return open(*record);
}

/// Finds a record by its name. Tries the record after the last storage first: torch writes storages in the order in
/// which the pickle names them.
const ZipRecord* ArchiveRecords::record_called(std::string_view name) {
    const auto& records = zip_.records();
    const bool follows = after_ < records.size() && records[after_].name == name;
    const ZipRecord* const record = follows ? &records[after_] : zip_.find(name);
    if (record != nullptr) after_ = static_cast<std::size_t>(record - records.data()) + 1;
    return record;
}

RecordData ArchiveRecords::open(const ZipRecord& record) const {
    if (!record.deflated) return zip_.open(record);
    RecordData& opened = inflated_[&record];
    if (!opened.source) opened = zip_.open(record);
    return opened;
}

}  // namespace safemap::SAFEMAP_ABI::torch
