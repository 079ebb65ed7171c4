// Tests diff() with a tolerance, with casts and with renamed tensors.
#include <safemap/diff.hpp>

#include "forge/containers.hpp"
#include "inspect.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace diff_tolerance_test {

using namespace safemap;
using namespace containers;
using What = TensorDifference::What;

namespace {

template <class T> std::string bytes_of(const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

Sample floats(std::string name, const std::vector<float>& values) {
    return {std::move(name), Dtype::f32, {values.size()}, bytes_of(values)};
}

/// Returns the upper halves of the floats, without rounding: exact for the values of these tests.
Sample bfloats(std::string name, const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) {
        const std::string all = bytes_of(std::vector{value});
        bytes += all.substr(2);
    }
    return {std::move(name), Dtype::bf16, {values.size()}, bytes};
}

Checkpoint file_of(const std::vector<Sample>& samples, std::string_view more = {}) {
    return checkpoint_of(containers::safetensors(samples, more));
}

DiffOptions within(double atol, double rtol = 0) {
    DiffOptions options;
    options.tolerance = Tolerance{.atol = atol, .rtol = rtol};
    return options;
}

DiffOptions casting() {
    DiffOptions options;
    options.cast = true;
    return options;
}

}  // namespace

TEST_CASE("values within the tolerance are equal, and each tensor reports its largest difference") {
    const auto a = file_of({floats("same", {1, 2}), floats("close", {1, 2, 3}), floats("apart", {1, 2, 3, 4})});
    const auto b = file_of({floats("same", {1, 2}), floats("close", {1, 2.25, 3.125}), floats("apart", {1, 3, 3, 9})});
    const DiffReport report = diff(a, b, within(0.25));
    CHECK_FALSE(report.equal());
    REQUIRE(report.close.size() == 1);
    CHECK(report.close[0].name == "close");
    CHECK(report.close[0].max_abs == 0.25);
    REQUIRE(report.different.size() == 1);
    const TensorDifference& apart = report.different[0];
    CHECK(apart.name == "apart");
    CHECK(apart.what == What::value);
    CHECK(apart.index == Shape{1});
    CHECK(apart.a.value == "2");
    CHECK(apart.b.value == "3");
    CHECK(apart.max_abs == 5);

    CHECK(diff(a, b, within(5)).equal());
    CHECK(diff(a, b, within(0, 0.6)).equal());
    CHECK(diff(a, b, within(5)).close.size() == 2);
    // Without a tolerance, the comparison is exact.
    const DiffReport exact = diff(a, b);
    CHECK(exact.close.empty());
    REQUIRE(exact.different.size() == 2);
    CHECK_FALSE(exact.different[0].max_abs);
}

TEST_CASE("with a tolerance of zero, numbers are compared, not bytes") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto a = file_of({floats("w", {0, nan})});
    const auto b = file_of({floats("w", {-0.0F, -nan})});
    CHECK_FALSE(diff(a, b).equal());
    const DiffReport report = diff(a, b, within(0));
    CHECK(report.equal());
    CHECK(report.close.empty());
    const DiffReport other = diff(a, file_of({floats("w", {0, 1})}), within(1e30));
    REQUIRE(other.different.size() == 1);
    CHECK(std::isnan(other.different[0].max_abs.value()));
}

TEST_CASE("booleans are compared exactly, with any tolerance") {
    const auto a = file_of({{"w", Dtype::boolean, {2}, std::string("\1\0", 2)}});
    const auto b = file_of({{"w", Dtype::boolean, {2}, std::string("\1\1", 2)}});
    const DiffReport report = diff(a, b, within(10));
    REQUIRE(report.different.size() == 1);
    CHECK_FALSE(report.different[0].max_abs);
}

TEST_CASE("floating-point dtypes are compared with each other on request") {
    const auto a = file_of({floats("exact", {1, -2.5}), floats("rounded", {1, 1.001F}), floats("ids", {1})});
    const auto b = file_of({bfloats("exact", {1, -2.5}),
                            bfloats("rounded", {1, 1}),
                            {"ids", Dtype::i32, {1}, bytes_of(std::vector<std::int32_t>{1})}});
    CHECK(diff(a, b).different.size() == 3);
    CHECK(diff(a, b, within(1)).different.size() == 3);
    const DiffReport report = diff(a, b, casting());
    REQUIRE(report.close.size() == 1);
    CHECK(report.close[0].name == "exact");
    CHECK(report.close[0].max_abs == 0);
    REQUIRE(report.different.size() == 2);
    CHECK(report.different[0].name == "rounded");
    CHECK(report.different[0].what == What::value);
    CHECK(report.different[0].a.dtype == Dtype::f32);
    CHECK(report.different[0].b.dtype == Dtype::bf16);
    CHECK(report.different[0].a.value == "1.001");
    CHECK(report.different[0].b.value == "1");
    CHECK(report.different[0].max_abs == static_cast<double>(1.001F) - 1);
    CHECK(report.different[1].what == What::dtype);

    DiffOptions both = casting();
    both.tolerance = Tolerance{.rtol = 0.01};
    CHECK(diff(a, b, both).close.size() == 2);
    // Different shapes are still a difference.
    CHECK(diff(file_of({floats("w", {1, 2})}), file_of({bfloats("w", {1})}), both).different[0].what == What::shape);
}

TEST_CASE("large tensors are read to the end, in every container") {
    const Shape shape = {1'000, 700};
    std::vector<float> values(1'000 * 700);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1'000);
    auto other = values;
    other[5] += 1;
    other[400'000] += 2;
    other[699'999] -= 4;
    const Sample of_a = {"w", Dtype::f32, shape, bytes_of(values)};
    const Sample of_b = {"w", Dtype::f32, shape, bytes_of(other)};
    const Sample doubles = {"w", Dtype::f64, shape, bytes_of(std::vector<double>(other.begin(), other.end()))};
    DiffOptions options = within(1.5);
    options.cast = true;
    options.work.threads = 8;  // buffers of 2 MiB
    for (const Checkpoint& a : {file_of({of_a}), checkpoint_of(pt({of_a}))}) {
        for (const Checkpoint& b :
             {file_of({of_b}), checkpoint_of(pt({of_b})), file_of({doubles}), checkpoint_of(pt({doubles}))}) {
            const DiffReport report = diff(a, b, options);
            REQUIRE(report.different.size() == 1);
            CHECK(report.different[0].index == Shape{400'000 / 700, 400'000 % 700});
            CHECK(report.different[0].max_abs == 4);
        }
    }
    CHECK(diff(file_of({of_a}), file_of({doubles}), options).close.empty());
    options.tolerance = Tolerance{.atol = 4};
    CHECK(diff(file_of({of_a}), file_of({doubles}), options).equal());
}

TEST_CASE("an invalid tolerance is refused") {
    const auto a = file_of({floats("w", {1})});
    for (const double bound : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        CHECK_FAULT(diff(a, a, within(bound)), Errc::invalid_argument);
        CHECK_FAULT(diff(a, a, within(0, bound)), Errc::invalid_argument);
    }
}

TEST_CASE("names of A are renamed before they are compared and selected") {
    const auto a = file_of({floats("module.w", {1}), floats("module.b", {2}), floats("x", {3})});
    const auto b = file_of({floats("w", {1}), floats("b", {3})});
    DiffOptions options;
    options.rename = [](std::string_view name) {
        return std::string(name.starts_with("module.") ? name.substr(7) : name);
    };
    const DiffReport report = diff(a, b, options);
    CHECK(report.only_in_a == std::vector<std::string>{"x"});
    CHECK(report.only_in_b.empty());
    REQUIRE(report.different.size() == 1);
    CHECK(report.different[0].name == "b");
    options.selection = Selection::glob("w");
    CHECK(diff(a, b, options).equal());
    options.selection = {};
    options.rename = [](std::string_view) { return std::string("w"); };
    CHECK_FAULT(diff(a, b, options), Errc::name_collision);
}

TEST_CASE("names that differ only by a prefix are noted") {
    const auto plain = file_of({floats("layer.w", {1}), floats("layer.b", {2, 3})});
    const auto prefixed = file_of({floats("model.layer.w", {1}), floats("model.layer.b", {2, 3})});
    const DiffReport report = diff(prefixed, plain);
    CHECK_FALSE(report.equal());
    CHECK(only_of(report.notes) ==
          "names of A begin with 'model.'; without it, they are the names of B (--strip-prefix model.)");
    CHECK(only_of(diff(plain, prefixed).notes) ==
          "names of B begin with 'model.'; without it, they are the names of A (--strip-prefix model.)");
    CHECK(diff(plain, plain).notes.empty());
    CHECK(diff(plain, file_of({floats("other", {1})})).notes.empty());
}

TEST_CASE("a tie that only one side has is noted") {
    const auto tied = file_of({floats("w", {1})}, R"("__metadata__":{"head":"w"},)");
    const auto plain = file_of({floats("w", {1})});
    const DiffReport report = diff(tied, plain);
    CHECK(report.only_in_a == std::vector<std::string>{"head"});
    CHECK(only_of(report.notes) == "'head' is tied to 'w' in A, but not in B");
    CHECK(only_of(diff(plain, tied).notes) == "'head' is tied to 'w' in B, but not in A");
    // A separate copy is not a missing tie.
    CHECK(diff(tied, file_of({floats("w", {1}), floats("head", {1})})).notes.empty());

    std::string many = R"("__metadata__":{)";
    for (int i = 0; i < 20; ++i) many += (i > 0 ? ",\"" : "\"") + std::string("t") + std::to_string(i) + R"(":"w")";
    const DiffReport crowd = diff(file_of({floats("w", {1})}, many + "},"), plain);
    CHECK(crowd.only_in_a.size() == 20);
    REQUIRE(crowd.notes.size() == 17);
    CHECK(crowd.notes.back() == "B lacks 4 more ties");
}

}  // namespace diff_tolerance_test
