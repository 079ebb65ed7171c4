// The paths that bytes take from a file.
#include "device/paths.hpp"

#include "lazy/scattered_read.hpp"

#include <safemap/error.hpp>

#include <algorithm>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// As far as a kernel reads ahead of a read.
constexpr std::uint64_t most_read_ahead = 8_MiB;

// Trials of more files than this are not remembered.
constexpr std::size_t most_trials = 4096;

// The kernel looks up each page that it is asked for. For a whole range, that takes a tenth of the time to copy it.
constexpr std::uint64_t least_sampled = 256_KiB;
constexpr std::uint64_t sampled_part = 32;

/// Returns which part of a range is cached. Of a large one, asks for a little of the second and of the last quarter.
safemap::Residency sample(const Source& source, Extent extent) {
    if (extent.size < least_sampled) return source.residency(extent);
    const std::uint64_t part = extent.size / sampled_part;
    const safemap::Residency early = source.residency({extent.offset + extent.size / 8 * 3, part});
    const safemap::Residency late = source.residency({extent.offset + extent.size / 8 * 7, part});
    return {early.resident + late.resident, early.total + late.total};
}

/// Returns true if less than a quarter of the range is in the page cache. The kernel reads ahead: the beginning of a
/// range may be cached because the range before it was read.
bool is_cold(const Source& source, Extent extent) {
    try {
        const safemap::Residency cached = sample(source, extent);
        return cached.total > 0 && cached.resident < cached.total / 4;
    } catch (const Error&) {
        return false;  // the read through the cache reports what is wrong, if it matters
    }
}

}  // namespace

PathTrial::PathTrial(const PathRules& rules, std::uint64_t file_bytes) noexcept
    : trial_(rules.trial),
      margin_(rules.margin),
      file_bytes_(file_bytes),
      decided_(trial_ == 0),
      chosen_(trial_ == 0 ? Path::direct : Path::pread) {}

PathTrial::Choice PathTrial::choose(bool cold, std::uint64_t offset) const noexcept {
    const std::uint64_t cached_bytes = sums_[static_cast<std::size_t>(Path::pread)].bytes;
    const bool wants_direct = decided_ ? chosen_ == Path::direct : cached_bytes >= trial_;
    if (wants_direct) return cold ? Choice{Path::direct, true} : Choice{Path::pread, false};
    const bool was_read_ahead = cached_bytes > 0 && offset < cold_end_ + most_read_ahead;
    return {Path::pread, !decided_ && (cold || was_read_ahead)};
}

void PathTrial::add(Path path, std::uint64_t bytes, std::chrono::nanoseconds time, std::uint64_t cold_end) noexcept {
    if (path == Path::direct) direct_bytes_ += bytes;
    else if (cold_end > 0) cold_end_ = cold_end;
    Sum& sum = sums_[static_cast<std::size_t>(path)];
    sum.bytes += bytes;
    sum.nanoseconds += static_cast<std::uint64_t>(time.count());
    if (!decided_) decide();
    if (decided_ && direct_bytes_ >= file_bytes_) chosen_ = Path::pread;
}

/// Chooses if a turn is over. The trial is over when the page cache was not slower in a turn, or after two turns.
void PathTrial::decide() noexcept {
    const auto& [pread, direct] = sums_;
    if (std::min(pread.bytes, direct.bytes) < trial_) return;
    // bytes / time >= margin * bytes / time, without the divisions
    const auto product = [](std::uint64_t a, std::uint64_t b) {
        return static_cast<double>(a) * static_cast<double>(b);
    };
    const bool faster =
        100 * product(direct.bytes, pread.nanoseconds) >= margin_ * product(pread.bytes, direct.nanoseconds);
    chosen_ = faster ? Path::direct : Path::pread;
    decided_ = !faster || ++turns_ == 2;
    sums_ = {};
}

void Paths::read(const Source& source, std::uint64_t offset, std::span<const std::span<std::byte>> into,
                 Worker& worker) {
    std::uint64_t bytes = 0;
    for (const std::span<std::byte> place : into) bytes += place.size();
    PathTrial* const trial = trial_of(source, bytes);
    bool cold = false;
    const PathTrial::Choice choice =
        trial != nullptr ? choose(*trial, source, {offset, bytes}, cold) : PathTrial::Choice{Path::pread, false};

    const auto timed = [&](Path path, auto&& work) {
        const std::chrono::nanoseconds began = rules_.now();
        if (!work()) return false;
        const std::chrono::nanoseconds time = rules_.now() - began;
        Sum& sum = sums_[static_cast<std::size_t>(path)];
        sum.bytes += bytes;
        sum.nanoseconds += time.count();
        if (choice.counts && path == choice.path) {
            const std::lock_guard lock(mutex_);
            trial->add(path, bytes, time, cold ? offset + bytes : 0);
        }
        return true;
    };
    if (choice.path == Path::direct) {
        if (timed(Path::direct, [&] { return source.read_direct(offset, into, worker.direct_buffer()); })) return;
        const std::lock_guard lock(mutex_);
        trial->refuse();
    }
    timed(Path::pread, [&] {
        read_pieces(source, offset, into);
        return true;
    });
}

/// Returns the trial of the source; null if reads of `bytes` bytes should not bypass the page cache.
PathTrial* Paths::trial_of(const Source& source, std::uint64_t bytes) {
    if (bytes < rules_.least_read || source.size() < rules_.least_file || !source.is_file()) return nullptr;
    std::string identity = source.identity();
    if (identity.empty()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (trials_.size() >= most_trials && !trials_.contains(identity)) return nullptr;
    return &trials_.try_emplace(std::move(identity), rules_, source.size()).first->second;
}

/// Returns the choice of a trial, and sets `cold` if the range is not in the page cache.
PathTrial::Choice Paths::choose(PathTrial& trial, const Source& source, Extent extent, bool& cold) const {
    {
        const std::lock_guard lock(mutex_);
        if (trial.is_settled()) return {Path::pread, false};
    }
    cold = is_cold(source, extent);
    const std::lock_guard lock(mutex_);
    return trial.choose(cold, extent.offset);
}

void Paths::report(UploadStats& stats) const noexcept {
    const auto& [pread, direct] = sums_;
    stats.bytes_pread = pread.bytes;
    stats.bytes_direct = direct.bytes;
    stats.time_pread = std::chrono::nanoseconds(pread.nanoseconds);
    stats.time_direct = std::chrono::nanoseconds(direct.nanoseconds);
}

}  // namespace safemap::SAFEMAP_ABI::device
