// Tests tensors that are made of the parts of many files: every error with its file and element, and random partitions
// whose elements are compared with those that were cut.
#include "lazy/whole.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/tensor_view.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace whole_test {

using namespace safemap;

namespace {

using Numbers = std::vector<std::uint32_t>;
constexpr std::uint32_t garbage = 0xdead'beef;

std::uint32_t swapped(std::uint32_t number) {
    return number << 24 | (number & 0xff00) << 8 | (number >> 8 & 0xff00) | number >> 24;
}

std::shared_ptr<const Source> file(const std::string& name, const Numbers& numbers) {
    std::vector<std::byte> bytes(numbers.size() * 4);
    if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return memory_source(name, std::move(bytes));
}

Numbers numbers_of(const LazyTensor& tensor) {
    const TensorView view = tensor.load();
    Numbers numbers(view.bytes().size() / 4);
    if (!numbers.empty()) std::memcpy(numbers.data(), view.bytes().data(), view.bytes().size());
    return numbers;
}

Numbers counted(std::uint64_t count, std::uint32_t first = 0) {
    Numbers numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
}

LazyTensor one_run(const std::string& name, const Shape& shape, const Numbers& numbers, Decoding decoding = {}) {
    return {"value", stored_run(Dtype::u32, shape, file(name, numbers), 0), decoding};
}

/// Returns a tensor whose elements are in several files, `name`, `name`.1 and so on, each with garbage around them.
LazyTensor several_runs(std::mt19937& random, const std::string& name, const Shape& shape, const Numbers& numbers,
                        Decoding decoding = {}) {
    std::vector<RunPiece> runs;
    for (std::uint64_t first = 0; first < numbers.size();) {
        const std::uint64_t count = std::min<std::uint64_t>(random() % 7 + 1, numbers.size() - first);
        const std::size_t before = random() % 3;
        Numbers held(before, garbage);
        held.insert(held.end(), numbers.begin() + static_cast<std::ptrdiff_t>(first),
                    numbers.begin() + static_cast<std::ptrdiff_t>(first + count));
        held.resize(held.size() + random() % 3, garbage);
        const std::string number = runs.empty() ? "" : "." + std::to_string(runs.size());
        runs.push_back({file(name + number, held), before * 4, first, count});
        first += count;
    }
    return {"value", stored_runs(Dtype::u32, shape, runs), decoding};
}

// Flat parts.

/// A flat tensor that is cut into parts, each of a value of its own.
struct Flat {
    Numbers numbers = {};
    std::vector<std::unique_ptr<LazyTensor>> values = {};
    std::vector<FlatPart> parts = {};  ///< in ascending order

    LazyTensor made(std::vector<FlatPart> of) const {
        PartSources sources;
        for (const auto& value : values) sources.add(*value);
        return whole("flat", Dtype::u32, {numbers.size()}, of, sources);
    }
};

Flat random_flat(std::mt19937& random, std::uint64_t elements, Decoding decoding = {}) {
    Flat flat;
    flat.numbers = counted(elements, 1);
    Numbers stored = flat.numbers;
    if (decoding.byte_swap) std::transform(stored.begin(), stored.end(), stored.begin(), swapped);
    for (std::uint64_t first = 0; first < elements;) {
        const std::uint64_t count = std::min<std::uint64_t>(random() % 9, elements - first);
        const std::uint64_t from = random() % 4;
        Numbers held(from, garbage);
        held.insert(held.end(), stored.begin() + static_cast<std::ptrdiff_t>(first),
                    stored.begin() + static_cast<std::ptrdiff_t>(first + count));
        held.resize(held.size() + 1 + random() % 3, garbage);
        const std::string name = "rank" + std::to_string(flat.values.size());
        const Shape shape = {held.size()};
        flat.values.push_back(std::make_unique<LazyTensor>(random() % 2 == 0
                                                               ? one_run(name, shape, held, decoding)
                                                               : several_runs(random, name, shape, held, decoding)));
        flat.parts.push_back({first, count, flat.values.back().get(), from});
        first += count;
    }
    return flat;
}

/// Checks the code of an error, the tensor, the file, and that the message has a text.
template <class Run>
void check_refused(Run&& run, Errc code, const std::string& path, const std::string& text, const std::string& tensor) {
    check_error(error_of(run), {code}, {text}, {.tensor = tensor, .path = path});
}

void check_flat_error(const Flat& flat, const std::vector<FlatPart>& parts, Errc code, const std::string& path,
                      const std::string& text) {
    check_refused([&] { static_cast<void>(flat.made(parts)); }, code, path, text, "flat");
}

std::size_t filled_part(std::mt19937& random, const Flat& flat) {
    std::size_t place = random() % flat.parts.size();
    while (flat.parts[place].count == 0) place = (place + 1) % flat.parts.size();
    return place;
}

std::string file_of(const FlatPart& part, const Flat& flat) {
    const auto at = std::find_if(flat.values.begin(), flat.values.end(),
                                 [&](const auto& value) { return value.get() == part.value; });
    return "rank" + std::to_string(at - flat.values.begin());
}

}  // namespace

TEST_CASE("random flat parts in any order, of values in one run and in several, are one tensor") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const Flat flat = random_flat(random, random() % 60, {.byte_swap = round % 3 == 0});
        std::vector<FlatPart> parts = flat.parts;
        std::shuffle(parts.begin(), parts.end(), random);
        const LazyTensor made = flat.made(parts);
        CHECK(made.name() == "flat");
        CHECK((numbers_of(made) == flat.numbers));
    }
}

TEST_CASE("flat parts that overlap by one element, or leave one out, are refused with the file and the element") {
    std::mt19937 random(soak::seed(2));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const Flat flat = random_flat(random, random() % 50 + 1);
        std::vector<FlatPart> parts = flat.parts;
        const std::size_t place = filled_part(random, flat);
        FlatPart& part = parts[place];
        const std::string of_part = file_of(part, flat);
        const std::uint64_t end = part.first + part.count;
        const auto is_after = [&](const FlatPart& other) { return other.first >= end && other.count > 0; };
        const auto next = std::find_if(parts.begin(), parts.end(), is_after);
        const bool is_last = next == parts.end();
        ++part.count;
        if (is_last)
            check_flat_error(flat, parts, Errc::piece_outside, of_part, "from element " + std::to_string(part.first));
        else
            check_flat_error(flat, parts, Errc::pieces_overlap, file_of(*next, flat),
                             "element " + std::to_string(end) + " is");
        part.count -= 2;
        const bool one_left = part.count == 0;
        const std::string gap = "elements " + std::to_string(end - 1) + " to " + std::to_string(end - 1);
        if (!is_last) check_flat_error(flat, parts, Errc::not_covered, file_of(*next, flat), gap);
        else if (!one_left) check_flat_error(flat, parts, Errc::not_covered, of_part, gap);
        else CHECK_FAULT(flat.made(parts), Errc::not_covered);
    }
}

TEST_CASE("flat parts: values that do not fit the tensor are refused with their file") {
    const LazyTensor value = one_run("rank0", {8}, counted(8));
    const LazyTensor other = one_run("rank1", {8}, counted(8));
    const LazyTensor swapped_value = one_run("rank1", {8}, counted(8), {.byte_swap = true});
    const LazyTensor floats("value", stored_run(Dtype::f32, {8}, file("rank1", counted(8)), 0));
    const LazyTensor halves("value", stored_run(Dtype::f16, {8}, file("rank1", counted(8)), 0));
    const LazyTensor nibbles("value", stored_run(Dtype::f4, {8}, file("rank1", counted(8)), 0));
    PartSources sources;
    for (const LazyTensor* each : {&value, &other, &swapped_value, &floats, &halves, &nibbles}) sources.add(*each);
    const auto with = [&](FlatPart part, Dtype dtype = Dtype::u32) {
        const std::vector<FlatPart> parts = {{0, 8, &value, 0}, part};
        return [&sources, parts, dtype] { static_cast<void>(whole("w", dtype, {4, 4}, parts, sources)); };
    };
    CHECK_OK(with({8, 8, &other, 0})());
    check_refused(with({8, 8, &swapped_value, 0}), Errc::piece_mismatch, "rank1", "decoded in another way", "w");
    check_refused(with({8, 8, &floats, 0}), Errc::piece_mismatch, "rank1", "F32; expected U32", "w");
    check_refused(with({8, 8, &other, 1}), Errc::piece_mismatch, "rank1",
                  "8 elements; expected 8 elements from element 1", "w");
    check_refused(with({8, ~0ULL, &other, 4}), Errc::piece_mismatch, "rank1", "8 elements", "w");
    check_refused(with({9, 8, &other, 0}), Errc::piece_outside, "rank1", "from element 9", "w");
    check_refused(with({~0ULL, 8, &other, 0}), Errc::piece_outside, "rank1", "reaches past the 16 elements", "w");
    const LazyTensor every_second = other.slice({{.step = 2}});
    check_refused(with({8, 4, &every_second, 0}), Errc::piece_mismatch, "rank1", "strided", "w");
    const LazyTensor cast = halves.cast(Dtype::f32);
    const std::vector<FlatPart> of_cast = {{0, 8, &cast, 0}};
    CHECK_FAULT(whole("w", Dtype::f32, {8}, of_cast, sources), Errc::piece_mismatch);
    const std::vector<FlatPart> of_nibbles = {{0, 8, &nibbles, 0}};
    check_refused([&] { static_cast<void>(whole("w", Dtype::f4, {8}, of_nibbles, sources)); }, Errc::piece_mismatch,
                  "rank1", "sub-byte", "w");
    CHECK_FAULT(whole("w", Dtype::u32, {1ULL << 33, 1ULL << 33}, of_nibbles, sources), Errc::shape_overflow);
    CHECK_FAULT(whole("w", Dtype::u32, {1ULL << 62}, of_nibbles, sources), Errc::shape_overflow);
}

TEST_CASE("flat parts: scalars, and tensors without elements, which need no parts") {
    const LazyTensor value = one_run("rank0", {3}, counted(3, 7));
    PartSources sources;
    sources.add(value);
    const std::vector<FlatPart> last = {{0, 1, &value, 2}};
    const LazyTensor scalar = whole("s", Dtype::u32, {}, last, sources);
    CHECK(scalar.shape() == Shape());
    CHECK((numbers_of(scalar) == Numbers{9}));
    const std::vector<FlatPart> nothing = {{0, 0, nullptr, 0}, {5, 0, &value, 0}};
    CHECK(whole("e", Dtype::u32, {3, 0}, nothing, sources).element_count() == 0);
    CHECK(whole("e", Dtype::u32, {0}, std::span<const FlatPart>(), PartSources()).shape() == Shape{0});
    CHECK_FAULT(whole("s", Dtype::u32, {}, nothing, sources), Errc::not_covered);
    CHECK_FAULT(whole("e", Dtype::u32, {0}, last, sources), Errc::piece_outside);
}

TEST_CASE("parts that follow each other in one file are one run, with a placement there") {
    const LazyTensor value = one_run("rank0", {10}, counted(10));
    const LazyTensor half = value.slice({{.start = 5}});
    PartSources sources;
    sources.add(value);
    const std::vector<FlatPart> parts = {{0, 2, &value, 3}, {2, 3, &half, 0}, {5, 2, &value, 8}};
    const LazyTensor made = whole("w", Dtype::u32, {7}, parts, sources);
    CHECK(made.piece_count() == 1);
    REQUIRE(made.placement().has_value());
    CHECK(made.placement()->extent.offset == 12);
    CHECK((numbers_of(made) == Numbers{3, 4, 5, 6, 7, 8, 9}));
}

// Parts that are boxes.

namespace {

std::uint64_t count_of(const Shape& shape) { return *element_count(shape); }

/// Returns the elements of a region of a tensor whose element i is i, row-major.
Numbers region(const Shape& shape, const Box& box) {
    Numbers numbers;
    const Strides strides = row_major(shape);
    for (std::uint64_t i = 0; i < count_of(box.extent); ++i) {
        std::uint64_t rest = i;
        std::uint64_t at = 0;
        for (std::size_t d = shape.size(); d-- > 0;) {
            at += (box.start[d] + rest % box.extent[d]) * static_cast<std::uint64_t>(strides[d]);
            rest /= box.extent[d];
        }
        numbers.push_back(static_cast<std::uint32_t>(at));
    }
    return numbers;
}

/// Cuts a box in two, again and again.
void cut(std::mt19937& random, Box box, unsigned depth, std::vector<Box>& out) {
    std::vector<std::size_t> wide;
    for (std::size_t d = 0; d < box.extent.size(); ++d)
        if (box.extent[d] > 1) wide.push_back(d);
    if (depth == 0 || wide.empty() || random() % 6 == 0) return out.push_back(std::move(box));
    const std::size_t d = wide[random() % wide.size()];
    const std::uint64_t first = random() % (box.extent[d] - 1) + 1;
    Box rest = box;
    box.extent[d] = first;
    rest.start[d] += first;
    rest.extent[d] -= first;
    cut(random, std::move(box), depth - 1, out);
    cut(random, std::move(rest), depth - 1, out);
}

/// Returns a larger tensor with garbage around the elements of a box, and the slice of it that is the box.
LazyTensor inside_larger(std::mt19937& random, const std::string& name, const Shape& shape, const Numbers& numbers,
                         Decoding decoding) {
    Shape larger = shape;
    std::vector<Slice> slices;
    Shape before = shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        before[d] = random() % 3;
        larger[d] = before[d] + shape[d] + random() % 3;
        slices.push_back(
            {.start = static_cast<std::int64_t>(before[d]), .stop = static_cast<std::int64_t>(before[d] + shape[d])});
    }
    Numbers all(count_of(larger), garbage);
    const Numbers places = region(larger, {before, shape});
    for (std::size_t i = 0; i < places.size(); ++i) all[places[i]] = numbers[i];
    return (random() % 2 == 0 ? one_run(name, larger, all, decoding)
                              : several_runs(random, name, larger, all, decoding))
        .slice(slices);
}

/// Returns a tensor that is stored with its dimensions in the reverse order.
LazyTensor transposed(const std::string& name, const Shape& shape, const Numbers& numbers, Decoding decoding) {
    Strides strides(shape.size(), 1);
    for (std::size_t d = 1; d < shape.size(); ++d)
        strides[d] = strides[d - 1] * static_cast<std::int64_t>(shape[d - 1]);
    Numbers stored(numbers.size());
    for (std::uint64_t i = 0; i < numbers.size(); ++i) {
        std::uint64_t rest = i;
        std::uint64_t at = 0;
        for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d])
            at += rest % shape[d] * static_cast<std::uint64_t>(strides[d]);
        stored[at] = numbers[i];
    }
    const Shape flat = {numbers.size()};
    return {"value", stored_run(Dtype::u32, flat, file(name, stored), 0), StridedView{shape, strides, 0}, decoding};
}

LazyTensor random_value(std::mt19937& random, const std::string& name, const Shape& shape, Numbers numbers,
                        Decoding decoding) {
    if (decoding.byte_swap) std::transform(numbers.begin(), numbers.end(), numbers.begin(), swapped);
    switch (random() % 4) {
        case 0: return one_run(name, shape, numbers, decoding);
        case 1: return several_runs(random, name, shape, numbers, decoding);
        case 2: return transposed(name, shape, numbers, decoding);
        default: return inside_larger(random, name, shape, numbers, decoding);
    }
}

struct Boxed {
    Shape shape = {};
    std::vector<Part> parts = {};
};

Boxed random_boxes(std::mt19937& random, Decoding decoding = {}) {
    Boxed boxed;
    for (std::size_t d = random() % 4; d > 0; --d) boxed.shape.push_back(random() % 7 + 1);
    std::vector<Box> boxes;
    cut(random, {Shape(boxed.shape.size(), 0), boxed.shape}, static_cast<unsigned>(random() % 5), boxes);
    for (const Box& box : boxes)
        boxed.parts.push_back({box.start, random_value(random, "rank" + std::to_string(boxed.parts.size()), box.extent,
                                                       region(boxed.shape, box), decoding)});
    return boxed;
}

}  // namespace

TEST_CASE("random boxes in any order, strided, transposed and in several runs, are one tensor") {
    std::mt19937 random(soak::seed(3));
    for (int round = 0; round < soak::rounds(400); ++round) {
        Boxed boxed = random_boxes(random, {.byte_swap = round % 3 == 0});
        std::shuffle(boxed.parts.begin(), boxed.parts.end(), random);
        const LazyTensor made = whole("boxes", Dtype::u32, boxed.shape, boxed.parts);
        CHECK(made.shape() == boxed.shape);
        CHECK(made.name() == "boxes");
        CHECK((numbers_of(made) == counted(count_of(boxed.shape))));
    }
}

TEST_CASE("slices along dimension 1 of parameters that are cut flat are joined") {
    std::mt19937 random(soak::seed(4));
    for (int round = 0; round < soak::rounds(100); ++round) {
        const Shape shape = {random() % 9 + 1, random() % 9 + 2, random() % 3 + 1};
        const std::uint64_t middle = random() % (shape[1] - 1) + 1;
        const Shape left = {shape[0], middle, shape[2]};
        const Shape right = {shape[0], shape[1] - middle, shape[2]};
        const Shape start = {0, middle, 0};
        const std::vector<Part> parts = {
            {start, several_runs(random, "rank1", right, region(shape, {start, right}))},
            {{0, 0, 0}, several_runs(random, "rank0", left, region(shape, {{0, 0, 0}, left}))}};
        CHECK((numbers_of(whole("w", Dtype::u32, shape, parts)) == counted(count_of(shape))));
    }
}

TEST_CASE("boxes that are complete rows become runs") {
    const std::vector<Part> parts = {{{2, 0}, one_run("rank1", {1, 3}, counted(3, 6))},
                                     {{0, 0}, one_run("rank0", {2, 3}, counted(6))}};
    const LazyTensor made = whole("w", Dtype::u32, {3, 3}, parts);
    CHECK(made.piece_count() == 2);
    CHECK((numbers_of(made) == counted(9)));
    // One part is given as it is.
    const std::vector<Part> one = {{{0, 0}, transposed("rank0", {2, 3}, counted(6), {})},
                                   {{2, 3}, one_run("rank1", {0, 0}, {})}};
    CHECK((numbers_of(whole("w", Dtype::u32, {2, 3}, one)) == counted(6)));
}

TEST_CASE("boxes that overlap by one row, leave one out or reach outside are refused with a file") {
    std::mt19937 random(soak::seed(5));
    for (int round = 0; round < soak::rounds(200); ++round) {
        Boxed boxed = random_boxes(random);
        if (boxed.shape.empty()) continue;
        const std::size_t place = random() % boxed.parts.size();
        const std::size_t d = random() % boxed.shape.size();
        Part& part = boxed.parts[place];
        const std::string path = "rank" + std::to_string(place);
        const std::uint64_t size = part.value.shape()[d];
        const auto made = [&] { static_cast<void>(whole("w", Dtype::u32, boxed.shape, boxed.parts)); };
        if (part.start[d] + size == boxed.shape[d]) {
            ++part.start[d];
            check_refused(made, Errc::piece_outside, path, "reaches past the shape " + to_string(boxed.shape), "w");
            --part.start[d];
        } else {
            ++part.start[d];
            const auto error = error_of(made);  // one row is in two parts, and another one in none
            REQUIRE(error.has_value());
            CHECK(error->code() == Errc::pieces_overlap);
            --part.start[d];
        }
        std::vector<Slice> slices(boxed.shape.size());
        slices[d].stop = static_cast<std::int64_t>(size - 1);
        const std::uint64_t lost = part.value.element_count() / size;
        part.value = part.value.slice(slices);
        const auto error = error_of(made);
        check_error(error, {Errc::not_covered}, {});
        const auto holds = [](const Part& each) { return each.value.element_count() > 0; };
        CHECK(error->path().empty() == std::none_of(boxed.parts.begin(), boxed.parts.end(), holds));
        CHECK(error->message().find(std::to_string(lost) + " of " + std::to_string(count_of(boxed.shape))) == 0);
    }
}

TEST_CASE("an overlap of boxes names its first element and the file of the second part that has it") {
    const std::vector<Part> parts = {{{0, 0}, one_run("rank0", {2, 2}, counted(4))},
                                     {{0, 2}, one_run("rank1", {2, 2}, counted(4))},
                                     {{1, 1}, one_run("rank2", {1, 2}, counted(2))},
                                     {{2, 0}, one_run("rank3", {1, 4}, counted(4))}};
    check_refused(
        [&] {
            static_cast<void>(whole("w", Dtype::u32, {3, 4}, parts));
        },
        Errc::pieces_overlap, "rank2", "element [1, 1] is in two parts", "w");
}

TEST_CASE("boxes: values that do not fit the tensor are refused with their file") {
    const auto with = [](LazyTensor value, Shape start = {0, 2}) {
        const std::vector<Part> parts = {{{0, 0}, one_run("rank0", {2, 2}, counted(4))}, {start, std::move(value)}};
        return [parts] { static_cast<void>(whole("w", Dtype::u32, {2, 4}, parts)); };
    };
    CHECK_OK(with(one_run("rank1", {2, 2}, counted(4)))());
    check_refused(with(one_run("rank1", {2, 2}, counted(4), {.byte_swap = true})), Errc::piece_mismatch, "rank1",
                  "decoded in another way", "w");
    check_refused(with(one_run("rank1", {4}, counted(4))), Errc::piece_mismatch, "rank1", "shape [4]", "w");
    check_refused(with(one_run("rank1", {2, 2}, counted(4)), {2}), Errc::piece_mismatch, "rank1", "shape [2, 2]", "w");
    check_refused(with(one_run("rank1", {2, 2}, counted(4)), {0, ~0ULL}), Errc::piece_outside, "rank1",
                  "reaches past the shape", "w");
    const LazyTensor floats("value", stored_run(Dtype::f32, {2, 2}, file("rank1", counted(4)), 0));
    check_refused(with(floats), Errc::piece_mismatch, "rank1", "F32; expected U32", "w");
    const LazyTensor nibbles("value", stored_run(Dtype::f4, {1, 8}, file("rank1", counted(1)), 0));
    const std::vector<Part> sub_byte = {{{0, 0}, nibbles}, {{1, 0}, nibbles}};
    CHECK(numbers_of(whole("w", Dtype::f4, {2, 8}, sub_byte)) == Numbers{0, 0});
    const std::vector<Part> columns = {{{0, 0}, nibbles}, {{0, 8}, nibbles}};
    CHECK_FAULT(whole("w", Dtype::f4, {1, 16}, columns), Errc::piece_mismatch);
    CHECK_FAULT(whole("w", Dtype::u32, {1ULL << 33, 1ULL << 33}, std::span<const Part>()), Errc::shape_overflow);
}

TEST_CASE("boxes: values in several runs may be strided forwards, and not backwards") {
    std::mt19937 random(8);
    const LazyTensor several = several_runs(random, "rank1", {6, 6}, counted(36));
    const auto with = [](const LazyTensor& value) {
        const std::vector<Part> parts = {{{0, 0}, one_run("rank0", {3, 1}, {90, 91, 92})}, {{0, 1}, value}};
        return whole("w", Dtype::u32, {3, 4}, parts);
    };
    CHECK((numbers_of(with(several.slice({{.step = 2}, {.start = 1, .step = 2}}))) ==
           Numbers{90, 1, 3, 5, 91, 13, 15, 17, 92, 25, 27, 29}));
    const LazyTensor backwards = several.slice({{.step = -2}, {.step = 2}});
    check_refused([&] { static_cast<void>(with(backwards)); }, Errc::piece_mismatch, "rank1", "backwards", "w");
}

TEST_CASE("boxes: scalars, and tensors without elements, which need no parts") {
    const Part scalar = {{}, one_run("rank0", {}, {5})};
    CHECK((numbers_of(whole("s", Dtype::u32, {}, std::vector<Part>{scalar})) == Numbers{5}));
    CHECK_FAULT(whole("s", Dtype::u32, {}, std::vector<Part>{scalar, scalar}), Errc::pieces_overlap);
    CHECK_FAULT(whole("s", Dtype::u32, {}, std::span<const Part>()), Errc::not_covered);
    CHECK(whole("e", Dtype::u32, {0, 4}, std::span<const Part>()).shape() == Shape{0, 4});
    const std::vector<Part> empty = {{{0, 0}, one_run("rank0", {0, 4}, {})}};
    CHECK(whole("e", Dtype::u32, {0, 4}, empty).element_count() == 0);
    // The decoding of a part without elements does not count.
    const std::vector<Part> mixed = {{{0}, one_run("rank0", {0}, {}, {.byte_swap = true})},
                                     {{0}, one_run("rank1", {2}, counted(2))}};
    CHECK((numbers_of(whole("m", Dtype::u32, {2}, mixed)) == counted(2)));
}

TEST_CASE("the sources of tensors are numbered once, in time linear in their pieces") {
    std::mt19937 random(7);
    const LazyTensor several = several_runs(random, "rank0", {60'000}, counted(60'000));
    const std::vector<Part> boxes = {{{0, 0}, transposed("left", {2, 2}, counted(4), {})},
                                     {{0, 2}, transposed("right", {2, 2}, counted(4), {})}};
    const LazyTensor boxed = whole("w", Dtype::u32, {2, 4}, boxes);
    const LazyTensor empty = one_run("nothing", {0}, {});
    PartSources sources;
    for (const LazyTensor* each : {&several, &boxed, &several, &empty, &boxed}) sources.add(*each);
    sources.add(several.slice({{.start = 3}}));
    const SourceTable& table = *sources.table();
    REQUIRE(table.size() == several.piece_count() + 2);
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i < table.size(); ++i) wrong += sources.number(*table[i]) != i ? 1 : 0;
    CHECK(wrong == 0);
    CHECK(table[0]->name() == "rank0");
    CHECK(table[table.size() - 1]->name() == "right");
}

}  // namespace whole_test
