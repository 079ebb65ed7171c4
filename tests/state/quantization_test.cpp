// Tests which tensors count as quantised: one row for each convention, and float models that only look like them.
#include "state/quantization.hpp"

#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace quantization_test {

using namespace safemap;
using state::find_quantized;
using state::Quantization;
using state::Quantized;
using state::QuantizedTensors;

namespace {

struct Named {
    std::string name;
    Dtype dtype;
    Shape shape = {4, 4};
};

std::vector<LazyTensor> tensors_of(const std::vector<Named>& all) {
    std::vector<LazyTensor> tensors;
    for (const Named& each : all) {
        const auto bytes = static_cast<std::size_t>(*byte_size(each.dtype, *element_count(each.shape)));
        tensors.emplace_back(
            each.name, stored_run(each.dtype, each.shape, memory_source("memory", std::vector<std::byte>(bytes)), 0));
    }
    return tensors;
}

/// Returns the names of a quantised tensor, of its scales and of the tensors beside it, as one text.
std::string text_of(const std::vector<LazyTensor>& tensors, const Quantized& quantized) {
    std::string text = tensors[quantized.numbers].name() + ":";
    for (const auto i : quantized.scales) text += " " + tensors[i].name();
    for (const auto i : quantized.besides) text += " +" + tensors[i].name();
    return text;
}

std::vector<std::string> found(const std::vector<Named>& all, const std::vector<AliasGroup>& ties = {}) {
    const std::vector<LazyTensor> tensors = tensors_of(all);
    std::vector<std::string> texts;
    for (const Quantized& quantized : find_quantized(tensors, ties).all) texts.push_back(text_of(tensors, quantized));
    return texts;
}

Quantization kind_of(const std::vector<Named>& all) {
    const std::vector<LazyTensor> tensors = tensors_of(all);
    return find_quantized(tensors, {}).all.at(0).name.kind;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("F8 numbers and their scales, under the names of each convention") {
    for (const Dtype f8 : {Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz}) {
        const auto pair = [&](const std::string& numbers, const std::string& scale) {
            const std::vector<Named> all = {{numbers, f8}, {scale, Dtype::f32, {4, 1}}};
            CHECK(found(all) == Texts{numbers + ": " + scale});
            CHECK(kind_of(all) == Quantization::scaled_fp8);
        };
        pair("a.l.weight", "a.l.scale_weight");
        pair("a.l.weight", "a.l.weight_scale");
        pair("a.l.weight", "a.l.weight_scale_inv");
        pair("a.l.weight", "a.l.weight_scales");
        pair("a.l.weight", "a.l.qscale_weight");
        pair("a.l.weight", "a.l.scale");
        CHECK(found({{"l.weight", f8}, {"l.scale", Dtype::f32, {}}}) == Texts{"l.weight: l.scale"});
        CHECK(found({{"l.weight", f8}, {"l.scale", Dtype::bf16, {4}}}) == Texts{"l.weight: l.scale"});
        pair("weight", "weight_scale");
        pair("m/l.weight", "m/l.weight_scale");
        pair("a.experts.gate_up_proj", "a.experts.gate_up_proj_scale");
        pair("a.experts.gate_up_proj", "a.experts.gate_up_proj_scale_inv");
    }
    CHECK(found({{"l.weight", Dtype::f8_e4m3},
                 {"l.weight_scale", Dtype::f32, {1}},
                 {"l.input_scale", Dtype::f32, {1}},
                 {"l.bias", Dtype::f32}}) == Texts{"l.weight: l.weight_scale +l.input_scale"});
    CHECK(found({{"l.weight", Dtype::f8_e4m3}, {"l.weight_scale", Dtype::f8_e8m0, {4, 1}}}) ==
          Texts{"l.weight: l.weight_scale"});
}

TEST_CASE("ComfyUI's marks of whole models are found beside its scales only") {
    const auto marks = [](const std::vector<Named>& all) { return find_quantized(tensors_of(all), {}).markers; };
    CHECK(marks({{"m.scaled_fp8", Dtype::f8_e4m3, {2}}, {"m.w.weight", Dtype::f8_e4m3}}).empty());
    CHECK(marks({{"scaled_fp8", Dtype::f8_e4m3, {2}},
                 {"w.weight", Dtype::f8_e4m3},
                 {"w.scale_weight", Dtype::f32, {}}}) == std::vector<std::uint32_t>{0});
}

TEST_CASE("packed numbers, under the names of each convention") {
    const auto is = [](const std::vector<Named>& all, const Texts& texts) {
        CHECK(found(all) == texts);
        CHECK(kind_of(all) == Quantization::packed);
    };
    is({{"l.qweight", Dtype::i32}, {"l.qzeros", Dtype::i32}, {"l.scales", Dtype::f16}, {"l.g_idx", Dtype::i32}},
       {"l.qweight: l.scales +l.qzeros +l.g_idx"});
    is({{"l.qweight", Dtype::i32}, {"l.qzeros", Dtype::i32}, {"l.scales", Dtype::f16}},
       {"l.qweight: l.scales +l.qzeros"});
    for (const Dtype storage : {Dtype::u8, Dtype::bf16, Dtype::f32})
        is({{"l.weight", storage},
            {"l.weight.absmax", Dtype::f32},
            {"l.weight.quant_map", Dtype::f32},
            {"l.weight.nested_absmax", Dtype::f32},
            {"l.weight.quant_state.bitsandbytes__nf4", Dtype::u8}},
           {"l.weight: l.weight.quant_map +l.weight.absmax +l.weight.nested_absmax "
            "+l.weight.quant_state.bitsandbytes__nf4"});
    is({{"l.weight", Dtype::i8}, {"l.SCB", Dtype::f32}, {"l.weight_format", Dtype::u8}},
       {"l.weight: l.SCB +l.weight_format"});
    is({{"l.weight", Dtype::u8}, {"l.weight_scale", Dtype::f8_e4m3}, {"l.weight_scale_2", Dtype::f32, {}}},
       {"l.weight: l.weight_scale +l.weight_scale_2"});
    is({{"l.weight_packed", Dtype::u8}, {"l.weight_scale", Dtype::f8_e4m3}, {"l.weight_global_scale", Dtype::f32}},
       {"l.weight_packed: l.weight_scale +l.weight_global_scale"});
    is({{"l.weight_packed", Dtype::i32}, {"l.weight_scale", Dtype::bf16}, {"l.weight_shape", Dtype::i64}},
       {"l.weight_packed: l.weight_scale +l.weight_shape"});
    is({{"l.weight", Dtype::i8}, {"l.weight_scale", Dtype::bf16}}, {"l.weight: l.weight_scale"});
    is({{"l.weight", Dtype::i8}, {"l.scale_weight", Dtype::f32}}, {"l.weight: l.scale_weight"});
    is({{"l.weight", Dtype::i8}, {"l.weight_scale", Dtype::f32}, {"l.weight_offset", Dtype::f32}},
       {"l.weight: l.weight_scale +l.weight_offset"});
    is({{"e.down_proj_blocks", Dtype::u8}, {"e.down_proj_scales", Dtype::u8}},
       {"e.down_proj_blocks: e.down_proj_scales"});
    is({{"l.qweight", Dtype::i32}, {"l.scales", Dtype::f16}, {"l.scaled_zeros", Dtype::f16}},
       {"l.qweight: l.scales +l.scaled_zeros"});
    is({{"l.qweight", Dtype::i8}, {"l.weight_scales", Dtype::f16}}, {"l.qweight: l.weight_scales"});
    is({{"l.B", Dtype::i32}, {"l.s", Dtype::f16}, {"l.workspace", Dtype::i32}}, {"l.B: l.s +l.workspace"});
    is({{"l.W_q", Dtype::u8}, {"l.scale", Dtype::f16}, {"l.zero", Dtype::f16}}, {"l.W_q: l.scale +l.zero"});
    is({{"l.codes", Dtype::i16}, {"l.codebooks", Dtype::f16}, {"l.scales", Dtype::f16}},
       {"l.codes: l.codebooks +l.scales"});
    is({{"l.weight._data", Dtype::i8}, {"l.weight._scale", Dtype::bf16}}, {"l.weight._data: l.weight._scale"});
    is({{"q", Dtype::qint8}, {"q/scales", Dtype::f64}, {"q/zero_points", Dtype::f32}}, {"q: q/scales +q/zero_points"});
    is({{"l.weight", Dtype::f4}, {"l.weight_scale", Dtype::f8_e8m0}}, {"l.weight: l.weight_scale"});
    is({{"l.weight", Dtype::u32}, {"l.scales", Dtype::bf16}, {"l.biases", Dtype::bf16}},
       {"l.weight: l.scales +l.biases"});
    is({{"l.weight", Dtype::u32}, {"l.scales", Dtype::u8}}, {"l.weight: l.scales"});
    is({{"l.qweight", Dtype::i8}, {"l.wscales", Dtype::bf16}, {"l.smooth", Dtype::bf16}},
       {"l.qweight: l.wscales +l.smooth"});
    for (const Dtype dtype : {Dtype::f8_e4m3, Dtype::i8, Dtype::u8, Dtype::i32}) {
        is({{"l._weight_qdata", dtype}, {"l._weight_scale", Dtype::f32}, {"l._weight_zero_point", Dtype::f32}},
           {"l._weight_qdata: l._weight_scale +l._weight_zero_point"});
        is({{"l.weight:qdata", dtype}, {"l.weight:scale", Dtype::f32}, {"l.weight:zero_point", Dtype::f32}},
           {"l.weight:qdata: l.weight:scale +l.weight:zero_point"});
    }
}

TEST_CASE("float models with names that look like scales are not quantised") {
    CHECK(found({{"l.weight", Dtype::bf16}, {"l.weight_scale", Dtype::f32}}).empty());
    CHECK(found({{"l.weight", Dtype::f32}, {"l.scale_weight", Dtype::f32}}).empty());
    CHECK(found({{"l.scales", Dtype::f32}, {"l.qzeros", Dtype::f32}}).empty());
    CHECK(found({{"l.qweight", Dtype::f32}, {"l.scales", Dtype::f32}}).empty());
    CHECK(found({{"l.weight_scale", Dtype::f32}}).empty());
    CHECK(found({{"norm.scale", Dtype::f8_e4m3}, {"norm.weight", Dtype::f32}}).empty());
    CHECK(found({{"a.weight", Dtype::f8_e4m3}, {"b.weight_scale", Dtype::f32}}).empty());
    CHECK(found({{"ids", Dtype::i64}, {"ids_scale", Dtype::f32}}).empty());
    CHECK(found({{"l.weight", Dtype::f32}, {"l.scales", Dtype::f32}, {"l.biases", Dtype::f32}}).empty());
    CHECK(found({{"l.qweight", Dtype::f32}, {"l.wscales", Dtype::f32}}).empty());
    CHECK(found({{"l._weight_qdata", Dtype::f32}, {"l._weight_scale", Dtype::f32}}).empty());
    CHECK(found({{"l.weight:qdata", Dtype::bf16}, {"l.weight:scale", Dtype::f32}}).empty());
    CHECK(found({{"l.weight", Dtype::f32}, {"l.scale", Dtype::f32, {}}}).empty());
    // A vector called `scale` is usual in float models that were cast to F8 as a whole.
    CHECK(found({{"norm.weight", Dtype::f8_e4m3}, {"norm.scale", Dtype::f8_e4m3, {4}}}).empty());
    // A state space model has a `B`, and any model an `s`.
    CHECK(found({{"l.B", Dtype::f32}, {"l.s", Dtype::f16}}).empty());
    CHECK(found({{"l.B", Dtype::i32}, {"l.s", Dtype::f32}}).empty());
    CHECK(found({{"l.B", Dtype::i32, {4}}, {"l.s", Dtype::f16}}).empty());
    CHECK(found({{"l.B", Dtype::i32}, {"l.s", Dtype::f16, {4}}}).empty());
    CHECK(found({{"l.B", Dtype::i8}, {"l.s", Dtype::f16}}).empty());
    CHECK(found({{"x.weight.absmax", Dtype::f32}, {"x.weight", Dtype::bf16}}).empty());
}

TEST_CASE("names of tied tensors count, and two scales of one tensor are both found") {
    const std::vector<AliasGroup> scales = {{"a.weight_scale", "b.weight_scale"}};
    CHECK(found({{"a.weight", Dtype::f8_e4m3}, {"b.weight", Dtype::f8_e4m3}, {"a.weight_scale", Dtype::f32, {}}},
                scales) == Texts{"a.weight: a.weight_scale", "b.weight: a.weight_scale"});
    const std::vector<AliasGroup> numbers = {{"a.weight", "b.weight"}};
    CHECK(found({{"a.weight", Dtype::f8_e4m3}, {"a.weight_scale", Dtype::f32, {}}, {"b.weight_scale", Dtype::f32, {}}},
                numbers) == Texts{"a.weight: a.weight_scale b.weight_scale"});
    CHECK(
        found({{"a.weight", Dtype::f8_e4m3}, {"a.weight_scale", Dtype::f32, {}}, {"a.scale_weight", Dtype::f32, {}}}) ==
        Texts{"a.weight: a.scale_weight a.weight_scale"});
}

TEST_CASE("names that tied tensors have beside those of scales are reported") {
    const auto others = [](const std::vector<Named>& all, const std::vector<AliasGroup>& ties) {
        return find_quantized(tensors_of(all), ties).other_names;
    };
    const std::vector<Named> all = {{"a.weight", Dtype::f8_e4m3}, {"x", Dtype::f32, {}}, {"g", Dtype::f32, {}}};
    using Names = std::set<std::string, std::less<>>;
    CHECK(others(all, {{"x", "a.weight_scale", "y"}, {"g", "a.input_scale"}}) == Names{"x", "y", "g"});
    CHECK(others(all, {{"x", "a.weight_scale"}, {"g", "b.input_scale"}}) == Names{"x"});
    CHECK(others(all, {{"x", "y"}}).empty());
    CHECK(others({{"a.weight", Dtype::f8_e4m3}, {"b.weight", Dtype::f8_e4m3}, {"a.weight_scale", Dtype::f32, {}}},
                 {{"a.weight_scale", "b.weight_scale", "a.input_scale"}})
              .empty());
}

TEST_CASE("what else the values of F8 numbers depend on is reported, for the scales of each convention") {
    for (const char* const scale :
         {"weight_scale", "weight_scale_inv", "scale_weight", "weight_scales", "qscale_weight", "scale"})
        for (const char* const factor : {"weight_scale_2", "weight_global_scale", "weight_offset", "weight_zero_point",
                                         "weight_g_idx", "pre_quant_scale"}) {
            CAPTURE(factor);
            const auto all = tensors_of({{"a.weight", Dtype::f8_e4m3},
                                         {std::string("a.") + scale, Dtype::f32, {}},
                                         {std::string("a.") + factor, Dtype::f16, {}},
                                         {"b.weight", Dtype::f8_e4m3},
                                         {std::string("b.") + scale, Dtype::f32, {}},
                                         {"b.input_scale", Dtype::f32, {}}});
            const QuantizedTensors quantized = find_quantized(all, {});
            REQUIRE(quantized.all.size() == 2);
            CHECK(quantized.all[0].more_factors == std::vector<std::uint32_t>{2});
            CHECK(quantized.all[0].besides == std::vector<std::uint32_t>{2});
            CHECK(quantized.all[1].more_factors.empty());
        }
}

TEST_CASE("scales whose numbers are not there are reported, by names that only scales have") {
    const auto lone = [](const std::vector<Named>& all) {
        const std::vector<LazyTensor> tensors = tensors_of(all);
        Texts texts;
        for (const auto& each : find_quantized(tensors, {}).lone)
            texts.push_back((each.is_sure ? "" : "? ") + tensors[each.scale].name() + ": " + each.numbers);
        return texts;
    };
    CHECK(lone({{"l.weight_scale_inv", Dtype::f32}}) == Texts{"l.weight_scale_inv: l.weight"});
    CHECK(lone({{"e.down_proj_scale_inv", Dtype::bf16}}) == Texts{"e.down_proj_scale_inv: e.down_proj"});
    CHECK(lone({{"l.qzeros", Dtype::i32}, {"l.scales", Dtype::f16}}) == Texts{"l.scales: l.qweight"});
    CHECK(lone({{"l.g_idx", Dtype::i32}, {"l.scales", Dtype::f16}}) == Texts{"l.scales: l.qweight"});
    CHECK(lone({{"l.scaled_zeros", Dtype::f16}, {"l.scales", Dtype::f16}}) ==
          Texts{"l.scaled_zeros: l.qweight", "l.scales: l.qweight"});
    CHECK(lone({{"l.SCB", Dtype::f32}}) == Texts{"l.SCB: l.weight"});
    CHECK(lone({{"l.qscale_weight", Dtype::f32}}) == Texts{"l.qscale_weight: l.weight"});
    CHECK(lone({{"l.weight.absmax", Dtype::f32}, {"l.weight.quant_map", Dtype::f32}}) ==
          Texts{"l.weight.absmax: l.weight", "l.weight.quant_map: l.weight"});
    for (const char* const name : {"l.weight_scale", "l.scale_weight", "l.weight_scales"})
        CHECK(lone({{name, Dtype::f32}}) == Texts{"? " + std::string(name) + ": l.weight"});
    // Numbers of any dtype are numbers, or what was made of them; and scales of inputs have none.
    CHECK(lone({{"l.weight", Dtype::bf16}, {"l.weight_scale_inv", Dtype::f32}}).empty());
    CHECK(lone({{"l.weight", Dtype::f8_e4m3}, {"l.weight_scale_inv", Dtype::f32}}).empty());
    CHECK(lone({{"l.weight_packed", Dtype::i32}, {"l.weight_scale", Dtype::f32}}).empty());
    for (const char* const name : {"l.input_scale_inv", "l.w1_input_scale_inv", "l.k_scale_inv", "logit_scale",
                                   "l.scale", "l.scales", "l.wscales", "quantizer.absmax", "scale_inv", "l.k_scale"})
        CHECK(lone({{name, Dtype::f32}}).empty());
    CHECK(lone({{"l.qzeros", Dtype::f32}, {"l.scales", Dtype::f32}}).empty());
}

TEST_CASE("in a numbered shard whose other shards are not there, the names of scales are enough") {
    const auto in_file = [](const std::string& name, const std::string& file) {
        return LazyTensor(name, stored_run(Dtype::f32, {4}, memory_source(file, std::vector<std::byte>(16)), 0));
    };
    const auto is_sure = [](const std::vector<LazyTensor>& tensors) {
        const QuantizedTensors quantized = find_quantized(tensors, {});
        REQUIRE(quantized.lone.size() == 1);
        return quantized.lone[0].is_sure;
    };
    const std::string first = "/m/model-00001-of-00002.safetensors";
    const std::string second = "/m/model-00002-of-00002.safetensors";
    CHECK(is_sure({in_file("l.weight_scale", second)}));
    CHECK(is_sure({in_file("l.weight_scale", second), in_file("norm", second), in_file("x", "/m/other.safetensors")}));
    CHECK(!is_sure({in_file("l.weight_scale", second), in_file("norm", first)}));
    CHECK(!is_sure({in_file("l.weight_scale", "/m/model.safetensors")}));
    CHECK(!is_sure({in_file("l.weight_scale", "/m/model-00001-of-00001.safetensors")}));
}

}  // namespace quantization_test
