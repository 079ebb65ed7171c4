// Divides files into stretches and these into blocks, and lets workers read each block once.
#include "check/stretches.hpp"

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/ordered_digests.hpp"
#include "lazy/bulk.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::check {

namespace {

using state::Contents;

using namespace literals;

// Work is handed out in blocks of this size, or in smaller ones if the buffers of all workers would take more than
// `all_buffers`.
constexpr std::uint64_t largest_block = 8_MiB;
constexpr std::uint64_t all_buffers = 32_MiB;

/// Returns the files, then the deflated records in them, whose streams are not part of a file's bytes.
std::vector<const Source*> all_sources(const Contents& contents) {
    std::vector<const Source*> sources;
    std::unordered_set<const Source*> known;
    const auto add = [&](const auto& holder) {
        if (known.insert(holder.get()).second) sources.push_back(holder.get());
    };
    for (const auto& source : contents.sources) add(source);
    for (const auto& record : contents.stored.checksums) add(record.source);
    for (const auto& storage : contents.stored.storages) add(storage.source);
    return sources;
}

/// The workers that read all stretches and compare their checksums.
class Reader {
public:
    Reader(const std::vector<Stretch>& stretches, unsigned threads, Watch& watch)
        : stretches_(stretches),
          workers_(thread_count(threads)),
          block_(std::min(largest_block, all_buffers / workers_.size() / Worker::page * Worker::page)),
          watch_(watch),
          digests_(stretches.size()) {
        for (const Stretch& stretch : stretches_)
            row_.add(stretch.in_order() ? 1 : (stretch.extent.size + block_ - 1) / block_);
    }

    void run(VerifyReport& report) {
        row_.each(static_cast<unsigned>(workers_.size()), watch_,
                  [this](auto place, unsigned worker) { do_block(place, worker); });
        // Faults are reported in the order of the file, whichever worker found them first.
        std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
            return std::tie(a.place.item, a.place.block) < std::tie(b.place.item, b.place.block);
        });
        auto found = found_.begin();
        for (std::size_t i = 0; i < stretches_.size(); ++i) {
            const bool faulty = found != found_.end() && found->place.item == i;
            for (; found != found_.end() && found->place.item == i; ++found)
                report.faults.push_back(std::move(found->fault));
            if (stretches_[i].tensor != nullptr && !faulty) compare(stretches_[i], digests_.of(i), report);
        }
        report.checked_bytes += checked_records_;
    }

private:
    struct Found {
        BlockRow::Place place;
        Error fault;
    };

    void do_block(BlockRow::Place place, unsigned worker) {
        const Stretch& stretch = stretches_[place.item];
        try {
            if (stretch.in_order()) read_record(place, worker);
            else read_block(place, worker);
        } catch (Error& error) {
            if (exit_code(error.code()) != 1) {
                digests_.abandon_all();
                throw;
            }
            digests_.abandon(place.item);
            if (error.code() == Errc::checksum_mismatch) checked_records_ += stretch.extent.size;
            add(place, std::move(error));
        } catch (...) {
            digests_.abandon_all();
            throw;
        }
    }

    void read_block(BlockRow::Place place, unsigned worker) {
        const Stretch& stretch = stretches_[place.item];
        const std::uint64_t done = place.block * block_;
        const auto bytes = read(stretch, done, std::min(block_, stretch.extent.size - done), worker);
        if (stretch.tensor == nullptr) return;
        Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
        digests_.feed(place.item, stretch.extent.size, done, bytes, watch);
    }

    void read_record(BlockRow::Place place, unsigned worker) {
        const Stretch& stretch = stretches_[place.item];
        std::uint32_t crc = 0;
        for (std::uint64_t done = 0; done < stretch.extent.size; done += block_) {
            const auto bytes = read(stretch, done, std::min(block_, stretch.extent.size - done), worker);
            if (!stretch.inflated) crc = crc32(crc, bytes);
            if (worker == 0) watch_.tick();
        }
        if (stretch.record == nullptr) return;
        checked_records_ += stretch.extent.size;
        if (stretch.inflated || crc == stretch.record->crc32) return;
        add(place, crc32_mismatch(stretch.record->record, crc, stretch.record->crc32));
    }

    static void compare(const Stretch& stretch, const Digest& found, VerifyReport& report) {
        report.checked_bytes += stretch.extent.size;
        if (found == stretch.tensor->digest) return;
        Error fault(Errc::checksum_mismatch,
                    "the data has XXH3-128 " + hex(found) + ", expected " + hex(stretch.tensor->digest));
        report.faults.push_back(std::move(fault.with_path(stretch.source->name()).with_tensor(stretch.tensor->name)));
    }

    std::span<const std::byte> read(const Stretch& stretch, std::uint64_t offset, std::uint64_t size, unsigned worker) {
        watch_.check_stop();
        const auto bytes = workers_[worker].buffer(block_).first(size);
        stretch.source->read_at(stretch.extent.offset + offset, bytes);
        if (stretch.counted) watch_.add(size);
        return bytes;
    }

    void add(BlockRow::Place place, Error fault) {
        const Stretch& stretch = stretches_[place.item];
        fault.with_path(stretch.source->name());
        if (stretch.name != nullptr) fault.with_tensor(*stretch.name);
        const std::lock_guard lock(finding_);
        found_.push_back({place, std::move(fault)});
    }

    const std::vector<Stretch>& stretches_;
    std::vector<Worker> workers_;
    std::uint64_t block_;
    Watch& watch_;
    BlockRow row_;
    OrderedDigests digests_;  // by number of the stretch
    std::atomic<std::uint64_t> checked_records_ = 0;
    std::mutex finding_;
    std::vector<Found> found_;
};

/// Adds stretches for the bytes of a range that `checked` leaves out, and `checked`, which are sorted by offset.
void cover(const Source* source, Extent range, std::span<const Stretch> checked, std::vector<Stretch>& stretches) {
    std::uint64_t done = range.offset;
    const auto add_unchecked = [&](std::uint64_t end) {
        if (done < end) stretches.push_back({source, {done, end - done}});
    };
    for (const Stretch& each : checked) {
        add_unchecked(each.extent.offset);
        stretches.push_back(each);
        done = std::max(done, each.extent.end());
    }
    add_unchecked(range.end());
}

}  // namespace

std::vector<Stretch> stretches_of(const Contents& contents, const std::vector<FileDigests>& files) {
    std::vector<Stretch> checked;
    for (const auto& record : contents.stored.checksums)
        checked.push_back({record.source.get(), record.extent, &record});
    for (const FileDigests& file : files)
        for (const StoredDigest& tensor : file.tensors)
            checked.push_back({file.source, tensor.extent, nullptr, &tensor});
    const auto by_source = [](const Stretch& a, const Stretch& b) { return std::less<>()(a.source, b.source); };
    std::stable_sort(checked.begin(), checked.end(), [&](const Stretch& a, const Stretch& b) {
        return a.source != b.source ? by_source(a, b) : a.extent.offset < b.extent.offset;
    });

    std::vector<Stretch> stretches;
    const std::vector<const Source*> sources = all_sources(contents);
    stretches.reserve(checked.size() + sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
        const Source* const source = sources[i];
        const std::size_t before = stretches.size();
        const auto [first, last] = std::equal_range(checked.begin(), checked.end(), Stretch{source}, by_source);
        cover(source, {0, source->size()}, {first, last}, stretches);
        for (std::size_t each = before; each < stretches.size(); ++each)
            stretches[each].inflated = i >= contents.sources.size();
    }
    return stretches;
}

std::vector<Stretch> stretches_in(const Source& source, Extent range, std::vector<Stretch> checked) {
    std::stable_sort(checked.begin(), checked.end(),
                     [](const Stretch& a, const Stretch& b) { return a.extent.offset < b.extent.offset; });
    std::vector<Stretch> stretches;
    cover(&source, range, checked, stretches);
    return stretches;
}

void read_stretches(const std::vector<Stretch>& stretches, unsigned threads, Watch& watch, VerifyReport& report) {
    Reader(stretches, threads, watch).run(report);
}

}  // namespace safemap::SAFEMAP_ABI::check
