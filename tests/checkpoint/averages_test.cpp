// Tests OpenOptions::ema: averages of weights in every form that trainers save take the places of the weights, and are
// refused by name where they do not fit.
#include <safemap/checkpoint.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/structure.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace averages_test {

using namespace safemap;

namespace {

/// A tensor of bytes: as many as the text has.
pt::Value tensor_of(const std::string& bytes) { return pt::tensor(Dtype::f16, {bytes.size() / 2}, bytes); }
pt::Value tensors_of(const std::map<std::string, std::string>& values) {
    pt::Value dict = pt::dict();
    for (const auto& [name, bytes] : values) dict.set(name, tensor_of(bytes));
    return dict;
}
pt::Value list_of(const std::vector<std::string>& values) {
    pt::Value list = pt::list();
    for (const std::string& bytes : values) list.push(tensor_of(bytes));
    return list;
}
pt::Value module_of(const std::map<std::string, std::string>& values) {
    return pt::object("torch.nn.modules.linear", "Linear",
                      {{"training", pt::boolean(true)},
                       {"_parameters", tensors_of(values)},
                       {"_buffers", pt::dict()},
                       {"_modules", pt::dict()}});
}
const std::map<std::string, std::string> weights{{"a.w", "wwww"}, {"b.w", "xxxxxx"}};
const std::map<std::string, std::string> averages{{"a.w", "WWWW"}, {"b.w", "XXXXXX"}};

std::map<std::string, std::string> with_prefix(const std::string& prefix,
                                               const std::map<std::string, std::string>& values) {
    std::map<std::string, std::string> prefixed;
    for (const auto& [name, bytes] : values) prefixed.emplace(prefix + name, bytes);
    return prefixed;
}
std::map<std::string, std::string> both(std::map<std::string, std::string> one,
                                        const std::map<std::string, std::string>& other) {
    one.insert(other.begin(), other.end());
    return one;
}

Checkpoint open(const pt::Value& value, const OpenOptions& options = {.ema = true}) {
    return Checkpoint::open(forge::source(pt::Writer::file(value)), options);
}
std::map<std::string, std::string> values_of(const Checkpoint& checkpoint) {
    std::map<std::string, std::string> values;
    for (const LazyTensor& tensor : checkpoint) values.emplace(tensor.name(), bytes_of(tensor));
    return values;
}

}  // namespace

TEST_CASE("averages take the places of the weights that they shadow") {
    const std::map<std::string, std::string> undotted{{"aw", "WWWW"}, {"bw", "XXXXXX"}};
    pt::Value shadow = pt::dict({{"decay", pt::real(0.9)}, {"shadow_params", list_of({"WWWW", "XXXXXX"})}});
    pt::Value buffered = tensors_of(weights);
    buffered.set("n.running_mean", tensor_of("mmmm"));
    buffered.set("n.num_batches_tracked", pt::tensor(Dtype::i64, {}, std::string(8, '\1')));
    struct Row {
        const char* what;
        pt::Value value;
        std::map<std::string, std::string> expected;
    };
    const std::vector<Row> rows{
        {"Stable Diffusion, LitEma",
         pt::dict({{"state_dict",
                    tensors_of(both(both(with_prefix("model.", weights), with_prefix("model_ema.", undotted)),
                                    {{"model_ema.decay", "dd"}, {"model_ema.num_updates", "uu"}, {"vae.w", "vv"}}))}}),
         both(with_prefix("model.", averages), {{"vae.w", "vv"}})},
        {"LitEma of the whole module, flat", tensors_of(both(weights, with_prefix("model_ema.", undotted))), averages},
        {"BasicSR", pt::dict({{"params", tensors_of(weights)}, {"params_ema", tensors_of(averages)}}), averages},
        {"timm", pt::dict({{"state_dict", tensors_of(weights)}, {"state_dict_ema", tensors_of(averages)}}), averages},
        {"a part ema", pt::dict({{"ema", tensors_of(averages)}, {"model", tensors_of(weights)}}), averages},
        {"ema_state_dict, wrapped",
         pt::dict(
             {{"state_dict", tensors_of(weights)}, {"ema_state_dict", tensors_of(with_prefix("module.", averages))}}),
         averages},
        {"weights wrapped",
         pt::dict({{"state_dict", tensors_of(with_prefix("module.", weights))}, {"ema", tensors_of(averages)}}),
         with_prefix("module.", averages)},
        {"Lightning's callback",
         pt::dict({{"state_dict", tensors_of(weights)},
                   {"callbacks", pt::dict({{"EMA", pt::dict({{"ema_state_dict", tensors_of(averages)}})}})}}),
         averages},
        {"NeMo, a list of the optimizer",
         pt::dict({{"state_dict", tensors_of(weights)},
                   {"optimizer_states", pt::list({pt::dict({{"ema", list_of({"WWWW", "XXXXXX"})}})})}}),
         averages},
        {"shadow_params of diffusers and torch_ema", pt::dict({{"model", buffered}, {"ema", shadow}}),
         both(averages, {{"n.running_mean", "mmmm"}, {"n.num_batches_tracked", std::string(8, '\1')}})},
        {"ema_pytorch",
         pt::dict(
             {{"model", tensors_of(weights)},
              {"ema", tensors_of(both(both(with_prefix("ema_model.", averages), with_prefix("online_model.", weights)),
                                      {{"step", "ss"}}))}}),
         averages},
        {"modules of YOLO", pt::dict({{"model", module_of(weights)}, {"ema", module_of(averages)}}), averages},
        {"DCP's names", tensors_of(both(with_prefix("model.", weights), with_prefix("ema.", averages))),
         with_prefix("model.", averages)},
        {"averages alone", pt::dict({{"ema", module_of(averages)}}), averages},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        const Checkpoint checkpoint = open(row.value);
        CHECK(values_of(checkpoint) == row.expected);
        CHECK(has_note(checkpoint, std::string_view(row.what) == "averages alone" ? "averages already"
                                                                                  : "averages replace 2 weights"));
        const TempDir folder = TempDir::in_memory();
        save(folder / "out.safetensors", checkpoint, {.structure = StructurePolicy::keep});
        const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
        CHECK(values_of(again) == row.expected);
        if (checkpoint.tree() != nullptr) CHECK(structure_of(again) == structure_of(checkpoint));
    }
    const pt::Value trained = pt::dict(
        {{"state_dict", tensors_of(weights)}, {"ema", tensors_of(averages)}, {"optimizer", tensors_of({{"m", "mm"}})}});
    CHECK(values_of(open(trained)) == both(with_prefix("state_dict/", averages), {{"optimizer/m", "mm"}}));
    CHECK(values_of(open(trained, {.root_auto = true, .ema = true})) == averages);
    CHECK(values_of(open(trained, {.root = "state_dict", .ema = true})) == averages);
}

TEST_CASE("averages of a folder beside the weights") {
    const TempDir folder = TempDir::in_memory();
    for (const auto& [name, values] : {std::pair("unet", weights), std::pair("unet_ema", averages)}) {
        std::filesystem::create_directory(folder / name);
        save(folder / name / "diffusion_pytorch_model.safetensors", open(tensors_of(values), {}));
    }
    CHECK(values_of(Checkpoint::open(folder / "unet", {.ema = true})) == averages);
    CHECK(values_of(Checkpoint::open((folder / "unet").native() + "/", {.ema = true})) == averages);
    CHECK(values_of(Checkpoint::open(folder / "unet")) == weights);
    save(folder / "unet_ema" / "diffusion_pytorch_model.safetensors", open(tensors_of({{"c.w", "cc"}}), {}),
         {.overwrite = true});
    check_error(error_of([&] { return Checkpoint::open(folder / "unet", {.ema = true}); }), {Errc::model_mismatch},
                {"'c.w'", "shadows no weight"});
}

TEST_CASE("averages that do not fit are refused by name") {
    struct Row {
        const char* what;
        pt::Value value;
        Errc code;
        Words words;
    };
    const std::map<std::string, std::string> short_averages{{"a.w", "WWWW"}, {"b.w", "XX"}};
    const std::vector<Row> rows{
        {"none", tensors_of(weights), Errc::tensor_not_found, {"no averages", "2 tensors"}},
        {"other shape",
         pt::dict({{"model", tensors_of(weights)}, {"ema", tensors_of(short_averages)}}),
         Errc::model_mismatch,
         {"'ema/b.w'", "[1]", "'model/b.w'", "[3]"}},
        {"missing weight",
         pt::dict({{"model", tensors_of(weights)}, {"ema", tensors_of(both(averages, {{"c.w", "cc"}}))}}),
         Errc::model_mismatch,
         {"'ema/c.w'", "shadows no weight"}},
        {"nothing alike",
         pt::dict({{"model", tensors_of(weights)}, {"ema", tensors_of({{"q", "qq"}})}}),
         Errc::model_mismatch,
         {"'ema/q'", "none of the averages"}},
        {"ambiguous without dots",
         tensors_of({{"model.a.bw", "wwww"}, {"model.a.b.w", "xxxx"}, {"model_ema.abw", "WWWW"}}),
         Errc::model_mismatch,
         {"'model_ema.abw'"}},
        {"a list of another length",
         pt::dict({{"model", tensors_of(weights)}, {"ema", pt::dict({{"shadow_params", list_of({"WWWW"})}})}}),
         Errc::model_mismatch,
         {"1 average for 2 parameters"}},
        {"a list of another shape",
         pt::dict({{"model", tensors_of(weights)}, {"ema", pt::dict({{"shadow_params", list_of({"WWWW", "XX"})}})}}),
         Errc::model_mismatch,
         {"'ema/shadow_params/1'", "'model/b.w'"}},
        {"a list alone", pt::dict({{"shadow_params", list_of({"WWWW"})}}), Errc::model_mismatch, {"no weights beside"}},
        {"two averages of one weight",
         pt::dict({{"model", tensors_of(weights)}, {"ema", tensors_of(averages)}, {"model_ema", tensors_of(averages)}}),
         Errc::model_mismatch,
         {"both averages of 'model/a.w'"}},
        {"MMEngine",
         pt::dict({{"state_dict", tensors_of(averages)},
                   {"message_hub", pt::dict()},
                   {"ema_state_dict", tensors_of(with_prefix("module.", weights))}}),
         Errc::model_mismatch,
         {"MMEngine"}},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        check_error(error_of([&] { return open(row.value); }), {row.code}, row.words);
    }
}

}  // namespace averages_test
