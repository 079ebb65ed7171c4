// Shapes, strides, and slices against Python's rules walked one by one.
#include "doctest_safemap.hpp"

#include <vector>

using namespace safemap;

namespace {

// Python's range(*slice.indices(n)), from the language reference: slow and obvious.
std::vector<std::int64_t> python_indices(const Slice& s, std::int64_t n) {
    const auto clamp = [&](std::int64_t i, std::int64_t low, std::int64_t high) {
        if (i < 0) i += n;
        return i < low ? low : i > high ? high : i;
    };
    std::vector<std::int64_t> out;
    if (s.step > 0) {
        const std::int64_t stop = s.stop ? clamp(*s.stop, 0, n) : n;
        for (std::int64_t i = s.start ? clamp(*s.start, 0, n) : 0; i < stop; i += s.step) out.push_back(i);
    } else {
        const std::int64_t stop = s.stop ? clamp(*s.stop, -1, n - 1) : -1;
        for (std::int64_t i = s.start ? clamp(*s.start, -1, n - 1) : n - 1; i > stop; i += s.step) out.push_back(i);
    }
    return out;
}

std::vector<std::int64_t> walked(const StridedView& view) {
    std::vector<std::int64_t> out;
    for (std::uint64_t i = 0; i < view.shape[0]; ++i)
        out.push_back(view.offset + static_cast<std::int64_t>(i) * view.strides[0]);
    return out;
}

}  // namespace

TEST_CASE("every slice of one dimension means what it means in Python") {
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
                    if (walked(view) != python_indices(s, static_cast<std::int64_t>(n)))
                        FAIL("n=", n, " start=", start.value_or(99), " stop=", stop.value_or(99), " step=", step);
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

TEST_CASE("dimensions beyond 2^63 are sliced like others") {
    const StridedView view{{0, UINT64_MAX}, {0, 1}, 0};
    const Slice some[] = {Slice{}, Slice{.start = 0, .stop = 5}};
    CHECK(slice(view, some).shape == Shape{0, 5});
    const Slice last[] = {Slice{}, Slice::at(3)};
    CHECK(slice(view, last).shape == Shape{0});
}

TEST_CASE("integers remove a dimension, an ellipsis fills up, missing dimensions are whole") {
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

TEST_CASE("element counts multiply in order, and overflow where the reference does") {
    CHECK(element_count({}) == 1);
    CHECK(element_count({2, 3}) == 6);
    CHECK(element_count({0, UINT64_MAX, UINT64_MAX}) == 0);
    CHECK(element_count({UINT64_MAX, UINT64_MAX, 0}) == std::nullopt);
}

TEST_CASE("contiguity ignores dimensions of one element and holds for tensors without any") {
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

TEST_CASE("dimensions beyond eight go to the heap and behave the same") {
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
