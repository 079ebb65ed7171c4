// Tests the places of tensors in the memory that they share, against a slow reference.
#include "device/layout.hpp"

#include "device/random_tensors.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace layout_test {

using namespace safemap;
using device::lay_out;
using device::Layout;
using random_tensors::Kind;
using random_tensors::Maker;
using random_tensors::Placed;

namespace {

/// Returns the numbers of the tensors in file order: those without elements first, then by source, then by offset.
std::vector<std::uint32_t> slow_order(const std::vector<Placed>& tensors) {
    std::vector<const Source*> sources;
    for (const Placed& placed : tensors)
        if (placed.tensor.element_count() > 0 && std::ranges::find(sources, placed.source) == sources.end())
            sources.push_back(placed.source);
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].tensor.element_count() == 0) order.push_back(i);
    for (const Source* source : sources) {
        std::multimap<std::uint64_t, std::uint32_t> of_source;
        for (std::uint32_t i = 0; i < tensors.size(); ++i)
            if (tensors[i].tensor.element_count() > 0 && tensors[i].source == source)
                of_source.emplace(tensors[i].offset, i);
        for (const auto& [offset, i] : of_source) order.push_back(i);
    }
    return order;
}

std::vector<LazyTensor> tensors_of(const std::vector<Placed>& placed) {
    std::vector<LazyTensor> tensors;
    for (const Placed& one : placed) tensors.push_back(one.tensor);
    return tensors;
}

std::shared_ptr<const Source> endless() {
    return callback_source("zeros", UINT64_MAX, [](auto, auto) {});
}

LazyTensor bytes(std::string name, std::uint64_t size, std::uint64_t offset = 0) {
    static const auto source = endless();
    return {std::move(name), stored_run(Dtype::u8, {size}, source, offset)};
}

}  // namespace

TEST_CASE("random tensors are placed in file order, aligned and without overlap") {
    const unsigned seed = soak::seed(20261201);
    CAPTURE(seed);
    for (unsigned round = 0; round < 300; ++round) {
        CAPTURE(round);
        Maker maker(seed + round, 1 + round % 4, 200'000);
        std::vector<Placed> placed;
        for (std::uint64_t n = maker.below(30); n > 0; --n)
            placed.push_back(maker.make(random_tensors::kinds[maker.below(std::size(random_tensors::kinds))],
                                        1 + maker.below(maker.below(2) == 0 ? 20 : 5'000)));
        std::vector<std::uint32_t> from;
        const Layout layout = lay_out(tensors_of(placed), from);
        CHECK(from == slow_order(placed));
        REQUIRE(layout.tensors.size() == placed.size());
        REQUIRE(layout.places.size() == placed.size());

        std::uint64_t end = 0;
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < placed.size(); ++i) {
            CHECK(layout.tensors[i].name() == placed[from[i]].tensor.name());
            CHECK(layout.places[i] == (end + 255) / 256 * 256);
            CHECK(layout.extent(i).size == placed[from[i]].tensor.nbytes());
            end = layout.places[i] + placed[from[i]].tensor.nbytes();
            sum += placed[from[i]].tensor.nbytes();
            CHECK(end <= layout.size);
        }
        CHECK(layout.size == end);
        CHECK(layout.value_bytes == sum);
    }
}

TEST_CASE("a tensor without elements has its place inside the memory, whatever is beside it") {
    const LazyTensor empty("empty", stored_run(Dtype::f32, {0, 3}, endless(), 77));
    for (const std::uint64_t offset : {0U, 5U}) {
        std::vector<std::uint32_t> from;
        const Layout layout = lay_out({bytes("a", 100, offset), empty, bytes("b", 7, 1'000), empty}, from);
        CHECK(from == std::vector<std::uint32_t>{1, 3, 0, 2});
        CHECK(layout.places == std::vector<std::uint64_t>{0, 0, 0, 256});
        CHECK(layout.size == 263);
    }
    std::vector<std::uint32_t> from = {9};
    CHECK(lay_out({empty, empty}, from).size == 0);
    CHECK(lay_out({}, from).size == 0);
    CHECK(from.empty());
}

TEST_CASE("tensors at the same place stay in the order of the request") {
    std::vector<std::uint32_t> from;
    lay_out({bytes("a", 3, 50), bytes("b", 2, 50), bytes("c", 1, 0), bytes("d", 9, 50)}, from);
    CHECK(from == std::vector<std::uint32_t>{2, 0, 1, 3});
}

TEST_CASE("more than 2^64 bytes are refused, and a little less is not") {
    // A tensor has less than 2^61 bytes, because its bits are counted in 64 bits.
    constexpr std::uint64_t most = (std::uint64_t{1} << 61) - 1;
    const auto size_of = [](std::vector<std::uint64_t> sizes) {
        std::vector<LazyTensor> tensors;
        for (const std::uint64_t size : sizes)
            tensors.push_back(bytes("t" + std::to_string(tensors.size()), size, tensors.size()));
        std::vector<std::uint32_t> from;
        return lay_out(std::move(tensors), from).size;
    };
    std::vector<std::uint64_t> sizes(8, most);
    CHECK(size_of(sizes) == UINT64_MAX);
    sizes.push_back(1);  // no aligned place is left
    CHECK_FAULT(size_of(sizes), Errc::budget_exceeded);
    sizes[7] = most - 255;  // 256 bytes are left
    CHECK(size_of(sizes) == UINT64_MAX - 254);
    sizes[8] = 255;
    CHECK(size_of(sizes) == UINT64_MAX);
    sizes[8] = 256;
    CHECK_FAULT(size_of(sizes), Errc::budget_exceeded);
    const auto error = error_of([&] { size_of(sizes); });
    REQUIRE(error);
    CHECK(error->tensor() == "t8");
}

}  // namespace layout_test
