// Tests that the jobs of a layout fill it: directly, and through slabs with copies to a buffer that stands for a
// device.
#include "device/fill_plan.hpp"

#include "check_error.hpp"
#include "device/random_tensors.hpp"
#include "doctest_safemap.hpp"
#include "lazy/stored_tensor.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace fill_plan_test {

using namespace safemap;
using device::FillPlan;
using device::lay_out;
using device::Layout;
using device::Paths;
using random_tensors::Kind;
using random_tensors::Maker;

namespace {

using Buffer = std::vector<std::byte>;
constexpr auto untouched = std::byte{0xA5};

Layout random_layout(Maker& maker, std::uint64_t most_elements) {
    std::vector<LazyTensor> tensors;
    for (std::uint64_t n = 1 + maker.below(12); n > 0; --n) {
        const Kind kind = random_tensors::kinds[maker.below(std::size(random_tensors::kinds))];
        const std::uint64_t elements = maker.below(3) == 0 ? most_elements : 1 + most_elements / 50;
        tensors.push_back(maker.make(kind, 1 + maker.below(elements)).tensor);
    }
    std::vector<std::uint32_t> from;
    return lay_out(std::move(tensors), from);
}

/// Returns what the memory has to be: each tensor as LazyTensor::read() has it, and `between` in the padding.
Buffer expected(const Layout& layout, std::byte between) {
    Buffer memory(layout.size, between);
    for (std::size_t i = 0; i < layout.tensors.size(); ++i)
        if (layout.extent(i).size > 0)
            layout.tensors[i].read(0, std::span(memory).subspan(layout.places[i], layout.extent(i).size));
    return memory;
}

std::uint64_t bytes_read(const Paths& paths) {
    UploadStats stats;
    paths.report(stats);
    CHECK(stats.bytes_direct == 0);
    return stats.bytes_pread;
}

std::vector<std::size_t> shuffled_jobs(const FillPlan& plan, Maker& maker) {
    std::vector<std::size_t> jobs(plan.jobs());
    std::iota(jobs.begin(), jobs.end(), std::size_t{0});
    std::shuffle(jobs.begin(), jobs.end(), maker.random());
    return jobs;
}

/// A buffer that stands for a device, and how often each byte was copied to it.
struct FakeMemory {
    explicit FakeMemory(std::uint64_t size) : bytes(size, untouched), copies(size, 0) {}

    void copy(std::uint64_t to, std::span<const std::byte> from) {
        REQUIRE(Extent{to, from.size()}.inside(bytes.size()));
        std::memcpy(bytes.data() + to, from.data(), from.size());
        for (std::size_t i = 0; i < from.size(); ++i) ++copies[to + i];
    }

    Buffer bytes;
    std::vector<std::uint8_t> copies;
};

/// The calls of one job.
struct Calls {
    int ranges = 0;
    int rows = 0;
    std::uint64_t bytes = 0;
    std::uint64_t first = UINT64_MAX;  // byte of the layout
};

/// Fills through a slab of exactly `slab_bytes`, which has no zero before each job.
class StagedFill {
public:
    StagedFill(const Layout& layout, const FillPlan& plan, std::uint64_t slab_bytes)
        : memory(layout.size), layout_(layout), plan_(plan), slab_(slab_bytes) {}

    Calls run(std::size_t job) {
        std::fill(slab_.begin(), slab_.end(), std::byte{0xEE});
        Calls calls;
        const FillPlan::Copies copies{
            [&](std::uint64_t to, Extent from) {
                ++calls.ranges;
                copy(calls, to, from);
            },
            [&](const RowCopy& rows) {
                ++calls.rows;
                CHECK(rows.rows > 1);
                CHECK(rows.to_pitch >= rows.row_bytes);
                CHECK(rows.from_pitch >= rows.row_bytes);
                for (std::uint64_t i = 0; i < rows.rows; ++i)
                    copy(calls, rows.to + i * rows.to_pitch, {rows.from + i * rows.from_pitch, rows.row_bytes});
            }};
        plan_.fill(layout_, job, paths_, worker_, slab_, copies);
        return calls;
    }
    std::uint64_t bytes_read() const { return fill_plan_test::bytes_read(paths_); }

    FakeMemory memory;

private:
    void copy(Calls& calls, std::uint64_t to, Extent from) {
        REQUIRE(from.inside(slab_.size()));
        memory.copy(to, std::span(slab_).subspan(from.offset, from.size));
        calls.bytes += from.size;
        calls.first = std::min(calls.first, to);
    }

    const Layout& layout_;
    const FillPlan& plan_;
    Buffer slab_;
    Paths paths_;
    Worker worker_;
};

struct Sizes {
    std::uint64_t job;
    std::uint64_t tile;
};

Sizes random_sizes(Maker& maker) {
    constexpr std::uint64_t all[] = {4'096, 10'000, 300'000, 8U << 20};
    return {all[maker.below(4)], all[maker.below(4)]};
}

void check_staged(const Layout& layout, const FillPlan& plan, Sizes sizes, Maker& maker) {
    const std::uint64_t read_before = maker.bytes_read();
    StagedFill fill(layout, plan, sizes.job);
    for (const std::size_t job : shuffled_jobs(plan, maker)) {
        const Calls calls = fill.run(job);
        CHECK(calls.bytes <= sizes.job);
        CHECK(calls.bytes > 0);
        CHECK(calls.ranges + calls.rows >= 1);
        CHECK(calls.ranges + calls.rows <= 2);
        // Rows are parts of a tile.
        if (calls.ranges + calls.rows > 1 || calls.rows > 0) CHECK(calls.bytes <= sizes.tile);
        const auto ends_after = [&](const LazyTensor& tensor) {
            return layout.extent(static_cast<std::size_t>(&tensor - layout.tensors.data())).end() > calls.first;
        };
        CHECK(&plan.tensor(layout, job) == &*std::ranges::find_if(layout.tensors, ends_after));
    }
    CHECK(fill.bytes_read() == maker.bytes_read() - read_before);
    // Padding of a range is zero; a byte between two ranges is not copied.
    Buffer want = expected(layout, std::byte{0});
    Buffer owned(layout.size, std::byte{0});
    for (std::size_t i = 0; i < layout.tensors.size(); ++i)
        std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(layout.places[i]), layout.extent(i).size, std::byte{1});
    for (std::uint64_t at = 0; at < layout.size; ++at) {
        const int copies = fill.memory.copies[at];
        if (owned[at] == std::byte{1} ? copies != 1 : copies > 1) FAIL("byte ", at, " is copied ", copies, " times");
        if (copies == 0) want[at] = untouched;
    }
    CHECK(fill.memory.bytes == want);
}

/// Reads a job to memory that has the layout.
void fill_in_place(const FillPlan& plan, const Layout& layout, std::size_t job, Paths& paths, Worker& worker,
                   std::span<std::byte> memory) {
    plan.fill(layout, job, paths, worker,
              [&](std::size_t tensor, std::uint64_t at) { return &memory[layout.places[tensor] + at]; });
}

/// Memory in which each tensor of a layout has a place of its own.
class Targets {
public:
    /// `first` is the place of the first tensor, in bytes from the border of a huge page. `gap` returns the bytes
    /// between a tensor and the one before.
    template <class Gap> Targets(const Layout& layout, std::uint64_t first, Gap&& gap) : layout_(layout) {
        std::uint64_t end = first;
        for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
            end += i == 0 ? 0 : gap();
            places_.push_back(end);
            end += layout.extent(i).size;
        }
        bytes_.assign(huge_page + end, untouched);
        const std::uint64_t border = huge_page - reinterpret_cast<std::uintptr_t>(bytes_.data()) % huge_page;
        for (std::uint64_t& place : places_) place += border;
    }

    void fill(const FillPlan& plan, std::size_t job, Paths& paths) {
        plan.fill(layout_, job, paths, worker_,
                  [&](std::size_t tensor, std::uint64_t at) { return &bytes_[places_[tensor] + at]; });
    }
    /// Checks that all tensors have their values, and that nothing between them has changed.
    void check() const {
        Buffer want(bytes_.size(), untouched);
        for (std::size_t i = 0; i < places_.size(); ++i)
            if (layout_.extent(i).size > 0)
                layout_.tensors[i].read(0, std::span(want).subspan(places_[i], layout_.extent(i).size));
        CHECK(bytes_ == want);
    }

    static constexpr std::uint64_t huge_page = 2U << 20;

private:
    const Layout& layout_;
    Buffer bytes_;
    std::vector<std::uint64_t> places_;
    Worker worker_;
};

void check_direct(const Layout& layout, const FillPlan& plan, Maker& maker) {
    Paths paths;
    Targets targets(layout, maker.below(Targets::huge_page), [&] { return maker.below(300); });
    const std::uint64_t read_before = maker.bytes_read();
    for (const std::size_t job : shuffled_jobs(plan, maker)) targets.fill(plan, job, paths);
    CHECK(bytes_read(paths) == maker.bytes_read() - read_before);
    targets.check();
}

}  // namespace

TEST_CASE("jobs of any size, in any order, fill random layouts with the values of their tensors") {
    const unsigned seed = soak::seed(20261202);
    CAPTURE(seed);
    for (unsigned round = 0; round < static_cast<unsigned>(soak::rounds_of_one_thread(120)); ++round) {
        CAPTURE(round);
        Maker maker(seed + round, 3, 1U << 20);
        const Layout layout = random_layout(maker, round % 3 == 0 ? 130'000 : 9'000);
        const Sizes sizes = random_sizes(maker);
        CAPTURE(sizes.job);
        CAPTURE(sizes.tile);
        const FillPlan plan(layout, sizes.job, sizes.tile);
        check_direct(layout, plan, maker);
        check_staged(layout, plan, sizes, maker);
    }
}

TEST_CASE("memory of several huge pages is filled directly, whichever tensors cross their borders") {
    const unsigned seed = soak::seed(20261203);
    CAPTURE(seed);
    for (unsigned round = 0; round < static_cast<unsigned>(soak::rounds_of_one_thread(12)); ++round) {
        CAPTURE(round);
        Maker maker(seed + round, 3, 1U << 23);
        std::vector<LazyTensor> tensors;
        for (std::uint64_t bytes = 0; bytes < (7U << 20);) {
            const Kind kind = random_tensors::kinds[maker.below(std::size(random_tensors::kinds))];
            tensors.push_back(maker.make(kind, 1 + maker.below(maker.below(4) == 0 ? 700'000 : 90'000)).tensor);
            bytes += tensors.back().nbytes();
        }
        std::vector<std::uint32_t> from;
        const Layout layout = lay_out(std::move(tensors), from);
        const FillPlan plan(layout, 8U << 20, 1U << 20);
        check_direct(layout, plan, maker);
    }
}

TEST_CASE("the border of a huge page cuts no element, wherever a target begins") {
    const Counted counted(4, 80'000);
    const LazyTensor tensor("t", stored_run(Dtype::c128, {5'000}, counted.source(), 0));
    std::vector<std::uint32_t> from;
    const Layout layout = lay_out({tensor}, from);
    const FillPlan plan(layout, 8U << 20, 2U << 20);
    for (const std::uint64_t before : {1U, 8U, 255U, 256U, 257U, 40'007U, 79'999U}) {
        CAPTURE(before);
        Targets targets(layout, Targets::huge_page - before, [] { return 0U; });
        Paths paths;
        for (std::size_t job = 0; job < plan.jobs(); ++job) targets.fill(plan, job, paths);
        targets.check();
    }
}

TEST_CASE("a job that ends behind its last tensor does not touch the next one") {
    const Counted counted(5, 4'100);
    std::vector<LazyTensor> tensors = {{"swapped", stored_run(Dtype::u16, {2'000}, counted.source(), 0)},
                                       {"next", stored_run(Dtype::u8, {100}, counted.source(), 4'000)}};
    tensors[0] = {"swapped", tensors[0].stored(), Decoding{.byte_swap = true}};  // is gathered whole
    std::vector<std::uint32_t> from;
    const Layout layout = lay_out(tensors, from);
    const FillPlan plan(layout, 4'096, 4'096);
    REQUIRE(plan.jobs() == 2);
    Targets targets(layout, Targets::huge_page - 2'000, [] { return 96U; });
    Paths paths;
    targets.fill(plan, 1, paths);
    targets.fill(plan, 0, paths);
    targets.check();
}

TEST_CASE("every byte of a tensor is written directly by exactly one job, and no other byte is") {
    for (unsigned round = 0; round < static_cast<unsigned>(soak::rounds_of_one_thread(60)); ++round) {
        CAPTURE(round);
        Maker maker(round, 2, 1U << 18);
        const Layout layout = random_layout(maker, 6'000);
        const FillPlan plan(layout, round % 2 == 0 ? 4'096 : 10'000, 4'096);
        std::vector<int> writes(layout.size, 0);
        Paths paths;
        Worker worker;
        for (std::size_t job = 0; job < plan.jobs(); ++job) {
            Buffer zeros(layout.size, std::byte{0});
            Buffer ones(layout.size, std::byte{0xFF});
            fill_in_place(plan, layout, job, paths, worker, zeros);
            fill_in_place(plan, layout, job, paths, worker, ones);
            for (std::uint64_t at = 0; at < layout.size; ++at) writes[at] += zeros[at] == ones[at] ? 1 : 0;
        }
        std::vector<int> want(layout.size, 0);
        for (std::size_t i = 0; i < layout.tensors.size(); ++i)
            std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(layout.places[i]), layout.extent(i).size, 1);
        CHECK(writes == want);
    }
}

TEST_CASE("a tile of a large transposed matrix is copied in one or two steps") {
    constexpr std::uint64_t side = 4096;
    const auto stored = std::make_shared<std::vector<std::uint16_t>>(side * side);
    for (std::size_t i = 0; i < stored->size(); ++i) (*stored)[i] = static_cast<std::uint16_t>(i * 40'503 >> 7);
    const auto source = memory_source(
        "memory", SharedBytes{.bytes = std::as_bytes(std::span<const std::uint16_t>(*stored)), .owner = stored});
    const LazyTensor tensor("t", stored_run(Dtype::bf16, {side, side}, source, 0),
                            {{side, side}, {1, static_cast<std::int64_t>(side)}, 0});
    std::vector<std::uint32_t> from;
    const Layout layout = lay_out({tensor}, from);
    const FillPlan plan(layout, 8U << 20, 2U << 20);
    CHECK(plan.jobs() == 16);
    StagedFill fill(layout, plan, 8U << 20);
    for (std::size_t job = 0; job < plan.jobs(); ++job) {
        const Calls calls = fill.run(job);
        CHECK(calls.ranges + calls.rows <= 2);
        CHECK(calls.bytes == 2U << 20);
    }
    // Each tile has 1024 rows of 2 KiB, 8 KiB apart. The gaps are read, too, but not after the last row of a window.
    CHECK(fill.bytes_read() == 16 * (1024 * 8192 - 8 * 6144));
    bool equal = true;
    for (std::uint64_t i = 0; i < side; ++i)
        for (std::uint64_t j = 0; j < side; ++j) {
            std::uint16_t got = 0;
            std::memcpy(&got, fill.memory.bytes.data() + (i * side + j) * 2, 2);
            equal = equal && got == (*stored)[j * side + i];
        }
    CHECK(equal);
}

TEST_CASE("neighbours in a file share a job, and a large tensor is cut at the size of jobs") {
    const Counted counted(3, 100'000);
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 100; ++i)
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {1'000}, counted.source(), i * 1'000));
    std::vector<std::uint32_t> from;
    const Layout layout = lay_out(tensors, from);
    CHECK(layout.size == 99 * 1'024 + 1'000);
    const FillPlan one(layout, 8U << 20, 2U << 20);
    REQUIRE(one.jobs() == 1);
    Paths paths;
    Worker worker;
    // Within one huge page: others are read to one after the other.
    Buffer memory(4U << 20);
    const std::size_t into = reinterpret_cast<std::uintptr_t>(memory.data()) % (2U << 20);
    fill_in_place(one, layout, 0, paths, worker, std::span(memory).subspan((2U << 20) - into, layout.size));
    CHECK(bytes_read(paths) == 100'000);
    CHECK(counted.reads() == 1);
    // A job of 10,000 bytes is rounded down to 39 places of 256 bytes.
    CHECK(FillPlan(layout, 10'000, 10'000).jobs() == (layout.size - 1) / 9'984 + 1);
    CHECK(FillPlan(layout, 4'096, 4'096).jobs() == 25);
}

TEST_CASE("a layout without elements has no jobs") {
    std::vector<std::uint32_t> from;
    CHECK(FillPlan(lay_out({}, from), 4'096, 4'096).jobs() == 0);
    const LazyTensor empty("e", stored_run(Dtype::f32, {0}, Counted(1, 8).source(), 0));
    CHECK(FillPlan(lay_out({empty, empty}, from), 4'096, 4'096).jobs() == 0);
}

TEST_CASE("a read that fails calls no copy, and the error has its tensor") {
    for (const Kind kind : {Kind::run, Kind::transposed, Kind::swapped}) {
        const Counted counted(9, 400'000);
        LazyTensor tensor("broken", stored_run(Dtype::u16, {400, 500}, counted.source(), 0));
        if (kind == Kind::transposed) tensor = {"broken", tensor.stored(), {{500, 400}, {1, 500}, 0}};
        if (kind == Kind::swapped) tensor = {"broken", tensor.stored(), Decoding{.byte_swap = true}};
        std::vector<std::uint32_t> from;
        const Layout layout = lay_out({tensor}, from);
        const FillPlan plan(layout, 100'096, 50'000);
        Buffer slab(100'096);
        Paths paths;
        Worker worker;
        for (std::size_t job = 0; job < plan.jobs(); ++job) {
            counted.fail_after(0);
            bool called = false;
            const FillPlan::Copies copies{[&](auto, auto) { called = true; }, [&](const auto&) { called = true; }};
            check_error(error_of([&] { plan.fill(layout, job, paths, worker, slab, copies); }), {Errc::io_error}, {},
                        {.tensor = "broken"});
            CHECK_FALSE(called);
        }
    }
}

}  // namespace fill_plan_test
