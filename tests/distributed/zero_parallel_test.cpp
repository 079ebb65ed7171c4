// Opens runs of several model ranks: pipelines with and without tensor parallelism, and experts in both orders of
// ranks.
#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/zero.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace zero_parallel_test {

using namespace safemap;
using zero_forge::Forge;
using zero_forge::Run;
using zero_forge::Spec;

namespace {

/// An opened run. Throws if it is refused.
struct Opened : zero_forge::Opened {
    using zero_forge::Opened::Opened;

    std::set<std::string> names() const {
        std::set<std::string> names;
        for (const LazyTensor& tensor : checkpoint) names.insert(tensor.name());
        return names;
    }
};

std::string two(std::uint64_t number) { return "0" + std::to_string(number); }

std::string layer_name(std::uint64_t layer, std::uint64_t rank, std::uint64_t tensor_ranks) {
    return "layer_" + two(layer) + (tensor_ranks > 1 ? "-model_" + two(rank) : "") + "-model_states.pt";
}

/// Returns a layer with a trained weight and bias, and a frozen weight.
pt::Value layer_file(std::uint64_t layer) {
    pt::Value out = pt::ordered();
    for (const auto& [key, shape] : {std::pair<std::string, Shape>{"weight", {4, 3}}, {"bias", {4}}, {"frozen", {2}}})
        out.set(key, pt::tensor(Dtype::bf16, shape,
                                zero_forge::detail::values(Dtype::bf16, "module", std::to_string(layer) + "." + key,
                                                           pt::elements(shape))));
    return out;
}

/// Returns a pipeline of two stages, with the layers 0 and 2.
Run pipeline(std::uint64_t tensor_ranks, const std::optional<pt::Value>& info = std::nullopt) {
    Run all;
    for (std::uint64_t model_rank = 0; model_rank < 2 * tensor_ranks; ++model_rank) {
        const std::uint64_t layer = model_rank / tensor_ranks * 2;
        const std::string at = std::to_string(layer);
        Spec spec{.stage = 1, .world = 2};
        spec.groups = {{{at + ".weight", {4, 3}}, {at + ".bias", {4}}}};
        Run run = Forge::run(spec);
        run.model()["module"] = pt::none();
        run.model()["mp_world_size"] = pt::integer(2 * tensor_ranks);
        run.model().set("checkpoint_parallel_dimensions",
                        pt::dict({{"pp_degree", pt::integer(2)}, {"tp_degree", pt::integer(tensor_ranks)}}));
        if (info) run.model().set("universal_checkpoint_info", *info);
        for (auto& [name, file] : run.files) {
            std::string own = name;
            own.replace(own.find("mp_rank_00"), 10, "mp_rank_" + two(model_rank));
            all.files[own] = std::move(file);
        }
        all.files[layer_name(layer, model_rank % tensor_ranks, tensor_ranks)] = layer_file(layer);
        all.spec = spec;
        all.latest = run.latest;
    }
    return all;
}

void check_error(const Run& run, Errc code, const std::string& path, const std::string& text,
                 const OpenOptions& options = {}) {
    const auto error = zero_forge::refusal(run, options);
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK(error->code() == code);
    CHECK(error->path().ends_with(path));
    CHECK(error->message().find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("a pipeline: masters of the stages, and the 16-bit weights of the layers") {
    const Opened masters(pipeline(1));
    CHECK(masters.names() == std::set<std::string>{"0.weight", "0.bias", "0.frozen", "2.weight", "2.bias", "2.frozen"});
    CHECK(masters.checkpoint.find("2.weight")->dtype() == Dtype::f32);
    CHECK(masters.checkpoint.find("2.frozen")->dtype() == Dtype::bf16);
    const Opened module(pipeline(1), {.weights = Weights::module});
    CHECK(module.names() == masters.names());
    CHECK(module.checkpoint.find("2.weight")->dtype() == Dtype::bf16);
}

TEST_CASE("a pipeline with tensor parallelism and without rules is listed by model rank") {
    std::set<std::string> wanted;
    for (std::uint64_t model_rank = 0; model_rank < 4; ++model_rank)
        for (const std::string key : {"weight", "bias", "frozen"})
            wanted.insert("mp_rank_" + two(model_rank) + "/" + std::to_string(model_rank / 2 * 2) + "." + key);
    for (const Weights weights : {Weights::automatic, Weights::module}) {
        const Opened opened(pipeline(2), {.weights = weights});
        CHECK(opened.names() == wanted);
        const auto& notes = opened.checkpoint.notes();
        CHECK(std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
                  return note.find("listed one by one") != std::string::npos;
              }) == 1);
    }
}

TEST_CASE("a pipeline with tensor parallelism of which one weight is listed, and the others merged") {
    const pt::Value info = pt::dict({{"autotp_unsupported_parameter_patterns", pt::texts({".*bias"})}});
    for (const Weights weights : {Weights::automatic, Weights::module}) {
        const Opened opened(pipeline(2, info), {.weights = weights});
        CHECK(opened.names() == std::set<std::string>{"0.weight", "0.frozen", "2.weight", "2.frozen",
                                                      "mp_rank_00/0.bias", "mp_rank_01/0.bias", "mp_rank_02/2.bias",
                                                      "mp_rank_03/2.bias"});
        CHECK(opened.checkpoint.find("2.weight")->shape() == Shape{8, 3});
        CHECK(opened.checkpoint.find("2.frozen")->shape() == Shape{4});
    }
}

TEST_CASE("files of layers that are missing are named") {
    for (const Weights weights : {Weights::automatic, Weights::module}) {
        Run run = pipeline(2);
        run.files.erase("layer_02-model_01-model_states.pt");
        check_error(run, Errc::rank_missing, "global_step7", "layer_02-model_01-model_states.pt", {.weights = weights});
        run.files.erase("layer_02-model_00-model_states.pt");
        check_error(run, Errc::rank_missing, "mp_rank_02_model_states.pt", "layer_02-model_00-model_states.pt",
                    {.weights = weights});
        run = pipeline(1);
        run.files.erase("layer_02-model_states.pt");
        check_error(run, Errc::rank_missing, "mp_rank_01_model_states.pt", "layer_02-model_states.pt",
                    {.weights = weights});
        run.files.erase("layer_00-model_states.pt");
        check_error(run, Errc::rank_missing, "mp_rank_00_model_states.pt",
                    "layer_00-model_states.pt, layer_02-model_states.pt", {.weights = weights});
    }
}

TEST_CASE("a pipeline of stage 0 without its layers has no weights, and is not empty") {
    Run run = Forge::run(Spec{.stage = 0, .groups = {{{"0.weight", {4, 3}}}}});
    run.model()["module"] = pt::none();
    check_error(run, Errc::rank_missing, "mp_rank_00_model_states.pt", "layer_LL-model_states.pt");
    run.files["layer_00-model_states.pt"] = layer_file(0);
    const Opened opened(run);
    CHECK(opened.names() == std::set<std::string>{"0.weight", "0.bias", "0.frozen"});
}

TEST_CASE("a file of a layer that lacks a weight of another tensor rank") {
    Run run = pipeline(2);
    run.files.at("layer_02-model_01-model_states.pt").erase("frozen");
    check_error(run, Errc::ranks_differ, "global_step7/layer_02-model_01-model_states.pt", "2.frozen");
}

namespace {

const std::string expert = "moe.deepspeed_moe.experts.deepspeed_experts.";

/// The parameters of an expert.
std::vector<zero_forge::Param> of_expert(const std::string& number) {
    return {{expert + number + ".w", {4, 3}}, {expert + number + ".b", {5}}};
}

/// Returns a run of four ranks and two ranks of expert parallelism, with one expert each.
Run experts(bool data_first) {
    Spec spec{.stage = 2, .world = 4};
    spec.groups = {{{"norm.weight", {8}}}};
    Run run = Forge::run(spec);
    if (data_first) run.model()["ds_config"].set("use_data_before_expert_parallelism", pt::boolean(true));
    std::vector<Run> shares;
    for (const char* const number : {"0", "1"}) {
        Spec own{.stage = 2, .world = 2};
        own.groups = {of_expert(number)};
        shares.push_back(Forge::run(own));
    }
    run.model()["param_shapes"].push(shares[0].model()["param_shapes"][std::size_t{0}]);
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
        Run& share = shares[data_first ? rank / 2 : rank % 2];
        const std::uint64_t place = data_first ? rank % 2 : rank / 2;
        pt::Value& state = run.state(rank);
        for (const char* const key : {"single_partition_of_fp32_groups", "partition_count", "group_paddings"})
            state[key].push(share.state(place)[key][std::size_t{0}]);
        state["param_slice_mappings"].push(shares[0].state(place)["param_slice_mappings"][std::size_t{0}]);
        pt::Value& adam = state["base_optimizer_state"];
        adam["state"].set("1", share.state(place)["base_optimizer_state"]["state"]["0"]);
        adam["param_groups"].push(adam["param_groups"][std::size_t{0}]);
    }
    return run;
}

}  // namespace

TEST_CASE("experts are merged in the order of ranks that the configuration says") {
    for (const bool data_first : {false, true}) {
        CAPTURE(data_first);
        const Opened opened(experts(data_first));
        for (const char* const number : {"0", "1"})
            for (const zero_forge::Param& param : of_expert(number))
                zero_forge::check_tensor(opened.checkpoint, param.name, Forge::master_of(param));
    }
}

TEST_CASE("groups of several sizes of expert parallelism, which each rank lists in an order of its own") {
    // Both orders of the mappings: `param_shapes` is that of the first rank.
    for (std::uint64_t changed = 0; changed < 16; ++changed) {
        CAPTURE(changed);
        Run run = experts(false);
        for (std::uint64_t rank = 1; rank < 4; ++rank) {
            if ((changed >> rank & 1) == 0) continue;
            pt::Value& state = run.state(rank);
            for (const char* const key :
                 {"single_partition_of_fp32_groups", "partition_count", "group_paddings", "param_slice_mappings"})
                std::swap(state[key][0], state[key][1]);
            pt::Value& adam = state["base_optimizer_state"];
            std::swap(adam["state"]["0"], adam["state"]["1"]);
            std::swap(adam["param_groups"][0], adam["param_groups"][1]);
        }
        const Opened opened(run);
        const auto optimizer = opened.checkpoint.optimizer();
        REQUIRE(optimizer.has_value());
        for (const char* const number : {"0", "1"})
            for (const zero_forge::Param& param : of_expert(number)) {
                zero_forge::check_tensor(opened.checkpoint, param.name, Forge::master_of(param));
                CHECK(optimizer->find("optimizer/state/" + param.name + "/exp_avg") != nullptr);
            }
    }
    // Counts that are not those of the first rank in any order.
    Run other = experts(false);
    other.state(2)["partition_count"] = pt::integers({2, 2});
    check_error(other, Errc::world_mismatch, other.optimizer_name(2), "partition_count");
}

TEST_CASE("without ZeRO, each model rank has its own optimizer") {
    const Spec spec{.stage = 0, .groups = {{{"up.weight", {4, 3}}, {"up.bias", {4}}}}};
    Run run = Forge::run(spec);
    pt::Value second = run.model();
    for (pt::Value* const model : {&run.model(), &second}) model->set("mp_world_size", pt::integer(2));
    run.files["mp_rank_01_model_states.pt"] = second;
    const Opened opened(run);
    const auto optimizer = opened.checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    std::size_t moments = 0;
    for (const char* const rank : {"0", "1"})
        for (const LazyTensor& tensor : *optimizer)
            moments += tensor.name().starts_with("optimizer/mp_rank_0" + std::string(rank) + "/") &&
                       tensor.name().find("/state/1/exp_avg") != std::string::npos;
    CHECK(moments == 4);
    CHECK(has_note(*optimizer, "mp_rank_NN"));
}

TEST_CASE("without ZeRO, each rank of experts has its own optimizer in a file of its own") {
    Run run = Forge::run(Spec{.stage = 0, .groups = {{{"up.weight", {4, 3}}}}});
    for (const char* const rank : {"0", "1"})
        run.files["expp_rank_" + std::string(rank) + "_mp_rank_00_optim_states.pt"] =
            pt::dict({{"optimizer", run.model()["optimizer"]}});
    const Opened opened(run);
    const auto optimizer = opened.checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    std::size_t of_second = 0;
    for (const LazyTensor& tensor : *optimizer)
        of_second += tensor.name().starts_with("optimizer/expp_rank_1_mp_rank_00/");
    CHECK(of_second * 2 == optimizer->size());
    CHECK(of_second > 0);
}

TEST_CASE("param_shapes of experts is in another order than the mappings of their ranks") {
    Run run = experts(false);
    run.model().set("num_experts", pt::integers({2}));
    CHECK_OK(Opened(run));
    pt::Value& group = run.model()["param_shapes"][std::size_t{1}];
    std::reverse(group.keys.begin(), group.keys.end());
    std::reverse(group.items.begin(), group.items.end());
    zero_forge::check_refused(run, {Errc::ranks_differ}, {"param_slice_mappings"});
}

}  // namespace zero_parallel_test
