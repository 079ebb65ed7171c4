// Tests the counts of copied, gathered and unreferenced bytes against a count of single bytes.
#include "write/storage_use.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "lazy/stored_tensor.hpp"
#include "samples.hpp"

#include "doctest_safemap.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace storage_use_test {

using namespace safemap;

namespace {

using Storage = StoragePlace;

write::StorageUse use_of(const std::vector<LazyTensor>& tensors, const std::vector<Storage>& storages = {}) {
    std::vector<const LazyTensor*> all;
    for (const LazyTensor& tensor : tensors) all.push_back(&tensor);
    return write::storage_use(all, storages);
}

std::shared_ptr<const Source> memory(std::size_t bytes) {
    return memory_source("memory", std::vector<std::byte>(bytes));
}

/// Returns the bytes of the source that a tensor sees, element by element.
std::set<std::uint64_t> bytes_seen(const LazyTensor& tensor) {
    const StoredTensor& stored = *tensor.stored();
    const StridedView& view = tensor.strided_view();
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < tensor.element_count(); ++i) {
        std::uint64_t rest = i;
        std::int64_t element = view.offset;
        for (std::size_t d = view.shape.size(); d-- > 0; rest /= view.shape[d])
            element += static_cast<std::int64_t>(rest % view.shape[d]) * view.strides[d];
        const std::uint64_t first = static_cast<std::uint64_t>(element) * bits(stored.dtype());
        for (std::uint64_t bit = 0; bit < bits(stored.dtype()); ++bit)
            seen.insert(stored.locate(0).offset + (first + bit) / 8);
    }
    return seen;
}

/// Returns the extent of the bytes that hold a tensor.
Extent extent_of(const LazyTensor& tensor) {
    const StoredTensor& stored = *tensor.stored();
    return {stored.locate(0).offset, *byte_size(stored.dtype(), stored.element_count())};
}

/// Computes the use of tensors and storages in one source; merges overlapping extents until none overlap.
write::StorageUse slow_use(const std::vector<LazyTensor>& tensors, const std::vector<Storage>& storages) {
    std::vector<Extent> wholes;
    const auto put = [&](Extent extent) {
        for (std::size_t i = 0; i < wholes.size();) {
            const Extent other = wholes[i];
            if (extent.offset >= other.end() || other.offset >= extent.end()) {
                ++i;
                continue;
            }
            const std::uint64_t begin = std::min(extent.offset, other.offset);
            extent = {begin, std::max(extent.end(), other.end()) - begin};
            wholes.erase(wholes.begin() + static_cast<std::ptrdiff_t>(i));
            i = 0;
        }
        wholes.push_back(extent);
    };
    for (const Storage& storage : storages)
        if (storage.extent.size > 0) put(storage.extent);
    for (const LazyTensor& tensor : tensors) put(extent_of(tensor));

    write::StorageUse use;
    std::set<std::uint64_t> seen;
    for (const LazyTensor& tensor : tensors) seen.merge(bytes_seen(tensor));
    for (const Extent& whole : wholes) {
        for (std::uint64_t byte = whole.offset; byte < whole.end(); ++byte)
            use.unreferenced += seen.contains(byte) ? 0 : 1;
        std::vector<const LazyTensor*> in;
        for (const LazyTensor& tensor : tensors)
            if (extent_of(tensor).inside(whole.end()) && extent_of(tensor).offset >= whole.offset)
                in.push_back(&tensor);
        for (const LazyTensor* const one : in) {
            bool view = bytes_seen(*one).size() < whole.size;
            for (const LazyTensor* const other : in) {
                const StridedView& a = one->strided_view();
                const StridedView& b = other->strided_view();
                view = view || one->stored() != other->stored() || a.shape != b.shape || a.strides != b.strides ||
                       a.offset != b.offset;
            }
            if (!view) continue;
            ++use.views.tensors;
            use.views.bytes += one->nbytes();
        }
    }
    return use;
}

class Samples {
public:
    explicit Samples(std::uint64_t seed) : random_(seed) {}

    std::uint64_t below(std::uint64_t end) { return random_() % end; }

    std::shared_ptr<const StoredTensor> stored(const std::shared_ptr<const Source>& source) {
        constexpr Dtype dtypes[]{Dtype::u8, Dtype::f16, Dtype::f32, Dtype::f4};
        const Dtype dtype = dtypes[below(4)];
        const std::uint64_t offset = below(source->size() / 2);
        const std::uint64_t most = (source->size() - offset) * 8 / bits(dtype);
        const std::uint64_t elements = 1 + below(most);
        return stored_run(dtype, {dtype == Dtype::f4 ? (elements + 1) / 2 * 2 : elements}, source, offset);
    }

    /// Returns a valid view, mostly of contiguous elements.
    LazyTensor view(const std::shared_ptr<const StoredTensor>& stored) {
        for (int attempt = 0; attempt < 100; ++attempt) {
            StridedView view{.offset = static_cast<std::int64_t>(below(stored->element_count()))};
            std::int64_t stride = 1;
            for (std::uint64_t d = below(4); d > 0; --d) {
                const std::uint64_t size = 1 + below(4);
                view.shape.push_back(size);
                view.strides.push_back(below(3) == 0 ? static_cast<std::int64_t>(below(9)) - 3 : stride);
                stride = std::max<std::int64_t>(1, view.strides.back() * static_cast<std::int64_t>(size));
            }
            std::optional<LazyTensor> made;
            if (!error_of([&] { made.emplace("t", stored, view); })) return *made;
        }
        return {"t", stored};
    }

private:
    std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("views and unreferenced bytes agree with a count of single bytes") {
    Samples samples(20261122);
    std::uint64_t views = 0;
    std::uint64_t unreferenced = 0;
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        const auto source = memory(static_cast<std::size_t>(8 + samples.below(80)));
        std::vector<LazyTensor> tensors;
        std::vector<Storage> storages;
        for (std::uint64_t i = samples.below(4); i > 0; --i) {
            const auto stored = samples.stored(source);
            for (std::uint64_t n = samples.below(4); n > 0; --n) tensors.push_back(samples.view(stored));
            if (samples.below(4) == 0 && !tensors.empty()) tensors.push_back(tensors.back());
        }
        for (std::uint64_t i = samples.below(3); i > 0; --i) {
            const std::uint64_t offset = samples.below(source->size());
            storages.push_back({source, {offset, samples.below(source->size() - offset + 1)}});
        }
        const auto use = use_of(tensors, storages);
        const auto slow = slow_use(tensors, storages);
        CHECK(use.views.tensors == slow.views.tensors);
        CHECK(use.views.bytes == slow.views.bytes);
        CHECK(use.unreferenced == slow.unreferenced);
        views += use.views.tensors;
        unreferenced += use.unreferenced;
    }
    CHECK(views > 1000);
    CHECK(unreferenced > 1000);
}

TEST_CASE("storages of other sources, and storages without a tensor, are counted separately") {
    const auto one = memory(16);
    const auto other = memory(16);
    const LazyTensor whole("w", stored_run(Dtype::f32, {4}, one, 0));
    CHECK(use_of({whole}).views.tensors == 0);
    CHECK(use_of({whole}, {{one, {0, 16}}}).unreferenced == 0);
    CHECK(use_of({whole}, {{one, {0, 16}}, {other, {0, 12}}}).unreferenced == 12);
    // A record that is longer than its storage.
    const LazyTensor half("h", stored_run(Dtype::f32, {2}, one, 0));
    CHECK(use_of({half}, {{one, {0, 16}}}).unreferenced == 8);
    CHECK(use_of({half}, {{one, {0, 16}}}).views.tensors == 1);
    // Adjacent tensors share nothing.
    const LazyTensor behind("b", stored_run(Dtype::f32, {2}, one, 8));
    CHECK(use_of({half, behind}).views.tensors == 0);
    CHECK(use_of({}, {{one, {0, 0}}}).unreferenced == 0);
}

TEST_CASE("a transpose of a storage sees all of it, and a view of some columns sees gaps") {
    constexpr std::uint64_t side = 1 << 20;
    const auto file = callback_source("large", side * side, [](std::uint64_t, std::span<std::byte>) {});
    const auto stored = stored_run(Dtype::u8, {side * side}, file, 0);
    constexpr auto rows = static_cast<std::int64_t>(side);
    const LazyTensor whole("w", stored);
    const LazyTensor transposed("t", stored, {.shape = {side, side}, .strides = {1, rows}});
    const LazyTensor left("l", stored, {.shape = {side, side / 4}, .strides = {rows, 1}});
    const LazyTensor right("r", stored, {.shape = {side, side / 4}, .strides = {rows, 1}, .offset = rows / 2});
    CHECK(use_of({transposed}).unreferenced == 0);
    CHECK(use_of({transposed}).views.tensors == 0);
    CHECK(use_of({whole, transposed}).views.tensors == 2);
    CHECK(use_of({left}).unreferenced == side * side / 4 * 3);
    // Above the limit of runs gaps do not count, only the bytes before and after all runs.
    CHECK(use_of({left, right}).unreferenced == side / 4);
    const LazyTensor few("f", stored, {.shape = {16, side / 4}, .strides = {rows, 1}});
    const LazyTensor same_rows("s", stored, {.shape = {16, side / 4}, .strides = {rows, 1}, .offset = rows / 2});
    CHECK(use_of({few, same_rows}).unreferenced == side * side - 16 * side / 2);
}

TEST_CASE("a plan tells how every tensor is read, before anything is written") {
    const TempDir dir;
    const auto source = memory(64);
    const auto stored = stored_run(Dtype::f32, {16}, source, 0);
    const std::vector<LazyTensor> tensors{
        LazyTensor("all", stored),
        LazyTensor("transposed", stored, {.shape = {4, 4}, .strides = {1, 4}}),
        LazyTensor("row", stored, {.shape = {4}, .strides = {1}, .offset = 4}),
        samples::tensor("bytes", Dtype::u8, {3}),
        samples::tensor("complex", Dtype::c128, {2}),
        samples::tensor("complex2", Dtype::c128, {2}),
        samples::tensor("bits", Dtype::bits8, {2}),
    };
    int plans = 0;
    SaveOptions options{.dtype = Dtype::bf16};
    options.on_plan = [&](const SaveReport& plan) {
        ++plans;
        CHECK(std::filesystem::exists(dir / "out") == (plans == 2));  // written by the previous save
        CHECK(plan.files.size() == 1);
        CHECK(plan.layout.buffer_bytes > 0);
        CHECK(plan.reading.copied.tensors == 1);
        CHECK(plan.reading.copied.bytes == 3);
        CHECK(plan.reading.gathered.tensors == 1);
        CHECK(plan.reading.gathered.bytes == 64);
        CHECK(plan.reading.views.tensors == 3);
        CHECK(plan.reading.views.bytes == 64 + 64 + 16);
        REQUIRE(plan.unsupported.size() == 2);
        CHECK(plan.unsupported[0].dtype == Dtype::c128);
        CHECK(plan.unsupported[0].tensors == 2);
        REQUIRE(plan.casts.size() == 1);
        CHECK(plan.casts[0].tensors == 3);
        CHECK(plan.casts[0].values == 0);
    };
    const SaveReport report = save(dir / "out", tensors, options);
    CHECK(plans == 1);
    CHECK(report.reading.gathered.bytes == 64);
    CHECK(report.casts[0].values == 36);

    options.plan_only = true;
    save(dir / "other", tensors, options);
    CHECK(plans == 2);

    options.plan_only = false;
    options.on_plan = [](const SaveReport&) { throw 1; };
    CHECK_THROWS_AS(save(dir / "other", tensors, options), int);
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1);
}

}  // namespace storage_use_test
