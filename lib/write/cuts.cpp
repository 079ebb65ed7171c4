// Cuts files into stretches, and divides units by bytes (tests/write/share_test.cpp). From top to bottom: tensors that
// stand apart, strips of one storage, the runs that a window of a stream is stored in, the block that fits these runs,
// and the stretches.
#include "write/cuts.hpp"

#include "lazy/stored_tensor.hpp"
#include "lazy/strips.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>

namespace safemap::SAFEMAP_ABI::write {

namespace {

// A tensor above this size that is strided, or in boxes, is never cut at a block boundary: each part would read most of
// the tensor.
constexpr std::uint64_t small_strided = 64_KiB;
// Runs of at most this size count as short: longer ones are read one by one in any case.
constexpr std::uint64_t short_run = Gatherer::long_part;
// A stream is judged in windows of this size, so that a few large tensors do not hide many small ones.
constexpr std::uint64_t window_size = largest_block;

/// Returns true if a tensor must not be cut at an arbitrary byte.
bool stands_apart(const LazyTensor& tensor, Dtype written) {
    // A stream is cut at multiples of eight bytes, counted from the first byte of a tensor.
    if (!whole_bytes(written) || element_size(written) > 8) return true;
    if (tensor.nbytes() <= small_strided) return false;
    const StridedView& view = tensor.strided_view();
    return !is_contiguous(view.shape, view.strides) || Blocks::wants_rows(tensor);
}

/// Finds strips of one storage in a file, from the first tensor to the last.
class StripFinder {
public:
    StripFinder(std::span<const LazyTensor> tensors, const PlannedFile& file) : tensors_(tensors), file_(file) {}

    /// Returns how many tensors, from number `i` on, are read together; 0 if tensor `i` is not one of several. `i` must
    /// not be less than before.
    std::uint32_t from(std::uint32_t i) {
        if (i < judged_) return 0;
        const auto at = [this](std::size_t n) -> const LazyTensor& { return tensors_[file_.tensors[n].number]; };
        const Dtype dtype = file_.tensors[i].dtype;
        const std::size_t alike = whole_bytes(dtype) ? count_strips(i, file_.tensors.size(), at) : 1;
        std::uint32_t count = 1;
        while (count < alike && file_.tensors[i + count].dtype == dtype) ++count;
        judged_ = i + count;
        const bool is_small = end_of(file_, judged_ - 1) - file_.tensors[i].offset <= small_strided;
        return count == 1 || is_small ? 0 : count;
    }

private:
    std::span<const LazyTensor> tensors_;
    const PlannedFile& file_;
    std::uint32_t judged_ = 0;  // tensors before this number are judged
};

/// A window of a stream, and the runs that it is stored in.
struct Window {
    std::uint64_t begin = 0;  // in the file
    std::uint64_t end = 0;
    std::uint32_t first = 0;  // first and last of its tensors, counted in the file
    std::uint32_t last = 0;
    std::uint64_t stored = 0;  // bytes
    std::uint64_t runs = 0;
    std::uint64_t cast_from = 0;  // most stored bytes of eight written bytes of a value that is cast

    /// Adds `size` written bytes of a tensor. Requires a tensor of a stream: one of whole bytes.
    void add(const LazyTensor& tensor, Dtype written, std::uint64_t size) {
        const StoredTensor& base = *tensor.stored();
        const std::uint64_t from = element_size(base.dtype());
        const std::uint64_t to = element_size(written);
        const std::uint64_t mean = base.element_count() * from / std::max<std::size_t>(base.piece_count(), 1);
        const std::uint64_t here = size / to * from;
        stored += here;
        runs += here / std::clamp<std::uint64_t>(tensor.element_count() * from, 1, std::max<std::uint64_t>(mean, 1));
        if (base.dtype() != written) cast_from = std::max(cast_from, 8 * from / to);
    }
};

/// Cuts one stream into windows, and joins windows that are cut alike.
class StreamCutter {
public:
    StreamCutter(std::uint64_t buffer, std::vector<Cut>& cuts) : buffer_(buffer), cuts_(cuts), own_(cuts.size()) {}

    /// Adds the bytes [begin, end) of the file, which are tensor number `i` of it. Consecutive.
    void add(const LazyTensor& tensor, Dtype written, std::uint32_t i, std::uint64_t begin, std::uint64_t end) {
        while (begin < end) {
            if (window_.begin == window_.end) window_ = {.begin = begin, .end = begin, .first = i};
            // Windows that one tensor fills are alike: all of them at once, however large the tensor is.
            const std::uint64_t full = end / window_size * window_size;
            const std::uint64_t stop = begin % window_size == 0 && full > begin
                                           ? full
                                           : std::min(end, (begin / window_size + 1) * window_size);
            window_.add(tensor, written, stop - begin);
            window_.end = stop;
            window_.last = i;
            if (stop % window_size == 0) close();
            begin = stop;
        }
    }

    void close() {
        if (window_.begin == window_.end) return;
        const Cut cut = cut_of(window_);
        window_ = {};
        if (cuts_.size() > own_ && cuts_.back().block == cut.block && cuts_.back().scratch == cut.scratch) {
            Cut& last = cuts_.back();
            last.bytes.size += cut.bytes.size;
            last.count = cut.first + cut.count - last.first;
        } else {
            cuts_.push_back(cut);
        }
    }

private:
    Cut cut_of(const Window& window) const {
        Cut cut{.bytes = {window.begin, window.end - window.begin},
                .first = window.first,
                .count = window.last - window.first + 1,
                .block = stream_block};
        if (window.runs == 0 || window.stored / window.runs > short_run) return cut;
        const auto fits = [&] { return cut.block + scratch_of(cut, window) + Worker::page <= buffer_; };
        for (cut.block = largest_block; cut.block > stream_block && !fits();) cut.block /= 2;
        if (fits()) cut.scratch = scratch_of(cut, window);
        return cut;
    }

    static std::uint64_t scratch_of(const Cut& cut, const Window& window) noexcept {
        return cut.block / 8 * window.cast_from;
    }

    std::uint64_t buffer_;
    std::vector<Cut>& cuts_;
    std::size_t own_;  // cuts before those of this stream
    Window window_;
};

}  // namespace

Extent Cut::unit(std::uint64_t number) const noexcept {
    const std::uint64_t begin = (bytes.offset / block + number) * block;
    const std::uint64_t from = std::max(bytes.offset, begin);
    return {from, std::min(bytes.end(), begin + block) - from};
}

std::vector<Cut> cuts_of(std::span<const LazyTensor> tensors, const PlannedFile& file, std::uint64_t buffer) {
    std::vector<Cut> cuts;
    const auto count = static_cast<std::uint32_t>(file.tensors.size());
    const auto apart = [&](std::uint32_t i) {
        return stands_apart(tensors[file.tensors[i].number], file.tensors[i].dtype);
    };
    StripFinder finder(tensors, file);
    for (std::uint32_t i = 0; i < count;) {
        std::uint32_t strips = 0;
        StreamCutter stream(buffer, cuts);
        for (; i < count && (strips = finder.from(i)) == 0 && !apart(i); ++i)
            stream.add(tensors[file.tensors[i].number], file.tensors[i].dtype, i, file.tensors[i].offset,
                       end_of(file, i));
        stream.close();
        if (i == count) break;
        const std::uint32_t next = i + std::max(strips, 1U);
        const std::uint64_t begin = file.tensors[i].offset;
        const std::uint64_t size = end_of(file, next - 1) - begin;
        const Cut::Kind kind = strips > 0 ? Cut::Kind::strips : Cut::Kind::blocks;
        if (size > 0) cuts.push_back({.bytes = {begin, size}, .first = i, .count = next - i, .kind = kind});
        i = next;
    }
    return cuts;
}

namespace {

std::uint64_t bytes_of(std::span<const UnitRun> runs) {
    std::uint64_t bytes = 0;
    for (const UnitRun& run : runs) bytes += run.bytes;  // bytes of files, whose sum was checked
    return bytes;
}

/// Returns the end of a file that is nearest to `target`, or the beginning of the first, counted in bytes.
std::uint64_t nearest_edge(std::span<const UnitRun> runs, std::uint64_t target) {
    const auto distance = [target](std::uint64_t edge) { return edge < target ? target - edge : edge - target; };
    std::uint64_t nearest = 0;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        end += runs[i].bytes;
        const bool last_of_file = i + 1 == runs.size() || runs[i + 1].file != runs[i].file;
        if (last_of_file && distance(end) < distance(nearest)) nearest = end;
    }
    return nearest;
}

}  // namespace

std::uint64_t first_unit_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks) {
    constexpr std::uint64_t part_of_share = 16;
    const std::uint64_t total = bytes_of(runs);
    std::uint64_t target = total / ranks * rank + total % ranks * rank / ranks;
    const std::uint64_t edge = nearest_edge(runs, target);
    const std::uint64_t near = total / ranks / part_of_share;
    if (rank > 0 && rank < ranks && (edge < target ? target - edge : edge - target) <= near) target = edge;

    std::uint64_t units = 0;
    for (const UnitRun& run : runs) {
        if (target < run.bytes) {
            const std::uint64_t inside = target < run.lead ? 0 : 1 + (target - run.lead) / run.block;
            return units + std::min(inside, run.units);
        }
        target -= run.bytes;
        units += run.units;
    }
    return units;
}

}  // namespace safemap::SAFEMAP_ABI::write
