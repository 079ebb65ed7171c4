// Tests plan_load(). From top to bottom: every kind of mismatch, ties, prefixes, fill values to the bit, selections,
// and random models against a slow reference.
#include <safemap/plan.hpp>

#include "check_error.hpp"
#include "forge/containers.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/digest.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <map>
#include <optional>
#include <set>

namespace plan_test {

using namespace safemap;
using namespace containers;

namespace {

Checkpoint file_of(const std::vector<Sample>& samples, std::string_view more = {}) {
    return checkpoint_of(containers::safetensors(samples, more));
}

/// Returns a tensor of zeros.
Sample sample(std::string name, Dtype dtype, Shape shape) {
    const std::uint64_t size = *byte_size(dtype, *element_count(shape));
    return {std::move(name), dtype, shape, std::string(size, '\0')};
}

Sample floats(std::string name, Shape shape) { return sample(std::move(name), Dtype::f32, std::move(shape)); }

template <class List> std::vector<std::string> names(const List& list) {
    std::vector<std::string> names;
    for (const auto& each : list) {
        if constexpr (requires { each.expected; }) names.push_back(each.expected.name);
        else if constexpr (requires { each.name(); }) names.push_back(each.name());
        else names.push_back(each.name);
    }
    return names;
}

using Names = std::vector<std::string>;

constexpr auto f32 = Dtype::f32;
const LoadOptions not_strict = {.fill = Fill::none, .ignore_unexpected = true};

}  // namespace

TEST_CASE("matching tensors are listed in the order of the model, and nothing is read") {
    const std::string content = containers::safetensors({floats("a", {2}), floats("b", {3}), floats("c", {})});
    bool opened = false;
    const auto checkpoint =
        Checkpoint::open(callback_source("a", content.size(), [&](std::uint64_t at, std::span<std::byte> into) {
            CHECK_FALSE(opened);
            std::memcpy(into.data(), content.data() + at, into.size());
        }));
    opened = true;
    const LoadPlan plan =
        plan_load(checkpoint, std::vector<ExpectedTensor>{{"c", f32, {}}, {"a", f32, {2}}, {"b", f32, {3}}});
    CHECK(plan.ok());
    CHECK(plan.text().empty());
    const auto tensors = plan.tensors();
    CHECK(names(tensors) == Names{"c", "a", "b"});
    for (const LazyTensor& tensor : tensors) CHECK(tensor.stored() == checkpoint[tensor.name()].stored());
}

TEST_CASE("tensors are views of the file, and outlive the plan and the checkpoint") {
    const TempDir dir;
    Sample w = floats("w", {2});
    w.bytes = forge::little_endian(1.5F) + forge::little_endian(-2.0F);
    const auto path = dir.write("m.safetensors", containers::safetensors({w}));
    const TensorView view = [&] {
        const auto checkpoint = Checkpoint::open(path);
        return plan_load(checkpoint, expected_tensors(checkpoint)).tensors().front().view();
    }();
    CHECK(view.unaligned<float>(1) == -2.0F);
}

TEST_CASE("every kind of mismatch is reported, shapes and dtypes separately") {
    const auto checkpoint = file_of({floats("same", {2}), floats("shape", {2, 3}), floats("dtype", {2}),
                                     floats("both", {4}), floats("extra.1", {1}), floats("extra.0", {1})});
    const std::vector<ExpectedTensor> expected = {{"gone", f32, {7}},          {"both", Dtype::bf16, {1, 4}},
                                                  {"dtype", Dtype::bf16, {2}}, {"shape", f32, {3, 2}},
                                                  {"same", f32, {2}},          {"lost", Dtype::i64, {}}};
    const LoadPlan plan = plan_load(checkpoint, expected);
    CHECK_FALSE(plan.ok());
    CHECK(names(plan.missing) == Names{"gone", "lost"});
    CHECK(names(plan.unexpected) == Names{"extra.1", "extra.0"});
    CHECK(names(plan.shape) == Names{"both", "shape"});
    CHECK(names(plan.dtype) == Names{"both", "dtype"});
    CHECK(plan.shape[1].expected.shape == Shape{3, 2});
    CHECK(plan.shape[1].found.shape() == Shape{2, 3});
    CHECK(plan.dtype[1].found.dtype() == f32);
    CHECK(plan.tied.empty());
    CHECK(plan.notes.empty());
    CHECK(plan.text() ==
          "missing gone: F32 [7]\n"
          "missing lost: I64 []\n"
          "unexpected extra.{0..1}: F32 [1] x 2\n"
          "shape both: [1, 4] expected, [4] found\n"
          "shape shape: [3, 2] expected, [2, 3] found\n"
          "dtype both: BF16 expected, F32 found\n"
          "dtype dtype: BF16 expected, F32 found\n");
    CHECK_FAULT(plan.tensors(), Errc::model_mismatch);
}

TEST_CASE("a plan that is not strict accepts missing and unexpected tensors, but no other shape or dtype") {
    const auto checkpoint = file_of({floats("a", {2}), floats("extra", {1})});
    const std::vector<ExpectedTensor> expected = {{"a", f32, {2}}, {"gone", f32, {7}}};
    CHECK_FALSE(plan_load(checkpoint, expected).ok());
    CHECK_FALSE(plan_load(checkpoint, expected, {.fill = Fill::none}).ok());
    CHECK_FALSE(plan_load(checkpoint, expected, {.fill = Fill::error, .ignore_unexpected = true}).ok());
    const LoadPlan plan = plan_load(checkpoint, expected, not_strict);
    CHECK(plan.ok());
    CHECK(names(plan.missing) == Names{"gone"});
    CHECK(names(plan.unexpected) == Names{"extra"});
    CHECK(names(plan.tensors()) == Names{"a"});
    CHECK_FALSE(plan_load(checkpoint, std::vector<ExpectedTensor>{{"a", f32, {3}}}, not_strict).ok());
    CHECK_FALSE(plan_load(checkpoint, std::vector<ExpectedTensor>{{"a", Dtype::f16, {2}}}, not_strict).ok());
}

TEST_CASE("the error message is folded and lists a few names of each kind") {
    std::vector<Sample> samples;
    std::vector<ExpectedTensor> expected;
    for (int i = 0; i < 80; ++i) {
        samples.push_back(floats("h." + std::to_string(i) + ".w", {2}));
        expected.push_back({"h." + std::to_string(i) + ".w", f32, {2}});
        expected.push_back({"h." + std::to_string(i) + ".b", f32, {2}});
    }
    for (const char* name : {"p", "q", "r", "s"}) samples.push_back(floats(name, {1}));
    check_error(error_of([&] { plan_load(file_of(samples), expected).require(); }), {Errc::model_mismatch}, {},
                {.message = "the checkpoint is not what the model expects: 80 missing (h.{0..79}.b: F32 [2] x 80), "
                            "4 unexpected (p: F32 [1]; q: F32 [1]; r: F32 [1]; ...)",
                 .hint = ""});
}

// ---- ties

TEST_CASE("a tied tensor is found under its other names, and no name of a used tensor is unexpected") {
    const auto checkpoint = checkpoint_of(containers::pt({floats("wte", {2, 3}), floats("b", {2})}, {{"head", "wte"}}));
    const ExpectedTensor b = {"b", f32, {2}};
    for (const char* name : {"wte", "head"}) {
        const LoadPlan plan = plan_load(checkpoint, std::vector<ExpectedTensor>{{name, f32, {2, 3}}, b});
        CHECK(plan.ok());
        CHECK(names(plan.tensors()) == Names{name, "b"});
        CHECK(plan.tied == std::vector<AliasGroup>{{"wte", "head"}});
    }
    const LoadPlan both =
        plan_load(checkpoint, std::vector<ExpectedTensor>{{"head", f32, {2, 3}}, {"wte", f32, {2, 3}}, b});
    CHECK(both.ok());
    const auto tensors = both.tensors();
    CHECK(names(tensors) == Names{"head", "wte", "b"});
    CHECK(tensors[0].stored() == tensors[1].stored());

    const LoadPlan none = plan_load(checkpoint, std::vector<ExpectedTensor>{b});
    CHECK(names(none.unexpected) == Names{"wte", "head"});
    CHECK(none.tied.empty());
}

TEST_CASE("one stored tensor is enough for all tensors that the model ties") {
    const std::vector<ExpectedTensor> expected = {
        {"head", f32, {2, 3}, "wte"}, {"wte", f32, {2, 3}}, {"out", f32, {2, 3}, "wte"}};
    for (const char* stored : {"wte", "head", "out"}) {
        const LoadPlan plan = plan_load(file_of({floats(stored, {2, 3})}), expected);
        CHECK(plan.ok());
        const auto tensors = plan.tensors();
        CHECK(names(tensors) == Names{"head", "wte", "out"});
        for (const LazyTensor& tensor : tensors) CHECK(tensor.stored() == tensors[0].stored());
        REQUIRE(plan.tied.size() == 1);
        CHECK(plan.tied[0].size() == 3);
        CHECK(plan.tied[0].front() == stored);
        CHECK(plan.text().starts_with("tied " + std::string(stored) + " = "));
    }
    const LoadPlan none = plan_load(file_of({}), expected);
    CHECK(names(none.missing) == Names{"head", "wte", "out"});
    CHECK(none.tied.empty());
}

TEST_CASE("tensors that the model ties and the checkpoint stores separately are kept, with a note") {
    const std::vector<ExpectedTensor> expected = {{"head", f32, {2}, "wte"}, {"wte", f32, {2}}};
    const auto checkpoint = file_of({floats("wte", {2}), floats("head", {2})});
    const LoadPlan plan = plan_load(checkpoint, expected);
    CHECK(plan.ok());
    CHECK(plan.tensors()[0].stored() == checkpoint["head"].stored());
    CHECK(plan.tied.empty());
    CHECK(plan.notes ==
          Names{"'head' is tied to 'wte' in the model but stored separately: each is loaded from its own data"});
}

TEST_CASE("an uploader uploads a tied tensor once") {
    const auto checkpoint = file_of({floats("wte", {100}), floats("b", {10})}, R"("__metadata__":{"head":"wte"},)");
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 1 << 20});
    std::vector<Lease> leases;
    const std::vector<ExpectedTensor> expected = {
        {"head", f32, {100}}, {"wte", f32, {100}}, {"b", f32, {10}}, {"new", f32, {10}}};
    for (const LazyTensor& tensor : plan_load(checkpoint, expected, {.fill = Fill::nan}).tensors())
        leases.push_back(uploader.acquire(uploader.bundle(std::span(&tensor, 1))));
    CHECK(uploader.stats().uploaded_bytes == 400 + 40 + 40);
    CHECK(leases[0]["head"].memory() == leases[1]["wte"].memory());
    CHECK(leases[0]["head"].offset() == leases[1]["wte"].offset());
    const LazyTensor filled = plan_load(checkpoint, expected, {.fill = Fill::nan}).tensors()[3];
    CHECK(digest(*Device::open("host"), leases[3]["new"]) == digest(filled));
}

// ---- prefixes

TEST_CASE("a prefix is suggested if it explains everything missing, or everything unexpected") {
    const auto with = file_of({floats("module.h.0.w", {2}), floats("module.h.1.w", {3}), floats("module.w", {4})});
    const auto without = file_of({floats("h.0.w", {2}), floats("h.1.w", {3}), floats("w", {4})});
    const LoadPlan stripped = plan_load(with, expected_tensors(without));
    CHECK(stripped.checkpoint_prefix == "module.");
    CHECK(stripped.model_prefix.empty());
    CHECK(stripped.notes == Names{"names of the checkpoint begin with 'module.'; without it, they are the names of the "
                                  "model (--strip-prefix module.)"});
    const LoadPlan added = plan_load(without, expected_tensors(with));
    CHECK(added.model_prefix == "module.");
    CHECK(added.checkpoint_prefix.empty());
    const auto error = error_of([&] { added.require(); });
    REQUIRE(error);
    CHECK(error->hint() == added.notes[0]);

    auto more = expected_tensors(without);
    more.push_back({"head.weight.that.nobody.has", f32, {9}});
    CHECK(plan_load(with, more).checkpoint_prefix == "module.");
}

TEST_CASE("an uncertain prefix is not suggested") {
    const auto expects = [](std::vector<ExpectedTensor> expected, const std::vector<Sample>& samples) {
        const LoadPlan plan = plan_load(file_of(samples), expected);
        CHECK(plan.checkpoint_prefix.empty());
        CHECK(plan.model_prefix.empty());
        CHECK(plan.notes.empty());
    };
    expects({{"w", f32, {2}}}, {floats("a.w", {2}), floats("b.w", {2})});  // ambiguous
    expects({{"w", f32, {2}}}, {floats("module.w", {3})});                 // another shape
    expects({{"w", f32, {2}}}, {floats("module_w", {2})});                 // not separated by a dot
    expects({{"w", f32, {2}}, {"v", f32, {2}}}, {floats("module.w", {2}), floats("model.v", {2})});
    expects({{"w", f32, {2}}}, {});
    expects({}, {floats("module.w", {2})});
}

// ---- fillings

TEST_CASE("missing tensors of every dtype can be filled with zeros") {
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(dtype);
        const LoadPlan plan =
            plan_load(file_of({}), std::vector<ExpectedTensor>{{"w", dtype, {3, 4}}}, {.fill = Fill::zeros});
        REQUIRE(plan.ok());
        CHECK(names(plan.missing) == Names{"w"});
        const LazyTensor zeros = plan.tensors().front();
        CHECK(zeros.dtype() == dtype);
        CHECK(zeros.shape() == Shape{3, 4});
        const TensorView loaded = zeros.load();
        CHECK(std::ranges::all_of(loaded.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
        CHECK(loaded.nbytes() == zeros.nbytes());
    }
}

TEST_CASE("NaN fill has the bits that a cast of NaN gives, for every dtype with a NaN") {
    const auto bytes_of = [](const LazyTensor& tensor) {
        std::vector<std::byte> bytes(tensor.nbytes());
        tensor.read(0, bytes);
        return bytes;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const LazyTensor one("nan", stored_run(f32, {1}, forge::source(forge::little_endian(nan)), 0));
    std::set<Dtype> filled;
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(dtype);
        const LoadPlan plan =
            plan_load(file_of({}), std::vector<ExpectedTensor>{{"w", dtype, {4}}}, {.fill = Fill::nan});
        if (!plan.ok()) continue;
        filled.insert(dtype);
        const auto bytes = bytes_of(plan.tensors().front());
        REQUIRE(bytes.size() == 4 * element_size(dtype));
        if (!can_cast(f32, dtype)) continue;
        const auto cast = bytes_of(one.cast(dtype));
        for (std::size_t element = 0; element < 4; ++element)
            CHECK(std::equal(cast.begin(), cast.end(),
                             bytes.begin() + static_cast<std::ptrdiff_t>(element * cast.size())));
    }
    CHECK(filled == std::set{Dtype::f8_e5m2, Dtype::f8_e4m3, Dtype::f8_e8m0, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz,
                             Dtype::f16, Dtype::bf16, f32, Dtype::c64, Dtype::f64, Dtype::c32, Dtype::c128});

    const auto value = [&](Dtype dtype) {
        return plan_load(file_of({}), std::vector<ExpectedTensor>{{"w", dtype, {2}}}, {.fill = Fill::nan})
            .tensors()[0]
            .load();
    };
    const TensorView scale = value(Dtype::f8_e8m0);
    CHECK(std::isnan(static_cast<float>(scale.at<f8_e8m0>(1))));
    const TensorView complex = value(Dtype::c64);
    CHECK(std::isnan(complex.as<std::complex<float>>()[1].real()));
    CHECK(std::isnan(complex.as<std::complex<float>>()[1].imag()));
    const TensorView half = value(Dtype::c32);
    const auto bytes = half.bytes();
    CHECK(std::vector(bytes.begin(), bytes.end()) == forge::to_bytes({"\0\x7e\0\x7e\0\x7e\0\x7e", 8}));
}

TEST_CASE("a dtype without NaN is not filled with NaN, and the plan notes it") {
    const std::vector<ExpectedTensor> expected = {{"ids", Dtype::i64, {2}}, {"w", f32, {2}}};
    const LoadPlan plan = plan_load(file_of({}), expected, {.fill = Fill::nan});
    CHECK_FALSE(plan.ok());
    CHECK(names(plan.missing) == Names{"ids", "w"});
    const auto error = error_of([&] { plan.require(); });
    REQUIRE(error);
    CHECK(error->message() ==
          "the checkpoint is not what the model expects: 1 missing, of dtypes without NaN (ids: I64 [2])");
}

TEST_CASE("slices of a fill value are correct, and a terabyte of fill takes no memory") {
    const std::uint64_t elements = std::uint64_t{1} << 40;
    const LoadPlan plan =
        plan_load(file_of({}), std::vector<ExpectedTensor>{{"w", Dtype::f64, {elements}}, {"none", f32, {0, 5}}},
                  {.fill = Fill::nan});
    const auto tensors = plan.tensors();
    const LazyTensor& w = tensors[0];
    CHECK(w.nbytes() == elements * 8);
    const TensorView part = w.slice({{.start = -3}}).load();
    CHECK(part.element_count() == 3);
    for (const double x : part.as<double>()) CHECK(std::isnan(x));
    const std::string nan = forge::little_endian(std::numeric_limits<double>::quiet_NaN());
    const auto source = w.placement().value().source;
    for (const std::size_t offset : {0U, 3U, 8U, 4095U})
        for (const std::size_t size : {0U, 1U, 7U, 8U, 9U, 23U, 4096U, 4099U}) {
            std::vector<std::byte> bytes(size);
            source->read_at(offset, bytes);
            for (std::size_t i = 0; i < size; ++i) CHECK(bytes[i] == static_cast<std::byte>(nan[(offset + i) % 8]));
        }
    CHECK_FAULT(w.view(), Errc::no_view);
    CHECK(tensors[1].load().nbytes() == 0);
}

TEST_CASE("tied tensors share one fill value") {
    const std::vector<ExpectedTensor> expected = {{"head", f32, {2}, "wte"}, {"wte", f32, {2}}, {"other", f32, {2}}};
    const auto tensors = plan_load(file_of({}), expected, {.fill = Fill::zeros}).tensors();
    CHECK(names(tensors) == Names{"head", "wte", "other"});
    CHECK(tensors[0].stored() == tensors[1].stored());
    CHECK(tensors[0].stored() != tensors[2].stored());
}

// ---- selections

TEST_CASE("only selected names are planned, on both sides") {
    const auto checkpoint = checkpoint_of(
        containers::pt({floats("h.wte", {2}), floats("x.extra", {1}), floats("h.extra", {1})}, {{"x.head", "h.wte"}}));
    const std::vector<ExpectedTensor> expected = {{"h.wte", f32, {2}}, {"x.gone", f32, {2}}, {"h.gone", f32, {2}}};
    const LoadPlan plan = plan_load(checkpoint, expected, {.selection = Selection::prefix("x")});
    CHECK(names(plan.missing) == Names{"x.gone"});
    CHECK(names(plan.unexpected) == Names{"x.extra"});
    CHECK(plan.tied == std::vector<AliasGroup>{{"h.wte", "x.head"}});
}

// ---- the slow reference

namespace {

struct Slow {
    std::set<std::string> missing, unexpected, shape, dtype;
    std::set<std::set<std::string>> tied;
};

/// Returns all names of a tensor of the checkpoint.
std::set<std::string> names_of(const Checkpoint& checkpoint, const LazyTensor& tensor) {
    std::set<std::string> names = {tensor.name()};
    for (const AliasGroup& group : checkpoint.aliases())
        if (group.front() == tensor.name()) names.insert(group.begin(), group.end());
    return names;
}

/// Returns the checkpoint's tensor for an expected one, searched in order of preference: its own name, the name that it
/// is an alias of, then all other aliases of the same tensor.
std::optional<std::size_t> slow_find(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected,
                                     const ExpectedTensor& wanted) {
    const std::string root = wanted.alias_of.empty() ? wanted.name : wanted.alias_of;
    Names tried = {wanted.name, root};
    for (const ExpectedTensor& other : expected)
        if (other.alias_of == root) tried.push_back(other.name);
    for (const std::string& name : tried)
        for (std::size_t i = 0; i < checkpoint.size(); ++i)
            if (names_of(checkpoint, checkpoint.tensor(i)).contains(name)) return i;
    return std::nullopt;
}

Slow slow_plan(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected) {
    Slow plan;
    std::map<std::size_t, std::set<std::string>> used;
    for (const ExpectedTensor& wanted : expected) {
        const auto found = slow_find(checkpoint, expected, wanted);
        if (!found) {
            plan.missing.insert(wanted.name);
            continue;
        }
        used[*found].insert(wanted.name);
        if (checkpoint.tensor(*found).shape() != wanted.shape) plan.shape.insert(wanted.name);
        if (checkpoint.tensor(*found).dtype() != wanted.dtype) plan.dtype.insert(wanted.name);
    }
    for (std::size_t i = 0; i < checkpoint.size(); ++i) {
        std::set<std::string> all = names_of(checkpoint, checkpoint.tensor(i));
        if (!used.contains(i)) plan.unexpected.insert(all.begin(), all.end());
        else all.insert(used[i].begin(), used[i].end());
        if (used.contains(i) && all.size() > 1) plan.tied.insert(all);
    }
    return plan;
}

template <class List> std::set<std::string> name_set(const List& list) {
    const Names all = names(list);
    CHECK(std::set(all.begin(), all.end()).size() == all.size());
    return {all.begin(), all.end()};
}

std::string any_name(std::mt19937& random) { return std::string(1, static_cast<char>('a' + random() % 12)); }

std::vector<ExpectedTensor> random_expectation(std::mt19937& random) {
    std::vector<ExpectedTensor> expected;
    for (std::size_t i = random() % 10; i > 0; --i) {
        ExpectedTensor tensor = {any_name(random), random() % 3 == 0 ? Dtype::i64 : f32, {random() % 3}};
        const auto is = [&](const ExpectedTensor& other) { return other.name == tensor.name; };
        if (std::ranges::any_of(expected, is)) continue;
        if (!expected.empty() && random() % 2 == 0) {
            const ExpectedTensor& other = expected[random() % expected.size()];
            if (other.alias_of.empty()) tensor.alias_of = other.name;
        }
        expected.push_back(std::move(tensor));
    }
    std::shuffle(expected.begin(), expected.end(), random);
    return expected;
}

Checkpoint random_checkpoint(std::mt19937& random) {
    std::vector<Sample> samples;
    std::map<std::string, std::string> ties;
    std::set<std::string> taken;
    for (std::size_t i = random() % 8; i > 0; --i) {
        const std::string name = any_name(random);
        if (!taken.insert(name).second) continue;
        samples.push_back(sample(name, random() % 3 == 0 ? Dtype::i64 : f32, {1 + random() % 2}));
        for (const std::string& alias : {any_name(random), any_name(random)})
            if (random() % 3 == 0 && taken.insert(alias).second) ties.emplace(alias, name);
    }
    return checkpoint_of(containers::pt(samples, ties));
}

}  // namespace

TEST_CASE("random models and checkpoints are matched as by the slow reference") {
    std::random_device device;
    for (int round = 0; round < soak::rounds(2000); ++round) {
        const unsigned seed = device();
        CAPTURE(seed);
        std::mt19937 random(seed);
        const Checkpoint checkpoint = random_checkpoint(random);
        const auto expected = random_expectation(random);
        const Slow slow = slow_plan(checkpoint, expected);
        const LoadPlan plan = plan_load(checkpoint, expected, not_strict);
        CHECK(name_set(plan.missing) == slow.missing);
        CHECK(name_set(plan.unexpected) == slow.unexpected);
        CHECK(name_set(plan.shape) == slow.shape);
        CHECK(name_set(plan.dtype) == slow.dtype);
        std::set<std::set<std::string>> tied;
        for (const AliasGroup& group : plan.tied) CHECK(tied.insert({group.begin(), group.end()}).second);
        CHECK(tied == slow.tied);

        CHECK(plan.ok() == (slow.shape.empty() && slow.dtype.empty()));
        CHECK(plan_load(checkpoint, expected).ok() == (plan.ok() && slow.missing.empty() && slow.unexpected.empty()));
        if (!plan.ok()) continue;
        Names wanted;
        for (const ExpectedTensor& tensor : expected)
            if (!slow.missing.contains(tensor.name)) wanted.push_back(tensor.name);
        const auto tensors = plan.tensors();
        CHECK(names(tensors) == wanted);
        for (const LazyTensor& tensor : tensors) {
            const auto is = [&](const ExpectedTensor& other) { return other.name == tensor.name(); };
            const auto number = slow_find(checkpoint, expected, *std::ranges::find_if(expected, is));
            CHECK(tensor.stored() == checkpoint.tensor(number.value()).stored());
        }
    }
}

TEST_CASE("a checkpoint meets its own expectations, in any container") {
    std::random_device device;
    for (int round = 0; round < 20; ++round) {
        const unsigned seed = device();
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto samples = random_samples(random, {f32, Dtype::bf16, Dtype::i64, Dtype::boolean});
        const TempDir dir;
        const auto shards = Checkpoint::open(write_shards(dir, samples));
        for (const auto& a : {file_of(samples), checkpoint_of(containers::pt(samples)), shards})
            for (const auto& b : {file_of(samples), checkpoint_of(containers::pt(samples)), shards}) {
                const LoadPlan plan = plan_load(a, expected_tensors(b));
                CHECK(plan.ok());
                CHECK(plan.tensors().size() == samples.size());
            }
    }
}

TEST_CASE("a hundred thousand names tied to one missing tensor are planned quickly") {
    std::vector<ExpectedTensor> expected = {{"root", f32, {1}}};
    for (int i = 0; i < 100'000; ++i) expected.push_back({"w." + std::to_string(i), f32, {1}, "root"});
    CHECK(plan_load(file_of({floats("x", {1})}), expected).missing.size() == 100'001);
    const LoadPlan served = plan_load(file_of({floats("w.77", {1})}), expected);
    CHECK(served.ok());
    CHECK(served.tied.front().size() == 100'001);
}

}  // namespace plan_test
