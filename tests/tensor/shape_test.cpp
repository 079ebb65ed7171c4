// Tests shapes, strides, and slices against Python's rules applied one by one.
#include <safemap/advanced/strides.hpp>

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include "reference/slow_slice.hpp"

#include <map>
#include <random>
#include <vector>

namespace shape_test {

using namespace safemap;
using reference::Cut;
using reference::python_indices;

namespace {

/// All slices of one dimension that give the same indices.
struct Outcome {
    std::vector<std::int64_t> indices;
    bool integer = false;  // the dimension is removed
    std::vector<Slice> ways = {};
};

std::vector<Outcome> outcomes(std::int64_t n) {
    std::map<std::vector<std::int64_t>, std::vector<Slice>> ranges;
    std::vector<std::optional<std::int64_t>> bounds{std::nullopt};
    for (std::int64_t i = -n - 2; i <= n + 2; ++i) bounds.emplace_back(i);
    for (const auto& start : bounds)
        for (const auto& stop : bounds)
            for (const std::int64_t step : {-4L, -3L, -2L, -1L, 1L, 2L, 3L, 4L}) {
                const Slice s{.start = start, .stop = stop, .step = step};
                ranges[python_indices(s, n)].push_back(s);
            }
    std::vector<Outcome> out;
    for (auto& [indices, ways] : ranges) out.push_back({indices, false, std::move(ways)});
    for (std::int64_t i = 0; i < n; ++i) out.push_back({{i}, true, {Slice::at(i), Slice::at(i - n)}});
    return out;
}

/// Returns the slices of `chosen` unchanged, with an empty ellipsis, and with an ellipsis for every run of whole
/// dimensions.
std::vector<std::vector<Slice>> with_ellipses(const std::vector<Slice>& named, const std::vector<bool>& is_whole) {
    std::vector<std::vector<Slice>> out{named};
    for (std::size_t from = 0; from <= named.size(); ++from)
        for (std::size_t to = from; to <= named.size(); ++to) {
            if (to > from && !is_whole[to - 1]) break;
            auto slices = named;
            slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(from),
                         slices.begin() + static_cast<std::ptrdiff_t>(to));
            if (to == named.size()) out.push_back(slices);  // trailing dimensions may be omitted
            slices.insert(slices.begin() + static_cast<std::ptrdiff_t>(from), Slice::ellipsis());
            out.push_back(std::move(slices));
        }
    return out;
}

StridedView contiguous(const Shape& shape) { return {shape, row_major(shape), 0}; }

/// Calls check(shape, slices) for every outcome of slicing `shape`, each reached in one of its ways.
template <class Check> void for_all_slices(std::mt19937_64& random, const Shape& shape, Check&& check) {
    std::vector<std::vector<Outcome>> all;
    for (const std::uint64_t n : shape) all.push_back(outcomes(static_cast<std::int64_t>(n)));
    std::vector<Slice> named;
    std::vector<bool> is_whole;
    const auto choose = [&](const auto& self, std::size_t axis) -> void {
        if (axis == shape.size()) {
            for (const auto& slices : with_ellipses(named, is_whole)) check(slices);
            return;
        }
        for (const Outcome& outcome : all[axis]) {
            named.push_back(outcome.ways[random() % outcome.ways.size()]);
            is_whole.push_back(!outcome.integer &&
                               outcome.indices == python_indices({}, static_cast<std::int64_t>(shape[axis])));
            self(self, axis + 1);
            named.pop_back();
            is_whole.pop_back();
        }
    };
    choose(choose, 0);
}

/// Calls run(shape) for every shape of up to three dimensions of up to three elements.
template <class Run> void for_small_shapes(Run&& run) {
    run(Shape{});
    for (std::uint64_t a = 0; a <= 3; ++a) {
        run(Shape{a});
        for (std::uint64_t b = 0; b <= 3; ++b) {
            run(Shape{a, b});
            for (std::uint64_t c = 0; c <= 3; ++c) run(Shape{a, b, c});
        }
    }
}

}  // namespace

TEST_CASE("every slice of one dimension means the same as in Python") {
    std::vector<std::optional<std::int64_t>> bounds{std::nullopt};
    for (std::int64_t i = -7; i <= 7; ++i) bounds.emplace_back(i);
    bounds.emplace_back(INT64_MAX);
    bounds.emplace_back(INT64_MIN);
    for (std::uint64_t n = 0; n <= 5; ++n)
        for (const auto& start : bounds)
            for (const auto& stop : bounds)
                for (const std::int64_t step : {-8L, -3L, -2L, -1L, 1L, 2L, 3L, 8L}) {
                    const Slice s{.start = start, .stop = stop, .step = step};
                    const StridedView view = slice({{n}, {1}, 0}, std::span(&s, 1));
                    if (reference::walked(view).elements != python_indices(s, static_cast<std::int64_t>(n)))
                        FAIL("n=", n, " start=", start.value_or(99), " stop=", stop.value_or(99), " step=", step);
                }
}

TEST_CASE("every outcome of slicing every shape up to 3x3x3, with ellipses, is that of the slow reference") {
    const unsigned seed = soak::seed(31);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::size_t checked = 0;
    for_small_shapes([&](const Shape& shape) {
        const Cut base = reference::whole(shape);
        // Each outcome along a dimension can be reached in many ways: another one each time.
        for (int round = 0; round < soak::rounds(3); ++round)
            for_all_slices(random, shape, [&](const std::vector<Slice>& slices) {
                ++checked;
                if (reference::walked(slice(contiguous(shape), slices)) != *reference::sliced(base, slices))
                    FAIL("shape ", to_string(shape), ", case ", checked);
            });
    });
    CHECK(checked > (soak::whole() ? 100'000 : 30'000));
}

TEST_CASE("integers and slices that Python refuses are refused for every small shape") {
    for_small_shapes([&](const Shape& shape) {
        for (std::size_t d = 0; d < shape.size(); ++d)
            for (const std::int64_t i : {static_cast<std::int64_t>(shape[d]), -static_cast<std::int64_t>(shape[d]) - 1,
                                         INT64_MAX, INT64_MIN}) {
                std::vector<Slice> slices(d, Slice{});
                slices.push_back(Slice::at(i));
                CHECK_FAULT(slice(contiguous(shape), slices), Errc::index_out_of_range);
            }
        CHECK_FAULT(slice(contiguous(shape), std::vector<Slice>(shape.size() + 1)), Errc::too_many_indices);
    });
}

TEST_CASE("a slice of a slice is applied to the result of the first") {
    const unsigned seed = soak::seed(32);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int rounds = soak::rounds(60'000);
    int both = 0;
    for (int round = 0; round < rounds; ++round) {
        Shape shape;
        for (std::size_t rank = random() % 5; rank > 0; --rank) shape.push_back(random() % 5);
        StridedView view = contiguous(shape);
        std::optional<Cut> cut = reference::whole(shape);
        int cuts = 0;
        for (; cut && cuts < 3; ++cuts) {
            const auto slices = reference::random_slices(random, cut->shape.size());
            cut = reference::sliced(*cut, slices);
            const auto error = error_of([&] { view = slice(view, slices); });
            if (error.has_value() == cut.has_value()) FAIL("round ", round, ": ", error ? error->what() : "no error");
            if (cut && reference::walked(view) != *cut) FAIL("round ", round, ", shape ", to_string(shape));
        }
        both += cut ? 1 : 0;
    }
    CHECK(both > rounds / 3);
}

TEST_CASE("slices of more than eight dimensions work like others") {
    std::mt19937_64 random(33);
    const Shape shape{2, 1, 2, 1, 3, 1, 2, 1, 2, 1, 2, 2};
    for (int round = 0; round < 300; ++round) {
        const auto slices = reference::random_slices(random, shape.size());
        const auto cut = reference::sliced(reference::whole(shape), slices);
        if (cut) CHECK(reference::walked(slice(contiguous(shape), slices)) == *cut);
        else CHECK_FAULT(slice(contiguous(shape), slices), Errc::index_out_of_range);
    }
}

TEST_CASE("extreme steps give one element and do not overflow") {
    for (const std::int64_t step : {INT64_MAX, INT64_MIN}) {
        const Slice s{.step = step};
        const StridedView view = slice({{5}, {1000}, 0}, std::span(&s, 1));
        CHECK(view.shape == Shape{1});
        CHECK(view.offset == (step > 0 ? 0 : 4000));
    }
}

TEST_CASE("dimensions beyond 2^63 can be sliced") {
    const StridedView view{{0, UINT64_MAX}, {0, 1}, 0};
    const Slice some[] = {Slice{}, Slice{.start = 0, .stop = 5}};
    CHECK(slice(view, some).shape == Shape{0, 5});
    const Slice last[] = {Slice{}, Slice::at(3)};
    CHECK(slice(view, last).shape == Shape{0});

    // Without elements, offsets may exceed 64 bits.
    const Shape wide{0, 1ULL << 40, 1ULL << 40};
    const Slice far[] = {Slice{}, Slice{.start = -1}, Slice{.step = INT64_MAX}};
    CHECK(slice(contiguous(wide), far).shape == Shape{0, 1, 1});
    const Slice ends[] = {Slice{}, Slice::at(-1), Slice::at(-1)};
    CHECK(slice({wide, {1, INT64_MAX, INT64_MAX}, INT64_MAX}, ends).shape == Shape{0});
    CHECK(slice({wide, {1, INT64_MIN, INT64_MIN}, INT64_MIN}, std::vector<Slice>(3, {.step = -7})).shape[1] ==
          ((1ULL << 40) - 1) / 7 + 1);
}

TEST_CASE("integers remove a dimension, an ellipsis fills up, and missing dimensions are whole") {
    const StridedView base{{2, 3, 4}, {12, 4, 1}, 0};
    const auto cut = [&](std::vector<Slice> s) { return slice(base, s); };
    CHECK(cut({}).shape == Shape{2, 3, 4});
    CHECK(cut({Slice::at(-1)}).shape == Shape{3, 4});
    CHECK(cut({Slice::at(-1)}).offset == 12);
    CHECK(cut({Slice::ellipsis(), Slice::at(1)}).shape == Shape{2, 3});
    CHECK(cut({Slice::ellipsis(), Slice::at(1)}).offset == 1);
    CHECK(cut({Slice::at(0), Slice::ellipsis(), Slice{.step = -1}}).strides == Strides{4, -1});
    CHECK(cut({Slice::at(1), Slice::at(2), Slice::at(3)}).shape == Shape{});
    CHECK(cut({Slice::at(1), Slice::at(2), Slice::at(3)}).offset == 23);
    CHECK(cut({Slice{}, Slice{}, Slice{}, Slice::ellipsis()}).shape == Shape{2, 3, 4});
    CHECK_FAULT(cut({Slice::at(2)}), Errc::index_out_of_range);
    CHECK_FAULT(cut({Slice::at(-3)}), Errc::index_out_of_range);
    CHECK_FAULT(cut({Slice::at(INT64_MIN)}), Errc::index_out_of_range);
    CHECK_FAULT(cut({Slice{}, Slice{}, Slice{}, Slice{}}), Errc::too_many_indices);
    CHECK_FAULT(cut({Slice::ellipsis(), Slice::ellipsis()}), Errc::too_many_indices);
    CHECK_FAULT(cut({Slice{.step = 0}}), Errc::invalid_argument);
}

TEST_CASE("element counts are multiplied in order, and overflow where the reference does") {
    CHECK(element_count({}) == 1);
    CHECK(element_count({2, 3}) == 6);
    CHECK(element_count({0, UINT64_MAX, UINT64_MAX}) == 0);
    CHECK(element_count({UINT64_MAX, UINT64_MAX, 0}) == std::nullopt);
}

TEST_CASE("contiguity ignores dimensions of size one, and holds for tensors without elements") {
    CHECK(is_contiguous({2, 3}, {3, 1}));
    CHECK(is_contiguous({2, 1, 3}, {3, 77, 1}));
    CHECK(is_contiguous({0, 3}, {5, 5}));
    CHECK(is_contiguous({}, {}));
    CHECK_FALSE(is_contiguous({2, 3}, {1, 2}));
    CHECK_FALSE(is_contiguous({2, 3}, {4, 1}));
    CHECK_FALSE(is_contiguous({3}, {-1}));
    CHECK_FALSE(is_contiguous({3}, {0}));
    CHECK(row_major({2, 3, 4}) == Strides{12, 4, 1});
}

TEST_CASE("strides of shapes without elements are those of PyTorch and NumPy") {
    CHECK(row_major({3, 0}) == Strides{1, 1});
    CHECK(row_major({0, 3}) == Strides{3, 1});
    CHECK(row_major({3, 0, 2}) == Strides{2, 2, 1});
    CHECK(row_major({0}) == Strides{1});
    CHECK(row_major({0, 0, 5}) == Strides{5, 5, 1});
}

TEST_CASE("more than eight dimensions are stored on the heap and behave the same") {
    Shape shape;
    for (std::uint64_t i = 0; i < 100; ++i) shape.push_back(i);
    Shape copy = shape;
    Shape moved = std::move(shape);
    CHECK(copy == moved);
    CHECK(copy.size() == 100);
    CHECK(copy[99] == 99);
    copy = Shape{1, 2};
    CHECK(to_string(copy) == "[1, 2]");
    CHECK(to_string(Shape{}) == "[]");
    std::swap(copy, moved);
    CHECK(moved == Shape{1, 2});
    CHECK(copy.back() == 99);
}

TEST_CASE("too many dimensions are refused") {
    CHECK_FAULT(Shape(std::size_t{1} << 32, 0), Errc::invalid_argument);
    CHECK_FAULT(Strides(std::size_t{1} << 32, 0), Errc::invalid_argument);
}

}  // namespace shape_test
