// Tests the stages of a pipeline, with tied layers and with tensor parallelism in each, and the files of layers.
#include "distributed/parallel/pipeline.hpp"

#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "inspect.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipeline_test {

using namespace safemap;
using distributed::add_layers;
using distributed::join_model_ranks;
using distributed::join_stages;
using distributed::ModelRank;
using distributed::ModelWeights;
using distributed::read_layers;
using Kind = ModelWeights::Weight::Kind;

namespace {

/// Returns bytes that depend on a text alone.
std::string bytes_for(Dtype dtype, const Shape& shape, const std::string& text) {
    return zero_forge::detail::values(dtype, "pipeline", text, pt::elements(shape));
}

LazyTensor tensor(const std::string& name, const Shape& shape, const std::string& seed, Dtype dtype = Dtype::f32) {
    return {name, stored_run(dtype, shape, forge::source(bytes_for(dtype, shape, seed), seed), 0)};
}

ModelWeights::Weight weight(const std::string& name, const Shape& shape, const std::string& seed,
                            Dtype dtype = Dtype::f32) {
    ModelWeights::Weight made{name, tensor(name, shape, seed, dtype), Kind::master, {}};
    made.state.emplace_back("exp_avg", tensor(name + "/exp_avg", shape, seed + " moment"));
    return made;
}

ModelRank rank(std::uint64_t number, std::vector<ModelWeights::Weight> weights) {
    ModelWeights joined;
    joined.weights = std::move(weights);
    return {number, "mp_rank_0" + std::to_string(number) + "_model_states.pt", std::move(joined)};
}

std::string f32_bytes(const Shape& shape, const std::string& seed) { return bytes_for(Dtype::f32, shape, seed); }

/// Returns a folder with these files of layers, and one of model states.
forge::Folder folder(const std::vector<std::string>& layers) {
    std::map<std::string, std::string> files = {{"mp_rank_00_model_states.pt", "not read"}};
    for (const std::string& file : layers) {
        const Shape shape = {2, 3};
        files[file] =
            pt::Writer::file(pt::dict({{"weight", pt::tensor(Dtype::bf16, shape, bytes_for(Dtype::bf16, shape, file))},
                                       {"note", pt::text("no tensor")},
                                       {"inner.bias", pt::tensor(Dtype::f32, {3}, bytes_for(Dtype::f32, {3}, file))}}));
    }
    return forge::Folder(std::move(files));
}

}  // namespace

TEST_CASE("stages are listed in their order, with what each of them says") {
    ModelRank first = rank(0, {weight("0.weight", {2, 2}, "a"), weight("1.weight", {3}, "b")});
    ModelRank second = rank(1, {weight("2.weight", {4}, "c")});
    first.joined.state_names = {"exp_avg", "exp_avg_sq"};
    second.joined.state_names = {"exp_avg_sq", "sum"};
    first.joined.notes = {"one"};
    second.joined.notes = {"two"};
    first.joined.aliases = {{"0.weight", "0.tied"}};
    second.joined.aliases = {{"2.weight", "2.tied"}};
    const ModelWeights joined = join_stages({first, second});
    CHECK(names_of(joined.weights) == std::vector<std::string>{"0.weight", "1.weight", "2.weight"});
    CHECK(joined.state_names == std::vector<std::string>{"exp_avg", "exp_avg_sq", "sum"});
    CHECK(joined.notes == std::vector<std::string>{"one", "two"});
    CHECK(joined.aliases == std::vector<AliasGroup>{{"0.weight", "0.tied"}, {"2.weight", "2.tied"}});
    CHECK(joined.replicas.empty());
    CHECK(joined.weights[2].state.size() == 1);
    CHECK(join_stages({}).weights.empty());
}

TEST_CASE("a tied layer is listed once, and its copies are kept for comparison") {
    const ModelWeights joined = join_stages({rank(0, {weight("tied.weight", {2}, "a"), weight("1.weight", {3}, "b")}),
                                             rank(1, {weight("2.weight", {3}, "c"), weight("tied.weight", {2}, "d")}),
                                             rank(2, {weight("tied.weight", {2}, "e")})});
    CHECK(names_of(joined.weights) == std::vector<std::string>{"tied.weight", "1.weight", "2.weight"});
    CHECK(bytes_of(joined.weights[0].tensor) == f32_bytes({2}, "a"));
    REQUIRE(joined.replicas.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(joined.replicas[i].name == "tied.weight");
        CHECK(bytes_of(joined.replicas[i].first) == f32_bytes({2}, "a"));
        CHECK(bytes_of(joined.replicas[i].other) == f32_bytes({2}, i == 0 ? "d" : "e"));
        CHECK(joined.replicas[i].first_file == "mp_rank_00_model_states.pt");
    }
    CHECK(joined.replicas[0].other_file == "mp_rank_01_model_states.pt");
    CHECK(joined.replicas[1].other_file == "mp_rank_02_model_states.pt");
}

TEST_CASE("a tied layer of another shape or dtype is refused with both files") {
    for (const auto& other : {weight("tied.weight", {2}, "x"), weight("tied.weight", {3, 2}, "x", Dtype::f16)}) {
        check_error(error_of([&] {
                        static_cast<void>(join_stages(
                            {rank(0, {weight("tied.weight", {3, 2}, "a")}), rank(1, {}), rank(2, {other})}));
                    }),
                    {Errc::ranks_differ}, {"ranks differ in the ", "mp_rank_00_model_states.pt"},
                    {.tensor = "tied.weight", .path = "mp_rank_02_model_states.pt"});
    }
}

TEST_CASE("model ranks are stages of tensor ranks: each stage is merged, and then all are joined") {
    distributed::UniversalInfo info;
    REQUIRE(info.rows.add("row"));
    REQUIRE(info.replicated.add("norm"));
    std::vector<ModelRank> ranks;
    for (std::uint64_t stage = 0; stage < 3; ++stage)
        for (std::uint64_t r = 0; r < 2; ++r) {
            const std::string at = std::to_string(stage);
            ranks.push_back(rank(stage * 2 + r, {weight("row." + at, {2, 1}, "row" + at + std::to_string(r)),
                                                 weight("column." + at, {1, 2}, "column" + at + std::to_string(r)),
                                                 weight("norm." + at, {2}, "norm" + at)}));
        }
    const ModelWeights joined = join_model_ranks(ranks, 2, &info);
    REQUIRE(joined.weights.size() == 9);
    CHECK(joined.notes.empty());
    CHECK(joined.replicas.size() == 3);
    for (std::size_t stage = 0; stage < 3; ++stage) {
        const std::string at = std::to_string(stage);
        CHECK(joined.weights[3 * stage].name == "row." + at);
        CHECK(joined.weights[3 * stage].tensor.shape() == Shape{2, 2});
        for (const std::string moment : {"", " moment"}) {
            const auto of = [&](std::size_t i) {
                const ModelWeights::Weight& one = joined.weights[3 * stage + i];
                return bytes_of(moment.empty() ? one.tensor : one.state.front().second);
            };
            const std::string left = f32_bytes({2}, "row" + at + "0" + moment);
            const std::string right = f32_bytes({2}, "row" + at + "1" + moment);
            CHECK((of(0) == left.substr(0, 4) + right.substr(0, 4) + left.substr(4) + right.substr(4)));
            CHECK(
                (of(1) == f32_bytes({2}, "column" + at + "0" + moment) + f32_bytes({2}, "column" + at + "1" + moment)));
            CHECK((of(2) == f32_bytes({2}, "norm" + at + moment)));
        }
    }
    // Without rules the ranks of each stage are listed under their own numbers.
    const ModelWeights listed = join_model_ranks(ranks, 2, nullptr);
    CHECK(listed.weights.size() == 18);
    CHECK(listed.weights[6].name == "mp_rank_02/row.1");
    CHECK(listed.weights[17].name == "mp_rank_05/norm.2");
    CHECK(!listed.notes.empty());
    // One tensor rank: a stage is as it is.
    CHECK(join_model_ranks({ranks[0], ranks[2]}, 1, nullptr).weights[3].name == "row.1");
}

TEST_CASE("model ranks that are no multiple of the tensor ranks are refused") {
    const std::vector<ModelRank> three = {rank(0, {}), rank(1, {}), rank(2, {})};
    for (const std::uint64_t tensor_ranks : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4}, ~std::uint64_t{0}}) {
        check_error(error_of([&] { static_cast<void>(join_model_ranks(three, tensor_ranks, nullptr)); }),
                    {Errc::world_mismatch}, {"3 model ranks"}, {.path = "mp_rank_00_model_states.pt"});
    }
    CHECK_OK(join_model_ranks(three, 3, nullptr));
}

TEST_CASE("files of layers are read in the order of their numbers, whatever their names sort as") {
    const auto read =
        read_layers(folder({"layer_2-model_states.pt", "layer_10-model_states.pt", "layer_100-model_states.pt",
                            "layer_01-model_states.pt", "layer_00-model_states.pt.tmp"}),
                    0);
    CHECK(read.files == std::vector<std::string>{"layer_01-model_states.pt", "layer_2-model_states.pt",
                                                 "layer_10-model_states.pt", "layer_100-model_states.pt"});
    REQUIRE(read.weights.size() == 8);
    std::size_t place = 0;
    for (const std::string layer : {"1", "2", "10", "100"}) {
        const std::string& file = read.files[place / 2];
        CHECK(read.weights[place].first == layer + ".weight");
        CHECK(read.weights[place].second.name() == layer + ".weight");
        CHECK((bytes_of(read.weights[place++].second) == bytes_for(Dtype::bf16, {2, 3}, file)));
        CHECK(read.weights[place].first == layer + ".inner.bias");
        CHECK((bytes_of(read.weights[place++].second) == bytes_for(Dtype::f32, {3}, file)));
    }
}

TEST_CASE("each tensor rank has files of its own, or all share them") {
    const forge::Folder own = folder({"layer_00-model_00-model_states.pt", "layer_00-model_01-model_states.pt",
                                      "layer_01-model_00-model_states.pt", "layer_01-model_01-model_states.pt"});
    CHECK(read_layers(own, 1).files ==
          std::vector<std::string>{"layer_00-model_01-model_states.pt", "layer_01-model_01-model_states.pt"});
    CHECK(read_layers(own, 2).files.empty());
    const forge::Folder shared = folder({"layer_00-model_states.pt"});
    CHECK(read_layers(shared, 0).files.size() == 1);
    CHECK(read_layers(shared, 1).files.size() == 1);
    CHECK(read_layers(folder({}), 0).weights.empty());
}

TEST_CASE("files of layers that hold something else are refused with their path") {
    std::map<std::string, std::string> files = {{"mp_rank_00_model_states.pt", "not read"}};
    files["layer_00-model_states.pt"] = pt::Writer::file(pt::list({pt::integer(1)}));
    check_error(error_of([&] { static_cast<void>(read_layers(forge::Folder(files), 0)); }), {Errc::field_missing}, {},
                {.path = "folder/layer_00-model_states.pt"});
    files["layer_00-model_states.pt"] = "not a file of torch.save";
    const auto unread = error_of([&] { static_cast<void>(read_layers(forge::Folder(files), 0)); });
    REQUIRE(unread.has_value());
    CHECK(unread->path() == "folder/layer_00-model_states.pt");
    files["layer_0-model_states.pt"] = files["layer_00-model_states.pt"];
    CHECK_FAULT(read_layers(forge::Folder(files), 0), Errc::rank_repeated);
}

TEST_CASE("only what the files of layers alone have is added to a pipeline") {
    ModelWeights joined = join_stages({rank(0, {weight("0.weight", {2}, "a")})});
    add_layers(joined,
               {{"0.weight", tensor("0.weight", {2}, "x", Dtype::bf16)},
                {"0.frozen", tensor("0.frozen", {3}, "y")},
                {"1.mask", tensor("1.mask", {1}, "z")},
                {"0.frozen", tensor("0.frozen", {3}, "again")}},
               {"1.mask", "0.weight"});
    CHECK(names_of(joined.weights) == std::vector<std::string>{"0.weight", "0.frozen", "1.mask"});
    CHECK(joined.weights[0].kind == Kind::master);
    CHECK(joined.weights[0].tensor.dtype() == Dtype::f32);
    CHECK(joined.weights[1].kind == Kind::frozen);
    CHECK(bytes_of(joined.weights[1].tensor) == f32_bytes({3}, "y"));
    CHECK(joined.weights[2].kind == Kind::buffer);
}

}  // namespace pipeline_test
