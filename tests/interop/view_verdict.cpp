// Reads cases from stdin, one per line, and prints the library's result for each as a line of JSON.
// tests/interop/like_numpy.py writes the cases and compares with NumPy.
//
//   slice SHAPE ; SLICES ; SLICES ...   the shape and the element numbers of arange(...).reshape(SHAPE)[SLICES][SLICES]
//   print DTYPE SHAPE ; NUMBERS         to_string() of the numbers; each is a word of 64 bits
//
// SHAPE, SLICES and NUMBERS are words between spaces: 2 3 | 1:-1:2 ... 4 | -7 8.
#include "base/json.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/tensor_view.hpp>

#include <charconv>
#include <iostream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace {

using namespace safemap;

std::int64_t number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        throw std::runtime_error("no number: " + std::string(text));
    return value;
}

Shape shape_of(std::istringstream words) {
    Shape shape;
    for (std::string word; words >> word;) shape.push_back(static_cast<std::uint64_t>(number(word)));
    return shape;
}

Slice slice_of(const std::string& word) {
    if (word == "...") return Slice::ellipsis();
    const auto first = word.find(':');
    if (first == std::string::npos) return Slice::at(number(word));
    const auto second = word.find(':', first + 1);
    Slice slice;
    const std::string start = word.substr(0, first);
    const std::string stop = word.substr(first + 1, second - first - 1);
    const std::string step = second == std::string::npos ? "" : word.substr(second + 1);
    if (!start.empty()) slice.start = number(start);
    if (!stop.empty()) slice.stop = number(stop);
    if (!step.empty()) slice.step = number(step);
    return slice;
}

TensorView view_of(Dtype dtype, std::vector<std::int64_t> values, const Shape& shape) {
    const auto owner = std::make_shared<const std::vector<std::int64_t>>(std::move(values));
    return TensorView::row_major(dtype, {std::as_bytes(std::span(*owner)), owner}, shape);
}

std::string sliced(std::istream& parts) {
    std::string part;
    std::getline(parts, part, ';');
    const Shape shape = shape_of(std::istringstream(part));
    std::vector<std::int64_t> values(element_count(shape).value());
    std::iota(values.begin(), values.end(), 0);
    TensorView view = view_of(Dtype::i64, std::move(values), shape);
    while (std::getline(parts, part, ';')) {
        std::vector<Slice> slices;
        std::istringstream words(part);
        for (std::string word; words >> word;) slices.push_back(slice_of(word));
        view = view.slice(slices);
    }
    std::string line = R"({"shape":)" + to_string(view.shape()) + R"(,"values":[)";
    for (const std::int64_t value : view.unaligned<std::int64_t>()) {
        if (line.back() != '[') line += ',';
        line += std::to_string(value);
    }
    return line + "]}";
}

std::string printed(std::istream& parts) {
    std::string dtype;
    std::string part;
    parts >> dtype;
    std::getline(parts, part, ';');
    const Shape shape = shape_of(std::istringstream(part));
    std::vector<std::int64_t> values;
    for (std::string word; parts >> word;) values.push_back(number(word));
    std::string line = R"({"text":)";
    json::append_string(line, to_string(view_of(parse_dtype(dtype).value(), std::move(values), shape)),
                        json::Charset::ascii);
    return line + '}';
}

std::string verdict(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    try {
        return what == "print" ? printed(words) : sliced(words);
    } catch (const Error& error) {
        return R"({"error":")" + std::string(name(error.code())) + R"("})";
    }
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) std::cout << verdict(line) << '\n';
}
