// Tests saves of quantised tensors: casts that are refused, and products with scales. The products themselves are
// tested in tests/lazy/scaled_test.cpp, and against torch in tests/interop/scales.py.
#include "write/quantized.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"
#include "write/scaling.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace quantized_test {

using namespace safemap;
using namespace samples;

namespace {

const fs::path reports = fs::path(SAFEMAP_TEST_DATA) / "reports" / "fp8_scaled";

using Names = std::set<std::string>;

Names names_of(const Checkpoint& checkpoint) {
    Names names;
    for (const LazyTensor& each : checkpoint) names.insert(each.name());
    return names;
}

Names skipped_of(const SaveReport& report) {
    Names names;
    for (const SkippedObject& object : report.skipped) names.insert(object.name);
    return names;
}

LazyTensor of_floats(std::string name, Shape shape, const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {std::move(name),
            stored_run(Dtype::f32, std::move(shape), memory_source("memory", {bytes.begin(), bytes.end()}), 0)};
}

/// Returns the options that the hint of a refusal names, as one would type them.
Selection kept_by_hint(const Error& error) {
    Selection keep;
    const std::string hint = error.hint();
    constexpr std::string_view option = "--keep-dtype ";
    for (std::size_t at = hint.find(option); at != std::string::npos; at = hint.find(option, at)) {
        at += option.size();
        const char end = hint[at] == '\'' ? '\'' : ' ';
        if (end == '\'') ++at;
        keep.include(hint.substr(at, hint.find(end, at) - at));
    }
    return keep;
}

/// A model of `layers` layers of each convention, with tensors that are not quantised between them.
std::vector<LazyTensor> model_of_all(unsigned layers) {
    std::vector<LazyTensor> all;
    const auto add = [&](const std::string& name, Dtype dtype, Shape shape) {
        all.push_back(tensor(name, dtype, std::move(shape), all.size() + 1));
    };
    for (unsigned i = 0; i < layers; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        for (const char* const name : {"q_proj", "k_proj", "up_proj"}) {
            add(layer + name + ".weight", Dtype::f8_e4m3, {4, 4});
            add(layer + name + ".weight_scale", Dtype::f32, {4, 1});
            add(layer + name + ".input_scale", Dtype::bf16, {1});
        }
        add(layer + "gptq.qweight", Dtype::i32, {4, 4});
        add(layer + "gptq.qzeros", Dtype::i32, {1, 4});
        add(layer + "gptq.scales", Dtype::f16, {1, 4});
        add(layer + "bnb.weight", Dtype::u8, {8, 1});
        add(layer + "bnb.weight.absmax", Dtype::f32, {1});
        add(layer + "bnb.weight.quant_map", Dtype::f32, {16});
        add(layer + "norm.weight", Dtype::f32, {4});
        add(layer + "scales", Dtype::f32, {4});
    }
    add("lm_head.weight", Dtype::bf16, {4, 4});
    return all;
}

/// Rounds to BF16, to nearest, ties to even, in the double that holds every midpoint.
float rounded(float value) {
    int exponent = 0;
    const double mantissa = std::frexp(static_cast<double>(value), &exponent);  // in [0.5, 1)
    return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));
}

Dtype dtype_in(const fs::path& file, const std::string& name) { return read_file(file).at(name).dtype; }

}  // namespace

TEST_CASE("reports: a cast of F8 numbers or of their scales is refused, and copies are the same bytes") {
    for (const char* const name : {"scaled.safetensors", "wscale.safetensors", "dsv3.safetensors"}) {
        CAPTURE(name);
        const TempDir dir;
        const Checkpoint model = Checkpoint::open(reports / name);
        for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::f8_e4m3, Dtype::f8_e5m2}) {
            CHECK_FAULT(save(dir / "out.safetensors", model, {.dtype = dtype}), Errc::quantized_cast);
            CHECK(no_sink_takes(model, {.dtype = dtype}, Errc::quantized_cast));
        }
        CHECK(!fs::exists(dir / "out.safetensors"));
        save(dir / "copy.safetensors", model);
        for (const auto& [tensor_name, stored] : read_file(reports / name)) {
            const Stored copy = read_file(dir / "copy.safetensors").at(tensor_name);
            CHECK(copy.dtype == stored.dtype);
            CHECK(copy.bytes == stored.bytes);
        }
        const auto error = error_of([&] { save(dir / "out", model, {.dtype = Dtype::bf16}); });
        REQUIRE(error);
        CHECK(error->hint().find("--apply-scales") != std::string::npos);
        save(dir / "kept", model, {.dtype = Dtype::f16, .keep_dtype = kept_by_hint(*error)});
        CHECK(dtype_in(dir / "kept/model.safetensors", "l.weight") == Dtype::f8_e4m3);
    }
}

TEST_CASE("reports: products have the value of number times scale, in BF16 or the dtype that is asked for") {
    const std::pair<const char*, const char*> files[] = {{"scaled.safetensors", "l.scale_weight"},
                                                         {"wscale.safetensors", "l.weight_scale"},
                                                         {"dsv3.safetensors", "l.weight_scale_inv"}};
    for (const auto& each : files)
        for (const std::optional<Dtype> dtype : {std::optional<Dtype>(), std::optional(Dtype::f32)}) {
            const char* const name = each.first;
            const char* const scale_name = each.second;
            CAPTURE(name);
            const TempDir dir;
            const Checkpoint model = Checkpoint::open(reports / name);
            const SaveReport report =
                save_everywhere(dir / "out.safetensors", model, {.dtype = dtype, .apply_scales = true});
            Names left = names_of(model);
            for (const char* const gone : {scale_name, "l.input_scale", "scaled_fp8"}) left.erase(gone);
            const Checkpoint out = Checkpoint::open(dir / "out.safetensors");
            CHECK(names_of(out) == left);
            CHECK(skipped_of(report).size() == model.size() - left.size());
            CHECK(report.reading.scaled.tensors == 1);
            CHECK(report.reading.scaled.bytes == 16);
            CHECK(out["l.weight"].dtype() == dtype.value_or(Dtype::bf16));
            const TensorView scale = model[scale_name].load();
            const TensorView numbers = model["l.weight"].cast(Dtype::f32).load();
            const TensorView values = out["l.weight"].cast(Dtype::f32).load();
            for (std::size_t i = 0; i < 16; ++i) {
                const float product = numbers.as<float>()[i] * scale.as<float>()[0];
                const float wanted = dtype ? product : rounded(product);
                CHECK(values.as<float>()[i] == wanted);
            }
        }
}

TEST_CASE("the globs of a refusal let the rest be cast, and nothing else") {
    const TempDir dir;
    for (const unsigned layers : {1U, 12U}) {
        const std::vector<LazyTensor> model = model_of_all(layers);
        const auto error = error_of([&] { save(dir / "out", model, {.dtype = Dtype::f16}); });
        check_error(error, {Errc::quantized_cast}, {});
        const fs::path out = dir / ("out" + std::to_string(layers) + ".safetensors");
        save(out, model, {.dtype = Dtype::f16, .keep_dtype = kept_by_hint(*error)});
        for (const LazyTensor& each : model) {
            CAPTURE(each.name());
            const bool cast = each.name().ends_with("norm.weight") || each.name() == "lm_head.weight" ||
                              (each.name().ends_with(".scales") && each.name().find("gptq") == std::string::npos);
            CHECK(dtype_in(out, each.name()) == (cast ? Dtype::f16 : each.dtype()));
        }
    }
}

TEST_CASE("each packing is refused where a cast would reach its scales, and copied otherwise") {
    const TempDir dir;
    const std::vector<std::vector<LazyTensor>> packings = {
        {tensor("l.qweight", Dtype::i32, {4, 4}), tensor("l.scales", Dtype::f16, {1, 4})},
        {tensor("l.weight", Dtype::u8, {8, 1}), tensor("l.weight.absmax", Dtype::f32, {1}),
         tensor("l.weight.quant_map", Dtype::f32, {16})},
        {tensor("l.weight", Dtype::bf16, {8, 1}), tensor("l.weight.absmax", Dtype::u8, {1}),
         tensor("l.weight.quant_map", Dtype::f32, {16})},
        {tensor("l.weight", Dtype::i8, {4, 4}), tensor("l.SCB", Dtype::f32, {4})},
        {tensor("l.weight", Dtype::u8, {4, 2}), tensor("l.weight_scale", Dtype::f8_e4m3, {4, 1}),
         tensor("l.weight_scale_2", Dtype::f32, {})},
        {tensor("l.weight", Dtype::u32, {4, 4}), tensor("l.scales", Dtype::bf16, {4, 1}),
         tensor("l.biases", Dtype::bf16, {4, 1})},
        {tensor("l.qweight", Dtype::i8, {4, 4}), tensor("l.wscales", Dtype::bf16, {4, 1}),
         tensor("l.smooth", Dtype::bf16, {4})},
        {tensor("l._weight_qdata", Dtype::f8_e4m3, {4, 8}), tensor("l._weight_scale", Dtype::f32, {4, 1})},
        {tensor("l._weight_qdata", Dtype::i8, {4, 8}), tensor("l._weight_scale", Dtype::bf16, {4, 1}),
         tensor("l._weight_zero_point", Dtype::f32, {4, 1})},
        {tensor("l.weight:qdata", Dtype::f8_e4m3, {4, 8}), tensor("l.weight:scale", Dtype::f32, {4, 1})},
        {tensor("l.qweight", Dtype::i32, {4, 4}), tensor("l.scales", Dtype::f16, {1, 4}),
         tensor("l.scaled_zeros", Dtype::f16, {1, 4})},
        {tensor("l.qweight", Dtype::i8, {4, 4}), tensor("l.weight_scales", Dtype::f16, {4})},
        {tensor("l.B", Dtype::i32, {4, 4}), tensor("l.s", Dtype::f16, {1, 4}), tensor("l.workspace", Dtype::i32, {4})},
    };
    for (const auto& packing : packings) {
        CHECK_FAULT(save(dir / "out", packing, {.dtype = Dtype::f64}), Errc::quantized_cast);
        CHECK_FAULT(save(dir / "out", packing, {.apply_scales = true}), Errc::quantized_cast);
        const auto error = error_of([&] { save(dir / "out", packing, {.dtype = Dtype::f64}); });
        CHECK(error->hint().find("--apply-scales") == std::string::npos);
        save(dir / "kept.safetensors", packing,
             {.dtype = Dtype::f64, .keep_dtype = kept_by_hint(*error), .overwrite = true});
        for (const LazyTensor& each : packing) CHECK(dtype_in(dir / "kept.safetensors", each.name()) == each.dtype());
        const SaveOptions keep{.keep_dtype = kept_by_hint(*error), .apply_scales = true, .overwrite = true};
        CHECK_OK(save(dir / "kept", packing, {.dtype = Dtype::f64, .keep_dtype = keep.keep_dtype, .overwrite = true}));
        CHECK_OK(save(dir / "copy", packing, {.overwrite = true}));
    }
    // Integers alone are not cast, so nothing is lost: packed MX keeps both.
    const std::vector<LazyTensor> mx = {tensor("e.w_blocks", Dtype::u8, {4, 4}), tensor("e.w_scales", Dtype::u8, {4}),
                                        tensor("norm", Dtype::f32, {4})};
    CHECK_OK(save(dir / "mx", mx, {.dtype = Dtype::bf16}));
}

TEST_CASE("a tensor called `scale` of any shape has the scales of F8 numbers beside it") {
    const TempDir dir;
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{4}, Shape{4, 1}}) {
        const std::vector<LazyTensor> model = {
            tensor("l.weight", Dtype::f8_e4m3, {4, 4}),
            of_floats("l.scale", shape, std::vector<float>(shape.empty() || shape[0] == 1 ? 1 : 4, 2)),
            tensor("norm.weight", Dtype::f32, {4}), tensor("norm.scale", Dtype::f32, {4})};
        CHECK_FAULT(save(dir / "out", model, {.dtype = Dtype::bf16, .overwrite = true}), Errc::quantized_cast);
        const SaveReport report = save(dir / "out", model, {.apply_scales = true, .overwrite = true});
        CHECK(skipped_of(report) == Names{"l.scale"});
    }
    // In blocks of 128, one scale belongs to all of these columns, but three belong to nothing.
    const std::vector<LazyTensor> unfit = {tensor("l.weight", Dtype::f8_e4m3, {4, 4}),
                                           of_floats("l.scale", {3}, {1, 2, 3})};
    CHECK_FAULT(save(dir / "out", unfit, {.apply_scales = true, .overwrite = true}), Errc::quantized_cast);
}

TEST_CASE("float models with names that look like scales are cast") {
    const TempDir dir;
    const std::vector<LazyTensor> model = {
        tensor("l.weight", Dtype::f32, {4, 4}), tensor("l.weight_scale", Dtype::f32, {4}),
        tensor("l.scales", Dtype::f32, {4}), tensor("b.weight", Dtype::f8_e4m3, {4})};
    CHECK_OK(save(dir / "out", model, {.dtype = Dtype::bf16}));
}

TEST_CASE("a cast to F8 has a note that there are no scales") {
    const TempDir dir;
    const std::vector<LazyTensor> model = {tensor("l.weight", Dtype::f32, {4, 4})};
    CHECK(has_note(save(dir / "a", model, {.dtype = Dtype::f8_e4m3}), "no scales"));
    CHECK(!has_note(save(dir / "b", model, {.dtype = Dtype::bf16}), "no scales"));
}

TEST_CASE("a cast of F8 numbers without scales has a note that other files may have them") {
    const TempDir dir;
    const std::vector<LazyTensor> model = {tensor("l.weight", Dtype::f8_e4m3, {4, 4}), tensor("norm", Dtype::f32, {4})};
    CHECK(save(dir / "a", model, {.dtype = Dtype::bf16}).notes.size() == 1);
    CHECK(save(dir / "b", model, {.dtype = Dtype::bf16, .keep_dtype = Selection::glob("l.*")}).notes.empty());
    CHECK(save(dir / "c", model).notes.empty());
}

TEST_CASE("a selection and new names do not hide what is quantised") {
    const TempDir dir;
    const Checkpoint model = Checkpoint::open(reports / "wscale.safetensors");
    const Checkpoint weights = model.select(Selection::glob("*.weight"));
    CHECK_FAULT(save(dir / "a", weights, {.dtype = Dtype::bf16}), Errc::quantized_cast);
    const Checkpoint scales = model.select(Selection::glob("*.weight_scale"));
    CHECK_FAULT(save(dir / "a", scales, {.dtype = Dtype::bf16}), Errc::quantized_cast);
    const Checkpoint others = model.select(Selection::glob("norm*"));
    CHECK_OK(save(dir / "norm", others, {.dtype = Dtype::f16}));
    const Checkpoint renamed = model.renamed([](std::string_view name) {
        return name == "l.weight" ? std::string("proj") : name == "l.weight_scale" ? "factor" : std::string(name);
    });
    CHECK_FAULT(save(dir / "a", renamed, {.dtype = Dtype::bf16}), Errc::quantized_cast);

    save(dir / "whole", model, {.apply_scales = true});
    const auto wanted = read_file(dir / "whole/model.safetensors").at("l.weight").bytes;
    save(dir / "part", weights, {.apply_scales = true});
    CHECK(read_file(dir / "part/model.safetensors").at("l.weight").bytes == wanted);
    const SaveReport report = save(dir / "renamed", renamed, {.apply_scales = true});
    CHECK(read_file(dir / "renamed/model.safetensors").at("proj").bytes == wanted);
    CHECK(skipped_of(report) == Names{"factor", "l.input_scale"});
}

TEST_CASE("dtype_of wins over dtype, the last match counts, and keep_dtype wins over both") {
    const TempDir dir;
    std::vector<LazyTensor> model;
    for (const char* const name : {"a.weight", "a.norm", "b.norm", "c.norm"})
        model.push_back(tensor(name, Dtype::f32, {4, 4}));
    model.push_back(tensor("ids", Dtype::i64, {4}));
    const fs::path out = dir / "out.safetensors";
    save(out, model,
         {.dtype = Dtype::bf16,
          .dtype_of = {{Selection::glob("*norm"), Dtype::f64}, {Selection::glob("b.*"), Dtype::f16}},
          .keep_dtype = Selection::glob("c.*")});
    CHECK(dtype_in(out, "a.weight") == Dtype::bf16);
    CHECK(dtype_in(out, "a.norm") == Dtype::f64);
    CHECK(dtype_in(out, "b.norm") == Dtype::f16);
    CHECK(dtype_in(out, "c.norm") == Dtype::f32);
    CHECK(dtype_in(out, "ids") == Dtype::i64);
    save(out, model, {.dtype_of = {{Selection::glob("a.*"), Dtype::f16}}, .overwrite = true});
    CHECK(dtype_in(out, "a.weight") == Dtype::f16);
    CHECK(dtype_in(out, "b.norm") == Dtype::f32);
    CHECK_FAULT(save(out, model, {.dtype_of = {{Selection(), Dtype::i64}}, .overwrite = true}), Errc::unsupported_cast);
    const Checkpoint fp8 = Checkpoint::open(reports / "dsv3.safetensors");
    const SaveOptions scales_alone{.dtype_of = {{Selection::glob("*scale*"), Dtype::bf16}}, .overwrite = true};
    CHECK_FAULT(save(out, fp8, scales_alone), Errc::quantized_cast);
    save(out, fp8, {.dtype_of = {{Selection::glob("l.*"), Dtype::f16}}, .apply_scales = true, .overwrite = true});
    CHECK(dtype_in(out, "l.weight") == Dtype::f16);
}

TEST_CASE("tensors that keep their dtype stay quantised beside products") {
    const TempDir dir;
    std::vector<LazyTensor> model;
    for (const char* const name : {"a", "b"}) {
        model.push_back(tensor(std::string(name) + ".weight", Dtype::f8_e4m3, {4, 4}));
        model.push_back(of_floats(std::string(name) + ".scale_weight", {}, {2.0F}));
    }
    model.push_back(tensor("scaled_fp8", Dtype::f8_e4m3, {2}));
    const SaveReport report =
        save(dir / "out.safetensors", model, {.keep_dtype = Selection::glob("b.weight"), .apply_scales = true});
    const auto written = read_file(dir / "out.safetensors");
    CHECK(written.at("a.weight").dtype == Dtype::bf16);
    CHECK(written.at("b.weight").dtype == Dtype::f8_e4m3);
    CHECK(written.contains("b.scale_weight"));
    CHECK(written.contains("scaled_fp8"));
    CHECK(skipped_of(report) == Names{"a.scale_weight"});
}

TEST_CASE("ComfyUI's marks of parts go with the scales of their parts, and are never cast") {
    const TempDir dir;
    std::vector<LazyTensor> model;
    for (const char* const part : {"model.diffusion_model.", "te."}) {
        model.push_back(tensor(std::string(part) + "l.weight", Dtype::f8_e4m3, {4, 4}));
        model.push_back(of_floats(std::string(part) + "l.scale_weight", {}, {2}));
        model.push_back(tensor(std::string(part) + "scaled_fp8", Dtype::f8_e4m3, {2}));
    }
    const SaveReport all = save(dir / "all.safetensors", model, {.apply_scales = true});
    CHECK(skipped_of(all).contains("te.scaled_fp8"));
    CHECK(skipped_of(all).size() == 4);
    const SaveReport some =
        save(dir / "some.safetensors", model, {.keep_dtype = Selection::glob("te.*"), .apply_scales = true});
    CHECK(skipped_of(some) == Names{"model.diffusion_model.l.scale_weight", "model.diffusion_model.scaled_fp8"});
    CHECK_FALSE(has_note(some, "no scales"));

    const std::vector<LazyTensor> no_scales = {tensor("l.weight", Dtype::f8_e4m3, {4, 4}),
                                               tensor("scaled_fp8", Dtype::f8_e4m3, {2}),
                                               tensor("x.scaled_fp8", Dtype::f32, {2})};
    const SaveReport cast = save(dir / "cast.safetensors", no_scales, {.dtype = Dtype::bf16});
    CHECK(dtype_in(dir / "cast.safetensors", "l.weight") == Dtype::bf16);
    CHECK(dtype_in(dir / "cast.safetensors", "scaled_fp8") == Dtype::f8_e4m3);
    CHECK(dtype_in(dir / "cast.safetensors", "x.scaled_fp8") == Dtype::bf16);
    CHECK(cast.notes.at(0).starts_with("1 F8 tensor is cast without scales"));
    const SaveReport none = save(dir / "none.safetensors", no_scales, {.apply_scales = true});
    CHECK(none.notes.at(1).starts_with("1 F8 tensor has no scales"));
}

TEST_CASE("scales of the first dimensions may have dimensions of size 1 behind them") {
    const TempDir dir;
    for (const Shape& shape : {Shape{4}, Shape{4, 1}, Shape{4, 1, 1}, Shape{4, 1, 1, 1}, Shape{4, 1, 1, 1, 1}}) {
        const std::vector<LazyTensor> model = {tensor("c.weight", Dtype::f8_e4m3, {4, 3, 2, 2}, 7),
                                               of_floats("c.weight_scale", shape, {1, 2, 3, 4})};
        save(dir / "out.safetensors", model, {.dtype = Dtype::f32, .apply_scales = true, .overwrite = true});
        const TensorView numbers = model[0].cast(Dtype::f32).load();
        const Checkpoint out = Checkpoint::open(dir / "out.safetensors");
        const TensorView values = out["c.weight"].load();
        for (std::size_t i = 0; i < 48; ++i) {
            const float wanted = numbers.as<float>()[i] * static_cast<float>(i / 12 + 1);
            CHECK((values.as<float>()[i] == wanted || std::isnan(wanted)));
        }
    }
}

TEST_CASE("scales that several tensors share, two scales, and zero points") {
    const TempDir dir;
    const auto numbers = [](const char* name) { return tensor(name, Dtype::f8_e4m3, {4, 4}); };
    const std::vector<LazyTensor> two = {numbers("l.weight"), of_floats("l.weight_scale", {}, {2}),
                                         of_floats("l.scale_weight", {}, {2})};
    CHECK_FAULT(save(dir / "a", two, {.apply_scales = true}), Errc::quantized_cast);
    const std::vector<LazyTensor> zero = {numbers("l.weight"), of_floats("l.weight_scale", {}, {2}),
                                          of_floats("l.weight_zero_point", {}, {1})};
    CHECK_FAULT(save(dir / "a", zero, {.apply_scales = true}), Errc::quantized_cast);
    const std::vector<LazyTensor> whole = {numbers("l.weight"), tensor("l.weight_scale", Dtype::i32, {1})};
    CHECK_FAULT(save(dir / "a", whole, {.apply_scales = true}), Errc::quantized_cast);
    const std::vector<LazyTensor> unfit = {numbers("l.weight"), of_floats("l.weight_scale", {3}, {1, 2, 3})};
    CHECK_FAULT(save(dir / "a", unfit, {.apply_scales = true}), Errc::quantized_cast);
    const std::vector<LazyTensor> none = {tensor("l.weight", Dtype::bf16, {4})};
    const SaveReport report = save(dir / "none", none, {.apply_scales = true});
    CHECK(report.notes.size() == 1);
    CHECK(dtype_in(dir / "none/model.safetensors", "l.weight") == Dtype::bf16);
}

TEST_CASE("numbers with a second factor or an offset have no product, and stay with all of them") {
    const TempDir dir;
    for (const char* const scale : {"weight_scale", "weight_scale_inv", "scale_weight"})
        for (const char* const factor :
             {"weight_scale_2", "weight_global_scale", "weight_offset", "weight_zero_point"}) {
            CAPTURE(factor);
            std::vector<LazyTensor> model;
            for (const std::string layer : {"0.", "1."}) {
                model.push_back(tensor(layer + "weight", Dtype::f8_e4m3, {4, 4}));
                model.push_back(of_floats(layer + scale, {4, 1}, {1, 2, 3, 4}));
                model.push_back(of_floats(layer + factor, {}, {2}));
            }
            model.push_back(tensor("norm", Dtype::f32, {4}));
            const SaveOptions products{.dtype = Dtype::bf16, .apply_scales = true};
            const auto refused = error_of([&] { save(dir / "a", model, products); });
            check_error(refused, {Errc::quantized_cast}, {});
            CHECK(refused->tensor() == "0.weight");
            CHECK(refused->message().find(std::string("'0.") + factor + "' too") != std::string::npos);
            const auto cast = error_of([&] { save(dir / "a", model, {.dtype = Dtype::bf16}); });
            REQUIRE(cast);
            CHECK(cast->hint().find("--apply-scales") == std::string::npos);
            for (const auto& error : {*refused, *cast})
                for (const bool apply : {false, true}) {
                    save(dir / "kept.safetensors", model,
                         {.dtype = Dtype::bf16,
                          .keep_dtype = kept_by_hint(error),
                          .apply_scales = apply,
                          .overwrite = true});
                    for (const LazyTensor& each : model)
                        CHECK(dtype_in(dir / "kept.safetensors", each.name()) ==
                              (each.name() == "norm" ? Dtype::bf16 : each.dtype()));
                }
        }
}

TEST_CASE("scales whose numbers are in other files are not cast") {
    const TempDir dir;
    const std::vector<std::vector<LazyTensor>> shards = {
        {tensor("l.weight_scale_inv", Dtype::f32, {2, 2}), tensor("norm", Dtype::f32, {4})},
        {tensor("l.qzeros", Dtype::i32, {1, 1}), tensor("l.scales", Dtype::f32, {1, 8}),
         tensor("norm", Dtype::f32, {4})}};
    for (const auto& shard : shards) {
        const auto error = error_of([&] { save(dir / "a", shard, {.dtype = Dtype::bf16}); });
        check_error(error, {Errc::quantized_cast}, {});
        CHECK(error->hint().starts_with("convert all files of the model together, or copy them"));
        save(dir / "kept.safetensors", shard,
             {.dtype = Dtype::bf16, .keep_dtype = kept_by_hint(*error), .overwrite = true});
        for (const LazyTensor& each : shard)
            CHECK(dtype_in(dir / "kept.safetensors", each.name()) ==
                  (each.name() == "norm" ? Dtype::bf16 : each.dtype()));
        CHECK_OK(save(dir / "copy", shard, {.overwrite = true}));
    }
    // Any model may have a parameter with this name. In a shard, other files have what belongs to it.
    const std::vector<LazyTensor> model = {tensor("l.weight_scale", Dtype::f32, {4}), tensor("norm", Dtype::f32, {4})};
    const std::string shard = dir / "model-00002-of-00002.safetensors";
    save(dir / "one.safetensors", model);
    fs::copy_file(dir / "one.safetensors", shard);
    const SaveReport report = save(dir / "b", Checkpoint::open(dir / "one.safetensors"), {.dtype = Dtype::bf16});
    CHECK(report.notes == std::vector<std::string>{
                              "'l.weight_scale' is cast, and the name is one of scales: if quantised numbers such as "
                              "'l.weight' are in other files, convert all files together"});
    CHECK_FAULT(save(dir / "c", Checkpoint::open(shard), {.dtype = Dtype::bf16}), Errc::quantized_cast);
    const Checkpoint part = Checkpoint::open(shard).select(Selection::glob("norm"));
    CHECK_OK(save(dir / "c", part, {.dtype = Dtype::bf16}));
}

TEST_CASE("the scales of kept numbers keep their dtype beside products, and no product has scales") {
    const TempDir dir;
    const std::vector<LazyTensor> model = {
        tensor("a.weight", Dtype::f8_e4m3, {4, 4}), of_floats("a.weight_scale", {}, {2}),
        of_floats("a.input_scale", {}, {2}),        tensor("b.weight", Dtype::f8_e4m3, {4, 4}),
        of_floats("b.weight_scale", {}, {2}),       tensor("norm", Dtype::f32, {4})};
    const fs::path out = dir / "out.safetensors";
    for (const char* const kept : {"a.weight", "*.weight"}) {
        SaveOptions options{
            .dtype = Dtype::bf16, .keep_dtype = Selection::glob(kept), .apply_scales = true, .overwrite = true};
        save_everywhere(out, model, options);
        for (const char* const name : {"a.weight_scale", "a.input_scale"}) CHECK(dtype_in(out, name) == Dtype::f32);
        CHECK(dtype_in(out, "a.weight") == Dtype::f8_e4m3);
        CHECK(dtype_in(out, "norm") == Dtype::bf16);
        const std::vector<std::string> notes = save(out, model, options).notes;
        const char* const none_note = "no scales are applied: keep_dtype keeps all numbers";
        CHECK(std::ranges::count(notes, none_note) == (kept[0] == '*' ? 1 : 0));
        options.dtype_of = {{Selection::glob("a.*"), Dtype::f16}};
        const auto error = error_of([&] { save(out, model, options); });
        check_error(error, {Errc::quantized_cast}, {});
        CHECK(error->hint().starts_with("copy them as they are:"));
    }
    const auto fp8_notes = [&](const SaveOptions& options) {
        const SaveReport report = save(out, model, options);
        return std::ranges::count_if(report.notes,
                                     [](const auto& note) { return note.find("no scales") != std::string::npos; });
    };
    for (const Dtype dtype : {Dtype::f8_e4m3, Dtype::f8_e5m2}) {
        CHECK(fp8_notes(
                  {.dtype_of = {{Selection::glob("*.weight"), dtype}}, .apply_scales = true, .overwrite = true}) == 1);
        CHECK(fp8_notes({.dtype = dtype, .apply_scales = true, .overwrite = true}) == 1);
    }
    CHECK(fp8_notes({.dtype = Dtype::bf16, .apply_scales = true, .overwrite = true}) == 0);
}

TEST_CASE("a parameter that shares its storage with a scale is written, under its own names") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("a.weight", Dtype::f8_e4m3, {4, 4}),
                                             of_floats("a.weight_scale", {}, {2}), of_floats("a.input_scale", {}, {3}),
                                             tensor("norm", Dtype::bf16, {2})};
    using Pairs = std::map<std::string, std::string>;
    const Pairs ties = {{"gain", "a.weight_scale"},
                        {"logit_scale", "a.weight_scale"},
                        {"temperature", "a.weight_scale"},
                        {"b.k_scale", "a.input_scale"},
                        {"note", "text"}};
    save(dir / "in.safetensors", tensors, {.metadata = ties});
    const Checkpoint model = Checkpoint::open(dir / "in.safetensors");
    REQUIRE(model.aliases().size() == 2);
    for (const bool exact : {false, true}) {
        SaveOptions options{.apply_scales = true, .overwrite = true};
        options.exact_metadata = exact;
        if (exact) options.metadata = ties;
        const SaveReport report = save_everywhere(dir / "out.safetensors", model, options);
        const Checkpoint out = Checkpoint::open(dir / "out.safetensors");
        CHECK(skipped_of(report) == Names{"a.weight_scale", "a.input_scale"});
        CHECK(names_of(out) == Names{"a.weight", "gain", "b.k_scale", "norm"});
        const auto value = [&](const char* name) {
            const TensorView view = out[name].load();
            return view.as<float>()[0];
        };
        CHECK(value("temperature") == 2);
        CHECK(value("logit_scale") == 2);
        CHECK(value("b.k_scale") == 3);
        CHECK(std::ranges::count(out.metadata(), std::pair<std::string, std::string>("note", "text")) == 1);
        for (const AliasGroup& group : out.aliases()) CHECK(group == AliasGroup{"gain", "logit_scale", "temperature"});
    }

    const auto written = [&](const Checkpoint& checkpoint) {
        save(dir / "some.safetensors", checkpoint, {.apply_scales = true, .overwrite = true});
        const Checkpoint out = Checkpoint::open(dir / "some.safetensors");
        Names names = names_of(out);
        for (const AliasGroup& group : out.aliases()) names.insert(group.begin(), group.end());
        return names;
    };
    const auto with_x = [](std::string_view name) { return "x." + std::string(name); };
    CHECK(written(model.renamed(with_x)) ==
          Names{"x.a.weight", "x.gain", "x.logit_scale", "x.temperature", "x.b.k_scale", "x.norm"});
    const Checkpoint some = model.select(Selection::names({"a.weight", "a.weight_scale", "temperature"}));
    CHECK(written(some) == Names{"a.weight", "temperature"});
    CHECK(written(model.select(Selection::names({"a.weight", "temperature"}))) == Names{"a.weight", "temperature"});
    CHECK(written(model.select(Selection::names({"a.weight", "a.weight_scale"}))) == Names{"a.weight"});
    CHECK(written(some.renamed(with_x)).contains("x.temperature"));
}

TEST_CASE("scales that share a storage are all left out") {
    const TempDir dir;
    std::vector<LazyTensor> tensors = {tensor("a.weight", Dtype::f8_e4m3, {4, 4}),
                                       tensor("b.weight", Dtype::f8_e4m3, {4, 4}),
                                       of_floats("a.weight_scale", {}, {2})};
    save(dir / "in.safetensors", tensors,
         {.metadata = {{"b.weight_scale", "a.weight_scale"}, {"a.input_scale", "a.weight_scale"}}});
    const Checkpoint model = Checkpoint::open(dir / "in.safetensors");
    const SaveReport report = save_everywhere(dir / "out.safetensors", model, {.apply_scales = true});
    CHECK(skipped_of(report) == Names{"a.weight_scale", "b.weight_scale", "a.input_scale"});
    const Checkpoint out = Checkpoint::open(dir / "out.safetensors");
    CHECK(names_of(out) == Names{"a.weight", "b.weight"});
    CHECK(out.aliases().empty());
    CHECK(std::ranges::none_of(out.metadata(), [](const auto& pair) { return pair.second == "a.weight_scale"; }));
    save(dir / "kept.safetensors", model, {.keep_dtype = Selection::glob("b.weight"), .apply_scales = true});
    CHECK(Checkpoint::open(dir / "kept.safetensors")["b.weight_scale"].name() == "b.weight_scale");
}

TEST_CASE("block sizes: stated, 128, 32 for powers of two, and refused where several fit") {
    using write::block_of;
    const auto is = [](const std::optional<Shape>& block, const Shape& wanted) { return block && *block == wanted; };
    CHECK(is(block_of({256, 300}, {2, 3}, false, {}), {128, 128}));
    CHECK(is(block_of({200, 300}, {2, 3}, false, {}), {128, 128}));
    CHECK(is(block_of({4, 4}, {1, 1}, false, {}), {4, 4}));
    CHECK(is(block_of({64, 1}, {64, 1}, false, {}), {1, 1}));
    CHECK(is(block_of({64, 300}, {64, 1}, false, {}), {1, 300}));
    CHECK(is(block_of({64, 100}, {64, 4}, true, {}), {1, 32}));
    CHECK(is(block_of({256, 256}, {2, 2}, true, {}), {128, 128}));
    CHECK(is(block_of({3, 256, 200}, {3, 2, 2}, false, {}), {1, 128, 128}));
    CHECK(is(block_of({64, 512}, {64, 8}, false, {}), {1, 64}));
    const std::uint64_t stated[] = {60, 50};
    CHECK(is(block_of({100, 70}, {2, 2}, false, stated), {60, 50}));
    CHECK(is(block_of({3, 100, 70}, {3, 2, 2}, false, stated), {1, 60, 50}));
    CHECK(!block_of({256, 256}, {2, 2}, false, stated));
    CHECK(!block_of({100, 70}, {2, 2}, false, {}));
    CHECK(!block_of({6, 6}, {2, 2}, false, {}));
    CHECK(!block_of({64, 100}, {64, 4}, false, {}));
    CHECK(!block_of({64, 100}, {64, 0}, false, {}));
    CHECK(!block_of({64, 100}, {64}, false, {}));
    CHECK(is(block_of({0, 5}, {0, 1}, false, {}), {1, 5}));
    CHECK(is(block_of({}, {}, false, {}), {}));
}

TEST_CASE("members are removed from JSON, and every other byte stays") {
    using write::without_members;
    const auto is = [](std::string_view text, std::string_view wanted) { CHECK(without_members(text, "q") == wanted); };
    is(R"({"q": 1})", "{}");
    is(R"({"a": 1, "q": {"x": [1, "}"]}, "b": 2})", R"({"a": 1, "b": 2})");
    is(R"({"q": [1], "b": 2})", R"({"b": 2})");
    is("{\n  \"a\": 1,\n  \"q\": \"x\\\"}\"\n}\n", "{\n  \"a\": 1\n}\n");
    is(R"({"a": "q", "b": ["q"], "c": {"q": 1, "d": {"q": null}}})", R"({"a": "q", "b": ["q"], "c": {"d": {}}})");
    is(R"({"a": 1, "q": 1, "q": 2})", R"({"a": 1})");
    is(R"({"a": 1 , "q" : -1.5e3 , "b":true})", R"({"a": 1 , "b":true})");
    is(R"({"qq": 1, "\"q": 2})", R"({"qq": 1, "\"q": 2})");
    is("[]", "[]");
}

TEST_CASE("a folder loses what describes the quantisation, unless a tensor stays quantised") {
    const TempDir dir;
    fs::create_directory(dir / "in");
    fs::copy_file(reports / "wscale.safetensors", dir / "in/model.safetensors");
    const std::string config = "{\n  \"a\": 1,\n  \"quantization_config\": {\"quant_method\": \"fp8\"}\n}\n";
    dir.write("in/config.json", config);
    dir.write("in/hf_quant_config.json", "{}");
    const Checkpoint model = Checkpoint::open(dir / "in");
    const SaveReport report = save(dir / "out", model, {.apply_scales = true, .extras = model.extras()});
    CHECK(TempDir::read(dir / "out/config.json") == "{\n  \"a\": 1\n}\n");
    CHECK(!fs::exists(dir / "out/hf_quant_config.json"));
    CHECK(report.notes.size() == 2);
    save(dir / "kept", model,
         {.keep_dtype = Selection::glob("l.weight"), .apply_scales = true, .extras = model.extras()});
    CHECK(TempDir::read(dir / "kept/config.json") == config);
    save(dir / "copy", model, {.extras = model.extras()});
    CHECK(TempDir::read(dir / "copy/config.json") == config);
    dir.write("in/config.json", "{not JSON");
    const Checkpoint broken = Checkpoint::open(dir / "in");
    save(dir / "broken", broken, {.apply_scales = true, .extras = broken.extras()});
    CHECK(TempDir::read(dir / "broken/config.json") == "{not JSON");
}

TEST_CASE("a stated block size counts wherever config.json has it, and two that differ are refused") {
    const auto stated = [](const std::string& text) {
        const auto bytes = std::as_bytes(std::span(text));
        Extras extras;
        extras.files.push_back({"config.json", memory_source("memory", {bytes.begin(), bytes.end()})});
        return write::stated_block(extras);
    };
    using Block = std::vector<std::uint64_t>;
    const Block wanted = {80, 40};
    CHECK(stated(R"({"quantization_config": {"weight_block_size": [80, 40]}})") == wanted);
    CHECK(stated(R"({"text_config": {"quantization_config": {"weight_block_size": [80, 40]}}})") == wanted);
    CHECK(stated(R"({"quantization_config": {"config_groups": {"group_0": {"weights": {"block_structure": [80, 40]},
                     "input_activations": {"block_structure": [1, 128]}}}}})") == wanted);
    CHECK(stated(R"({"compression_config": {"config_groups": {"a": {"weights": {"block_structure": [80, 40]}},
                     "b": {"weights": {"block_structure": [80, 40]}}}}})") == wanted);
    CHECK(stated(R"({"quantization_config": {"weight_block_size": null}})").empty());
    CHECK(stated(R"({"quantization_config": {"weight_block_size": [0, 40]}, "x": 1})").empty());
    CHECK(stated("[1]").empty());
    CHECK_FAULT(stated(R"({"quantization_config": {"weight_block_size": [80, 40]},
                           "text_config": {"quantization_config": {"weight_block_size": [128, 128]}}})"),
                Errc::quantized_cast);
}

TEST_CASE("files that describe the quantisation in other ways lose it, or have a note") {
    const TempDir dir;
    fs::create_directory(dir / "in");
    fs::copy_file(reports / "wscale.safetensors", dir / "in/model.safetensors");
    const auto written = [&](const char* name, const std::string& text, std::string_view note) {
        dir.write(std::string("in/") + name, text);
        const Checkpoint model = Checkpoint::open(dir / "in");
        const SaveReport report =
            save(dir / "out", model, {.apply_scales = true, .extras = model.extras(), .overwrite = true});
        CHECK(has_note(report, note));
        fs::remove(dir / "in" / name);
        return TempDir::read(dir / "out" / name);
    };
    CHECK(written("config.json", R"({"a": 1, "compression_config": {"x": 1}})", "its compression_config") ==
          R"({"a": 1})");
    CHECK(written("config.json", R"({"a": 1, "quantization\u005fconfig": {"x": 1}})", "its quantization_config") ==
          R"({"a": 1})");
    CHECK(written("params.json", R"({"dim": 8, "quantization": {"qformat_weight": "fp8_e4m3"}})",
                  "params.json is copied without its quantization") == R"({"dim": 8})");
    for (const char* const text : {R"({"a": NaN, "quantization_config": {}})", R"({"a": -Infinity})",
                                   "\xEF\xBB\xBF{\"quantization_config\": {}}"})
        CHECK(written("config.json", text, "it may still describe the quantisation") == text);
}

TEST_CASE("products are the same in shards, in files of ranks, with checksums, and with every number of threads") {
    const TempDir dir;
    std::vector<LazyTensor> model;
    for (const char* const name : {"a", "b", "c"}) {
        model.push_back(tensor(std::string(name) + ".weight", Dtype::f8_e5m2, {300, 200}, model.size() + 1));
        model.push_back(tensor(std::string(name) + ".weight_scale_inv", Dtype::f32, {3, 2}, model.size() + 1));
    }
    save(dir / "in.safetensors", model);
    const Checkpoint in = Checkpoint::open(dir / "in.safetensors");
    save(dir / "out.safetensors", in, {.apply_scales = true});
    const auto wanted = read_file(dir / "out.safetensors");
    const auto is_same = [&](const Checkpoint& out) {
        CHECK(out.size() == 3);
        for (const LazyTensor& each : out) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(each.nbytes()));
            each.read(0, bytes);
            CHECK(bytes == wanted.at(each.name()).bytes);
        }
    };
    for (const unsigned threads : {1U, 4U}) {
        const Work work{.threads = threads};
        save(dir / "shards", in,
             {.apply_scales = true, .max_shard_size = 150'000, .checksums = true, .overwrite = true, .work = work});
        is_same(Checkpoint::open(dir / "shards"));
        save(dir / "ranks", in,
             {.apply_scales = true, .ranks = 3, .overwrite = true, .drop_cache = true, .work = work});
        is_same(Checkpoint::open(dir / "ranks"));
    }
    save(dir / "shards", in, {.apply_scales = true, .max_shard_size = 150'000, .overwrite = true, .resume = true});
    is_same(Checkpoint::open(dir / "shards"));
}

TEST_CASE("a product counts its casts from the dtype of the numbers") {
    const TempDir dir;
    const auto numbers =
        std::vector<std::byte>{std::byte{0x7E}, std::byte{0x38}, std::byte{0x7F}, std::byte{0}};  // 448, 1
    const std::vector<LazyTensor> model = {
        {"l.weight", stored_run(Dtype::f8_e4m3, {4}, memory_source("memory", numbers), 0)},
        of_floats("l.weight_scale", {1}, {1000}),
        tensor("norm", Dtype::f32, {2})};
    const SaveReport report = save(dir / "out", model, {.dtype = Dtype::f16, .apply_scales = true});
    const auto cast = std::ranges::find(report.casts, Dtype::f8_e4m3, &SaveReport::Cast::from);
    REQUIRE(cast != report.casts.end());
    CHECK(cast->to == Dtype::f16);
    CHECK(cast->tensors == 1);
    CHECK(cast->values == 4);
    CHECK(cast->overflowed == 1);
    CHECK(cast->non_finite == 1);
}

}  // namespace quantized_test
