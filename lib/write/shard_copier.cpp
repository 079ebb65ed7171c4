// Copies tensors into files. Files are cut into units of at most one block. Workers take the units in the order of the
// output, gather each unit into their buffer and write it. From top to bottom:
// - Stretch: a stretch of a file that is cut in one way; cuts.cpp finds them. A stream is tensors side by side, cut at
//   the file's blocks. A tensor that is strided, in boxes or of sub-byte elements is a stretch by itself. Tensors whose
//   elements alternate in one storage, such as the columns of a matrix, are strips: a unit has a range of each.
// - Planning: each file is adopted from a killed process, or allocated and cut into stretches. A unit is computed from
//   its number, so the plan is short. With several processes, each has a share of the units (together.cpp).
// - Copying: a unit, with all tensors in it, is gathered, fed to the digests, and written from a buffer where it has
//   the same offset in a page as in the file. Tensors that lie in memory as they are written need no buffer, unless
//   they are small, or are written past the page cache. Digests are computed from the bytes as they pass, in the order
//   of the file. What is written in tiles is read back once for them. A tensor that two processes write is read once
//   more.
// - finish(): the worker that does the last unit of a file writes its header and flushes it to disk. A header that
//   needs what other files or processes have comes at the end, in finish_rest().
#include "write/shard_copier.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/faults.hpp"
#include "base/memory_source.hpp"
#include "check/hasher.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "safetensors/digests.hpp"
#include "write/file_layout.hpp"
#include "write/reshard.hpp"
#include "write/together.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::write {

namespace {

// Blocks begin at multiples of a page, so they cut no element: writers align the data to eight bytes or more.
constexpr std::uint64_t page = io::direct_alignment;
static_assert(Worker::page == page);
// Parts of a tensor in memory that are smaller are gathered, so that several are written with one call.
constexpr std::uint64_t least_straight = 64_KiB;

/// Returns true if the value is cast from elements that are stored in boxes with short rows.
bool is_cast_from_boxes(const LazyTensor& tensor) {
    return tensor.dtype() != tensor.stored()->dtype() && Blocks::wants_rows(tensor);
}

/// Returns the most bytes of a block of a tensor that stands apart. If it is cast from boxes, its stored elements are
/// in the same buffer: the more of them are read at once, the fewer reads they take.
std::uint64_t most_in_block(const LazyTensor& tensor, std::uint64_t buffer) {
    const std::uint64_t most = std::min(buffer, largest_block) - page;
    if (!is_cast_from_boxes(tensor)) return most;
    const std::uint64_t to = element_size(tensor.dtype());
    return (most - page) / (to + element_size(tensor.stored()->dtype())) * to;
}

void pack(Packer& to, const std::vector<std::pair<std::uint32_t, Digest>>& digests) {
    to.number(digests.size());
    for (const auto& [number, digest] : digests)
        to.number(number).text({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::vector<std::pair<std::uint32_t, Digest>> unpack(Unpacker& from) {
    std::vector<std::pair<std::uint32_t, Digest>> digests;
    for (std::uint64_t count = from.number(); count > 0; --count) {
        const auto number = static_cast<std::uint32_t>(from.number());
        const std::string_view bytes = from.text();
        Digest digest = {};
        std::transform(bytes.begin(),
                       bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), digest.size())),
                       digest.begin(), [](char byte) { return static_cast<std::byte>(byte); });
        digests.emplace_back(number, digest);
    }
    return digests;
}

}  // namespace

bool lists_digests(const Layout& layout) {
    return std::any_of(layout.files.begin(), layout.files.end(),
                       [](const PlannedFile& file) { return file.lists_digests; });
}

ShardCopier::ShardCopier(const Written& part, Workers& workers, Watch& watch, Evictions* evictions, Process process,
                         std::function<void(std::uint32_t)> on_finished)
    : tensors_(part.tensors),
      layout_(part.layout),
      workers_(workers),
      counts_(workers_.count(), std::vector<CastCounts>(layout_.casts.size())),
      files_(layout_.files.size()),
      destination_(part.destination),
      evictions_(evictions),
      on_finished_(std::move(on_finished)),
      process_(process),
      watch_(watch) {
    if (lists_digests(layout_)) digests_.emplace(tensors_.size());
}

/// Returns true if the head of a file needs the digests of other files, or of tensors that are cut for ranks.
bool ShardCopier::needs_others(std::uint32_t file) const {
    return layout_.files[file].has_checkpoint_digest && (files_.size() > 1 || !layout_.wholes.empty());
}

// ---- preparing

void ShardCopier::prepare() {
    for (std::uint32_t i = 0; i < files_.size(); ++i) {
        watch_.check_stop();
        prepare(i);
    }
}

void ShardCopier::prepare(std::uint32_t file) {
    const PlannedFile& planned = layout_.files[file];
    const std::unique_ptr<OpenFile> finished = destination_.adopt(planned);
    if (!finished) return destination_.allocate(layout_, planned);
    adopt(file);
    if (planned.lists_digests) in_file(file, [&] { take_digests(planned, finished->reader()); });
}

void ShardCopier::adopt(std::uint32_t file) {
    const PlannedFile& planned = layout_.files[file];
    files_[file].done = true;
    layout_.resumed.push_back(planned.name);
    for (const PlannedTensor& tensor : planned.tensors) layout_.read_bytes -= stored_bytes(tensors_[tensor.number]);
    watch_.add((planned.size - planned.head.size()) / process_.ranks);
}

/// Takes the digests of a finished file from its head.
void ShardCopier::take_digests(const PlannedFile& planned, const OpenFile::Read& read) {
    std::string head(planned.head.size(), '\0');
    read(0, std::as_writable_bytes(std::span(head)));
    const std::string list = safetensors::metadata_in(head, safetensors::digests_key);
    auto tensor = planned.tensors.begin();
    safetensors::read_digests(list, [&](std::string_view, const Digest& digest) {
        if (tensor != planned.tensors.end()) digests_->set((tensor++)->number, digest);
    });
}

std::string ShardCopier::adopted() const {
    Packer all;
    for (std::uint32_t i = 0; i < files_.size(); ++i)
        if (files_[i].done) all.number(i);
    return all.take();
}

void ShardCopier::take_adopted(std::string_view text) {
    for (Unpacker from(text); !from.done();) {
        const std::uint64_t file = from.number();
        if (file >= files_.size()) throw Error(Errc::io_error, "the first process has another number of files");
        adopt(static_cast<std::uint32_t>(file));
    }
}

// ---- planning

void ShardCopier::plan() {
    for (std::uint32_t i = 0; i < files_.size(); ++i)
        if (!files_[i].done) plan(i);
    std::vector<UnitRun> runs;
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
        const Stretch& stretch = stretches_[i];
        const std::uint64_t units = units_of(i);
        const bool stream = stretch.kind == Cut::Kind::stream;
        const std::uint64_t block = stream ? stretch.block : (stretch.bytes.size - 1) / units + 1;
        const std::uint64_t lead = stream ? block - stretch.bytes.offset % block : block;
        runs.push_back({stretch.file, stretch.bytes.size, units, lead, block});
    }
    const unsigned ranks = process_.ranks;
    if (ranks > 1) cut_.resize(tensors_.size());
    for (unsigned rank = 1; rank < ranks; ++rank) find_cut(first_unit_of(runs, rank, ranks), rank - 1);
    take_share(share_of(runs, process_.rank, ranks));
}

void ShardCopier::plan(std::uint32_t file) {
    const std::size_t before = units_.size();
    for (const Cut& cut : cuts_of(tensors_, layout_.files[file], workers_.buffer_size())) {
        const PlannedFile& planned = layout_.files[file];
        switch (cut.kind) {
            case Cut::Kind::stream: add({cut, file}, cut.units()); break;
            case Cut::Kind::blocks: add({cut, file}, blocks_of(planned.tensors[cut.first]).count()); break;
            case Cut::Kind::strips: add({cut, file}, strips_of(cut, planned).units()); break;
        }
    }
    files_[file].units = units_.size() - before;
}

void ShardCopier::add(Stretch stretch, std::uint64_t units) {
    if (units == 0) return;
    stretches_.push_back(stretch);
    units_.add(units);
}

std::uint64_t ShardCopier::units_of(std::size_t stretch) const noexcept {
    return units_.end_of(stretch) - (stretch == 0 ? 0 : units_.end_of(stretch - 1));
}

/// Marks the tensors that are cut before the unit `boundary`. Their first bytes are of the process `owner`, which
/// computes their digests.
void ShardCopier::find_cut(std::uint64_t boundary, unsigned owner) {
    if (boundary >= units_.size()) return;
    const BlockRow::Place place = units_.at(static_cast<std::size_t>(boundary));
    if (place.block == 0) return;
    const Stretch& stretch = stretches_[place.item];
    const PlannedFile& file = layout_.files[stretch.file];
    std::size_t at = stretch.first;
    if (stretch.kind == Cut::Kind::strips) {
        const Strips::Unit unit = strips_of(stretch, file).unit(place.block);
        for (std::size_t i = 0; i < unit.count && unit.part.offset > 0; ++i)
            mark_cut(file.tensors[at + unit.first + i], owner);
        return;
    }
    if (stretch.kind == Cut::Kind::stream) {
        const std::uint64_t offset = stretch.unit(place.block).offset;
        while (at + 1 < file.tensors.size() && file.tensors[at + 1].offset <= offset) ++at;
        if (file.tensors[at].offset == offset) return;
    }
    mark_cut(file.tensors[at], owner);
}

void ShardCopier::mark_cut(const PlannedTensor& tensor, unsigned owner) {
    if (cut_[tensor.number]) return;  // by an earlier boundary, too
    cut_[tensor.number] = true;
    if (owner == process_.rank) to_hash_.push_back(tensor);
}

/// Announces the units of this process.
void ShardCopier::take_share(const Share& share) {
    share_ = share;
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < stretches_.size(); first = units_.end_of(i++)) {
        Stretch& stretch = stretches_[i];
        const std::uint64_t units = units_of(i);
        const std::uint64_t begin = std::clamp(share.first, first, first + units) - first;
        const std::uint64_t end = std::clamp(share.last, first, first + units) - first;
        if (begin >= end) continue;
        files_[stretch.file].units_left += end - begin;
        if (evictions_ != nullptr) plan_evictions(stretch, units, begin, end);
        if (!digests_ || stretch.kind != Cut::Kind::blocks) continue;
        const PlannedTensor& tensor = layout_.files[stretch.file].tensors[stretch.first];
        if (blocks_of(tensor).ranges() || (!cut_.empty() && cut_[tensor.number])) continue;
        stretch.boxes_left = &boxes_left_.emplace_back(units);
    }
    for (File& file : files_) file.whole = file.units > 0 && file.units_left == file.units;
}

/// Announces units of a stretch to be evicted, and the tensors that they read to the end.
void ShardCopier::plan_evictions(Stretch& stretch, std::uint64_t units, std::uint64_t first, std::uint64_t last) {
    // Units of other processes have no number.
    stretch.first_unit = evictions_->add_units(last - first) - first;
    const PlannedFile& file = layout_.files[stretch.file];
    for (std::uint32_t i = stretch.first; i < stretch.first + stretch.count; ++i) {
        const std::uint64_t end = end_of(file, i);
        if (end > stretch.bytes.end()) return;
        if (end == file.tensors[i].offset) continue;  // no elements
        std::uint64_t ends_in = units - 1;
        if (stretch.kind == Cut::Kind::stream)
            ends_in = (end - 1) / stretch.block - stretch.bytes.offset / stretch.block;
        if (stretch.kind == Cut::Kind::strips) ends_in = strips_of(stretch, file).last_unit_of(i - stretch.first);
        if (ends_in < first) continue;
        if (ends_in >= last) return;
        evictions_->add(tensors_[file.tensors[i].number], stretch.first_unit + ends_in);
    }
}

/// Returns the blocks of a tensor. One page of the buffer stays free, because a block has the same offset in a page
/// of the buffer as in a page of the file.
Blocks ShardCopier::blocks_of(const PlannedTensor& planned) const {
    const LazyTensor tensor = value(planned);
    const std::uint64_t most = most_in_block(tensor, workers_.buffer_size());
    // Digests need the bytes in order, and this destination cannot read tiles back.
    if (digests_ && !destination_.reads_back()) return Blocks::in_order(tensor, most);
    Blocks blocks = Blocks::for_disk(tensor, most);
    // Parts of pages are written through the page cache, apart from the rest of a block. A cut must divide no element.
    if (Blocks::wants_rows(tensor) && planned.offset % element_size(planned.dtype) == 0)
        blocks.align(planned.offset, page);
    return blocks;
}

Strips ShardCopier::strips_of(const Cut& cut, const PlannedFile& file) const {
    const PlannedTensor& planned = file.tensors[cut.first];
    return {tensors_[planned.number], planned.dtype, cut.count,
            std::min<std::uint64_t>(workers_.buffer_size(), largest_block) - page};
}

/// Returns the tensor as it is written.
LazyTensor ShardCopier::value(const PlannedTensor& planned) const {
    const LazyTensor& tensor = tensors_[planned.number];
    return tensor.dtype() == planned.dtype ? tensor : tensor.cast(planned.dtype);
}

// ---- running

void ShardCopier::run() {
    units_.each(workers_.count(), watch_, static_cast<std::size_t>(share_.first), static_cast<std::size_t>(share_.last),
                [this](auto unit, unsigned worker) { do_unit(unit, worker); });
    if (digests_) hash();
    require_unchanged(tensors_);
    for (const auto& counts : counts_)
        for (std::size_t i = 0; i < counts.size(); ++i) add_counts(layout_.casts[i], counts[i]);
}

/// Computes digests that did not come with the bytes: of tensors that several processes write, and of tensors that are
/// cut for ranks, a share of them.
void ShardCopier::hash() {
    std::vector<LazyTensor> values;
    for (const PlannedTensor& planned : to_hash_) values.push_back(value(planned));
    const std::vector<std::uint32_t> wholes = wholes_to_hash(layout_, process_.rank, process_.ranks);
    for (const std::uint32_t i : wholes) values.push_back(whole_value(layout_, layout_.chosen[i]));
    std::vector<const LazyTensor*> read;
    for (const LazyTensor& each : values) read.push_back(&each);
    check::Hasher<Xxh3> hasher(read, workers_.count(), watch_);
    hasher.run();
    std::size_t next = 0;
    for (const PlannedTensor& planned : to_hash_) digests_->set(planned.number, hasher.of(next++));
    for (const std::uint32_t i : wholes) wholes_.emplace_back(layout_.chosen[i].number, hasher.of(next++));
}

std::string ShardCopier::outcome() const {
    Packer to;
    for (const SaveReport::Cast& cast : layout_.casts)
        to.number(cast.values).number(cast.overflowed).number(cast.non_finite);
    Numbered digests;
    const Digest nothing = xxh3({});
    for (std::uint32_t i = 0; digests_ && i < tensors_.size(); ++i)
        if (digests_->of(i) != nothing) digests.emplace_back(i, digests_->of(i));
    pack(to, digests);
    pack(to, wholes_);
    return to.take();
}

void ShardCopier::merge(std::string_view outcome) {
    Unpacker from(outcome);
    for (SaveReport::Cast& cast : layout_.casts) {
        cast.values += from.number();
        cast.overflowed += from.number();
        cast.non_finite += from.number();
    }
    for (const auto& [number, digest] : unpack(from)) {
        if (!digests_ || number >= tensors_.size()) throw Error(Errc::io_error, "another process has other tensors");
        digests_->set(number, digest);
    }
    for (const auto& each : unpack(from)) wholes_.push_back(each);
}

void ShardCopier::finished_by_other(std::uint32_t file) {
    if (file >= files_.size()) throw Error(Errc::io_error, "another process has another number of files");
    files_[file].done = true;
    std::string().swap(layout_.files[file].head);
    in_file(file, [&] { destination_.finished_by_other(layout_.files[file]); });
}

void ShardCopier::finish_rest() {
    if (digests_ && !layout_.wholes.empty())
        layout_.whole_digests = digests_of_wholes(layout_, digests_->all(), wholes_);
    // An index comes last: it needs the digests of all other files.
    for (std::uint32_t i = 0; i < files_.size(); ++i)
        if (!files_[i].done) in_file(i, [&] { finish(i); });
}

// ---- copying, on any thread

/// Copies a unit. If that fails, wakes the workers that wait for their turn to feed digests.
void ShardCopier::do_unit(BlockRow::Place unit, unsigned worker) {
    try {
        watch_.check_stop();
        copy(unit, worker);
    } catch (...) {
        if (digests_) digests_->abandon_all();
        throw;
    }
}

void ShardCopier::copy(BlockRow::Place unit, unsigned worker) {
    const Stretch& stretch = stretches_[unit.item];
    in_file(stretch.file, [&] {
        open(stretch.file);
        const bool done = stretch.kind == Cut::Kind::stream   ? copy_stream(stretch, unit.block, worker)
                          : stretch.kind == Cut::Kind::strips ? copy_strips(stretch, unit.block, worker)
                                                              : copy_block(stretch, unit.block, worker);
        if (!done) return;
        if (evictions_ != nullptr) evictions_->done(stretch.first_unit + unit.block);
        if (files_[stretch.file].units_left.fetch_sub(1) == 1) leave(stretch.file);
    });
}

/// Completes a file whose last unit of this process is copied, or leaves that to the end. The worker that did the unit
/// flushes the file to disk, while the other workers continue to write.
void ShardCopier::leave(std::uint32_t number) {
    File& file = files_[number];
    if (file.whole && !needs_others(number)) return finish(number);
    if (process_.ranks == 1) return;  // it stays open
    file.output->release();
    file.output.reset();
}

/// Copies a unit of a stream. Like the functions below, returns false if another worker has failed and the save
/// ends.
bool ShardCopier::copy_stream(const Stretch& stretch, std::uint64_t number, unsigned worker) {
    const Extent unit = stretch.unit(number);
    const std::span<std::byte> whole = in_page(unit.offset, unit.size, worker);
    gather(stretch, unit, whole, worker);
    std::uint64_t written = unit.offset;
    const auto write_gathered = [&](std::uint64_t end) {
        if (written == end) return;
        output(stretch).write_at(written, whole.subspan(written - unit.offset, end - written));
        written = end;
    };
    const bool fed = each_part(stretch, unit, [&](const PlannedTensor& planned, std::uint64_t size, Extent part) {
        const std::uint64_t begin = planned.offset + part.offset;
        const auto straight = in_memory(stretch, planned, part);
        const auto bytes = straight.value_or(whole.subspan(begin - unit.offset, part.size));
        if (!feed(planned, size, part.offset, bytes, worker)) return false;
        if (!straight) return true;
        write_gathered(begin);
        output(stretch).write_at(begin, bytes);
        written = begin + part.size;
        return true;
    });
    if (!fed) return false;
    write_gathered(unit.end());
    watch_.add(whole.size());
    return true;
}

/// Returns a part of a tensor if it lies in memory as it is written, and is written from there; nothing otherwise.
std::optional<std::span<const std::byte>> ShardCopier::in_memory(const Stretch& stretch, const PlannedTensor& planned,
                                                                 Extent part) const {
    const LazyTensor& tensor = tensors_[planned.number];
    if (part.size < least_straight || tensor.dtype() != planned.dtype || !output(stretch).takes_any_address())
        return std::nullopt;
    const auto place = tensor.placement();
    if (!place) return std::nullopt;
    return bytes_in_memory(*place->source, {place->extent.offset + part.offset, part.size});
}

/// Reads the tensors of a unit together that are not written from memory.
void ShardCopier::gather(const Stretch& stretch, Extent unit, std::span<std::byte> whole, unsigned worker) {
    Gatherer& gatherer = workers_.gatherer(worker);
    const std::size_t used = unit.offset % page + whole.size();
    gatherer.begin({.scratch = workers_.buffer(worker).subspan(used, stretch.scratch), .watch = &watch_});
    each_part(stretch, unit, [&](const PlannedTensor& planned, std::uint64_t, Extent part) {
        if (in_memory(stretch, planned, part)) return true;
        gatherer.add(tensors_[planned.number], planned.dtype, part.offset,
                     whole.subspan(planned.offset + part.offset - unit.offset, part.size), counts_of(planned, worker));
        return true;
    });
    gatherer.flush();
}

/// Calls visit(planned, size, part) for each tensor with bytes in a unit of a stream: `part` of its `size` bytes.
/// Stops, and returns false, when a call returns false.
template <class Visit> bool ShardCopier::each_part(const Stretch& stretch, Extent unit, Visit&& visit) const {
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

/// Returns the rest of the buffer for the stored elements of a block, if most_in_block() has left it.
std::span<std::byte> ShardCopier::scratch_of(const LazyTensor& tensor, std::uint64_t used, unsigned worker) {
    if (!is_cast_from_boxes(tensor)) return {};
    const std::span<std::byte> buffer = workers_.buffer(worker);
    const std::span<std::byte> rest = buffer.subspan(std::min<std::size_t>(page + used, buffer.size()));
    // Less is faster, as long as it stays in the CPU cache.
    return rest.first(std::min<std::uint64_t>(rest.size(), Blocks::rows_at_once(tensor)));
}

bool ShardCopier::copy_block(const Stretch& stretch, std::uint64_t number, unsigned worker) {
    const PlannedTensor& planned = layout_.files[stretch.file].tensors[stretch.first];
    const LazyTensor tensor = value(planned);
    const Blocks blocks = blocks_of(planned);
    const std::uint64_t offset = blocks.ranges() ? blocks.range(number).offset : 0;
    // A tile is scattered over the file, so it has no offset in a page.
    const auto buffer = in_page(blocks.ranges() ? planned.offset + offset : 0, blocks.size(number), worker);
    const auto straight = blocks.ranges() ? in_memory(stretch, planned, blocks.range(number)) : std::nullopt;
    const std::span<const std::byte> bytes =
        straight ? *straight
                 : blocks.gather(number, tensor, workers_.gatherer(worker), buffer,
                                 {.scratch = scratch_of(tensor, buffer.size(), worker), .watch = &watch_});
    count_cast(planned, worker);
    if (blocks.ranges() && !feed(planned, stretch.bytes.size, offset, bytes, worker)) return false;
    blocks.scatter(number, [&](std::uint64_t at, std::uint64_t in_block, std::uint64_t length) {
        output(stretch).write_at(planned.offset + at, bytes.subspan(in_block, length));
    });
    watch_.add(bytes.size());
    const bool last_box = stretch.boxes_left != nullptr && stretch.boxes_left->fetch_sub(1) == 1;
    return !last_box || read_back(stretch, worker);
}

/// Copies a range of each of some strips. Whole strips follow each other in the file and are written together.
bool ShardCopier::copy_strips(const Stretch& stretch, std::uint64_t number, unsigned worker) {
    const PlannedFile& file = layout_.files[stretch.file];
    const Strips strips = strips_of(stretch, file);
    const Strips::Unit unit = strips.unit(number);
    const std::span planned = std::span(file.tensors).subspan(stretch.first + unit.first, unit.count);
    const std::uint64_t begin = planned.front().offset;
    const std::uint64_t size = end_of(file, stretch.first) - file.tensors[stretch.first].offset;  // bytes of one strip
    const auto bytes = in_page(begin, unit.bytes(), worker);
    strips.gather(
        unit, workers_.gatherer(worker), bytes, {.watch = &watch_},
        [&](std::size_t i) -> const LazyTensor& { return tensors_[file.tensors[stretch.first + i].number]; },
        counts_of(planned.front(), worker));
    const auto part = static_cast<std::size_t>(unit.part.size);
    const bool whole = unit.part.size == size;
    for (std::size_t i = 0; i < unit.count; ++i) {
        const auto own = bytes.subspan(i * part, part);
        if (!feed(planned[i], size, unit.part.offset, own, worker)) return false;
        if (!whole) output(stretch).write_at(planned[i].offset + unit.part.offset, own);
    }
    if (whole) output(stretch).write_at(begin, bytes);
    watch_.add(bytes.size());
    return true;
}

/// Feeds bytes to the digests. Units are taken in order, and each waits only for earlier units.
bool ShardCopier::feed(const PlannedTensor& planned, std::uint64_t size, std::uint64_t offset,
                       std::span<const std::byte> bytes, unsigned worker) {
    if (!digests_ || (!cut_.empty() && cut_[planned.number])) return true;
    Watch* const watch = worker == 0 ? &watch_ : nullptr;  // worker 0 is the caller's thread
    return digests_->feed(planned.number, size, offset, bytes, watch);
}

bool ShardCopier::read_back(const Stretch& stretch, unsigned worker) {
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

void ShardCopier::count_cast(const PlannedTensor& planned, unsigned worker) {
    const CastCounts counts = workers_.gatherer(worker).take_counts();
    if (CastCounts* const all = counts_of(planned, worker)) *all += counts;
}

/// Returns the statistics of a worker for the cast of a tensor; null if it is not cast.
CastCounts* ShardCopier::counts_of(const PlannedTensor& planned, unsigned worker) {
    const LazyTensor& tensor = tensors_[planned.number];
    if (tensor.stored()->dtype() == planned.dtype) return nullptr;
    const Dtype from = stored_dtype(tensor);
    for (std::size_t i = 0; i < layout_.casts.size(); ++i)
        if (layout_.casts[i].from == from && layout_.casts[i].to == planned.dtype) return &counts_[worker][i];
    return nullptr;
}

/// Opens a file if it is not open yet. Units are taken in the order of the files, so at most one file more than
/// there are workers is open at a time.
void ShardCopier::open(std::uint32_t file) {
    const std::lock_guard lock(opening_);
    auto& output = files_[file].output;
    if (output) return;
    output = destination_.open(layout_.files[file]);
}

void ShardCopier::finish(std::uint32_t file) {
    open(file);
    PlannedFile& planned = layout_.files[file];
    if (digests_) put_digests(planned, layout_, tensors_, digests_->all());
    OpenFile& output = *files_[file].output;
    output.write_at(0, std::as_bytes(std::span(planned.head)));
    std::string().swap(planned.head);
    output.finish();
    files_[file].output.reset();
    files_[file].done = true;
    if (on_finished_) on_finished_(file);
}

/// Returns a part of the worker's buffer with the same offset in a page as `begin` has in the file, so that it can
/// be written past the page cache.
std::span<std::byte> ShardCopier::in_page(std::uint64_t begin, std::uint64_t size, unsigned worker) {
    return workers_.buffer(worker).subspan(static_cast<std::size_t>(begin % page), static_cast<std::size_t>(size));
}

/// Runs `work`. Adds the path of the file to an Error that leaves it, unless that is a stop request.
template <class Work> void ShardCopier::in_file(std::uint32_t file, Work&& work) {
    const auto add = [&](Error& error) {
        if (error.code() != Errc::cancelled) error.with_path(destination_.path_of(layout_.files[file]));
    };
    adding(add, std::forward<Work>(work));
}

}  // namespace safemap::SAFEMAP_ABI::write
