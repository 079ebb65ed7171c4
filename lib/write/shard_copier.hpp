// The copy engine: writes any tensors into files that have been laid out.
#pragma once

#include "base/ordered_digests.hpp"
#include "base/watch.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "lazy/cast_counts.hpp"
#include "lazy/strips.hpp"
#include "write/cuts.hpp"
#include "write/destination.hpp"
#include "write/evictions.hpp"
#include "write/file_layout.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// Tensors, the layout of their files, and the destination of the files.
struct Written {
    std::span<const LazyTensor> tensors;
    Layout& layout;
    Destination& destination;
};

/// Returns true if the files of a layout have lists of digests.
bool lists_digests(const Layout& layout);

/// One of the processes that share the work.
struct Process {
    unsigned rank = 0;
    unsigned ranks = 1;
};

/// Copies the tensors of one part of a save into its files. One process does all of it, or several do a share each:
///
/// 1. prepare(), in one process: adopts or allocates the files. The others take adopted() from it.
/// 2. plan() and run(), in every process, with its share
/// 3. merge(), in the first process, with the outcome() of each other one
/// 4. finish_rest(), in the first process: completes the files that no process could complete alone
class ShardCopier {
public:
    /// Evicts sources if `evictions` is not null. `on_finished` is called on any thread with the number of a file that
    /// run() has completed; it may be empty.
    ShardCopier(const Written& part, Workers& workers, Watch& watch, Evictions* evictions, Process process = {},
                std::function<void(std::uint32_t file)> on_finished = {});

    void prepare();
    std::string adopted() const;
    void take_adopted(std::string_view text);

    /// Cuts the files into units, and announces those of this process.
    void plan();
    /// Copies the units of this process, and completes files that have no units of others.
    void run();
    /// Returns counts and digests for the first process.
    std::string outcome() const;

    void merge(std::string_view outcome);
    /// Records that another process has completed a file.
    void finished_by_other(std::uint32_t file);
    void finish_rest();

private:
    /// A stretch of one file, with what is known while it is copied.
    struct Stretch : Cut {
        std::uint32_t file = 0;
        std::uint64_t first_unit = 0;                      ///< its number for evictions
        std::atomic<std::uint64_t>* boxes_left = nullptr;  ///< set for a tensor in tiles that needs a digest
    };
    struct File {
        std::unique_ptr<OpenFile> output;  // open from the first of its units to the last
        bool done = false;                 // adopted, or completed
        bool whole = false;                // all its units are of this process
        std::uint64_t units = 0;
        std::atomic<std::uint64_t> units_left = 0;  // units of this process
    };
    using Numbered = std::vector<std::pair<std::uint32_t, Digest>>;

    bool needs_others(std::uint32_t file) const;

    void prepare(std::uint32_t file);
    void adopt(std::uint32_t file);
    void take_digests(const PlannedFile& planned, const OpenFile::Read& read);
    void plan(std::uint32_t file);
    void add(Stretch stretch, std::uint64_t units);
    std::uint64_t units_of(std::size_t stretch) const noexcept;
    void find_cut(std::uint64_t boundary, unsigned owner);
    void take_share(const Share& share);
    void plan_evictions(Stretch& stretch, std::uint64_t units, std::uint64_t first, std::uint64_t last);
    Blocks blocks_of(const PlannedTensor& planned) const;
    Strips strips_of(const Cut& cut, const PlannedFile& file) const;
    void mark_cut(const PlannedTensor& tensor, unsigned owner);
    LazyTensor value(const PlannedTensor& planned) const;

    void do_unit(BlockRow::Place unit, unsigned worker);
    void copy(BlockRow::Place unit, unsigned worker);
    bool copy_stream(const Stretch& stretch, std::uint64_t number, unsigned worker);
    void gather(const Stretch& stretch, Extent unit, std::span<std::byte> whole, unsigned worker);
    std::optional<std::span<const std::byte>> in_memory(const Stretch& stretch, const PlannedTensor& planned,
                                                        Extent part) const;
    template <class Visit> bool each_part(const Stretch& stretch, Extent unit, Visit&& visit) const;
    std::span<std::byte> scratch_of(const LazyTensor& tensor, std::uint64_t used, unsigned worker);
    bool copy_block(const Stretch& stretch, std::uint64_t number, unsigned worker);
    bool copy_strips(const Stretch& stretch, std::uint64_t number, unsigned worker);
    bool feed(const PlannedTensor& planned, std::uint64_t size, std::uint64_t offset, std::span<const std::byte> bytes,
              unsigned worker);
    bool read_back(const Stretch& stretch, unsigned worker);
    void count_cast(const PlannedTensor& planned, unsigned worker);
    CastCounts* counts_of(const PlannedTensor& planned, unsigned worker);
    void leave(std::uint32_t file);
    void open(std::uint32_t file);
    void finish(std::uint32_t file);
    void hash();
    const OpenFile& output(const Stretch& stretch) const { return *files_[stretch.file].output; }
    std::span<std::byte> in_page(std::uint64_t begin, std::uint64_t size, unsigned worker);
    template <class Work> void in_file(std::uint32_t file, Work&& work);

    std::span<const LazyTensor> tensors_;
    Layout& layout_;
    Workers& workers_;
    std::vector<std::vector<CastCounts>> counts_;  // one list per worker, in the order of layout.casts
    std::vector<File> files_;
    std::optional<OrderedDigests> digests_;  // by the numbers of `tensors_`
    std::deque<std::atomic<std::uint64_t>> boxes_left_;
    std::mutex opening_;
    Destination& destination_;
    Evictions* evictions_;
    std::function<void(std::uint32_t)> on_finished_;
    std::vector<Stretch> stretches_;
    BlockRow units_;  // units of all stretches
    Share share_ = {};
    Process process_;
    std::vector<bool> cut_;               // tensors that several processes write; empty without any
    std::vector<PlannedTensor> to_hash_;  // the cut tensors whose digest is computed here
    Numbered wholes_;                     // digests of the caller's tensors that are cut for ranks
    Watch& watch_;
};

}  // namespace safemap::SAFEMAP_ABI::write
