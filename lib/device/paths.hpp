// The paths that bytes take from a file: through the page cache, or past it if that turns out to be faster.
#pragma once

#include "lazy/bulk.hpp"
#include "lazy/gatherer.hpp"

#include <safemap/source.hpp>
#include <safemap/uploader.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::device {

enum class Path : std::uint8_t { pread, direct };

/// Conditions of reads past the page cache.
struct PathRules {
    std::uint64_t least_file = std::uint64_t{512} << 20;  ///< bytes of the file; the trial should be a small part of it
    std::uint64_t least_read = std::uint64_t{2} << 20;    ///< bytes of one read: nothing is read ahead
    std::uint64_t trial = std::uint64_t{32} << 20;        ///< bytes that a trial reads by one path before the other one
    unsigned margin = 120;                                ///< percent of the rate through the page cache
    std::chrono::nanoseconds (*now)() = [] {
        return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
    };

    /// Returns rules that no file obeys.
    static PathRules without_direct() { return {.least_file = UINT64_MAX}; }
};

/// Decides how a file is read. Its first blocks that are not cached are read by both paths in turn, at most twice. The
/// page cache is chosen for good, unless the other path is clearly faster in each of the two turns. Reads nothing
/// itself.
class PathTrial {
public:
    PathTrial(const PathRules& rules, std::uint64_t file_bytes) noexcept;

    struct Choice {
        Path path;
        bool counts;  ///< add() wants to know the time
    };
    /// Returns the path for the next read, which begins at `offset`. `cold` is true if its bytes are not in the page
    /// cache. What is cached is never read past the cache, and begins no trial. It counts for the cache if the kernel
    /// may have read it ahead: if it begins soon after a cold read through the cache.
    Choice choose(bool cold, std::uint64_t offset = 0) const noexcept;
    /// Adds a read that counts. `cold_end`: where it ended, if it was cold. If as many bytes were read past the cache
    /// as the file has, the page cache is chosen: what is read again should be in memory then.
    void add(Path path, std::uint64_t bytes, std::chrono::nanoseconds time, std::uint64_t cold_end = 0) noexcept;
    /// Chooses the page cache: the file cannot be read past it.
    void refuse() noexcept {
        chosen_ = Path::pread;
        decided_ = true;
    }
    /// Returns true if choose() will never return Path::direct again.
    bool is_settled() const noexcept { return decided_ && chosen_ == Path::pread; }

private:
    struct Sum {
        std::uint64_t bytes = 0;
        std::uint64_t nanoseconds = 0;
    };
    void decide() noexcept;

    const std::uint64_t trial_;
    const unsigned margin_;
    const std::uint64_t file_bytes_;
    bool decided_ = false;
    Path chosen_ = Path::pread;
    unsigned turns_ = 0;              // turns that are over
    std::array<Sum, 2> sums_ = {};    // sums of this turn, by path
    std::uint64_t cold_end_ = 0;      // where the last cold read through the cache ended
    std::uint64_t direct_bytes_ = 0;  // sum of all turns, and after them
};

/// Reads for uploads: chooses the paths, and counts bytes and time. Thread-safe.
class Paths {
public:
    explicit Paths(const PathRules& rules = {}) noexcept : rules_(rules) {}

    /// Does the same as source.read_scattered(). May use the direct_buffer() of `worker`.
    void read(const Source& source, std::uint64_t offset, std::span<const std::span<std::byte>> into, Worker& worker);
    /// Sets the counters of bytes and of time in `stats`.
    void report(UploadStats& stats) const noexcept;

private:
    struct Sum {
        std::atomic<std::uint64_t> bytes = 0;
        std::atomic<std::int64_t> nanoseconds = 0;
    };
    PathTrial* trial_of(const Source& source, std::uint64_t bytes);
    PathTrial::Choice choose(PathTrial& trial, const Source& source, Extent extent, bool& cold) const;

    const PathRules rules_;
    std::array<Sum, 2> sums_ = {};  // by path
    mutable std::mutex mutex_;      // guards the trials
    // By Source::identity(), so that a file that is opened again needs no other trial. Few files are so large that they
    // have one.
    std::unordered_map<std::string, PathTrial> trials_;
};

/// Lets a Gatherer read by the paths that are chosen.
class PathReader final : public SourceReader {
public:
    PathReader(Paths& paths, Worker& worker) noexcept : paths_(paths), worker_(worker) {}
    void read(const Source& source, std::uint64_t offset, std::span<const std::span<std::byte>> into) override {
        paths_.read(source, offset, into, worker_);
    }

private:
    Paths& paths_;
    Worker& worker_;
};

}  // namespace safemap::SAFEMAP_ABI::device
