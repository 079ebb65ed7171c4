// Checks what only training runs have. From top to bottom:
//   Faults            faults that the readers have not reported yet
//   Batch             the files of ranks, some at a time
//   ItemCheck         the items of files in batches, each a range of one file (tests/check/stored_items_test.cpp)
//   compare_replicas  tensors that should be equal
#include "check/training_files.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "check/stretches.hpp"
#include "open/read.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

namespace {

using state::Contents;

// Files are read together until one of these is reached. A file has up to a few thousand records, and one worker reads
// a whole record.
constexpr std::size_t most_files = 64;
constexpr std::size_t most_records = 8192;

/// Calls `visit` with each file that can be opened. The readers have reported the others.
void each_file(const open::RunFiles& run, const std::function<void(const std::shared_ptr<const Source>&)>& visit) {
    CollectFaults reported;
    for (const std::string& file : run.files) {
        std::shared_ptr<const Source> source;
        reporting(reported, [&] { source = run.folder->open(file); });
        if (source) visit(source);
    }
}

/// Reads stretches and adds faults to a report, without those that the readers have reported.
class Faults {
public:
    Faults(unsigned threads, Watch& watch, VerifyReport& report)
        : threads_(threads), watch_(watch), report_(report), known_(report.faults.size()) {}

    void add(Error fault) {
        const auto begin = report_.faults.begin();
        const auto end = begin + static_cast<std::ptrdiff_t>(known_);
        if (std::none_of(begin, end, [&fault](const Error& known) { return same_fault(known, fault); }))
            report_.faults.push_back(std::move(fault));
    }

    void read(const std::vector<Stretch>& stretches) {
        VerifyReport own;
        read_stretches(stretches, threads_, watch_, own);
        report_.checked_bytes += own.checked_bytes;
        for (Error& fault : own.faults) add(std::move(fault));
    }

private:
    unsigned threads_;
    Watch& watch_;
    VerifyReport& report_;
    std::size_t known_;  ///< number of faults that the readers have reported
};

/// Some of the files, and what they have stored.
class Batch {
public:
    Batch(unsigned threads, Watch& watch, VerifyReport& report) : faults_(threads, watch, report) {}

    void add(const std::shared_ptr<const Source>& source) {
        CollectFaults faults;
        Contents one = open::read_records(source, faults);
        for (Error& fault : faults.take()) faults_.add(std::move(fault));
        state::move_to_end(one.sources, files_.sources);
        state::move_to_end(one.stored.checksums, files_.stored.checksums);
        state::move_to_end(one.stored.storages, files_.stored.storages);
        if (files_.sources.size() >= most_files || files_.stored.checksums.size() >= most_records) read();
    }

    void read() {
        std::vector<Stretch> stretches = stretches_of(files_, {});
        // The size of a deflated record is not part of the size of its file.
        for (Stretch& stretch : stretches) stretch.counted = !stretch.inflated;
        faults_.read(stretches);
        for (const auto& source : files_.sources) source->require_unchanged();
        files_ = {};
    }

private:
    Faults faults_;
    Contents files_;
};

}  // namespace

std::uint64_t size_of(const open::RunFiles& run) {
    std::uint64_t total = 0;
    each_file(run, [&](const auto& source) {
        total = checked_add(total, source->size()).value_or(std::numeric_limits<std::uint64_t>::max());
    });
    return total;
}

void check_rank_files(const open::RunFiles& run, unsigned threads, Watch& watch, VerifyReport& report) {
    Batch batch(threads, watch, report);
    each_file(run, [&](const auto& source) {
        watch.tick();
        batch.add(source);
    });
    batch.read();
}

namespace {

using Items = std::span<const StoredItems::Item>;

/// An item of torch.save has seven records.
constexpr std::size_t batch_items = 1024;

/// The check of all items.
class ItemCheck {
public:
    ItemCheck(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report)
        : items_(items), faults_(threads, watch, report), watch_(watch), report_(report) {}

    void run() {
        const std::vector<StoredItems::Item>& all = items_.items;
        std::size_t next = 0;
        for (std::uint32_t file = 0; file < items_.files.size(); ++file) {
            std::uint64_t done = 0;
            const std::uint64_t size = items_.files[file]->size();
            while (done < size) {
                const std::size_t first = next;
                while (next < all.size() && all[next].file == file && next - first < batch_items) ++next;
                const bool last = next == all.size() || all[next].file != file;
                const std::uint64_t end = last ? size : all[next].offset;
                read_batch(*items_.files[file], {done, end - done}, Items(all).subspan(first, next - first));
                done = end;
            }
            items_.files[file]->require_unchanged();
        }
        note();
    }

private:
    void read_batch(const Source& file, Extent range, Items items) {
        watch_.tick();
        std::deque<StoredChecksum> records;  // do not move
        std::vector<Stretch> checked;
        std::vector<Stretch> in_streams;
        std::vector<std::shared_ptr<const Source>> streams;
        for (const StoredItems::Item& item : items) {
            const std::string& name = items_.names[item.name];
            const Extent place{item.offset, item.length};
            CollectFaults faults;
            reporting(faults, [&] {
                about_tensor(name, [&] {
                    if (!item.zstd) return add_records(items_.files[item.file], place, name, faults, records, checked);
                    streams.push_back(open::unpacked_item(name, items_.files[item.file], place));
                    std::vector<Stretch> own;
                    const Extent all{0, streams.back()->size()};
                    add_records(streams.back(), all, name, faults, records, own);
                    const auto stretches = stretches_in(*streams.back(), all, std::move(own));
                    in_streams.insert(in_streams.end(), stretches.begin(), stretches.end());
                    covered_by_streams_ += item.length;
                });
            });
            for (Error& fault : faults.take()) faults_.add(std::move(fault.with_path(file.name()).with_tensor(name)));
        }
        for (Stretch& stretch : in_streams) stretch.counted = false;
        read(stretches_in(file, range, std::move(checked)));
        read(std::move(in_streams));
        deflated_.clear();
    }

    /// Adds the records of one item that have a checksum, and deflated ones without.
    void add_records(const std::shared_ptr<const Source>& source, Extent part, const std::string& name,
                     FaultSink& faults, std::deque<StoredChecksum>& records, std::vector<Stretch>& checked) {
        state::Contents read = open::read_records(source, part, faults);
        for (StoredChecksum& record : read.stored.checksums) {
            const StoredChecksum* const kept = &records.emplace_back(std::move(record));
            Stretch stretch{.source = kept->source.get(), .extent = kept->extent, .record = kept, .name = &name};
            stretch.inflated = kept->source != source;
            stretch.counted = !stretch.inflated;
            (stretch.inflated ? inflated_ : checked).push_back(stretch);
        }
        for (StoragePlace& place : read.stored.storages) {
            deflated_.push_back(std::move(place.source));
            inflated_.push_back({.source = deflated_.back().get(),
                                 .extent = place.extent,
                                 .inflated = true,
                                 .counted = false,
                                 .name = &name});
        }
    }

    void read(std::vector<Stretch> stretches) {
        stretches.insert(stretches.end(), std::make_move_iterator(inflated_.begin()),
                         std::make_move_iterator(inflated_.end()));
        inflated_.clear();
        for (const Stretch& stretch : stretches)
            if (stretch.record == nullptr && !stretch.inflated) unchecked_ += stretch.extent.size;
        faults_.read(stretches);
    }

    void note() const {
        const std::uint64_t unchecked = unchecked_ - std::min(unchecked_, covered_by_streams_);
        report_.notes.push_back("the save as a whole has no checksum: " + bytes_text(items_.bytes_beside) +
                                " of metadata, and " + bytes_text(unchecked) +
                                " around the records of items, are compared with nothing");
    }

    const StoredItems& items_;
    Faults faults_;
    Watch& watch_;
    VerifyReport& report_;
    std::vector<Stretch> inflated_ = {};                        ///< deflated records of the current batch
    std::vector<std::shared_ptr<const Source>> deflated_ = {};  ///< deflated records without a checksum
    std::uint64_t unchecked_ = 0;           ///< bytes that no checksum covers, with the packed bytes of streams
    std::uint64_t covered_by_streams_ = 0;  ///< bytes of the files that are read as streams
};

}  // namespace

std::uint64_t size_of(const StoredItems& items) {
    std::uint64_t total = 0;
    for (const auto& file : items.files)
        total = checked_add(total, file->size()).value_or(std::numeric_limits<std::uint64_t>::max());
    return total;
}

void check_items(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report) {
    ItemCheck(items, threads, watch, report).run();
}

namespace {

/// Compares tensors of the same dtype and shape. `blocks` are two buffers of the same size.
bool are_equal(const LazyTensor& first, const LazyTensor& other, std::vector<std::byte> (&blocks)[2], Watch& watch) {
    for (std::uint64_t offset = 0; offset < first.nbytes(); offset += blocks[0].size()) {
        watch.check_stop();
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(blocks[0].size(), first.nbytes() - offset));
        first.read(offset, std::span(blocks[0]).first(size));
        other.read(offset, std::span(blocks[1]).first(size));
        if (std::memcmp(blocks[0].data(), blocks[1].data(), size) != 0) return false;
    }
    return true;
}

}  // namespace

std::vector<std::string> compare_replicas(const state::Contents& contents, Watch& watch) {
    constexpr std::size_t most_notes = 1000;
    constexpr std::size_t block = 1 << 20;
    std::vector<std::string> notes;
    std::size_t different = 0;
    std::vector<std::byte> blocks[2];
    const auto compare = [&](const state::Replica& replica) {
        for (std::vector<std::byte>& one : blocks) one.resize(block);
        bool equal = replica.first.dtype() == replica.other.dtype() && replica.first.shape() == replica.other.shape();
        try {
            equal = equal && are_equal(replica.first, replica.other, blocks, watch);
        } catch (const Error& error) {
            if (remedy(error.code()) != Remedy::reject_data) throw;
            return;
        }
        if (equal || ++different > most_notes) return;
        notes.push_back(excerpt(replica.name) + " should be the same in all ranks, but " + excerpt(replica.first_file) +
                        " and " + excerpt(replica.other_file) + " have different values");
    };
    contents.replicas.each(compare);
    if (different > most_notes)
        notes.push_back("and " + std::to_string(different - most_notes) + " more that differ between ranks");
    return notes;
}

}  // namespace safemap::SAFEMAP_ABI::check
