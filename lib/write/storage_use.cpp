// Counts referenced bytes: turns strided views into runs of bytes. Tested by tests/write/storage_use_test.cpp.
#include "write/storage_use.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "lazy/same_tensor.hpp"
#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"
#include "write/shards.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

constexpr std::uint64_t most_runs = std::uint64_t{1} << 18;  // 4 MiB

/// The elements that a view references: a run of adjacent elements, repeated at every step.
class Pattern {
public:
    explicit Pattern(const StridedView& view) : first_(view.offset) {
        for (std::size_t d = 0; d < view.shape.size(); ++d) add(view.shape[d], view.strides[d]);
        std::sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) { return a.stride < b.stride; });
        auto step = steps_.begin();
        for (; step != steps_.end() && step->stride <= run_; ++step) run_ += step->length();
        steps_.erase(steps_.begin(), step);
        hull_ = run_;
        for (const Step& gap : steps_) {
            disjoint_ = disjoint_ && gap.stride >= hull_;
            hull_ += gap.length();
            runs_ *= gap.count;  // at most the elements of a tensor, so it fits
        }
    }

    bool gapless() const noexcept { return steps_.empty(); }
    /// Returns true if no element is in two runs.
    bool disjoint() const noexcept { return disjoint_; }
    std::uint64_t first() const noexcept { return static_cast<std::uint64_t>(first_); }
    std::uint64_t run() const noexcept { return run_; }
    std::uint64_t runs() const noexcept { return runs_; }
    /// Returns the number of elements from the first to the last.
    std::uint64_t hull() const noexcept { return hull_; }

    /// Calls `visit` with the first element of every run.
    template <class Visit> void each_run(Visit&& visit) const { descend(steps_.size(), first(), visit); }

private:
    struct Step {
        std::uint64_t count;
        std::uint64_t stride;
        std::uint64_t length() const noexcept { return (count - 1) * stride; }
    };

    void add(std::uint64_t count, std::int64_t stride) {
        if (count == 1 || stride == 0) return;
        if (stride < 0) first_ += static_cast<std::int64_t>(count - 1) * stride;
        steps_.push_back({count, static_cast<std::uint64_t>(stride < 0 ? -stride : stride)});
    }
    template <class Visit> void descend(std::size_t steps, std::uint64_t at, Visit& visit) const {
        if (steps == 0) return visit(at);
        const Step& step = steps_[steps - 1];
        for (std::uint64_t i = 0; i < step.count; ++i) descend(steps - 1, at + i * step.stride, visit);
    }

    std::int64_t first_;
    std::uint64_t run_ = 1;
    std::uint64_t runs_ = 1;
    std::uint64_t hull_ = 1;
    bool disjoint_ = true;
    std::vector<Step> steps_ = {};  // smallest stride first
};

/// Returns the bytes of a run of elements. Runs of sub-byte elements are whole bytes.
std::uint64_t bytes_of(Dtype dtype, std::uint64_t elements) {
    return whole_bytes(dtype) ? elements * element_size(dtype)
                              : elements / 8 * bits(dtype) + elements % 8 * bits(dtype) / 8;
}

void count(SaveReport::Count& into, const LazyTensor& tensor) {
    ++into.tensors;
    into.bytes = sum_of_sizes(into.bytes, stored_bytes(tensor));
}

void count_unsupported(std::vector<SaveReport::Unsupported>& dtypes, Dtype dtype) {
    auto known = std::find_if(dtypes.begin(), dtypes.end(),
                              [=](const SaveReport::Unsupported& each) { return each.dtype == dtype; });
    if (known == dtypes.end()) known = dtypes.insert(dtypes.end(), {.dtype = dtype});
    ++known->tensors;
}

/// Counts a tensor by the way in which `read` is read.
void count_reading(SaveReport& report, const LazyTensor& tensor, const LazyTensor& read, Dtype written) {
    const StridedView& view = read.strided_view();
    if (scaled_numbers(tensor) != nullptr) return count(report.reading.scaled, tensor);
    if (!is_contiguous(view.shape, view.strides) || tensor.piece_count() > 1) count(report.reading.gathered, tensor);
    else if (tensor.stored()->dtype() == written) count(report.reading.copied, tensor);
}

/// A storage, and the tensor that references part of it, if any.
struct Stored {
    const void* source;
    Extent extent;
    const LazyTensor* tensor = nullptr;
};

/// Returns the storage of a tensor. A tensor that is stored in pieces is a storage by itself.
Stored stored_of(const LazyTensor& tensor) {
    const StoredTensor& stored = *tensor.stored();
    const std::uint64_t size = bytes_of(stored.dtype(), stored.element_count());
    if (!stored.in_one_run()) return {&stored, {0, size}, &tensor};
    const auto place = stored.locate(0);
    return {&stored.source(place.source), {place.offset, size}, &tensor};
}

/// The use of storages, summed up one storage at a time.
class Use {
public:
    /// Adds the entries of one storage, which has the bytes `whole`.
    void add(std::span<const Stored> entries, Extent whole) {
        std::vector<Stored> seen;
        std::copy_if(entries.begin(), entries.end(), std::back_inserter(seen),
                     [](const Stored& entry) { return entry.tensor != nullptr; });
        const bool shared = std::any_of(seen.begin(), seen.end(), [&](const Stored& entry) {
            return !SameTensor{}(entry.tensor, seen.front().tensor);
        });
        runs_.clear();
        std::uint64_t covered = 0;
        for (const Stored& entry : seen) {
            const Pattern pattern(entry.tensor->strided_view());
            const Dtype dtype = entry.tensor->stored()->dtype();
            const bool part = !pattern.gapless() || bytes_of(dtype, pattern.run()) < whole.size;
            if (shared || part) count(use_.views, *entry.tensor);
            if (seen.size() == 1 && pattern.disjoint()) covered = pattern.runs() * bytes_of(dtype, pattern.run());
            else add_runs(pattern, dtype, entry.extent.offset);
        }
        use_.unreferenced += whole.size - covered - length_of_runs();
    }

    StorageUse take() const noexcept { return use_; }

private:
    void add_runs(const Pattern& pattern, Dtype dtype, std::uint64_t offset) {
        const auto put = [&](std::uint64_t first, std::uint64_t count) {
            runs_.push_back({offset + bytes_of(dtype, first), bytes_of(dtype, count)});
        };
        if (pattern.runs() > runs_left_) return put(pattern.first(), pattern.hull());
        runs_left_ -= pattern.gapless() ? 0 : pattern.runs();
        pattern.each_run([&](std::uint64_t first) { put(first, pattern.run()); });
    }

    /// Returns the number of bytes that are in at least one run.
    std::uint64_t length_of_runs() {
        std::sort(runs_.begin(), runs_.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
        std::uint64_t length = 0;
        std::uint64_t end = 0;
        for (const Extent& run : runs_) {
            if (run.end() <= end) continue;
            length += run.end() - std::max(run.offset, end);
            end = run.end();
        }
        return length;
    }

    StorageUse use_;
    std::uint64_t runs_left_ = most_runs;
    std::vector<Extent> runs_;
};

}  // namespace

StorageUse storage_use(std::span<const LazyTensor* const> tensors, std::span<const StoragePlace> storages) {
    std::vector<Stored> all;
    all.reserve(tensors.size() + storages.size());
    for (const LazyTensor* const tensor : tensors)
        if (tensor->element_count() > 0) all.push_back(stored_of(*tensor));
    for (const StoragePlace& storage : storages)
        if (storage.extent.size > 0) all.push_back({storage.source.get(), storage.extent});
    std::sort(all.begin(), all.end(), [](const Stored& a, const Stored& b) {
        return a.source != b.source ? std::less<>()(a.source, b.source) : a.extent.offset < b.extent.offset;
    });
    Use use;
    for (auto first = all.begin(); first != all.end();) {
        Extent whole = first->extent;
        auto last = first + 1;
        for (; last != all.end() && last->source == first->source && last->extent.offset < whole.end(); ++last)
            whole.size = std::max(whole.end(), last->extent.end()) - whole.offset;
        use.add({first, last}, whole);
        first = last;
    }
    return use.take();
}

void report_reading(const Input& input, const Layout& layout, SaveReport& report) {
    std::vector<const LazyTensor*> all;
    all.reserve(input.tensors.size());
    for (const LazyTensor& tensor : input.tensors) {
        if (in_safetensors(tensor.dtype()) || input.as_raw.contains(tensor.name())) all.push_back(&tensor);
        else count_unsupported(report.unsupported, tensor.dtype());
    }
    const StorageUse use = storage_use(all, {});
    report.reading.views = use.views;
    for (const LazyTensor& factor : input.factors) all.push_back(&factor);
    report.reading.unreferenced_bytes =
        input.storages.empty() ? use.unreferenced : storage_use(all, input.storages).unreferenced;
    // A tensor that is cut for ranks is read as its first part is.
    std::vector<const LazyTensor*> read(input.tensors.size());
    for (std::size_t i = layout.parts.size(); i-- > 0;) read[layout.part_of[i]] = &layout.parts[i];
    for (const ChosenTensor& chosen : layout.chosen) {
        const LazyTensor& tensor = input.tensors[chosen.number];
        const LazyTensor* const part = read[chosen.number];
        count_reading(report, tensor, part == nullptr ? tensor : *part, chosen.dtype);
    }
}

}  // namespace safemap::SAFEMAP_ABI::write
