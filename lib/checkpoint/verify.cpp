// Reads everything there is to read, and collects what is wrong with it.
#include <safemap/verify.hpp>

#include "base/checksum.hpp"
#include "base/pool.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "checkpoint/contents.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

namespace safemap {

namespace {

using checkpoint::Contents;

using namespace literals;

// Work is handed out in such blocks, and read in them too where the buffers of all workers stay within their bound.
constexpr std::uint64_t block_bytes = 8_MiB;
constexpr std::uint64_t all_buffers = 32_MiB;
constexpr std::uint64_t page = 4_KiB;

/// Bytes that are read one after the other by one worker: a record with a checksum, or a block of what has none.
struct Stretch {
    const Source* source = nullptr;
    Extent extent = {};
    const Checkpoint::StoredChecksum* checksum = nullptr;
};

void add_blocks(std::vector<Stretch>& stretches, const Source& source, std::uint64_t begin, std::uint64_t end) {
    for (; begin < end; begin += block_bytes)
        stretches.push_back({&source, {begin, std::min(block_bytes, end - begin)}});
}

/// Every byte of every source once: records with checksums as they are, what is between them in blocks.
std::vector<Stretch> stretches_of(const Contents& contents) {
    std::vector<Stretch> stretches;
    for (const auto& checksum : contents.checksums)
        stretches.push_back({checksum.source.get(), checksum.extent, &checksum});
    const auto by_source = [](const Stretch& a, const Stretch& b) { return std::less<>()(a.source, b.source); };
    std::sort(stretches.begin(), stretches.end(), [&](const Stretch& a, const Stretch& b) {
        return a.source != b.source ? by_source(a, b) : a.extent.offset < b.extent.offset;
    });
    const std::vector<Stretch> records = stretches;
    for (const auto& source : contents.sources) {
        std::uint64_t done = 0;
        const auto [first, last] = std::equal_range(records.begin(), records.end(), Stretch{source.get()}, by_source);
        for (auto record = first; record != last; ++record) {
            add_blocks(stretches, *source, done, record->extent.offset);
            done = std::max(done, record->extent.end());
        }
        add_blocks(stretches, *source, done, source->size());
    }
    return stretches;
}

/// Works through the stretches; safe for several workers.
class Reader {
public:
    Reader(const std::vector<Stretch>& stretches, unsigned threads, Watch& watch, VerifyReport& report)
        : stretches_(stretches),
          threads_(thread_count(threads)),
          block_(std::min(block_bytes, all_buffers / threads_ / page * page)),
          watch_(watch),
          report_(report),
          found_(stretches.size()) {}

    void run() {
        buffers_.resize(threads_);
        parallel_for(
            stretches_.size(), threads_, [this](std::size_t i, unsigned worker) { read(i, worker); },
            [this] { watch_.tick(); });
        // In the order of the file, whichever worker was first.
        for (Finding& finding : found_) {
            if (finding.fault) report_.faults.push_back(std::move(*finding.fault));
            report_.checked_bytes += finding.checked;
        }
    }

private:
    struct Finding {
        std::optional<Error> fault = {};
        std::uint64_t checked = 0;
    };

    void read(std::size_t i, unsigned worker) {
        const Stretch& stretch = stretches_[i];
        try {
            const std::uint32_t crc = read_all(stretch, worker);
            if (stretch.checksum != nullptr) compare(stretch, crc, found_[i]);
        } catch (Error& error) {
            if (exit_code(error.code()) != 1) throw;
            found_[i].fault = std::move(error.with_path(stretch.source->name()));
        }
    }

    std::uint32_t read_all(const Stretch& stretch, unsigned worker) {
        std::vector<std::byte>& buffer = buffers_[worker];
        std::uint32_t crc = 0;
        for (std::uint64_t done = 0; done < stretch.extent.size;) {
            watch_.check_stop();
            const std::uint64_t size = std::min(block_, stretch.extent.size - done);
            if (buffer.size() < size) buffer.resize(size);
            const std::span block(buffer.data(), size);
            stretch.source->read_at(stretch.extent.offset + done, block);
            if (stretch.checksum != nullptr) crc = crc32(crc, block);
            done += size;
            watch_.add(size);
            if (worker == 0) watch_.tick();  // worker 0 is the caller's thread
        }
        return crc;
    }

    static void compare(const Stretch& stretch, std::uint32_t crc, Finding& finding) {
        const Checkpoint::StoredChecksum& stored = *stretch.checksum;
        finding.checked = stretch.extent.size;
        if (crc == stored.crc32) return;
        finding.fault =
            Error(Errc::checksum_mismatch, "record " + safemap::quoted(stored.record) + ": the data has CRC-32 " +
                                               hex(crc) + ", stored is " + hex(stored.crc32));
        finding.fault->with_path(stretch.source->name());
    }

    static std::string hex(std::uint32_t number) {
        std::string text;
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[number >> shift & 15];
        return text;
    }

    const std::vector<Stretch>& stretches_;
    unsigned threads_;
    std::uint64_t block_;
    Watch& watch_;
    VerifyReport& report_;
    std::vector<Finding> found_;  // one for each stretch: workers do not meet
    std::vector<std::vector<std::byte>> buffers_;
};

}  // namespace

VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options) {
    VerifyReport report;
    CollectFaults faults;
    Contents contents;
    checkpoint::reporting(faults, [&] {
        contents = checkpoint::read_path(path, options.open, faults);
        report.bytes = checkpoint::total_bytes(contents);
    });
    report.faults = faults.take();
    report.notes = std::move(contents.notes);
    report.tensors = contents.tensors.size();

    const std::vector<Stretch> stretches = stretches_of(contents);
    std::uint64_t total = 0;
    for (const Stretch& stretch : stretches)
        total = checked_add(total, stretch.extent.size).value_or(std::numeric_limits<std::uint64_t>::max());
    Watch watch(options.monitor, "verifying", total);
    watch.check_stop();
    Reader(stretches, options.threads, watch, report).run();
    for (const auto& source : contents.sources) source->require_unchanged();
    watch.tell();
    return report;
}

}  // namespace safemap
