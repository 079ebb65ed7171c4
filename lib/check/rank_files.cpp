// Reads files of ranks in batches, and reports the faults that the readers of tensors have not seen.
#include "check/rank_files.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "check/stretches.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
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

/// Some of the files, and what they have stored.
class Batch {
public:
    Batch(unsigned threads, Watch& watch, VerifyReport& report)
        : threads_(threads), watch_(watch), report_(report), known_(report.faults.size()) {}

    void add(const std::shared_ptr<const Source>& source) {
        CollectFaults faults;
        Contents one = open::read_records(source, faults);
        for (Error& fault : faults.take()) add(std::move(fault));
        state::move_to_end(one.sources, files_.sources);
        state::move_to_end(one.checksums, files_.checksums);
        state::move_to_end(one.storages, files_.storages);
        if (files_.sources.size() >= most_files || files_.checksums.size() >= most_records) read();
    }

    void read() {
        std::vector<Stretch> stretches = stretches_of(files_, {});
        // The size of a deflated record is not part of the size of its file.
        for (Stretch& stretch : stretches) stretch.counted = !stretch.inflated;
        VerifyReport own;
        read_stretches(stretches, threads_, watch_, own);
        for (const auto& source : files_.sources) source->require_unchanged();
        for (Error& fault : own.faults) add(std::move(fault));
        report_.checked_bytes += own.checked_bytes;
        files_ = {};
    }

private:
    void add(Error fault) {
        const auto begin = report_.faults.begin();
        const auto end = begin + static_cast<std::ptrdiff_t>(known_);
        if (std::none_of(begin, end, [&fault](const Error& known) { return same_fault(known, fault); }))
            report_.faults.push_back(std::move(fault));
    }

    unsigned threads_;
    Watch& watch_;
    VerifyReport& report_;
    std::size_t known_;  ///< number of faults that the readers have reported
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

void read_rank_files(const open::RunFiles& run, unsigned threads, Watch& watch, VerifyReport& report) {
    Batch batch(threads, watch, report);
    each_file(run, [&](const auto& source) {
        watch.tick();
        batch.add(source);
    });
    batch.read();
}

}  // namespace safemap::SAFEMAP_ABI::check
