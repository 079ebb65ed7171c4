// Copies tensors into files. Files are cut into units of at most one block. Workers take the units in the order of the
// output, gather each unit into their buffer and write it. From top to bottom:
// - Stretch: a stretch of a file that is cut in one way; cuts.cpp finds them. A stream is tensors side by side, cut at
//   the file's blocks. A tensor that is strided, in boxes or of sub-byte elements is a stretch by itself.
// - Planning: each file is adopted from a killed process, or allocated and cut into stretches. A unit is computed from
//   its number, so the plan is short.
// - Copying: a unit, with all tensors in it, is gathered, fed to the digests, and written from a buffer where it has
//   the same offset in a page as in the file. Digests are computed from the bytes as they pass, in the order of the
//   file. What is written in tiles is read back once for them.
// - finish(): the worker that does the last unit of a file writes its header and flushes it to disk. A header that
//   needs the digests of other files is written at the end.
// - write_files() runs one copier for each part on common workers; buffer_bytes() predicts their memory.
#include "write/shard_copier.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/faults.hpp"
#include "base/ordered_digests.hpp"
#include "base/watch.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "safetensors/digests.hpp"
#include "write/cuts.hpp"
#include "write/digest_patch.hpp"
#include "write/evictions.hpp"
#include "write/reshard.hpp"
#include "write/saving.hpp"
#include "write/shards.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

static_assert(Workers::buffer_size(saving_threads.most, 1, largest_buffer) >= stream_block);

// Blocks begin at multiples of a page, so they cut no element: writers align the data to eight bytes or more.
constexpr std::uint64_t page = io::direct_alignment;
static_assert(Worker::page == page);

/// A stretch of one file, with what is known while it is copied.
struct Stretch : Cut {
    std::uint32_t file = 0;
    std::uint64_t first_unit = 0;                      ///< its number for evictions
    std::atomic<std::uint64_t>* boxes_left = nullptr;  ///< set for a tensor that is written in tiles and needs a digest
};

bool lists_digests(const Layout& layout) {
    return std::any_of(layout.files.begin(), layout.files.end(),
                       [](const PlannedFile& file) { return file.lists_digests; });
}

/// The plan of one part of a save, and the work on its units.
class ShardCopier {
public:
    /// Evicts sources if `evictions` is not null.
    ShardCopier(const Written& part, Workers& workers, Watch& watch, Evictions* evictions)
        : tensors_(part.tensors),
          layout_(part.layout),
          workers_(workers),
          counts_(workers_.count(), std::vector<CastCounts>(layout_.casts.size())),
          files_(layout_.files.size()),
          destination_(part.destination),
          evictions_(evictions),
          watch_(watch) {
        if (lists_digests(layout_)) digests_.emplace(tensors_.size());
    }

    void prepare() {
        for (std::uint32_t i = 0; i < files_.size(); ++i) {
            watch_.check_stop();
            prepare(i);
        }
    }

    void run() {
        units_.each(workers_.count(), watch_, [this](auto unit, unsigned worker) { do_unit(unit, worker); });
        if (digests_ && !layout_.wholes.empty())
            layout_.whole_digests = digests_of_wholes(layout_, digests_->all(), workers_.count(), watch_);
        // Files without data come last: an index needs the digests of all other files.
        for (std::uint32_t i = 0; i < files_.size(); ++i)
            if ((files_[i].units == 0 || needs_others(i)) && !files_[i].adopted) in_file(i, [&] { finish(i); });
        require_unchanged(tensors_);
        for (const auto& counts : counts_)
            for (std::size_t i = 0; i < counts.size(); ++i) add_counts(layout_.casts[i], counts[i]);
    }

private:
    struct File {
        std::unique_ptr<OpenFile> output;  // open from the first of its units to the last
        bool adopted = false;              // finished earlier by a process that was killed
        std::uint64_t units = 0;
        std::atomic<std::uint64_t> units_left = 0;
    };

    /// Returns true if the head of a file needs the digests of other files, or of tensors that are cut for ranks.
    bool needs_others(std::uint32_t file) const {
        return layout_.files[file].has_checkpoint_digest && (files_.size() > 1 || !layout_.wholes.empty());
    }

    // ---- planning

    void prepare(std::uint32_t file) {
        const PlannedFile& planned = layout_.files[file];
        const std::unique_ptr<OpenFile> finished = destination_.adopt(planned);
        if (!finished) {
            destination_.allocate(layout_, planned);
            return plan(file);
        }
        files_[file].adopted = true;
        layout_.resumed.push_back(planned.name);
        for (const PlannedTensor& tensor : planned.tensors) layout_.read_bytes -= stored_bytes(tensors_[tensor.number]);
        if (planned.lists_digests) in_file(file, [&] { take_digests(planned, finished->reader()); });
        watch_.add(planned.size - planned.head.size());
    }

    /// Takes the digests of a finished file from its head.
    void take_digests(const PlannedFile& planned, const OpenFile::Read& read) {
        std::string head(planned.head.size(), '\0');
        read(0, std::as_writable_bytes(std::span(head)));
        const std::string list = safetensors::metadata_in(head, safetensors::digests_key);
        auto tensor = planned.tensors.begin();
        safetensors::read_digests(list, [&](std::string_view, const Digest& digest) {
            if (tensor != planned.tensors.end()) digests_->set((tensor++)->number, digest);
        });
    }

    void plan(std::uint32_t file) {
        const std::size_t before = units_.size();
        for (const Cut& cut : cuts_of(tensors_, layout_.files[file], workers_.buffer_size())) {
            if (cut.kind == Cut::Kind::stream) add({cut, file}, cut.units());
            else plan_blocks({cut, file});
        }
        files_[file].units = units_.size() - before;
        files_[file].units_left = units_.size() - before;
    }

    void plan_blocks(Stretch stretch) {
        const Blocks blocks = blocks_of(value(layout_.files[stretch.file].tensors[stretch.first]));
        if (digests_ && !blocks.ranges()) stretch.boxes_left = &boxes_left_.emplace_back(blocks.count());
        add(stretch, blocks.count());
    }

    void add(Stretch stretch, std::uint64_t units) {
        if (units == 0) return;
        if (evictions_ != nullptr) plan_evictions(stretch, units);
        stretches_.push_back(stretch);
        units_.add(units);
    }

    /// Announces the units of a stretch, and the tensors that they read to the end.
    void plan_evictions(Stretch& stretch, std::uint64_t units) {
        stretch.first_unit = evictions_->add_units(units);
        const PlannedFile& file = layout_.files[stretch.file];
        for (std::uint32_t i = stretch.first; i < stretch.first + stretch.count; ++i) {
            const std::uint64_t end = end_of(file, i);
            if (end > stretch.bytes.end()) return;
            if (end == file.tensors[i].offset) continue;  // no elements
            const bool stream = stretch.kind == Cut::Kind::stream;
            const std::uint64_t last =
                stream ? (end - 1) / stretch.block - stretch.bytes.offset / stretch.block : units - 1;
            evictions_->add(tensors_[file.tensors[i].number], stretch.first_unit + last);
        }
    }

    /// Returns the blocks of a tensor. One page of the buffer stays free, because a block has the same offset in a page
    /// of the buffer as in a page of the file.
    Blocks blocks_of(const LazyTensor& tensor) const {
        const std::uint64_t most = std::min<std::uint64_t>(workers_.buffer_size(), largest_block) - page;
        // Digests need the bytes in order, and this destination cannot read tiles back.
        if (digests_ && !destination_.reads_back()) return Blocks::in_order(tensor, most);
        return Blocks::for_disk(tensor, most);
    }

    /// Returns the tensor as it is written.
    LazyTensor value(const PlannedTensor& planned) const {
        const LazyTensor& tensor = tensors_[planned.number];
        return tensor.dtype() == planned.dtype ? tensor : tensor.cast(planned.dtype);
    }

    // ---- copying, on any thread

    /// Copies a unit. If that fails, wakes the workers that wait for their turn to feed digests.
    void do_unit(BlockRow::Place unit, unsigned worker) {
        try {
            watch_.check_stop();
            copy(unit, worker);
        } catch (...) {
            if (digests_) digests_->abandon_all();
            throw;
        }
    }

    void copy(BlockRow::Place unit, unsigned worker) {
        const Stretch& stretch = stretches_[unit.item];
        in_file(stretch.file, [&] {
            open(stretch.file);
            const bool done = stretch.kind == Stretch::Kind::stream ? copy_stream(stretch, unit.block, worker)
                                                                    : copy_block(stretch, unit.block, worker);
            if (!done) return;
            if (evictions_ != nullptr) evictions_->done(stretch.first_unit + unit.block);
            // The worker that does a file's last unit flushes the file to disk, while the other workers continue to
            // write.
            const bool last = files_[stretch.file].units_left.fetch_sub(1) == 1;
            if (last && !needs_others(stretch.file)) finish(stretch.file);
        });
    }

    /// Copies a unit of a stream. Like the functions below, returns false if another worker has failed and the save
    /// ends.
    bool copy_stream(const Stretch& stretch, std::uint64_t number, unsigned worker) {
        const Extent unit = stretch.unit(number);
        const std::span<std::byte> whole = in_page(unit.offset, unit.size, worker);
        gather(stretch, unit, whole, worker);
        const bool fed = each_part(stretch, unit, [&](const PlannedTensor& planned, std::uint64_t size, Extent part) {
            const auto bytes = whole.subspan(planned.offset + part.offset - unit.offset, part.size);
            return feed(planned, size, part.offset, bytes, worker);
        });
        if (!fed) return false;
        output(stretch).write_at(unit.offset, whole);
        watch_.add(whole.size());
        return true;
    }

    /// Reads all tensors of a unit together.
    void gather(const Stretch& stretch, Extent unit, std::span<std::byte> whole, unsigned worker) {
        Gatherer& gatherer = workers_.gatherer(worker);
        const std::size_t used = unit.offset % page + whole.size();
        gatherer.begin({.scratch = workers_.buffer(worker).subspan(used, stretch.scratch), .watch = &watch_});
        each_part(stretch, unit, [&](const PlannedTensor& planned, std::uint64_t, Extent part) {
            gatherer.add(tensors_[planned.number], planned.dtype, part.offset,
                         whole.subspan(planned.offset + part.offset - unit.offset, part.size),
                         counts_of(planned, worker));
            return true;
        });
        gatherer.flush();
    }

    /// Calls visit(planned, size, part) for each tensor with bytes in a unit of a stream: `part` of its `size` bytes.
    /// Stops, and returns false, when a call returns false.
    template <class Visit> bool each_part(const Stretch& stretch, Extent unit, Visit&& visit) const {
        const PlannedFile& file = layout_.files[stretch.file];
        const auto first = file.tensors.begin() + stretch.first;
        auto at = std::upper_bound(first, first + stretch.count, unit.offset,
                                   [](std::uint64_t offset, const PlannedTensor& t) { return offset < t.offset; });
        std::uint64_t filled = unit.offset;
        for (--at; filled < unit.end(); ++at) {
            const std::uint64_t tensor_end = end_of(file, static_cast<std::size_t>(at - file.tensors.begin()));
            const std::uint64_t stop = std::min(unit.end(), tensor_end);
            if (stop <= filled) continue;  // no elements
            if (!visit(*at, tensor_end - at->offset, Extent{filled - at->offset, stop - filled})) return false;
            filled = stop;
        }
        return true;
    }

    bool copy_block(const Stretch& stretch, std::uint64_t number, unsigned worker) {
        const PlannedTensor& planned = layout_.files[stretch.file].tensors[stretch.first];
        const LazyTensor tensor = value(planned);
        const Blocks blocks = blocks_of(tensor);
        const std::uint64_t offset = blocks.ranges() ? blocks.range(number).offset : 0;
        // A tile is scattered over the file, so it has no offset in a page.
        const auto buffer = in_page(blocks.ranges() ? planned.offset + offset : 0, blocks.size(number), worker);
        const auto bytes = blocks.gather(number, tensor, workers_.gatherer(worker), buffer);
        count_cast(planned, worker);
        if (blocks.ranges() && !feed(planned, stretch.bytes.size, offset, bytes, worker)) return false;
        blocks.scatter(number, [&](std::uint64_t at, std::uint64_t in_block, std::uint64_t length) {
            output(stretch).write_at(planned.offset + at, bytes.subspan(in_block, length));
        });
        watch_.add(bytes.size());
        const bool last_box = stretch.boxes_left != nullptr && stretch.boxes_left->fetch_sub(1) == 1;
        return !last_box || read_back(stretch, worker);
    }

    /// Feeds bytes to the digests. Units are taken in order, and each waits only for earlier units.
    bool feed(const PlannedTensor& planned, std::uint64_t size, std::uint64_t offset, std::span<const std::byte> bytes,
              unsigned worker) {
        Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
        return !digests_ || digests_->feed(planned.number, size, offset, bytes, watch);
    }

    bool read_back(const Stretch& stretch, unsigned worker) {
        const OpenFile::Read read = output(stretch).reader();
        const PlannedTensor& planned = layout_.files[stretch.file].tensors[stretch.first];
        for (std::uint64_t done = 0; done < stretch.bytes.size;) {
            watch_.check_stop();
            if (worker == 0) watch_.tick();
            const std::uint64_t size = std::min(stream_block, stretch.bytes.size - done);
            const auto bytes = workers_.buffer(worker).first(static_cast<std::size_t>(size));
            read(planned.offset + done, bytes);
            if (!feed(planned, stretch.bytes.size, done, bytes, worker)) return false;
            done += size;
        }
        return true;
    }

    void count_cast(const PlannedTensor& planned, unsigned worker) {
        const CastCounts counts = workers_.gatherer(worker).take_counts();
        if (CastCounts* const all = counts_of(planned, worker)) *all += counts;
    }

    /// Returns the statistics of a worker for the cast of a tensor; null if it is not cast.
    CastCounts* counts_of(const PlannedTensor& planned, unsigned worker) {
        const Dtype from = tensors_[planned.number].stored()->dtype();
        if (from == planned.dtype) return nullptr;
        for (std::size_t i = 0; i < layout_.casts.size(); ++i)
            if (layout_.casts[i].from == from && layout_.casts[i].to == planned.dtype) return &counts_[worker][i];
        return nullptr;
    }

    /// Opens a file if it is not open yet. Units are taken in the order of the files, so at most one file more than
    /// there are workers is open at a time.
    void open(std::uint32_t file) {
        const std::lock_guard lock(opening_);
        auto& output = files_[file].output;
        if (output) return;
        output = destination_.open(layout_.files[file]);
    }

    void finish(std::uint32_t file) {
        open(file);
        PlannedFile& planned = layout_.files[file];
        if (digests_) put_digests(planned, layout_, tensors_, digests_->all());
        OpenFile& output = *files_[file].output;
        output.write_at(0, std::as_bytes(std::span(planned.head)));
        std::string().swap(planned.head);
        output.finish();
    }

    const OpenFile& output(const Stretch& stretch) const { return *files_[stretch.file].output; }

    /// Returns a part of the worker's buffer with the same offset in a page as `begin` has in the file, so that it can
    /// be written past the page cache.
    std::span<std::byte> in_page(std::uint64_t begin, std::uint64_t size, unsigned worker) {
        return workers_.buffer(worker).subspan(static_cast<std::size_t>(begin % page), static_cast<std::size_t>(size));
    }

    /// Runs `work`. Adds the path of the file to an Error that leaves it, unless that is a stop request.
    template <class Work> void in_file(std::uint32_t file, Work&& work) {
        const auto add = [&](Error& error) {
            if (error.code() != Errc::cancelled) error.with_path(destination_.path_of(layout_.files[file]));
        };
        adding(add, std::forward<Work>(work));
    }

    std::span<const LazyTensor> tensors_;
    Layout& layout_;
    Workers& workers_;
    std::vector<std::vector<CastCounts>> counts_;  // one list per worker, in the order of layout.casts
    std::vector<File> files_;
    std::optional<OrderedDigests> digests_;  // by the caller's tensor number
    std::deque<std::atomic<std::uint64_t>> boxes_left_;
    std::mutex opening_;
    Destination& destination_;
    Evictions* evictions_;
    std::vector<Stretch> stretches_;
    BlockRow units_;  // units of all stretches
    Watch& watch_;
};

/// Threads that gather tensors of many pieces, unless the caller gives a number: they wait for the disk, and while they
/// do, others read pieces. Also more than there are processors.
constexpr unsigned gathering_threads = 4;
static_assert(gathering_threads <= saving_threads.most);

unsigned workers_for(std::span<const LazyTensor> tensors, unsigned threads) {
    const auto in_pieces = [](const LazyTensor& tensor) { return tensor.stored()->piece_count() > 1; };
    if (threads == 0 && std::any_of(tensors.begin(), tensors.end(), in_pieces)) return gathering_threads;
    return thread_count(threads, saving_threads);
}

}  // namespace

void write_files(std::span<const Written> parts, const Monitor& monitor, unsigned threads, bool drop_cache) {
    std::uint64_t bytes = 0;
    unsigned most = 1;
    for (const Written& part : parts) {
        bytes = sum_of_sizes(bytes, part.layout.data_bytes);
        if (lists_digests(part.layout)) bytes = sum_of_sizes(bytes, bytes_to_hash(part.layout));
        most = std::max(most, workers_for(part.tensors, threads));
    }
    Watch watch(monitor, "converting", bytes);
    Workers workers(most, 1, largest_buffer, saving_threads);
    std::deque<ShardCopier> engines;
    Evictions evictions;  // for all parts, which may read the same files
    for (const Written& part : parts) engines.emplace_back(part, workers, watch, drop_cache ? &evictions : nullptr);
    watch.tell();
    for (ShardCopier& engine : engines) engine.prepare();
    evictions.plan();
    for (ShardCopier& engine : engines) engine.run();
    watch.tell();
}

std::uint64_t buffer_bytes(std::span<const LazyTensor> tensors, const Layout& layout, unsigned threads) {
    const unsigned workers = workers_for(tensors, threads);
    const std::uint64_t buffer = Workers::buffer_size(workers, 1, largest_buffer);
    std::uint64_t used = 0;
    bool gathers = false;
    for (const PlannedFile& file : layout.files) {
        for (const Cut& cut : cuts_of(tensors, file, buffer)) {
            const bool stream = cut.kind == Cut::Kind::stream;
            const std::uint64_t block = stream ? cut.block : std::min(buffer, largest_block);
            used = std::max(used, std::min(block, cut.bytes.size) + cut.scratch);
            gathers = gathers || (stream && cut.block > stream_block);
        }
        for (const PlannedTensor& planned : file.tensors) {
            const LazyTensor& tensor = tensors[planned.number];
            const StridedView& view = tensor.strided_view();
            gathers = gathers || tensor.stored()->dtype() != planned.dtype || tensor.stored()->piece_count() > 1 ||
                      !is_contiguous(view.shape, view.strides) || tensor.nbytes() < Gatherer::long_part;
        }
    }
    constexpr std::uint64_t stack = 64_KiB;
    return workers * (used + page + (gathers ? Gatherer::most_memory : 0) + stack);
}

}  // namespace safemap::SAFEMAP_ABI::write
