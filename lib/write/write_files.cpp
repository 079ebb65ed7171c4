// Runs copiers for all parts of a save, and predicts their memory.
#include "write/write_files.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"
#include "write/reshard.hpp"
#include "write/shards.hpp"

#include <algorithm>
#include <deque>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

namespace {

static_assert(Workers::buffer_size(saving_threads.most, 1, largest_buffer) >= stream_block);

/// Threads that gather tensors of many pieces, unless the caller gives a number: they wait for the disk, and while they
/// do, others read pieces. Also more than there are processors.
constexpr unsigned gathering_threads = 4;
static_assert(gathering_threads <= saving_threads.most);

unsigned workers_for(std::span<const LazyTensor> tensors, unsigned threads) {
    const auto in_pieces = [](const LazyTensor& tensor) { return tensor.stored()->piece_count() > 1; };
    if (threads == 0 && std::any_of(tensors.begin(), tensors.end(), in_pieces)) return gathering_threads;
    return thread_count(threads, saving_threads);
}

/// Returns the number of bytes that one of the processes copies or hashes, about.
std::uint64_t bytes_to_do(std::span<const Written> parts, unsigned processes) {
    std::uint64_t bytes = 0;
    for (const Written& part : parts) {
        bytes = sum_of_sizes(bytes, part.layout.data_bytes);
        if (lists_digests(part.layout)) bytes = sum_of_sizes(bytes, bytes_to_hash(part.layout));
    }
    return bytes / processes;
}

/// The copiers of all parts.
class Copiers {
public:
    Copiers(std::span<const Written> parts, Together& together, const Monitor& monitor, unsigned threads,
            bool drop_cache)
        : together_(together),
          watch_(monitor, "converting", bytes_to_do(parts, together.size())),
          workers_(threads, 1, largest_buffer, saving_threads) {
        for (std::uint32_t i = 0; i < parts.size(); ++i)
            copiers_.emplace_back(parts[i], workers_, watch_, drop_cache ? &evictions_ : nullptr,
                                  Process{together.rank(), together.size()}, on_finished(i));
        together_.on_message = [this](std::string_view message) {
            Unpacker from(message);
            ShardCopier& copier = copiers_.at(static_cast<std::size_t>(from.number()));
            copier.finished_by_other(static_cast<std::uint32_t>(from.number()));
        };
    }
    ~Copiers() { together_.on_message = {}; }
    Copiers(const Copiers&) = delete;
    Copiers& operator=(const Copiers&) = delete;

    void prepare() {
        together_.lead([this] {
            watch_.tell();
            for (ShardCopier& copier : copiers_) copier.prepare();
        });
        together_.share([this] { return text_of_each(&ShardCopier::adopted); },
                        [this](std::string_view said, unsigned) { give_each(said, &ShardCopier::take_adopted); });
    }

    void run() {
        together_.all([this] {
            for (ShardCopier& copier : copiers_) copier.plan();
            evictions_.plan();
            for (ShardCopier& copier : copiers_) copier.run();
        });
        together_.collect([this] { return text_of_each(&ShardCopier::outcome); },
                          [this](std::string_view said, unsigned) { give_each(said, &ShardCopier::merge); });
    }

    void finish() {
        together_.lead([this] {
            for (ShardCopier& copier : copiers_) copier.finish_rest();
            watch_.tell();
        });
    }

private:
    std::string text_of_each(std::string (ShardCopier::*text)() const) const {
        Packer all;
        for (const ShardCopier& copier : copiers_) all.text((copier.*text)());
        return all.take();
    }
    void give_each(std::string_view said, void (ShardCopier::*give)(std::string_view)) {
        Unpacker from(said);
        for (ShardCopier& copier : copiers_) (copier.*give)(from.text());
    }

    /// Returns a function that tells the leader of a completed file, for its journal.
    std::function<void(std::uint32_t)> on_finished(std::uint32_t part) {
        if (together_.leads()) return {};
        return [this, part](std::uint32_t file) { together_.tell_leader(Packer().number(part).number(file).take()); };
    }

    Together& together_;
    Watch watch_;
    Workers workers_;
    Evictions evictions_;  // for all parts, which may read the same files
    std::deque<ShardCopier> copiers_;
};

}  // namespace

void write_files(std::span<const Written> parts, Together& together, const Monitor& monitor, unsigned threads,
                 bool drop_cache) {
    // How files are cut depends on the buffers of the workers, so every process has as many as the first.
    std::uint64_t workers = 1;
    for (const Written& part : parts) workers = std::max<std::uint64_t>(workers, workers_for(part.tensors, threads));
    together.share([&] { return Packer().number(workers).take(); },
                   [&](std::string_view said, unsigned) { workers = Unpacker(said).number(); });
    const Monitor watching = together.watching(monitor);
    Copiers copiers(parts, together, watching, static_cast<unsigned>(workers), drop_cache);
    copiers.prepare();
    copiers.run();
    copiers.finish();
}

std::uint64_t buffer_bytes(std::span<const LazyTensor> tensors, const Layout& layout, unsigned threads) {
    const unsigned workers = workers_for(tensors, threads);
    const std::uint64_t buffer = Workers::buffer_size(workers, 1, largest_buffer);
    std::uint64_t used = 0;
    bool gathers = false;
    std::uint64_t products = 0;
    for (const PlannedFile& file : layout.files) {
        for (const Cut& cut : cuts_of(tensors, file, buffer)) {
            const bool stream = cut.kind == Cut::Kind::stream;
            const std::uint64_t block = stream ? cut.block : std::min(buffer, largest_block);
            // Blocks that are cast from boxes may have their stored elements beside them, of eight times their size.
            constexpr std::uint64_t widest = 9;
            const std::uint64_t size = stream ? cut.bytes.size : std::min(cut.bytes.size, block) * widest;
            used = std::max(used, std::min(block, size) + cut.scratch);
            gathers = gathers || (stream && cut.block > stream_block);
        }
        for (const PlannedTensor& planned : file.tensors) {
            const LazyTensor& tensor = tensors[planned.number];
            const StridedView& view = tensor.strided_view();
            if (scaled_numbers(tensor) != nullptr) products = scaled_read_memory;
            gathers = gathers || tensor.stored()->dtype() != planned.dtype || tensor.stored()->piece_count() > 1 ||
                      !is_contiguous(view.shape, view.strides) || tensor.nbytes() < Gatherer::long_part;
        }
    }
    constexpr std::uint64_t stack = 64_KiB;
    return workers * (used + io::direct_alignment + (gathers ? Gatherer::most_memory : 0) + products + stack);
}

}  // namespace safemap::SAFEMAP_ABI::write
