// Tests every kind of difference, and the first element that differs, against a slow reference.
#include <safemap/diff.hpp>

#include <safemap/advanced/small_floats.hpp>

#include "check_error.hpp"
#include "forge/containers.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>

namespace diff_test {

using namespace safemap;
using namespace containers;
using What = TensorDifference::What;

namespace {

std::string floats(std::initializer_list<float> values) {
    std::string bytes;
    for (const float value : values) bytes += forge::little_endian(value);
    return bytes;
}

Checkpoint file_of(const std::vector<Sample>& samples, std::string_view more = {}) {
    return checkpoint_of(containers::safetensors(samples, more));
}

/// Returns the only difference between two files of one tensor each.
TensorDifference difference_of(const Sample& a, const Sample& b) {
    const auto report = diff(file_of({a}), file_of({b}));
    REQUIRE(report.different.size() == 1);
    return report.different.front();
}

/// Returns the first element that differs, compared bit by bit.
std::optional<std::uint64_t> slow_first(const Sample& a, const Sample& b) {
    const auto bit = [](const std::string& bytes, std::size_t i) {
        return static_cast<unsigned char>(bytes[i / 8]) >> i % 8 & 1;
    };
    for (std::size_t byte = 0; byte < a.bytes.size(); ++byte) {
        if (a.bytes[byte] == b.bytes[byte]) continue;
        for (std::size_t i = byte * 8;; ++i)
            if (bit(a.bytes, i) != bit(b.bytes, i)) return i / bits(a.dtype);
    }
    return std::nullopt;
}

std::uint64_t number(const Shape& index, const Shape& shape) {
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + index[d];
    return number;
}

/// Flips a few random bits in a few random tensors.
void spoil(std::mt19937& random, std::vector<Sample>& samples) {
    for (Sample& sample : samples) {
        if (sample.bytes.empty() || random() % 2 == 0) continue;
        for (std::size_t i = random() % 4; i > 0; --i) {
            const unsigned bit = sample.dtype == Dtype::boolean ? 0 : random() % 8;
            sample.bytes[random() % sample.bytes.size()] ^= static_cast<char>(1U << bit);
        }
    }
}

/// Checks that diff reports the values that the slow reference reports.
void check_values(const Checkpoint& a, const std::vector<Sample>& of_a, const Checkpoint& b,
                  const std::vector<Sample>& of_b) {
    for (const unsigned threads : {1U, 8U}) {
        DiffOptions options;
        options.work.threads = threads;
        const DiffReport report = diff(a, b, options);
        CHECK(report.only_in_a.empty());
        CHECK(report.only_in_b.empty());
        CHECK(report.tensors == of_a.size());
        std::map<std::string, TensorDifference> told;
        for (const TensorDifference& one : report.different) CHECK(told.emplace(one.name, one).second);
        for (std::size_t i = 0; i < of_a.size(); ++i) {
            CAPTURE(of_a[i].name);
            const auto first = slow_first(of_a[i], of_b[i]);
            CHECK(told.contains(of_a[i].name) == first.has_value());
            if (!first || !told.contains(of_a[i].name)) continue;
            const TensorDifference& one = told.at(of_a[i].name);
            CHECK(one.what == What::value);
            CHECK(one.a.dtype == of_a[i].dtype);
            CHECK(one.b.shape == of_a[i].shape);
            CHECK(number(one.index, of_a[i].shape) == *first);
            CHECK(one.a.value != one.b.value);
        }
        CHECK(report.equal() == told.empty());
    }
}

}  // namespace

TEST_CASE("tensors of only one checkpoint are listed in its order") {
    const Sample w{"w", Dtype::u8, {1}, "1"};
    const auto named = [&](std::string name) { return Sample{std::move(name), Dtype::u8, {1}, "1"}; };
    const auto report = diff(file_of({named("z"), w, named("a")}), file_of({named("y"), named("b"), w}));
    CHECK(report.only_in_a == std::vector<std::string>{"z", "a"});
    CHECK(report.only_in_b == std::vector<std::string>{"y", "b"});
    CHECK(report.different.empty());
    CHECK(report.tensors == 1);
    CHECK_FALSE(report.equal());
    CHECK_FALSE(diff(file_of({w}), file_of({})).equal());
    CHECK_FALSE(diff(file_of({}), file_of({w})).equal());
    CHECK(diff(file_of({}), file_of({})).equal());
}

TEST_CASE("a dtype difference is reported before a shape difference, and a shape before values") {
    const Sample a{"w", Dtype::f32, {2, 1}, floats({1, 2})};
    const auto dtype = difference_of(a, {"w", Dtype::i32, {2}, floats({1, 3})});
    CHECK(dtype.what == What::dtype);
    CHECK(dtype.a.dtype == Dtype::f32);
    CHECK(dtype.b.dtype == Dtype::i32);
    const auto shape = difference_of(a, {"w", Dtype::f32, {1, 2}, floats({1, 3})});
    CHECK(shape.what == What::shape);
    CHECK(shape.a.shape == Shape{2, 1});
    CHECK(shape.b.shape == Shape{1, 2});
    const auto value = difference_of(a, {"w", Dtype::f32, {2, 1}, floats({1, 3})});
    CHECK(value.what == What::value);
    CHECK(value.index == Shape{1, 0});
    CHECK(value.a.value == "2");
    CHECK(value.b.value == "3");
    for (const What what : {What::dtype, What::shape, What::value}) CHECK(name(what) != "unknown");
}

TEST_CASE("a NaN equals the same NaN and no other, and zeros have signs") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Sample a{"w", Dtype::f32, {2}, floats({nan, 0})};
    CHECK(diff(file_of({a}), file_of({a})).equal());
    const auto other = difference_of(a, {"w", Dtype::f32, {2}, "\x01" + a.bytes.substr(1)});
    CHECK(other.index == Shape{0});
    CHECK(other.a.value == "nan (0x7fc00000)");
    CHECK(other.b.value == "nan (0x7fc00001)");
    const auto zero = difference_of(a, {"w", Dtype::f32, {2}, floats({nan, -0.0F})});
    CHECK(zero.index == Shape{1});
    CHECK(zero.a.value == "0");
    CHECK(zero.b.value == "-0");
}

TEST_CASE("0-d tensors differ at the empty index, and empty tensors never differ") {
    const auto value = difference_of({"w", Dtype::i64, {}, forge::little_endian(std::int64_t{-5})},
                                     {"w", Dtype::i64, {}, forge::little_endian(std::int64_t{5})});
    CHECK(value.index.empty());
    CHECK(value.a.value == "-5");
    const Sample none{"w", Dtype::f32, {0, 7}, ""};
    CHECK(diff(file_of({none}), file_of({none})).equal());
    CHECK(difference_of(none, {"w", Dtype::f32, {7, 0}, ""}).what == What::shape);
}

TEST_CASE("sub-byte elements are compared one by one") {
    const auto nibble = difference_of({"w", Dtype::f4, {2, 2}, "\x21\x43"}, {"w", Dtype::f4, {2, 2}, "\x21\x53"});
    CHECK(nibble.index == Shape{1, 1});
    CHECK(nibble.a.value == "2");
    CHECK(nibble.b.value == "3");
    // Four elements of six bits: 0b000001, 0b000010, 0b000011, 0b000100, the first in the lowest bits.
    const std::string six = forge::little_endian(std::uint32_t{1 | 2 << 6 | 3 << 12 | 4 << 18}).substr(0, 3);
    const std::string other = forge::little_endian(std::uint32_t{1 | 2 << 6 | 63 << 12 | 4 << 18}).substr(0, 3);
    const auto packed = difference_of({"w", Dtype::f6_e3m2, {4}, six}, {"w", Dtype::f6_e3m2, {4}, other});
    CHECK(packed.index == Shape{2});
    CHECK(packed.a.value == "0.1875");
    CHECK(packed.b.value == "-28");
}

TEST_CASE("random differences are found in every container, each at its first differing element") {
    std::random_device device;
    for (int round = 0; round < 20; ++round) {
        const unsigned seed = device();
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto a =
            random_samples(random, {Dtype::f32, Dtype::bf16, Dtype::f64, Dtype::i64, Dtype::u8, Dtype::boolean});
        auto b = a;
        spoil(random, b);
        const TempDir dir;
        check_values(checkpoint_of(pt(a)), a, file_of(b), b);
        check_values(Checkpoint::open(write_shards(dir, a)), a, checkpoint_of(pt(b)), b);
        check_values(file_of(a), a, checkpoint_of(pt(a)), a);
        check_values(in_memory(a), a, file_of(b), b);

        const auto small = random_samples(random, {Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2, Dtype::f8_e4m3});
        auto spoiled = small;
        spoil(random, spoiled);
        check_values(file_of(small), small, in_memory(spoiled), spoiled);
    }
}

TEST_CASE("large tensors are compared in blocks: contiguous, against a transpose, and two transposes") {
    std::mt19937 random(13);
    const std::vector<Sample> a = {{"w", Dtype::f32, {1300, 900}, random_bytes(random, 4'680'000)},
                                   {"x", Dtype::f32, {1300, 900}, random_bytes(random, 4'680'000)}};
    auto b = a;
    for (const std::size_t place : {4'679'996U, 3'000'001U, 2'999'999U, 4'300'000U}) b[0].bytes[place] ^= 1;
    b[1].bytes.back() ^= 64;
    check_values(file_of(a), a, file_of(b), b);
    check_values(file_of(a), a, checkpoint_of(pt(b)), b);
    check_values(checkpoint_of(pt(a)), a, file_of(b), b);
    check_values(checkpoint_of(pt(a)), a, checkpoint_of(pt(b)), b);
    check_values(checkpoint_of(pt(a)), a, file_of(a), a);
}

TEST_CASE("ties are expanded: a tensor stored once equals the same tensor stored twice") {
    const Sample w{"w", Dtype::f32, {2}, floats({1, 2})};
    const Sample head{"head", Dtype::f32, {2}, floats({1, 2})};
    const auto by_metadata = file_of({w}, R"("__metadata__":{"head":"w"},)");
    const auto tied = checkpoint_of(pt({w}, {{"head", "w"}}));
    const auto apart = file_of({w, head});
    for (const auto& a : {by_metadata, tied, apart})
        for (const auto& b : {by_metadata, tied, apart}) CHECK(diff(a, b).equal());
    CHECK(diff(by_metadata, tied).bytes == 8);
    CHECK(diff(by_metadata, apart).bytes == 16);

    const auto spoiled = checkpoint_of(pt({{"w", Dtype::f32, {2}, floats({1, 3})}}, {{"head", "w"}}));
    const auto report = diff(spoiled, tied);
    REQUIRE(report.different.size() == 2);
    CHECK(report.different[0].name == "w");
    CHECK(report.different[1].name == "head");
    CHECK(diff(file_of({w}), tied).only_in_b == std::vector<std::string>{"head"});
}

TEST_CASE("only selected tensors are compared") {
    const Sample w{"w", Dtype::u8, {1}, "1"};
    DiffOptions options;
    options.selection = Selection::glob("w*");
    CHECK(diff(file_of({w, {"x", Dtype::u8, {1}, "1"}}), file_of({w, {"y", Dtype::u8, {1}, "1"}}), options).equal());
    CHECK_FALSE(diff(file_of({w}), file_of({{"w", Dtype::u8, {1}, "2"}}), options).equal());
}

TEST_CASE("nothing is read after the first difference") {
    const std::size_t size = 40'000'000;
    const auto file =
        std::make_shared<std::string>(containers::safetensors({{"w", Dtype::u8, {size}, std::string(size, 'x')}}));
    std::atomic<std::uint64_t> read = 0;
    const auto a =
        Checkpoint::open(callback_source("a", file->size(), [&](std::uint64_t at, std::span<std::byte> into) {
            read += into.size();
            std::memcpy(into.data(), file->data() + at, into.size());
        }));
    std::string other = *file;
    other[other.size() - size + 1000] = 'y';
    DiffOptions options;
    options.work.threads = 1;
    read = 0;
    const auto report = diff(a, checkpoint_of(other), options);
    REQUIRE(report.different.size() == 1);
    CHECK(report.different[0].index == Shape{1000});
    CHECK(report.different[0].a.value == "120");
    CHECK(read < 5'000'000);
}

TEST_CASE("diff reports progress, can be stopped, and names the tensor that cannot be read") {
    const std::size_t size = 20'000'000;
    const auto file = file_of({{"w", Dtype::u8, {size}, std::string(size, 'x')}});
    std::vector<std::uint64_t> seen;
    DiffOptions options;
    options.work.monitor.on_progress = [&](const Progress& progress) {
        CHECK(progress.stage == "comparing");
        CHECK(progress.bytes_total == size);
        seen.push_back(progress.bytes_done);
        return true;
    };
    CHECK(diff(file, file, options).equal());
    REQUIRE_FALSE(seen.empty());
    CHECK(seen.back() == size);
    options.work.monitor.on_progress = [](const Progress&) { return false; };
    CHECK_FAULT(diff(file, file, options), Errc::cancelled);

    const std::string content = containers::safetensors({{"w", Dtype::u8, {size}, std::string(size, 'x')}});
    const auto burning =
        Checkpoint::open(callback_source("burning", content.size(), [&](std::uint64_t at, std::span<std::byte> into) {
            if (at > 10'000'000) throw Error(Errc::io_error, "the disk is on fire");
            std::memcpy(into.data(), content.data() + at, into.size());
        }));
    check_error(error_of([&] { return diff(file, burning); }), {Errc::io_error}, {}, {.tensor = "w"});
}

}  // namespace diff_test
