// Tests of gathers of tensors that are neighbours in a source: their values against reads one by one, the number of
// reads, faults and cancelling. From top to bottom: sources and tensors, values, reads, faults.
#include <safemap/advanced/file.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/watch.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "lazy/gatherer.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace scattered_test {

using namespace safemap;
using namespace safemap::literals;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

std::vector<std::byte> random_bytes(std::size_t size, std::uint32_t seed) {
    std::vector<std::byte> bytes(size);
    std::uint32_t state = seed;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
    return bytes;
}

/// A source in memory that counts its reads of each kind, and fails on request.
class Counting final : public Source {
public:
    Counting(std::uint64_t size, bool file) : bytes_(random_bytes(size, 1)), file_(file) {}
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return bytes_.size(); }
    bool is_file() const noexcept override { return file_; }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        ++reads;
        if (on_read) on_read();
        copy(offset, into);
    }
    void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const override {
        ++scattered;
        if (on_read) on_read();
        most_pieces = std::max(most_pieces, into.size());
        for (const auto place : into) {
            copy(offset, place);
            offset += place.size();
        }
    }
    void reset() {
        reads = 0;
        scattered = 0;
        bytes = 0;
    }

    mutable std::size_t reads = 0;
    mutable std::size_t scattered = 0;
    mutable std::size_t most_pieces = 0;
    mutable std::uint64_t bytes = 0;
    std::uint64_t bad = UINT64_MAX;
    std::function<void()> on_read = {};

private:
    void copy(std::uint64_t offset, std::span<std::byte> into) const {
        if (bad >= offset && bad < offset + into.size()) throw Error(Errc::io_error, "a bad sector");
        std::memcpy(into.data(), bytes_.data() + offset, into.size());
        bytes += into.size();
    }

    std::string name_ = "counting";
    std::vector<std::byte> bytes_;
    bool file_;
};

/// Tensors of U8, one behind the other in a source with a gap between two.
std::vector<LazyTensor> neighbours(const std::shared_ptr<const Source>& source, const std::vector<std::uint64_t>& sizes,
                                   std::uint64_t gap = 0) {
    std::vector<LazyTensor> tensors;
    std::uint64_t offset = 10;
    for (const std::uint64_t size : sizes) {
        tensors.emplace_back("t" + std::to_string(tensors.size()), stored_run(Dtype::u8, {size}, source, offset));
        offset += size + gap;
    }
    REQUIRE(offset <= source->size());
    return tensors;
}

/// Places at multiples of 256 bytes, with untouched bytes around them.
class Places {
public:
    explicit Places(const std::vector<LazyTensor>& tensors) : tensors_(tensors) {
        for (const LazyTensor& tensor : tensors) {
            begins_.push_back(bytes_.size() + 256);
            bytes_.resize((bytes_.size() + 256 + tensor.nbytes() + 255) / 256 * 256, untouched);
        }
        bytes_.resize(bytes_.size() + 256, untouched);
    }
    std::span<std::byte> operator[](std::size_t i) {
        return std::span(bytes_).subspan(begins_[i], tensors_[i].nbytes());
    }
    /// Returns what the places hold if each tensor is read by itself.
    std::vector<std::byte> read_one_by_one() const {
        std::vector<std::byte> all(bytes_.size(), untouched);
        for (std::size_t i = 0; i < tensors_.size(); ++i)
            tensors_[i].read(0, std::span(all).subspan(begins_[i], tensors_[i].nbytes()));
        return all;
    }
    const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

private:
    static constexpr std::byte untouched{0x5A};
    const std::vector<LazyTensor>& tensors_;
    std::vector<std::size_t> begins_;
    std::vector<std::byte> bytes_;
};

void add_all(Gatherer& gatherer, const std::vector<LazyTensor>& tensors, Places& places) {
    for (std::size_t i = 0; i < tensors.size(); ++i) gatherer.add(tensors[i], tensors[i].dtype(), 0, places[i]);
}

void gather(const std::vector<LazyTensor>& tensors, const Watch* watch = nullptr) {
    Places places(tensors);
    Gatherer gatherer;
    gatherer.begin({.watch = watch});
    add_all(gatherer, tensors, places);
    gatherer.flush();
}

/// Sizes from one byte to 100 KiB, as many short ones as long ones.
std::uint64_t random_size(Random& random) {
    constexpr std::uint64_t most[] = {16, 256, 2'000, 5'000, 20'000, 100 << 10};
    return 1 + below(random, most[below(random, std::size(most))]);
}

std::uint64_t random_gap(Random& random) {
    constexpr std::uint64_t most[] = {1, 1, 1, 100, 5'000, 10'000};
    return below(random, most[below(random, std::size(most))]);
}

/// Sources of every kind with the same bytes.
std::vector<std::shared_ptr<const Source>> all_kinds(const std::shared_ptr<const std::vector<std::byte>>& bytes,
                                                     const std::filesystem::path& file) {
    return {open_file(file), memory_source("memory", SharedBytes{*bytes, bytes}),
            callback_source("callback", bytes->size(),
                            [bytes](std::uint64_t offset, std::span<std::byte> into) {
                                std::memcpy(into.data(), bytes->data() + offset, into.size());
                            }),
            std::make_shared<Counting>(bytes->size(), true), std::make_shared<Counting>(bytes->size(), false)};
}

/// A tensor at `offset`: of bytes, cast, byte-swapped or transposed.
LazyTensor random_tensor(Random& random, std::shared_ptr<const Source> source, std::uint64_t offset,
                         std::uint64_t size) {
    const std::string name = "t" + std::to_string(offset);
    if (below(random, 2) == 0) return {name, stored_run(Dtype::u8, {size}, std::move(source), offset)};
    const std::uint64_t rows = std::max<std::uint64_t>(1, size / 64);
    const auto stored = stored_run(Dtype::f32, {rows, 16}, std::move(source), offset);
    switch (below(random, 4)) {
        case 0: return LazyTensor(name, stored).cast(Dtype::bf16);
        case 1: return {name, stored, StridedView{{16, rows}, {1, 16}, 0}};
        case 2: return {name, stored, StridedView{{rows, 16}, {16, 1}, 0}, Decoding{.byte_swap = true}};
        default: return {name, stored};
    }
}

}  // namespace

TEST_CASE("random neighbours in sources of every kind have the values of reads one by one") {
    const unsigned seed = soak::seed(20261125);
    CAPTURE(seed);
    Random random(seed);
    const TempDir dir;
    const auto bytes = std::make_shared<const std::vector<std::byte>>(random_bytes(6'000'000, 7));
    const auto file = dir.write("a", {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
    Gatherer gatherer;
    for (int round = 0; round < soak::rounds(120); ++round) {
        CAPTURE(round);
        const auto sources = all_kinds(bytes, file);
        std::vector<LazyTensor> tensors;
        for (std::size_t s = 0; s < sources.size(); ++s) {
            std::uint64_t offset = below(random, 1000);
            for (std::size_t count = below(random, 40); count > 0; --count) {
                const std::uint64_t size = random_size(random);
                tensors.push_back(random_tensor(random, sources[s], offset, size));
                if (below(random, 20) != 0) offset += std::max<std::uint64_t>(size, 64) + random_gap(random);
                else offset += below(random, size);  // the next one overlaps this one
            }
        }
        if (below(random, 2) == 0) std::shuffle(tensors.begin(), tensors.end(), random);
        Places places(tensors);
        gatherer.begin();
        add_all(gatherer, tensors, places);
        gatherer.flush();
        if (places.bytes() != places.read_one_by_one()) FAIL("round ", round, ": values differ");
    }
}

TEST_CASE("tensors that are stored as they are wanted have the bytes of the file") {
    const TempDir dir;
    Random random(3);
    const auto bytes = random_bytes(9'000'000, 8);
    const auto file = dir.write("a", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::vector<std::uint64_t> sizes;
    for (int i = 0; i < 400; ++i) sizes.push_back(random_size(random));
    for (const std::uint64_t gap : {0U, 64U}) {
        CAPTURE(gap);
        const auto tensors = neighbours(open_file(file), sizes, gap);
        Places places(tensors);
        Gatherer gatherer;
        gatherer.begin();
        add_all(gatherer, tensors, places);
        gatherer.flush();
        std::size_t offset = 10;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            CHECK(std::memcmp(places[i].data(), bytes.data() + offset, sizes[i]) == 0);
            offset += sizes[i] + gap;
        }
    }
}

TEST_CASE("neighbours in a file are read by few calls, and a tensor without neighbours by one read") {
    struct Row {
        const char* what;
        std::vector<std::uint64_t> sizes;
        std::uint64_t gap;
        std::size_t reads, scattered;
    };
    const auto times = [](std::size_t count, std::uint64_t size) { return std::vector<std::uint64_t>(count, size); };
    const Row rows[] = {
        {"one tensor", {100'000}, 0, 1, 0},
        {"one tensor of more than 8 MiB", {9'000'000}, 0, 1, 0},
        {"one short tensor", {5}, 0, 1, 0},
        {"long ones", times(100, 64_KiB), 0, 0, 1},
        {"long ones of more than 8 MiB", times(300, 64_KiB), 0, 0, 3},
        {"long ones and huge ones", {20_KiB, 9'000'000, 20_KiB, 20_KiB}, 0, 2, 1},
        {"long ones with gaps of 4 KiB", times(10, 64_KiB), 4_KiB, 0, 1},
        {"long ones with larger gaps", times(10, 64_KiB), 4_KiB + 1, 10, 0},
        {"long ones with short ones between", {64_KiB, 1, 64_KiB, 512, 20, 64_KiB}, 0, 0, 1},
        {"shorter ones", times(1'500, 4_KiB), 0, 0, 2},
        {"shorter ones with gaps", times(1'500, 4_KiB), 64, 0, 3},
        {"shorter ones with gaps of 8 KiB", times(100, 4_KiB), 8_KiB, 0, 1},
        {"shorter ones with larger gaps", times(100, 4_KiB), 8_KiB + 1, 100, 0},
        {"a shorter one at a gap of 4 KiB from a long one", {64_KiB, 4_KiB}, 4_KiB, 0, 1},
        {"a shorter one at a larger gap from a long one", {64_KiB, 4_KiB}, 4_KiB + 1, 2, 0},
        {"short ones, through the window", times(1'500, 100), 0, 1, 0},
        {"short ones with gaps, through the window", times(100, 100), 8_KiB, 1, 0},
    };
    const auto source = std::make_shared<Counting>(30'000'000, true);
    for (const Row& row : rows) {
        CAPTURE(row.what);
        source->reset();
        gather(neighbours(source, row.sizes, row.gap));
        CHECK(source->reads == row.reads);
        CHECK(source->scattered == row.scattered);
    }
    CHECK(source->most_pieces == 1024);
}

TEST_CASE("a source that is not a file is asked for no gap beside a long tensor, and once for short ones") {
    struct Row {
        const char* what;
        std::vector<std::uint64_t> sizes;
        std::uint64_t gap;
        std::size_t reads, scattered;
    };
    const Row rows[] = {
        {"long ones", std::vector<std::uint64_t>(32, 64_KiB), 0, 0, 2},
        {"long ones with gaps", std::vector<std::uint64_t>(32, 64_KiB), 1, 32, 0},
        {"shorter ones", std::vector<std::uint64_t>(100, 4_KiB), 100, 1, 0},
        {"a short one after a long one", {64_KiB, 100}, 1, 2, 0},
    };
    const auto source = std::make_shared<Counting>(3'000'000, false);
    for (const Row& row : rows) {
        CAPTURE(row.what);
        source->reset();
        gather(neighbours(source, row.sizes, row.gap));
        CHECK(source->reads == row.reads);
        CHECK(source->scattered == row.scattered);
    }
}

TEST_CASE("tensors of the same bytes are not read by one call, and short ones are read once") {
    const auto source = std::make_shared<Counting>(3'000'000, true);
    const auto gather_twice = [&](std::uint64_t size) {
        source->reset();
        auto tensors = neighbours(source, {size});
        tensors.push_back(tensors.front());
        gather(tensors);
        CHECK(source->scattered == 0);
        return std::pair(source->reads, source->bytes);
    };
    CHECK(gather_twice(100'000) == std::pair<std::size_t, std::uint64_t>(2, 200'000));
    CHECK(gather_twice(5'000) == std::pair<std::size_t, std::uint64_t>(1, 5'000));
}

TEST_CASE("a bad byte of any tensor gives an error with its name") {
    Random random(4);
    std::vector<std::uint64_t> sizes;
    for (int i = 0; i < 120; ++i) sizes.push_back(random_size(random));
    for (const bool file : {true, false})
        for (const std::uint64_t gap : {0U, 30U, 5'000U}) {
            const auto source = std::make_shared<Counting>(6'000'000, file);
            const auto tensors = neighbours(source, sizes, gap);
            std::uint64_t offset = 10;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                CAPTURE(i);
                source->bad = offset + below(random, sizes[i]);
                check_error(error_of([&] { gather(tensors); }), {Errc::io_error}, {},
                            {.tensor = tensors[i].name(), .path = "counting"});
                offset += sizes[i] + gap;
            }
            source->bad = UINT64_MAX;
            CHECK_OK(gather(tensors));
        }
}

TEST_CASE("a read that fails once has the first tensor of that read") {
    const auto source = std::make_shared<Counting>(30'000'000, true);
    const auto tensors = neighbours(source, std::vector<std::uint64_t>(300, 64_KiB));  // 128 tensors in a read
    for (std::size_t nth = 0; nth < 3; ++nth) {
        source->reset();
        source->on_read = [&] {
            if (source->scattered == nth + 1 && source->reads == 0) throw Error(Errc::io_error, "once");
        };
        const auto error = error_of([&] { gather(tensors); });
        REQUIRE(error);
        CHECK(error->tensor() == tensors[128 * nth].name());
        CHECK(error->path() == "counting");
    }
}

TEST_CASE("long parts are read by flush(), and dropped by begin()") {
    const auto source = std::make_shared<Counting>(3'000'000, true);
    const auto tensors = neighbours(source, {100'000, 3'000, 100'000});
    Places places(tensors);
    const std::vector<std::byte> before = places.bytes();
    Gatherer gatherer;
    gatherer.begin();
    add_all(gatherer, tensors, places);
    CHECK(source->reads + source->scattered == 0);
    gatherer.begin();
    gatherer.flush();
    CHECK(source->reads + source->scattered == 0);
    CHECK(places.bytes() == before);
}

TEST_CASE("a stop request ends a gather of neighbours before the next read") {
    std::stop_source stop;
    const Monitor monitor{.stop = stop.get_token()};
    const Watch watch(monitor, "loading", 0);
    const auto source = std::make_shared<Counting>(30'000'000, true);
    const auto tensors = neighbours(source, std::vector<std::uint64_t>(300, 64_KiB));
    source->on_read = [&] { stop.request_stop(); };
    CHECK_FAULT(gather(tensors, &watch), Errc::cancelled);
    CHECK(source->scattered == 1);
    CHECK(source->reads == 0);
}

}  // namespace scattered_test
