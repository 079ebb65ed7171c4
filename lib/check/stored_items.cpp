// Reads the items of files in batches, each a range of one file. Tested by tests/check/stored_items_test.cpp.
#include "check/stored_items.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "base/zstd.hpp"
#include "check/stretches.hpp"
#include "open/readers.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

namespace {

using Items = std::span<const StoredItems::Item>;

/// An item of torch.save has seven records.
constexpr std::size_t batch_items = 1024;

/// The check of all items.
class ItemCheck {
public:
    ItemCheck(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report)
        : items_(items), threads_(threads), watch_(watch), report_(report), known_(report.faults.size()) {}

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
            for (Error& fault : faults.take()) add(std::move(fault.with_path(file.name()).with_tensor(name)));
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
        for (StoredChecksum& record : read.checksums) {
            const StoredChecksum* const kept = &records.emplace_back(std::move(record));
            Stretch stretch{.source = kept->source.get(), .extent = kept->extent, .record = kept, .name = &name};
            stretch.inflated = kept->source != source;
            stretch.counted = !stretch.inflated;
            (stretch.inflated ? inflated_ : checked).push_back(stretch);
        }
        for (StoragePlace& place : read.storages) {
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
        VerifyReport own;
        read_stretches(stretches, threads_, watch_, own);
        report_.checked_bytes += own.checked_bytes;
        for (Error& fault : own.faults) add(std::move(fault));
    }

    void add(Error fault) {
        const auto begin = report_.faults.begin();
        const auto end = begin + static_cast<std::ptrdiff_t>(known_);
        if (std::none_of(begin, end, [&fault](const Error& known) { return same_fault(known, fault); }))
            report_.faults.push_back(std::move(fault));
    }

    void note() const {
        const std::uint64_t unchecked = unchecked_ - std::min(unchecked_, covered_by_streams_);
        report_.notes.push_back("the save as a whole has no checksum: " + bytes_text(items_.bytes_beside) +
                                " of metadata, and " + bytes_text(unchecked) +
                                " around the records of items, are compared with nothing");
    }

    const StoredItems& items_;
    unsigned threads_;
    Watch& watch_;
    VerifyReport& report_;
    std::size_t known_;                                         ///< number of faults that the readers have reported
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

void read_items(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report) {
    ItemCheck(items, threads, watch, report).run();
}

}  // namespace safemap::SAFEMAP_ABI::check
