// Tests the search for overlapping boxes against a comparison of every pair.
#include "lazy/grid.hpp"

#include "doctest_safemap.hpp"
#include "reference/random_boxes.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

namespace grid_test {

using namespace safemap;
using reference::Places;

namespace {

using Random = std::mt19937;

Shape random_shape(Random& random, std::uint64_t most) {
    Shape shape;
    for (std::size_t d = random() % 5; d > 0; --d) shape.push_back(1 + random() % most);
    return shape;
}

/// Returns the boxes that have elements, in the order that a grid needs.
Places sorted(Places boxes) {
    std::erase_if(boxes, [](const Box& box) { return *element_count(box.extent) == 0; });
    std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) {
        return std::lexicographical_compare(a.start.begin(), a.start.end(), b.start.begin(), b.start.end());
    });
    return boxes;
}

Grid grid_of(const Shape& shape, const Places& boxes) {
    std::vector<std::uint64_t> places;
    for (const Box& box : boxes)
        for (const Shape* part : {&box.start, &box.extent}) places.insert(places.end(), part->begin(), part->end());
    return {shape, boxes.size(), std::move(places)};
}

bool meet(const Box& a, const Box& b) {
    for (std::size_t d = 0; d < a.start.size(); ++d)
        if (a.start[d] + a.extent[d] <= b.start[d] || b.start[d] + b.extent[d] <= a.start[d]) return false;
    return true;
}

std::optional<Shape> slow_first_shared(const Places& boxes) {
    for (std::size_t a = 0; a < boxes.size(); ++a)
        for (std::size_t b = a + 1; b < boxes.size(); ++b) {
            if (!meet(boxes[a], boxes[b])) continue;
            Shape shared = boxes[a].start;
            for (std::size_t d = 0; d < shared.size(); ++d) shared[d] = std::max(shared[d], boxes[b].start[d]);
            return shared;
        }
    return std::nullopt;
}

std::shared_ptr<const StoredTensor> stored(const Shape& shape, const Places& boxes) {
    static const auto source = memory_source("m", std::vector<std::byte>(1 << 20));
    std::vector<BoxPiece> pieces;
    for (const Box& box : boxes) pieces.push_back({source, 0, box, row_major(box.extent)});
    return stored_boxes(Dtype::u8, shape, pieces);
}

/// Returns boxes of one column each; if not `grid`, the first is cut in two, so that they form no grid.
Places columns(std::uint64_t count, bool grid) {
    Places boxes;
    for (std::uint64_t i = grid ? 0 : 1; i < count; ++i) boxes.push_back({{0, i}, {2, 1}});
    if (grid) return boxes;
    boxes.push_back({{0, 0}, {1, 1}});
    boxes.push_back({{1, 0}, {1, 1}});
    return boxes;
}

}  // namespace

TEST_CASE("the boxes that meet a region are those found by comparing every pair") {
    Random random(1402);
    for (int round = 0; round < 1500; ++round) {
        CAPTURE(round);
        const Shape shape = random_shape(random, 9);
        const Places boxes = sorted(reference::random_places(random, shape));
        const Grid grid = grid_of(shape, boxes);
        CHECK_FALSE(grid.first_shared());
        for (int i = 0; i < 5; ++i) {
            Box region;
            for (const std::uint64_t extent : shape) {
                region.start.push_back(random() % extent);
                region.extent.push_back(1 + random() % (extent - region.start.back()));
            }
            std::vector<std::size_t> found;
            grid.each_in(region, [&](std::size_t box) { found.push_back(box); });
            std::sort(found.begin(), found.end());
            std::vector<std::size_t> wanted;
            for (std::size_t box = 0; box < boxes.size(); ++box)
                if (meet(boxes[box], region)) wanted.push_back(box);
            CHECK(found == wanted);
        }
    }
}

TEST_CASE("the first overlap is found and named, and boxes with a gap do not count as a grid") {
    Random random(1403);
    int overlaps = 0;
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        const Shape shape = random_shape(random, 6);
        Places boxes = sorted(reference::random_places(random, shape));
        const std::size_t which = random() % boxes.size();
        const std::size_t d = shape.empty() ? 0 : random() % shape.size();
        switch (random() % 5) {
            case 0: boxes.push_back(boxes[which]); break;
            case 1: boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(which)); break;
            case 2:
                if (!shape.empty() && boxes[which].start[d] > 0) --boxes[which].start[d], ++boxes[which].extent[d];
                break;
            case 3:
                if (!shape.empty() && boxes[which].start[d] > 0) --boxes[which].start[d];
                break;
            default:
                if (!shape.empty() && boxes[which].extent[d] > 1) --boxes[which].extent[d];
                break;
        }
        boxes = sorted(boxes);
        const auto wanted = slow_first_shared(boxes);
        CHECK(grid_of(shape, boxes).first_shared() == wanted);
        overlaps += wanted ? 1 : 0;

        std::uint64_t volume = 0;
        for (const Box& box : boxes) volume += *element_count(box.extent);
        std::shuffle(boxes.begin(), boxes.end(), random);
        const auto error = error_of([&] { static_cast<void>(stored(shape, boxes)); });
        CHECK(error.has_value() == (wanted || volume != *element_count(shape)));
        if (!error) continue;
        CHECK(error->code() == Errc::bad_tensor);
        if (wanted) CHECK(error->message() == "element " + to_string(*wanted) + " is in two pieces");
        else CHECK(error->message().starts_with("pieces hold " + std::to_string(volume) + " elements"));
    }
    CHECK(overlaps > 500);
}

TEST_CASE("a tensor without dimensions has one box") {
    CHECK_OK(stored({}, {{}}));
    CHECK_FAULT(stored({}, {}), Errc::bad_tensor);
    CHECK_FAULT(stored({}, Places(100)), Errc::bad_tensor);
    CHECK_OK(stored({3, 0}, {{{0, 0}, {3, 0}}, {{1, 0}, {2, 0}}}));
    CHECK_OK(stored({3, 0}, {}));
}

TEST_CASE("tens of thousands of boxes are checked quickly, in any arrangement") {
    constexpr std::uint64_t count = 40'000;
    CHECK_OK(stored({2, count}, columns(count, true)));
    CHECK_OK(stored({2, count}, columns(count, false)));
    Places overlapping = columns(count, true);
    overlapping.back().start[1] = 7;
    const auto error = error_of([&] { static_cast<void>(stored({2, count}, overlapping)); });
    REQUIRE(error);
    CHECK(error->message() == "element [0, 7] is in two pieces");
    CHECK_FAULT(stored({2, count}, Places(count, {{0, 0}, {2, 1}})), Errc::bad_tensor);
}

TEST_CASE("boxes that all overlap along some dimension are checked quickly") {
    // Cell i of a square is cut in two at i: whichever dimension is swept, half of the boxes overlap in it.
    constexpr std::uint64_t side = 150;
    Places boxes;
    for (std::uint64_t i = 0; i < side * side; ++i) {
        const std::uint64_t cut = 1 + i;
        boxes.push_back({{0, i / side, i % side}, {cut, 1, 1}});
        boxes.push_back({{cut, i / side, i % side}, {side * side + 1 - cut, 1, 1}});
    }
    CHECK_OK(stored({side * side + 1, side, side}, boxes));
}

}  // namespace grid_test
