// Reads the records of a torch.save zip: pickles, storages and the byte order. Tested by tests/torch/rebuild_test.cpp
// and fixtures_test.cpp.
#include "torch/archive.hpp"

#include "base/text.hpp"
#include "pickle/pickle.hpp"
#include "pickle/zip.hpp"
#include "torch/rebuild.hpp"
#include "torch/script.hpp"

#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

/// The reader of one archive: finds its pickles, rebuilds their values and lists the records.
class ArchiveReader {
public:
    ArchiveReader(ArchiveRecords records, FaultSink& faults, NamedGlobals* globals)
        : records_(std::move(records)), faults_(faults), globals_(globals) {}

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
            const std::string& root = records_.root();
            out_.saved_as = root.substr(0, root.size() - 1);
        }
        return std::move(out_);
    }

private:
    /// Returns the record of the pickle, after checks and notes about all records. Returns null if the zip has none and
    /// the sink returns.
    const ZipRecord* pickle_record() {
        const ZipRecord* const pickle = records_.pickle(faults_);
        if (pickle == nullptr) return nullptr;
        if (globals_ != nullptr) {
            globals_->examine_records(records_.zip(), *pickle);
            if (const auto all = records_.with_second_format()) globals_->examine_second_format(*all);
        }
        if (const std::uint64_t trailing = records_.zip().trailing(); trailing > 0)
            out_.notes.push_back(bytes_text(trailing) + " after the zip are ignored");
        if (const std::size_t unchecked = records_.unchecked(); unchecked > 0)
            out_.notes.push_back(counted(unchecked, "record has", "records have") +
                                 " no checksum; in a file saved under skip_data(), these are holes that read as zeros");
        return pickle;
    }

    void list_records() {
        const std::string storages = records_.root() + "data/";
        const std::string constants = records_.root() + "constants/";
        const std::vector<ZipRecord>& all = records_.zip().records();
        out_.records.reserve(all.size());
        out_.storages.reserve(all.size());
        for (const ZipRecord& record : all) {
            RecordData data = records_.open(record);
            if (record.name.starts_with(storages) || record.name.starts_with(constants))
                out_.storages.push_back({data.source, data.extent});
            if (record.has_crc32() && !records_.is_faulty(record))
                out_.records.push_back({std::move(data.source), data.extent, record.crc32, std::string(record.name)});
        }
    }

    /// Reads data.pkl, and notes bytes after the pickle.
    HeldPickle pickle_to_its_end(const ZipRecord& record) {
        HeldPickle data = records_.read(record);
        if (const std::size_t count = data.bytes.size() - data.graph.consumed(); count > 0) add_rest(record, count);
        return data;
    }

    void add_rest(const ZipRecord& record, std::size_t count) {
        out_.notes.push_back(bytes_text(count) + " after the end of the pickle in data.pkl are ignored");
        if (globals_ == nullptr) return;
        const RecordData data = records_.open(record);
        globals_->examine(data.source, {data.extent.end() - count, count}, std::string(record.name));
    }

    void read_pickle_record(const ZipRecord& record) {
        const HeldPickle data = pickle_to_its_end(record);
        const PickleGraph& pickle = data.graph;
        // Only TorchScript archives have constants.
        const ZipRecord* const constants = records_.find("constants.pkl");
        if (constants == nullptr || !is_script(pickle))
            return out_.take(rebuild_state(pickle, storages("data/", record), faults_));
        const std::vector<NamedValue> state = script_state(pickle);
        out_.take(rebuild(pickle, state, storages("data/", record), faults_, is_known_in_script));
        if (state.empty()) return read_constants(*constants);
        if (globals_ != nullptr) add_globals(*constants);
        out_.notes.push_back(
            "a TorchScript archive: the tensors of its modules are read, its code and constants are not");
    }

    /// Adds the globals of a pickle that is not read otherwise. Unless globals are strict, a pickle with faults counts
    /// as one that may call anything.
    void add_globals(const ZipRecord& record) {
        try {
            const HeldPickle data = records_.read(record, globals_->strict());
            globals_->add(data.graph, record.name, is_known_in_script);
        } catch (const Error& error) {
            if (globals_->strict() || remedy(error.code()) != Remedy::reject_data) throw;
            globals_->add_unread(record.name);
        }
        globals_->refuse();
    }

    /// Reads the constants of a frozen module, which are its weights, under the names that its code uses.
    void read_constants(const ZipRecord& record) {
        const HeldPickle data = records_.read(record);
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
        return {.find = [this, folder](std::string_view key) { return records_.storage(folder, key); },
                .big_endian = records_.big_endian(),
                .globals = globals_,
                .record = record.name};
    }

    ArchiveRecords records_;
    FaultSink& faults_;
    NamedGlobals* globals_;
    Archive out_;
};

}  // namespace

Archive read_archive(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals) {
    return ArchiveReader(ArchiveRecords(source, faults), faults, globals).read();
}

Archive read_archive_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                          NamedGlobals* globals) {
    return ArchiveReader(ArchiveRecords(source, faults), faults, globals).read_with(interpret);
}

Archive read_archive_with(const Interpret& interpret, ArchiveRecords records, FaultSink& faults,
                          NamedGlobals* globals) {
    return ArchiveReader(std::move(records), faults, globals).read_with(interpret);
}

}  // namespace safemap::SAFEMAP_ABI::torch
