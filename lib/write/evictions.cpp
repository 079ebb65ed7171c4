// Plans which bytes of the sources are evicted after which step, and evicts them.
#include "write/evictions.hpp"

#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"

#include <algorithm>
#include <exception>
#include <functional>

namespace safemap::SAFEMAP_ABI::write {

namespace {

constexpr std::uint64_t cache_page = 4_KiB;
constexpr std::uint64_t most_steps = 256;
constexpr std::uint64_t most_entries = 1U << 20;  // entries of the table of steps and files

/// Sorts ranges, and merges those that are less than a page apart.
void merge(std::vector<Extent>& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    std::size_t kept = 0;
    for (const Extent& range : ranges) {
        if (kept > 0 && range.offset <= ranges[kept - 1].end() + cache_page) {
            Extent& last = ranges[kept - 1];
            last.size = std::max(last.end(), range.end()) - last.offset;
        } else {
            ranges[kept++] = range;
        }
    }
    ranges.resize(kept);
}

/// Adds a range. Merges from time to time, so that memory depends on the result.
void add_to(std::vector<Extent>& ranges, const Extent& range) {
    if (ranges.size() == ranges.capacity()) {
        merge(ranges);
        if (ranges.size() > ranges.capacity() / 2) ranges.reserve(2 * ranges.capacity() + 8);
    }
    ranges.push_back(range);
}

}  // namespace

void Evictions::add(const LazyTensor& tensor, std::uint64_t last_unit) {
    if (const ScaledNumbers* const product = scaled_numbers(tensor)) {
        add(product->numbers, last_unit);
        return add(product->scales, last_unit);
    }
    tensors_.push_back({&tensor, last_unit});
    bytes_ += tensor.nbytes();
}

void Evictions::plan() {
    find_files();
    if (files_.empty()) return;
    find_steps();
    find_ranges();
    // So far, the table has the first byte that each step reads itself.
    std::vector<std::uint64_t> later(files_.size(), UINT64_MAX);
    for (std::size_t step = steps_.size(); step-- > 0;)
        for (std::size_t file = 0; file < files_.size(); ++file) {
            std::uint64_t& own = wanted_later_[step * files_.size() + file];
            const std::uint64_t after = later[file];
            later[file] = std::min(after, own);
            own = after;
        }
}

void Evictions::find_files() {
    std::vector<const Source*> sources;
    for (const Planned& planned : tensors_) {
        planned.tensor->stored()->each_source([&](const Source& source) {
            if (source.is_file()) sources.push_back(&source);
        });
        if (sources.size() < 2 * files_.size() + 4096 && &planned != &tensors_.back()) continue;
        for (const File& file : files_) sources.push_back(file.source);
        std::sort(sources.begin(), sources.end(), std::less<>());
        sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
        files_.resize(sources.size());
        for (std::size_t i = 0; i < sources.size(); ++i) files_[i].source = sources[i];
        sources.clear();
    }
}

void Evictions::find_steps() {
    const std::uint64_t most = std::clamp<std::uint64_t>(most_entries / files_.size(), 1, most_steps);
    steps_.resize(static_cast<std::size_t>(std::clamp<std::uint64_t>(bytes_ / step_bytes_, 1, most)));
    std::uint64_t before = 0;
    for (const Planned& planned : tensors_) {
        Step& step = steps_[step_of(before)];
        step.last_unit = std::max(step.last_unit, planned.last_unit);
        before += planned.tensor->nbytes();
    }
    std::uint64_t units = 0;
    for (Step& step : steps_) {
        step.last_unit = std::max(step.last_unit, units == 0 ? 0 : units - 1);
        step.units_left = step.last_unit + 1 - units;
        units = step.last_unit + 1;
    }
}

std::size_t Evictions::step_of(std::uint64_t bytes_before) const noexcept {
    const std::uint64_t each = (bytes_ + steps_.size() - 1) / steps_.size();
    return each == 0 ? 0 : std::min(steps_.size() - 1, static_cast<std::size_t>(bytes_before / each));
}

void Evictions::find_ranges() {
    wanted_later_.assign(steps_.size() * files_.size(), UINT64_MAX);
    std::uint64_t before = 0;
    for (const Planned& planned : tensors_) {
        const std::size_t step = step_of(before);
        before += planned.tensor->nbytes();
        for (const SourceRange& range : ranges_of({planned.tensor, 1})) {
            const auto file =
                std::lower_bound(files_.begin(), files_.end(), range.source,
                                 [](const File& a, const Source* source) { return std::less<>()(a.source, source); });
            if (file == files_.end() || file->source != range.source) continue;
            std::uint64_t& first =
                wanted_later_[step * files_.size() + static_cast<std::size_t>(file - files_.begin())];
            first = std::min(first, range.extent.offset);
            add_to(file->wanted, range.extent);
        }
    }
    for (File& file : files_) merge(file.wanted);
}

void Evictions::done(std::uint64_t unit) {
    if (steps_.empty()) return;
    std::vector<SourceRange> ranges;
    {
        const std::lock_guard lock(mutex_);
        const auto step = std::lower_bound(steps_.begin(), steps_.end(), unit,
                                           [](const Step& a, std::uint64_t b) { return a.last_unit < b; });
        if (step == steps_.end() || --step->units_left > 0) return;
        const std::size_t before = steps_done_;
        while (steps_done_ < steps_.size() && steps_[steps_done_].units_left == 0) ++steps_done_;
        if (steps_done_ == before) return;
        ranges = take(steps_done_ - 1);
    }
    evict_quietly(ranges);
}

/// Returns what is no longer wanted after a step.
std::vector<SourceRange> Evictions::take(std::size_t step) {
    std::vector<SourceRange> taken;
    for (std::size_t file = 0; file < files_.size(); ++file)
        take_before(files_[file], wanted_later_[step * files_.size() + file], taken);
    return taken;
}

/// Takes the wanted bytes before `end` that are not evicted yet. The kernel evicts whole pages only, so a page that was
/// left because a later step wanted a part of it is taken again.
void Evictions::take_before(File& file, std::uint64_t end, std::vector<SourceRange>& taken) {
    for (; file.next < file.wanted.size(); ++file.next) {
        const Extent& range = file.wanted[file.next];
        const bool whole = range.end() <= end;
        const std::uint64_t from = std::max(range.offset, file.evicted) / cache_page * cache_page;
        // No wanted range is in the last page of this one.
        const std::uint64_t to =
            whole ? std::min(file.source->size(), (range.end() + cache_page - 1) / cache_page * cache_page) : end;
        if (to / cache_page > from / cache_page || (whole && to > from))
            taken.push_back({file.source, {from, to - from}});
        file.evicted = std::max(file.evicted, to);
        if (!whole) return;
    }
}

void evict_quietly(std::span<const SourceRange> ranges) noexcept {
    for (const SourceRange& range : ranges) {
        try {
            range.source->evict(range.extent);
        } catch (const std::exception&) {
            continue;
        }
    }
}

}  // namespace safemap::SAFEMAP_ABI::write
