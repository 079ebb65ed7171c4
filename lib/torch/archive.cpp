// Reads the records of a torch.save zip: pickles, storages and the byte order. Tested by tests/torch/rebuild_test.cpp
// and fixtures_test.cpp.
#include "torch/archive.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"
#include "pickle/pickle.hpp"
#include "pickle/zip.hpp"
#include "torch/rebuild.hpp"
#include "torch/script.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

/// Reads a record's data into memory.
std::vector<char> read_all(const RecordData& data) {
    std::vector<char> bytes(data.extent.size);
    data.source->read_at(data.extent.offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

constexpr std::string_view of_export = "torch.save(torch.export.load(FILE).state_dict, NEW) writes its weights";

/// The reader of one archive: finds its pickles, rebuilds their values and lists the records.
class ArchiveReader {
public:
    ArchiveReader(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals)
        : zip_(ZipDirectory::read(source, faults)), faults_(faults), globals_(globals), root_(root_of(zip_)) {}

    Archive read() {
        if (const ZipRecord* const pickle = pickle_record()) {
            reporting(faults_, [&] { read_pickle_record(*pickle); });
            list_records();  // last: by then the pickle and its graph are freed
        }
        return std::move(out_);
    }
    Archive read_with(const Interpret& interpret) {
        if (const ZipRecord* const pickle = pickle_record()) {
            reporting(faults_, [&] {
                const HeldPickle data = pickle_to_its_end(*pickle);
                out_.take(interpret(data.graph, storages("data/", *pickle), faults_));
            });
            out_.saved_as = root_.substr(0, root_.size() - 1);
        }
        return std::move(out_);
    }

private:
    /// Returns the record of the pickle, after checks and notes about all records. Returns null if the zip has none and
    /// the sink returns.
    const ZipRecord* pickle_record() {
        const ZipRecord* const pickle = find("data.pkl");
        if (pickle == nullptr) {
            faults_.fault(without_pickle());
            return nullptr;
        }
        if (zip_.trailing() > 0) out_.notes.push_back(bytes_text(zip_.trailing()) + " after the zip are ignored");
        check_root();
        note_unchecked();
        return pickle;
    }

    /// Returns the folder that begins every record name, with its slash. torch names it after the file at the time of
    /// the save, so it may differ from the file's name now. Returns "/", which begins no record name, if the first
    /// record is not in a folder.
    static std::string root_of(const ZipDirectory& zip) {
        const std::string_view first = zip.records().empty() ? std::string_view() : zip.records().front().name;
        const std::size_t end = first.find('/');
        return end == first.npos ? "/" : std::string(first.substr(0, end + 1));
    }

    const ZipRecord* find(std::string_view name) const { return zip_.find(root_ + std::string(name)); }

    /// Returns the error for a zip without data.pkl. Other kinds of zip are recognized by a record that only they have.
    Error without_pickle() const {
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
        return {Errc::zip_missing_record, foreign ? "a zip that torch did not write: " + missing : missing};
    }
    static Error not_saved(std::string_view looks_like, std::string_view hint) {
        Error error(Errc::unknown_format, "it looks like " + std::string(looks_like) + ", not a file of torch.save");
        return std::move(error.with_hint(hint));
    }

    void check_root() {
        for (const ZipRecord& record : zip_.records()) {
            if (record.name.starts_with(root_)) continue;
            faults_.fault({Errc::zip_bad_record, "record " + safemap::quoted(record.name) + " is not in " +
                                                     safemap::quoted(root_) + " like the others"});
        }
    }

    void note_unchecked() {
        const auto& records = zip_.records();
        const auto unchecked =
            std::count_if(records.begin(), records.end(), [](auto& each) { return !each.has_crc32(); });
        if (unchecked == 0) return;
        out_.notes.push_back(std::to_string(unchecked) + (unchecked == 1 ? " record has" : " records have") +
                             " no checksum; in a file saved under skip_data(), these are holes that read as zeros");
    }

    void list_records() {
        const std::string storages = root_ + "data/";
        const std::string constants = root_ + "constants/";
        out_.records.reserve(zip_.records().size());
        out_.storages.reserve(zip_.records().size());
        for (const ZipRecord& record : zip_.records()) {
            RecordData data = open(record);
            if (record.name.starts_with(storages) || record.name.starts_with(constants))
                out_.storages.push_back({data.source, data.extent});
            if (record.has_crc32() && !faulty_.contains(&record))
                out_.records.push_back({std::move(data.source), data.extent, record.crc32, std::string(record.name)});
        }
    }

    /// Reads data.pkl, and notes bytes after the pickle.
    HeldPickle pickle_to_its_end(const ZipRecord& record) {
        HeldPickle data = pickle_of(record);
        if (const std::size_t count = data.bytes.size() - data.graph.consumed(); count > 0)
            out_.notes.push_back(bytes_text(count) + " after the end of the pickle in data.pkl are ignored");
        return data;
    }

    void read_pickle_record(const ZipRecord& record) {
        const HeldPickle data = pickle_to_its_end(record);
        const PickleGraph& pickle = data.graph;
        // Only TorchScript archives have constants.
        const ZipRecord* const constants = find("constants.pkl");
        if (constants == nullptr || !is_script(pickle))
            return out_.take(rebuild_state(pickle, storages("data/", record), faults_));
        const std::vector<NamedValue> state = script_state(pickle);
        out_.take(rebuild(pickle, state, storages("data/", record), faults_, is_known_in_script));
        if (state.empty()) return read_constants(*constants);
        if (globals_ != nullptr) add_globals(*constants);
        out_.notes.push_back(
            "a TorchScript archive: the tensors of its modules are read, its code and constants are not");
    }

    /// Adds the globals of a pickle that is not read otherwise. Unless globals are strict, ignores faults in that
    /// pickle: verify() reports them.
    void add_globals(const ZipRecord& record) {
        try {
            const HeldPickle data = pickle_of(record, globals_->strict());
            globals_->add(data.graph, record.name, is_known_in_script);
        } catch (const Error& error) {
            if (globals_->strict() || remedy(error.code()) != Remedy::reject_data) throw;
        }
        globals_->refuse();
    }

    /// Reads the constants of a frozen module, which are its weights, under the names that its code uses.
    void read_constants(const ZipRecord& record) {
        const HeldPickle data = pickle_of(record);
        const PickleGraph& pickle = data.graph;
        std::vector<NamedValue> constants;
        for (const PickleGraph::Id constant : pickle.items(pickle.root()))
            constants.push_back({"CONSTANTS.c" + std::to_string(constants.size()), constant});
        out_.take(rebuild(pickle, constants, storages("constants/", record), faults_, is_known_in_script));
        out_.notes.push_back(
            "a TorchScript archive whose modules have no tensors, as in a frozen one: its constants are read, its code "
            "is not");
    }

    Storages storages(std::string folder, const ZipRecord& record) {
        return {.find = [this, folder](std::string_view key) { return storage(folder, key); },
                .big_endian = big_endian(),
                .globals = globals_,
                .record = record.name};
    }

    HeldPickle pickle_of(const ZipRecord& record, bool checked = true) {
        const PickleLimits limits = PickleLimits::of_packed(record.packed.size);
        if (record.size > limits.max_bytes) {
            throw Error(Errc::pickle_too_large, safemap::quoted(record.name) + " has " + bytes_text(record.size) +
                                                    " in " + bytes_text(record.packed.size) + "; the limit is " +
                                                    bytes_text(limits.max_bytes));
        }
        HeldPickle held{.bytes = checked ? checked_bytes(record) : read_all(zip_.open(record)), .graph = {}};
        held.graph = read_pickle(held.bytes, limits);
        return held;
    }

    /// Reads a small record and compares its checksum. A faulty record is left out of Archive::records: verify() gets
    /// the fault from here.
    std::vector<char> checked_bytes(const ZipRecord& record) {
        try {
            std::vector<char> bytes = read_all(zip_.open(record));
            const std::uint32_t found = crc32(0, std::as_bytes(std::span(bytes)));
            if (record.has_crc32() && found != record.crc32) throw crc32_mismatch(record.name, found, record.crc32);
            return bytes;
        } catch (const Error&) {
            faulty_.insert(&record);
            throw;
        }
    }

    bool big_endian() {
        const ZipRecord* record = find("byteorder");
        if (record == nullptr) return false;
        constexpr std::uint64_t longest = 16;
        const std::vector<char> bytes = record->size <= longest ? checked_bytes(*record) : std::vector<char>();
        const std::string_view order(bytes.data(), bytes.size());
        if (order == "big") return true;
        if (order == "little") return false;
        throw Error(Errc::zip_bad_record,
                    "record byteorder has " + safemap::quoted(order) + "; expected \"little\" or \"big\"");
    }

    RecordData storage(const std::string& folder, std::string_view key) {
        if (key.empty() || key.find('/') != key.npos || key.find("..") != key.npos) {
            throw Error(Errc::zip_bad_record, "storage key " + safemap::quoted(key) + " is not a valid record name");
        }
        name_.assign(root_).append(folder).append(key);
        const ZipRecord* const record = record_called(name_);
        if (record == nullptr)
            throw Error(Errc::zip_missing_record, "record " + folder + excerpt(key) + " of a storage is missing");
        return open(*record);
    }
    /// Finds a record by its name. Tries the record after the last storage first: torch writes storages in the order in
    /// which the pickle names them.
    const ZipRecord* record_called(std::string_view name) {
        const auto& records = zip_.records();
        const bool follows = after_ < records.size() && records[after_].name == name;
        const ZipRecord* const record = follows ? &records[after_] : zip_.find(name);
        if (record != nullptr) after_ = static_cast<std::size_t>(record - records.data()) + 1;
        return record;
    }

    /// Opens a record. All callers share one source of a deflated record.
    RecordData open(const ZipRecord& record) const {
        if (!record.deflated) return zip_.open(record);
        RecordData& opened = inflated_[&record];
        if (!opened.source) opened = zip_.open(record);
        return opened;
    }

    ZipDirectory zip_;
    mutable std::map<const ZipRecord*, RecordData> inflated_;
    std::set<const ZipRecord*> faulty_;
    FaultSink& faults_;
    NamedGlobals* globals_;
    std::string root_;       ///< the folder of all records, with its slash
    std::string name_;       ///< record name of the current storage; a member, so that all names share its memory
    std::size_t after_ = 0;  ///< index of the record after the last storage's
    Archive out_;
};

}  // namespace

Archive read_archive(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals) {
    return ArchiveReader(source, faults, globals).read();
}

Archive read_archive_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                          NamedGlobals* globals) {
    return ArchiveReader(source, faults, globals).read_with(interpret);
}

}  // namespace safemap::SAFEMAP_ABI::torch
