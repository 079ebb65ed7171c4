// Tests universal checkpoints: random parameters as ds_to_universal writes them, in their shapes and flat, and folders
// that lack files or hold other values than they should.
#include "distributed/zero/universal.hpp"

#include "distributed/values.hpp"
#include "distributed/zero/read_zero.hpp"
#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "soak.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace universal_test {

using namespace safemap;
using distributed::ModelFile;
using distributed::ModelRankFiles;
using distributed::ModelWeights;
using distributed::Parameter;
using distributed::Universal;
using distributed::UniversalInfo;
using distributed::UniversalOptions;
using Kind = ModelWeights::Weight::Kind;
using Files = std::map<std::string, std::string>;

namespace {

const std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"};

std::string bytes_for(Dtype dtype, const Shape& shape, const std::string& what, const std::string& name) {
    return zero_forge::detail::values(dtype, what, name, pt::elements(shape));
}

/// Returns a file with an F32 tensor, bare or in a dictionary.
std::string tensor_file(const Shape& shape, const std::string& bytes, bool in_dict = true) {
    pt::Value tensor = pt::tensor(Dtype::f32, shape, bytes);
    return pt::Writer::file(in_dict ? pt::dict({{"param", std::move(tensor)}, {"cat_dim", pt::integer(0)}}) : tensor);
}

/// Adds the files of a parameter, stored with the shape `stored`.
void add_parameter(Files& files, const Parameter& parameter, const Shape& stored, bool in_dict = true) {
    const std::string folder = "zero/" + parameter.name + "/";
    files[folder + "fp32.pt"] =
        tensor_file(stored, bytes_for(Dtype::f32, parameter.shape, "fp32", parameter.name), in_dict);
    for (const std::string& moment : moments)
        files[folder + moment + ".pt"] =
            tensor_file(stored, bytes_for(Dtype::f32, parameter.shape, moment, parameter.name), in_dict);
}

/// Reads a universal checkpoint beside files of model states.
Universal read_universal(const Folder& tag, const std::vector<ModelFile>& models, const UniversalInfo* info,
                         const UniversalOptions& options = {}) {
    std::vector<ModelRankFiles> sets;
    for (const ModelFile& model : models) {
        if (model.model_rank >= sets.size()) sets.resize(model.model_rank + 1);
        sets[model.model_rank].models.push_back(model);
    }
    return distributed::read_universal(tag, sets, info, options);
}

Parameter parameter(const std::string& name, const Shape& shape) { return {name, shape, pt::elements(shape)}; }

LazyTensor module_tensor(const std::string& name, const Shape& shape, Dtype dtype) {
    return {name, stored_run(dtype, shape, forge::source(bytes_for(dtype, shape, "module", name), name), 0)};
}

/// Returns what a file of model states says of these parameters.
ModelFile model_of(const distributed::Group& group, std::uint64_t stage = 2) {
    ModelFile model;
    model.file = "mp_rank_00_model_states.pt";
    model.has_module = true;
    model.groups = {group};
    model.config_stage = stage;
    model.data_ranks = 4;
    for (const Parameter& each : group)
        model.module.emplace_back(each.name, module_tensor(each.name, each.shape, Dtype::bf16));
    return model;
}

void check_weight(const ModelWeights::Weight& weight, const Parameter& wanted) {
    CHECK(weight.name == wanted.name);
    CHECK(weight.kind == Kind::master);
    CHECK(weight.tensor.shape() == wanted.shape);
    CHECK((bytes_of(weight.tensor) == bytes_for(Dtype::f32, wanted.shape, "fp32", wanted.name)));
    REQUIRE(weight.state.size() == moments.size());
    for (std::size_t i = 0; i < moments.size(); ++i) {
        CHECK(weight.state[i].first == moments[i]);
        CHECK(weight.state[i].second.shape() == wanted.shape);
        CHECK((bytes_of(weight.state[i].second) == bytes_for(Dtype::f32, wanted.shape, moments[i], wanted.name)));
    }
}

/// Checks the code of an error, its tensor and its path, and that the message has a text.
void check_error(const Files& files, const std::vector<ModelFile>& models, Errc code, const std::string& tensor,
                 const std::string& path, const std::string& text, const UniversalOptions& options = {}) {
    const auto error =
        error_of([&] { static_cast<void>(read_universal(forge::Folder(files), models, nullptr, options)); });
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK(error->code() == code);
    CHECK(error->tensor() == tensor);
    CHECK(error->path() == path);
    CHECK(error->message().find(text) != std::string::npos);
}

Shape random_shape(std::mt19937& random) {
    Shape shape;
    for (std::size_t d = random() % 4; d > 0; --d) shape.push_back(random() % 5 + 1);
    return shape;
}

}  // namespace

TEST_CASE("random parameters, in their shapes and flat, have the order and the shapes of param_shapes") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(24); ++round) {
        const bool flat = round % 2 == 0;
        distributed::Group group;
        Files files;
        for (std::size_t i = 0; i < 5; ++i) {
            group.push_back(
                parameter("layers." + std::to_string(random() % 1000) + '.' + std::to_string(i), random_shape(random)));
            const Shape stored = flat ? Shape{group.back().count} : group.back().shape;
            add_parameter(files, group.back(), stored, round % 3 != 0);
        }
        const Universal read = read_universal(forge::Folder(files), {model_of(group, flat ? 3 : 2)}, nullptr);
        REQUIRE(read.joined.weights.size() == group.size());
        for (std::size_t i = 0; i < group.size(); ++i) check_weight(read.joined.weights[i], group[i]);
        CHECK(read.joined.state_names == moments);
        CHECK(read.joined.notes.empty());
        CHECK(read.stage == (flat ? 3 : 2));
        CHECK(read.data_ranks == 4);
        CHECK(!read.rest.has_value());
        CHECK(std::is_sorted(read.files.begin(), read.files.end()));
        CHECK(read.files.size() == files.size());
        for (const std::string& file : read.files) CHECK(files.contains(file));
    }
}

TEST_CASE("without files of model states, weights are as fp32.pt has them, and a note says so") {
    Files files;
    add_parameter(files, parameter("b", {2, 3}), {2, 3});
    add_parameter(files, parameter("a", {4}), {4});
    add_parameter(files, parameter("c", {2, 2}), {2, 2}, false);
    files["zero/buffer/fp32.pt"] = tensor_file({3}, bytes_for(Dtype::f32, {3}, "fp32", "buffer"));
    const Universal read = read_universal(forge::Folder(files), std::vector<ModelFile>(), nullptr);
    REQUIRE(names_of(read.joined.weights) == std::vector<std::string>{"a", "b", "buffer", "c"});
    check_weight(read.joined.weights[0], parameter("a", {4}));
    check_weight(read.joined.weights[1], parameter("b", {2, 3}));
    check_weight(read.joined.weights[3], parameter("c", {2, 2}));
    CHECK(only_of(read.joined.notes).find("no files of model states") != std::string::npos);
    CHECK(!read.stage.has_value());
    CHECK(!read.data_ranks.has_value());

    // The same through the tag, with the state of the optimizer.
    files["zero/optimizer_state.pt"] = pt::Writer::file(pt::dict({{"zero_stage", pt::integer(2)}}));
    const auto open = [](const Files& all, const OpenOptions& options = {}) {
        return distributed::read_universal_tag({std::make_shared<forge::Folder>(all)}, options);
    };
    const state::Contents contents = open(files);
    CHECK(names_of(contents.tensors) == std::vector<std::string>{"a", "b", "buffer", "c"});
    CHECK(has_note(contents, "no files of model states"));
    CHECK(contents.layout->stage == 2);
    CHECK_FALSE(contents.layout->world_size.has_value());
    CHECK(contents.layout->optimizer == moments);
    REQUIRE(contents.optimizer != nullptr);
    CHECK(contents.optimizer().tensors.size() == 6);
    CHECK_FAULT(open(files, {.weights = Weights::module}), Errc::invalid_argument);
    CHECK(open(files, {.deepspeed_compat = true}).tensors.size() == 4);

    // If some are there, all must be.
    Files some = files;
    some["zero_pp_rank_1_mp_rank_00_model_states.pt"] = "x";
    zero_forge::check_text(error_of([&] { static_cast<void>(open(some)); }), {Errc::rank_missing},
                           {"zero_pp_rank_0_mp_rank_00_model_states.pt"});
}

TEST_CASE("without files of model states, the shapes of flat weights are not known") {
    Files files;
    add_parameter(files, parameter("a", {2, 3}), {6}, false);
    check_error(files, {}, Errc::rank_missing, "a", "", "zero_pp_rank_0_mp_rank_00_model_states.pt");
    const Universal read = read_universal(forge::Folder(files), {}, nullptr, {.as_stored = true});
    CHECK(read.joined.weights.at(0).tensor.shape() == Shape{6});
}

TEST_CASE("as stored, every fp32.pt is given as it is, without notes") {
    Files files;
    const Parameter w = parameter("w", {2, 3});
    add_parameter(files, w, {6});
    const UniversalOptions options = {.as_stored = true, .optimizer = false};
    const Universal read = read_universal(forge::Folder(files), {model_of({w}, 3)}, nullptr, options);
    REQUIRE(read.joined.weights.size() == 1);
    CHECK(read.joined.weights[0].tensor.shape() == Shape{6});
    CHECK(read.joined.weights[0].state.empty());
    CHECK(read.joined.notes.empty());
    CHECK(read.files == std::vector<std::string>{"zero/w/fp32.pt"});
}

TEST_CASE("an optimizer that is not asked for is not read, whatever its files hold") {
    Files files;
    const Parameter w = parameter("w", {2, 3});
    add_parameter(files, w, {2, 3});
    files["zero/w/exp_avg.pt"] = "not a file of torch.save";
    files["zero/optimizer_state.pt"] = "neither";
    const Universal read = read_universal(forge::Folder(files), {model_of({w})}, nullptr, {.optimizer = false});
    REQUIRE(read.joined.weights.size() == 1);
    CHECK(read.joined.weights[0].state.empty());
    CHECK(read.files.size() == 1);
    CHECK(!read.rest.has_value());
}

TEST_CASE("weights and buffers of the module that have no master keep their dtypes and places") {
    Files files;
    const Parameter w = parameter("w", {2, 2});
    add_parameter(files, w, {2, 2});
    add_parameter(files, parameter("frozen", {3}), {3});  // ds_to_universal copies it to F32
    add_parameter(files, parameter("only.here", {1}), {1});
    ModelFile model = model_of({w});
    model.module.insert(model.module.begin(), {"frozen", module_tensor("frozen", {3}, Dtype::bf16)});
    model.module.emplace_back("buffer", module_tensor("buffer", {5}, Dtype::i64));
    model.buffers = {"buffer"};
    model.frozen_shapes = {parameter("frozen", {3})};
    model.frozen = {{"frozen", module_tensor("frozen", {3}, Dtype::bf16)}};
    const ModelWeights read = read_universal(forge::Folder(files), {model}, nullptr).joined;
    REQUIRE(read.weights.size() == 4);
    CHECK(read.weights[0].name == "frozen");
    CHECK(read.weights[0].tensor.dtype() == Dtype::bf16);
    check_weight(read.weights[1], w);
    CHECK(read.weights[2].name == "buffer");
    CHECK(read.weights[2].kind == Kind::buffer);
    CHECK(read.weights[2].tensor.dtype() == Dtype::i64);
    check_weight(read.weights[3], parameter("only.here", {1}));
    CHECK(only_of(read.notes).starts_with("1 weight is only in fp32.pt"));
}

TEST_CASE("steps and the rest of the optimizer's state are kept by parameter") {
    Files files;
    add_parameter(files, parameter("a.b", {2}), {2});
    add_parameter(files, parameter("c", {2}), {2});
    files["zero/a.b/step.pt"] = pt::Writer::file(pt::integer(7));
    files["zero/c/step.pt"] = pt::Writer::file(pt::tensor(Dtype::f32, {}, forge::little_endian(8.0F)));
    files["zero/optimizer_state.pt"] = pt::Writer::file(
        pt::dict({{"zero_stage", pt::integer(2)}, {"param_groups", pt::list({pt::dict({{"lr", pt::real(0.5)}})})}}));
    const Universal read = read_universal(forge::Folder(files), std::vector<ModelFile>(), nullptr);
    REQUIRE(read.rest.has_value());
    const distributed::Value rest(*read.rest);
    CHECK(rest.at("step").at("a.b").integer() == 7);
    REQUIRE(rest.at("step").at("c").tensor() != nullptr);
    CHECK(bytes_of(*rest.at("step").at("c").tensor()) == forge::little_endian(8.0F));
    CHECK(rest.has("param_groups"));
    CHECK(read.stage == 2);
    for (const auto& weight : read.joined.weights) CHECK(weight.state.size() == 2);
    CHECK(std::count(read.files.begin(), read.files.end(), "zero/optimizer_state.pt") == 1);
}

TEST_CASE("rows of the vocabulary's padding are cut off where the file says that it is one") {
    const Shape padded = {8, 3};
    UniversalInfo info;
    info.vocabulary = 5;
    for (const bool said : {true, false}) {
        Files files;
        for (const std::string state : {"fp32", "exp_avg"})
            files["zero/embed/" + state + ".pt"] = pt::Writer::file(
                pt::dict({{"param", pt::tensor(Dtype::f32, padded, bytes_for(Dtype::f32, padded, state, "embed"))},
                          {"vocab_tensor", pt::boolean(said)}}));
        const Parameter embed = parameter("embed", said ? Shape{5, 3} : padded);
        const ModelWeights read = read_universal(forge::Folder(files), {model_of({embed})}, &info).joined;
        REQUIRE(read.weights.size() == 1);
        const auto& weight = read.weights[0];
        CHECK(weight.tensor.shape() == embed.shape);
        CHECK((bytes_of(weight.tensor) == bytes_for(Dtype::f32, padded, "fp32", "embed").substr(0, embed.count * 4)));
        REQUIRE(weight.state.size() == 1);
        CHECK((bytes_of(weight.state[0].second) ==
               bytes_for(Dtype::f32, padded, "exp_avg", "embed").substr(0, embed.count * 4)));
    }
}

TEST_CASE("tensor parallelism: files are whole already, whatever param_shapes of the slices says") {
    Files files;
    const Parameter w = parameter("w", {4, 3});
    add_parameter(files, w, w.shape);
    std::vector<ModelFile> models;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        models.push_back(model_of({parameter("w", {2, 3})}));
        models.back().model_rank = rank;
        models.back().file = "mp_rank_0" + std::to_string(rank) + "_model_states.pt";
        models.back().module.emplace_back("mask", module_tensor("mask", {2}, Dtype::boolean));
        models.back().buffers = {"mask"};
    }
    const UniversalInfo info;
    const ModelWeights read = read_universal(forge::Folder(files), models, &info).joined;
    REQUIRE(read.weights.size() == 2);
    check_weight(read.weights[0], w);
    CHECK(read.weights[1].name == "mask");
    CHECK(read.weights[1].tensor.shape() == Shape{2});
    CHECK(read.state_names == moments);
}

TEST_CASE("folders without parameters, and parameters without their files") {
    const Parameter w = parameter("w", {2, 3});
    check_error({{"latest", "x"}}, {}, Errc::not_a_checkpoint, "", "", "no folders of parameters");
    check_error({{"zero/optimizer_state.pt", "x"}}, {}, Errc::not_a_checkpoint, "", "", "no folders of parameters");
    Files files;
    add_parameter(files, w, w.shape);
    Files lacking = files;
    lacking.erase("zero/w/fp32.pt");
    check_error(lacking, {}, Errc::unfinished_checkpoint, "w", "", "zero/w/fp32.pt is missing");
    check_error(lacking, {}, Errc::unfinished_checkpoint, "w", "", "fp32.pt", {.optimizer = false});
    lacking["zero/w/.fp32.pt"] = files["zero/w/fp32.pt"];
    check_error(lacking, {}, Errc::unfinished_checkpoint, "w", "", "fp32.pt");
    check_error(files, {model_of({w, parameter("x", {1})})}, Errc::unfinished_checkpoint, "x", "", "zero/x is missing");
    // A moment may be missing, because optimizers differ.
    files.erase("zero/w/exp_avg_sq.pt");
    CHECK(read_universal(forge::Folder(files), {model_of({w})}, nullptr).joined.weights[0].state.size() == 1);
}

TEST_CASE("a parameter that lacks a moment that others have is unfinished") {
    for (const bool in_dict : {true, false})
        for (const std::string& moment : moments) {
            Files files;
            const distributed::Group group = {parameter("a", {2, 3}), parameter("b", {4})};
            for (const Parameter& each : group)
                add_parameter(files, each, in_dict ? each.shape : Shape{each.count}, in_dict);
            files.erase("zero/b/" + moment + ".pt");
            check_error(files, {model_of(group, in_dict ? 2 : 3)}, Errc::unfinished_checkpoint, "b", "",
                        "the file zero/b/" + moment + ".pt is missing");
            check_error(files, {}, Errc::unfinished_checkpoint, "b", "", moment);
            // Without the state it is not missed, and what no parameter has is not, either.
            CHECK_OK(read_universal(forge::Folder(files), {model_of(group)}, nullptr, {.optimizer = false}));
            files.erase("zero/a/" + moment + ".pt");
            CHECK_OK(read_universal(forge::Folder(files), {model_of(group)}, nullptr));
        }
}

TEST_CASE("ds_to_universal writes fp32.pt alone for what had no gradients, in a dictionary, and not of stage 3") {
    Files files;
    add_parameter(files, parameter("a", {2, 3}), {2, 3});
    add_parameter(files, parameter("b", {4}), {4});
    for (const std::string& moment : moments) files.erase("zero/b/" + moment + ".pt");
    const Universal read = read_universal(forge::Folder(files), std::vector<ModelFile>(), nullptr);
    REQUIRE(read.joined.weights.size() == 2);
    CHECK(read.joined.weights[1].state.empty());
    files["zero/b/step.pt"] = tensor_file({}, forge::little(0, 4), false);
    check_error(files, {}, Errc::unfinished_checkpoint, "b", "", "zero/b/exp_avg.pt");
    files.erase("zero/b/step.pt");
    files["zero/b/fp32.pt"] = tensor_file({4}, bytes_for(Dtype::f32, {4}, "fp32", "b"), false);
    check_error(files, {}, Errc::unfinished_checkpoint, "b", "", "zero/b/exp_avg.pt");
}

TEST_CASE("moments and weights of another number of elements are refused") {
    const Parameter w = parameter("w", {2, 3});
    Files files;
    add_parameter(files, w, w.shape);
    Files other = files;
    other["zero/w/exp_avg.pt"] = tensor_file({5}, std::string(20, 'x'));
    check_error(other, {model_of({w})}, Errc::piece_mismatch, "w", "", "5 elements; fp32.pt holds 6");
    check_error(other, {}, Errc::piece_mismatch, "w", "", "exp_avg.pt holds 5");
    for (const Shape& shape : {Shape{5}, Shape{7}, Shape{3, 2}, Shape{6, 1}}) {
        other = files;
        for (const std::string state : {"fp32", "exp_avg", "exp_avg_sq"})
            other["zero/w/" + state + ".pt"] = tensor_file(shape, std::string(pt::elements(shape) * 4, 'x'));
        check_error(other, {model_of({w})}, Errc::piece_mismatch, "w", "",
                    to_string(shape) + "; param_shapes has [2, 3]");
    }
}

TEST_CASE("files that hold something else are refused with their path") {
    const Parameter w = parameter("w", {2});
    Files files;
    add_parameter(files, w, w.shape);
    const auto with = [&](const std::string& state, const pt::Value& value) {
        Files other = files;
        other["zero/w/" + state + ".pt"] = pt::Writer::file(value);
        return other;
    };
    const std::string fp32 = "folder/zero/w/fp32.pt";
    const std::string exp_avg = "folder/zero/w/exp_avg.pt";
    check_error(with("fp32", pt::dict({{"other", pt::integer(1)}})), {}, Errc::field_missing, "", fp32, "param");
    check_error(with("fp32", pt::dict({{"param", pt::integer(1)}})), {}, Errc::piece_mismatch, "w", fp32, "param");
    check_error(with("exp_avg", pt::integer(1)), {}, Errc::piece_mismatch, "w", exp_avg, "no tensor");
    check_error(with("fp32", pt::list()), {model_of({w})}, Errc::piece_mismatch, "w", fp32, "no tensor");
    Files other = files;
    other["zero/w/exp_avg.pt"] = "not a file of torch.save";
    const auto error = error_of([&] { static_cast<void>(read_universal(forge::Folder(other), {}, nullptr)); });
    REQUIRE(error.has_value());
    CHECK(error->path() == exp_avg);
    other = files;
    other["zero/optimizer_state.pt"] = pt::Writer::file(pt::list());
    check_error(other, {}, Errc::field_missing, "", "folder/zero/optimizer_state.pt", "no dictionary");
}

TEST_CASE("a stage that is no stage is refused with the path of its file") {
    Files files;
    add_parameter(files, parameter("a", {2}), {2});
    pt::Value stage = pt::integer(0);
    stage.number = -1;
    files["zero/optimizer_state.pt"] = pt::Writer::file(pt::dict({{"zero_stage", stage}}));
    check_error(files, {}, Errc::field_missing, "", "folder/zero/optimizer_state.pt", "zero_stage");
    for (const auto& [member, number] : {std::pair{"gradients", 2}, {"weights", 3}}) {
        const std::string name =
            forge::call("__builtin__", "getattr",
                        {forge::global("deepspeed.runtime.zero.config", "ZeroStageEnum"), forge::text(member)});
        files["zero/optimizer_state.pt"] = pt::Writer::file(pt::dict({{"zero_stage", pt::raw(name)}}));
        CHECK(read_universal(forge::Folder(files), std::vector<ModelFile>(), nullptr).stage == number);
    }
}

TEST_CASE("a stop request ends reading") {
    Files files;
    add_parameter(files, parameter("w", {2}), {2});
    std::stop_source stop;
    stop.request_stop();
    const UniversalOptions options = {.work = {.monitor = {.stop = stop.get_token()}}};
    CHECK_FAULT(read_universal(forge::Folder(files), std::vector<ModelFile>(), nullptr, options), Errc::cancelled);
}

}  // namespace universal_test
