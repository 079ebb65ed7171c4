// Tests of page_cache.hpp: which bytes of which sources are prefetched or evicted. From top to bottom: a recording
// source and the slow search for ranges, random tensors, ranges, prefetch, evict and changed sources.
#include "lazy/page_cache.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "reference/random_boxes.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

namespace page_cache_test {

using namespace safemap;

namespace {

constexpr std::uint64_t page = 4096;

/// A source of zeros that records the requests to it.
class Recorder final : public Source {
public:
    explicit Recorder(std::uint64_t size) : size_(size) {}

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return size_; }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        std::memset(into.data(), 0, into.size());
        note(read, {offset, into.size()});
    }
    void require_unchanged() const override {
        ++asked;
        if (changed) throw Error(Errc::file_changed, "on request");
    }
    Residency residency(Extent extent) const override { return {extent.size / 2, extent.size}; }
    void prefetch(Extent extent) const override {
        if (broken && extent.offset > 0) throw Error(Errc::io_error, "on request");
        note(prefetched, extent);
    }
    void evict(Extent extent) const override { note(evicted, extent); }

    mutable std::vector<Extent> read;
    mutable std::vector<Extent> prefetched;
    mutable std::vector<Extent> evicted;
    mutable std::atomic<int> asked = 0;
    bool changed = false;
    bool broken = false;

private:
    void note(std::vector<Extent>& list, Extent extent) const {
        const std::lock_guard lock(mutex_);
        list.push_back(extent);
    }

    std::string name_ = "recorder";
    std::uint64_t size_;
    mutable std::mutex mutex_;
};

using Recorders = std::vector<std::shared_ptr<Recorder>>;
using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t n) { return random() % n; }

LazyTensor tensor_of(const std::shared_ptr<Recorder>& source, Dtype dtype, const Shape& shape, std::uint64_t offset) {
    return {"w", stored_run(dtype, shape, source, offset)};
}

std::vector<SourceRange> ranges_of(const LazyTensor& tensor) { return safemap::ranges_of(std::span(&tensor, 1)); }

/// Finds ranges the slow way: reads every element separately, and lets the sources record where.
std::vector<SourceRange> places_of_elements(const LazyTensor& tensor, const Recorders& sources) {
    const unsigned width = bits(tensor.dtype());
    const unsigned together = width % 8 == 0 ? 1 : 8;  // elements that fill whole bytes together
    std::vector<std::byte> element(width * together / 8);
    for (const auto& source : sources) source->read.clear();
    for (std::uint64_t i = 0; i < tensor.element_count(); i += together)
        tensor.read(i / together * element.size(), element);
    std::vector<SourceRange> places;
    for (const auto& source : sources)
        for (const Extent extent : source->read) places.push_back({source.get(), extent});
    return places;
}

bool holds(const std::vector<SourceRange>& ranges, const SourceRange& place) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const SourceRange& range) {
        return range.source == place.source && range.extent.offset <= place.extent.offset &&
               place.extent.end() <= range.extent.end();
    });
}

void check_apart(const std::vector<SourceRange>& ranges) {
    for (std::size_t i = 1; i < ranges.size(); ++i)
        if (ranges[i].source == ranges[i - 1].source)
            CHECK(ranges[i].extent.offset > ranges[i - 1].extent.end() + page);
}

/// Checks that ranges hold only needed bytes, and gaps of less than a page between two elements.
void check_no_more(const std::vector<SourceRange>& ranges, std::vector<SourceRange> places) {
    std::sort(places.begin(), places.end(),
              [](const auto& a, const auto& b) { return a.extent.offset < b.extent.offset; });
    for (const SourceRange& range : ranges) {
        auto at = std::find_if(places.begin(), places.end(),
                               [&](const auto& place) { return place.extent.offset >= range.extent.offset; });
        REQUIRE(at != places.end());
        CHECK(at->extent.offset == range.extent.offset);
        std::uint64_t end = at->extent.end();
        for (; at != places.end() && at->extent.end() <= range.extent.end(); ++at) {
            CHECK(at->extent.offset <= end + page);
            end = std::max(end, at->extent.end());
        }
        CHECK(end == range.extent.end());
    }
}

Slice random_slice(Random& random, std::uint64_t size) {
    const auto most = static_cast<std::int64_t>(size);
    const auto start = static_cast<std::int64_t>(below(random, size));
    const std::int64_t step = 1 + static_cast<std::int64_t>(below(random, size) / (1 + below(random, 30)));
    const std::int64_t stop = std::min(most, start + step * static_cast<std::int64_t>(1 + below(random, 9)));
    if (below(random, 2) == 0) return {.start = start, .stop = stop, .step = step};
    return {.start = stop - 1, .stop = start == 0 ? std::optional<std::int64_t>() : start - 1, .step = -step};
}

/// Returns a tensor cut into runs, each in a new source or in a shared one.
LazyTensor in_runs(Random& random, const Shape& shape, Recorders& sources) {
    const std::uint64_t count = *element_count(shape);
    std::vector<RunPiece> runs;
    for (std::uint64_t first = 0; first < count;) {
        const std::uint64_t n = std::min(count - first, 1 + below(random, count / 3));
        if (sources.empty() || below(random, 2) == 0) sources.push_back(std::make_shared<Recorder>(count * 8));
        runs.push_back({sources.back(), below(random, count * 4), first, n});
        first += n;
    }
    return {"w", stored_runs(Dtype::f32, shape, runs)};
}

/// Returns a tensor of one run, whose dtype may require that the last dimension stays whole.
LazyTensor in_one_run(Random& random, Shape shape, Recorders& sources) {
    constexpr Dtype dtypes[] = {Dtype::u8, Dtype::bf16, Dtype::f32, Dtype::f64, Dtype::f4};
    const Dtype dtype = dtypes[below(random, std::size(dtypes))];
    if (!whole_bytes(dtype)) shape[2] = (shape[2] / 8 + 1) * 8;
    sources.push_back(std::make_shared<Recorder>(std::uint64_t{1} << 30));
    return tensor_of(sources.back(), dtype, shape, below(random, 10'000));
}

/// Returns a tensor whose left half is stored row-major and whose right half is transposed, in two sources.
LazyTensor in_boxes(std::uint64_t rows, std::uint64_t columns, Recorders& sources) {
    const std::uint64_t left = columns / 2;
    for (int i = 0; i < 2; ++i) sources.push_back(std::make_shared<Recorder>(12 + rows * columns * 4));
    const BoxPiece boxes[] = {
        {sources[0], 12, {{0, 0}, {rows, left}}, {static_cast<std::int64_t>(left), 1}},
        {sources[1], 4, {{0, left}, {rows, columns - left}}, {1, static_cast<std::int64_t>(rows)}},
    };
    return {"w", stored_boxes(Dtype::f32, {rows, columns}, boxes)};
}

/// Returns a tensor of random boxes, each row-major or transposed, in a new source or in a shared one.
LazyTensor in_random_boxes(Random& random, const Shape& shape, Recorders& sources) {
    std::mt19937 places(static_cast<std::mt19937::result_type>(random()));
    std::vector<BoxPiece> boxes;
    for (const Box& place : reference::random_places(places, shape)) {
        if (sources.empty() || below(random, 2) == 0)
            sources.push_back(std::make_shared<Recorder>(*element_count(shape) * 8));
        Strides strides = row_major(place.extent);
        if (below(random, 2) == 0) strides = {1, static_cast<std::int64_t>(place.extent[0])};
        boxes.push_back({sources.back(), below(random, *element_count(shape) * 4), place, strides});
    }
    return {"w", stored_boxes(Dtype::f32, shape, boxes)};
}

}  // namespace

TEST_CASE("a contiguous tensor is in one range, and adjacent ranges are joined") {
    const auto source = std::make_shared<Recorder>(1 << 20);
    const LazyTensor a = tensor_of(source, Dtype::f32, {100, 100}, 8);
    const LazyTensor b = tensor_of(source, Dtype::f32, {50}, 40'008);
    const LazyTensor c = tensor_of(source, Dtype::f32, {50}, 60'000);
    CHECK(ranges_of(a) == std::vector<SourceRange>{{source.get(), {8, 40'000}}});
    const LazyTensor all[] = {c, b, a, b};
    CHECK(safemap::ranges_of(all) ==
          std::vector<SourceRange>{{source.get(), {8, 40'200}}, {source.get(), {60'000, 200}}});
    const LazyTensor transposed("w", a.stored(), StridedView{{100, 100}, {1, 100}, 0});
    CHECK(ranges_of(transposed) == ranges_of(a));
    CHECK(ranges_of(a.cast(Dtype::bf16)) == ranges_of(a));
    CHECK(ranges_of(tensor_of(source, Dtype::f32, {0, 5}, 0)).empty());
    CHECK(ranges_of(tensor_of(source, Dtype::f32, {}, 4)) == std::vector<SourceRange>{{source.get(), {4, 4}}});
    const LazyTensor repeated("w", b.stored(), StridedView{{1000}, {0}, 7});
    CHECK(ranges_of(repeated) == std::vector<SourceRange>{{source.get(), {40'036, 4}}});
}

TEST_CASE("a row of a matrix is one range, and a column is one range per row") {
    const auto source = std::make_shared<Recorder>(std::uint64_t{1} << 40);
    const LazyTensor matrix = tensor_of(source, Dtype::f16, {1 << 10, 1 << 16}, 0);
    CHECK(ranges_of(matrix.slice({{.start = 3, .stop = 5}})) ==
          std::vector<SourceRange>{{source.get(), {3 << 17, 2 << 17}}});
    const auto column = ranges_of(matrix.slice({Slice{}, Slice::at(9)}));
    REQUIRE(column.size() == 1 << 10);
    CHECK(column[5] == SourceRange{source.get(), {(5 << 17) + 18, 2}});
}

TEST_CASE("ranges hold the bytes that the elements need, and no others") {
    const char* const text = std::getenv("SAFEMAP_SEED");
    const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    CAPTURE(seed);
    Random random(seed);
    for (int round = 0; round < 300; ++round) {
        CAPTURE(round);
        const Shape shape = {1 + below(random, 30), 1 + below(random, 90), 1 + below(random, 900)};
        Recorders sources;
        LazyTensor tensor = in_one_run(random, shape, sources);
        const Slice slices[] = {random_slice(random, shape[0]), random_slice(random, shape[1]),
                                random_slice(random, shape[2])};
        if (whole_bytes(tensor.dtype())) tensor = tensor.slice(slices);
        else tensor = tensor.slice(std::span(slices).first(2));
        const auto ranges = ranges_of(tensor);
        const auto places = places_of_elements(tensor, sources);
        for (const SourceRange& place : places) CHECK(holds(ranges, place));
        check_apart(ranges);
        check_no_more(ranges, places);
    }
}

TEST_CASE("every piece with elements of the tensor is in a range") {
    const char* const text = std::getenv("SAFEMAP_SEED");
    const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    CAPTURE(seed);
    Random random(seed);
    for (int round = 0; round < 200; ++round) {
        CAPTURE(round);
        const Shape shape = {1 + below(random, 60), 2 + below(random, 2'000)};
        Recorders sources;
        const LazyTensor whole =
            round % 2 == 0 ? in_runs(random, shape, sources) : in_boxes(shape[0], shape[1], sources);
        const LazyTensor tensor = whole.slice({random_slice(random, shape[0]), random_slice(random, shape[1])});
        const auto ranges = ranges_of(tensor);
        for (const SourceRange& place : places_of_elements(tensor, sources)) CHECK(holds(ranges, place));
        check_apart(ranges);
    }
}

TEST_CASE("random boxes with random views are in ranges without unneeded bytes") {
    const char* const text = std::getenv("SAFEMAP_SEED");
    const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    CAPTURE(seed);
    Random random(seed);
    for (int round = 0; round < 200; ++round) {
        CAPTURE(round);
        const Shape shape = {1 + below(random, 40), 2 + below(random, 200)};
        Recorders sources;
        const LazyTensor whole = in_random_boxes(random, shape, sources);
        LazyTensor tensor = whole.slice({random_slice(random, shape[0]), random_slice(random, shape[1])});
        const bool is_region = round % 4 != 0;
        if (!is_region) {  // as one dimension, because the bytes between its elements may belong to other boxes
            const auto count = static_cast<std::int64_t>(*element_count(shape));
            const std::int64_t step = 1 + static_cast<std::int64_t>(below(random, 9));
            tensor = {"w", whole.stored(),
                      StridedView{{static_cast<std::uint64_t>((count - 1) / step + 1)}, {step}, 0}};
        }
        const auto ranges = ranges_of(tensor);
        const auto places = places_of_elements(tensor, sources);
        for (const SourceRange& place : places) CHECK(holds(ranges, place));
        check_apart(ranges);
        if (!is_region) continue;
        for (const auto& source : sources) {
            std::vector<SourceRange> here;
            std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(here),
                         [&](const SourceRange& range) { return range.source == source.get(); });
            std::vector<SourceRange> needed;
            for (const SourceRange& place : places)
                if (place.source == source.get()) needed.push_back(place);
            check_no_more(here, needed);
        }
    }
}

TEST_CASE("boxes give one range each, however many rows they have") {
    constexpr std::uint64_t rows = std::uint64_t{1} << 30;
    const auto source = std::make_shared<Recorder>(rows * 64);
    std::vector<BoxPiece> boxes;
    for (std::uint64_t i = 0; i < 8; ++i) boxes.push_back({source, i * rows * 8, {{0, i * 4}, {rows, 4}}, {4, 1}});
    const LazyTensor tensor("w", stored_boxes(Dtype::u8, {rows, 32}, boxes));
    const auto ranges = ranges_of(tensor);
    REQUIRE(ranges.size() == 8);
    CHECK(ranges[3] == SourceRange{source.get(), {3 * rows * 8, rows * 4}});
}

TEST_CASE("prefetch works in steps aligned to the file, and reports progress") {
    const auto source = std::make_shared<Recorder>(std::uint64_t{1} << 30);
    const LazyTensor tensor = tensor_of(source, Dtype::u8, {5 << 19}, (1 << 20) - 10);
    Progress last;
    const Work options{.monitor = {.on_progress =
                                       [&](const Progress& progress) {
                                           CHECK(progress.stage == "prefetching");
                                           last = progress;
                                           return true;
                                       }},
                       .threads = 3};
    tensor.prefetch(options);
    CHECK(last.bytes_done == 5 << 19);
    CHECK(last.bytes_total == 5 << 19);
    auto steps = source->prefetched;
    std::sort(steps.begin(), steps.end(), [](Extent a, Extent b) { return a.offset < b.offset; });
    CHECK(steps ==
          std::vector<Extent>{{(1 << 20) - 10, 10}, {1 << 20, 1 << 20}, {2 << 20, 1 << 20}, {3 << 20, (1 << 19) - 10}});
    tensor.evict();
    CHECK(source->evicted == std::vector<Extent>{{(1 << 20) - 10, 5 << 19}});
    CHECK(tensor.residency().resident == 5 << 18);
    CHECK(tensor.residency().total == 5 << 19);
}

TEST_CASE("prefetch can be cancelled, and its faults are thrown") {
    const auto source = std::make_shared<Recorder>(std::uint64_t{1} << 30);
    const LazyTensor tensor = tensor_of(source, Dtype::u8, {1 << 29}, 0);
    std::stop_source stop;
    stop.request_stop();
    CHECK_FAULT(tensor.prefetch({.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
    CHECK(source->prefetched.empty());
    CHECK_FAULT(tensor.prefetch({.monitor = {.on_progress = [](const Progress&) { return false; }}}), Errc::cancelled);
    source->broken = true;
    CHECK_FAULT(tensor.prefetch(), Errc::io_error);
}

TEST_CASE("sources without a page cache have unknown residency, and are left alone") {
    const auto source =
        callback_source("c", 8, [](auto, std::span<std::byte> into) { std::memset(into.data(), 7, into.size()); });
    const LazyTensor tensor("w", stored_run(Dtype::u8, {8}, source, 0));
    CHECK_OK(tensor.prefetch());
    CHECK_OK(tensor.evict());
    CHECK(tensor.residency().total == 0);
    const LazyTensor in_memory("w", stored_run(Dtype::u8, {8}, memory_source("m", std::vector<std::byte>(8)), 0));
    CHECK(in_memory.residency().resident == 8);
}

TEST_CASE("a source that changed makes a read throw, with the tensor's name") {
    const auto sound = std::make_shared<Recorder>(100);
    const auto changed = std::make_shared<Recorder>(100);
    changed->changed = true;
    const std::vector<LazyTensor> tensors = {tensor_of(sound, Dtype::u8, {5}, 0), tensor_of(sound, Dtype::u8, {5}, 5),
                                             tensor_of(changed, Dtype::u8, {5}, 0).renamed("bad")};
    CHECK_OK(require_unchanged(std::span(tensors).first(2)));
    CHECK(sound->asked == 1);
    check_error(error_of([&] { require_unchanged(tensors); }), {Errc::file_changed}, {}, {.tensor = "bad"});
    CHECK_FAULT(tensors[2].load(), Errc::file_changed);
    std::byte one{};
    CHECK_FAULT(tensors[2].read(0, {&one, 1}), Errc::file_changed);
    CHECK_FAULT(tensors[2].read(Box{{0}, {1}}, {&one, 1}), Errc::file_changed);
    CHECK(changed->read.size() == 3);
}

TEST_CASE("in a shared table of sources, only those with bytes of the tensor are asked") {
    const auto here = std::make_shared<Recorder>(100);
    const auto elsewhere = std::make_shared<Recorder>(100);
    elsewhere->changed = true;
    const std::vector<std::shared_ptr<const Source>> sources = {elsewhere, here};
    const auto table = std::make_shared<const SourceTable>(sources);
    const IndexedRun runs[] = {{0, 0, 2, 1}, {8, 2, 2, 1}};
    CHECK_OK(LazyTensor("w", stored_runs(Dtype::u8, {4}, table, runs)).load());
    CHECK(here->asked == 1);
    CHECK(elsewhere->asked == 0);
}

}  // namespace page_cache_test
