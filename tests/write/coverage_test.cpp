// Tests of coverage.hpp against a flag for each byte.
#include "write/coverage.hpp"

#include "doctest_safemap.hpp"

#include <algorithm>
#include <random>
#include <vector>

namespace coverage_test {

using safemap::Extent;
using safemap::write::Coverage;

namespace {

/// The slow reference: a flag for each byte.
class Bytes {
public:
    explicit Bytes(std::size_t size) : written_(size, false) {}

    std::optional<Extent> first_common(std::span<const Extent> pieces) const {
        for (const Extent& piece : pieces)
            if (const auto run = first_run(piece, true)) return run;
        return std::nullopt;
    }
    void add(std::span<const Extent> pieces) {
        for (const Extent& piece : pieces)
            std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(piece.offset), piece.size, true);
    }
    std::optional<Extent> first_gap() const { return first_run({0, written_.size()}, false); }
    std::size_t stretches() const {
        std::size_t count = 0;
        for (std::size_t i = 0; i < written_.size(); ++i) count += written_[i] && (i == 0 || !written_[i - 1]);
        return count;
    }

private:
    std::optional<Extent> first_run(Extent within, bool value) const {
        for (std::uint64_t at = within.offset; at < within.end(); ++at) {
            if (written_[at] != value) continue;
            std::uint64_t end = at;
            while (end < within.end() && written_[end] == value) ++end;
            return Extent{at, end - at};
        }
        return std::nullopt;
    }

    std::vector<bool> written_;
};

}  // namespace

TEST_CASE("a set of byte ranges agrees with flags for each byte, in any order") {
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto up_to = [&](std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(random); };
    for (int round = 0; round < 200; ++round) {
        const std::uint64_t size = 1 + up_to(120);
        Coverage coverage;
        Bytes bytes(size);
        for (int tries = 0; bytes.first_gap() && tries < 2'000; ++tries) {
            // Pieces in ascending order; a few are adjacent.
            std::vector<Extent> pieces;
            std::uint64_t at = up_to(size - 1);
            const std::uint64_t most = up_to(3);
            while (at < size && pieces.size() <= most) {
                const std::uint64_t length = 1 + up_to(std::min<std::uint64_t>(size - at - 1, 9));
                pieces.push_back({at, length});
                at += length + up_to(5);
            }
            const auto common = bytes.first_common(pieces);
            REQUIRE(coverage.first_common(pieces) == common);
            if (common) continue;
            coverage.add(pieces);
            bytes.add(pieces);
            REQUIRE(coverage.first_gap(size) == bytes.first_gap());
            REQUIRE(coverage.stretches() == bytes.stretches());
        }
    }
}

TEST_CASE("ranges written in order, or in columns, join to one when they are complete") {
    Coverage coverage;
    for (std::uint64_t i = 0; i < 1'000; ++i) {
        coverage.add(std::vector{Extent{i * 10, 10}});
        CHECK(coverage.stretches() == 1);
    }
    CHECK_FALSE(coverage.first_gap(10'000));
    CHECK(coverage.first_gap(10'001) == Extent{10'000, 1});

    Coverage columns;
    for (std::uint64_t column = 0; column < 4; ++column) {
        std::vector<Extent> rows;
        for (std::uint64_t row = 0; row < 1'000; ++row) rows.push_back({row * 16 + column * 4, 4});
        columns.add(rows);
        CHECK(columns.stretches() == (column < 3 ? 1'000 : 1));
    }
    CHECK(columns.first_common(std::vector{Extent{20'000, 5}}) == std::nullopt);
    CHECK(columns.first_common(std::vector{Extent{15'999, 5}}) == Extent{15'999, 1});
}

TEST_CASE("an empty tensor is complete") {
    CHECK_FALSE(Coverage().first_gap(0));
    CHECK(Coverage().first_gap(3) == Extent{0, 3});
    CHECK_FALSE(Coverage().first_common({}));
    Coverage coverage;
    coverage.add({});
    CHECK(coverage.stretches() == 0);
}

}  // namespace coverage_test
