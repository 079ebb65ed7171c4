// Tests what the files of a pipeline's layers add to its masters.
#include "distributed/pipeline.hpp"

#include "doctest_safemap.hpp"

using namespace safemap;
using distributed::add_layers;
using distributed::Gathered;
using distributed::join_model_ranks;
using distributed::join_stages;
using distributed::ModelRank;
using distributed::Named;

namespace {

using Kind = Gathered::Weight::Kind;

LazyTensor tensor(const std::string& name, Dtype dtype, const Shape& shape) {
    return {name, stored_run(dtype, shape, memory_source("file", std::vector<std::byte>(256)), 0)};
}

ModelRank stage(std::uint64_t number, const std::vector<std::string>& names, const Shape& shape = {2, 3}) {
    ModelRank made{.number = number, .file = "stage " + std::to_string(number)};
    for (const std::string& name : names)
        made.gathered.weights.push_back({name, tensor(name, Dtype::f32, shape), Kind::master, {}});
    return made;
}

}  // namespace

TEST_CASE("a weight of two stages is listed once, and can be compared") {
    const Gathered joined =
        join_stages({stage(0, {"0.w", "tied_modules.embed.w"}), stage(1, {"tied_modules.embed.w"})});
    CHECK(joined.weights.size() == 2);
    REQUIRE(joined.replicas.size() == 1);
    CHECK(joined.replicas[0].other_file == "stage 1");
    CHECK_FAULT(join_stages({stage(0, {"0.w"}), stage(1, {"0.w"}, {3, 2})}), Errc::ranks_differ);
    CHECK_FAULT(join_model_ranks({stage(0, {"0.w"}), stage(1, {"1.w"}), stage(2, {"2.w"})}, 2, nullptr),
                Errc::world_mismatch);
}

TEST_CASE("files of layers add frozen weights and buffers, and second names of tied layers") {
    Gathered joined =
        join_stages({stage(0, {"0.w", "tied_modules.embed.word.w", "tied_modules.a.p", "tied_modules.b.p"})});
    Named layers;
    for (const char* name : {"0.w", "1.word.w", "2.frozen", "3.seen", "4.word.w", "5.p"})
        layers.emplace_back(name, tensor(name, Dtype::bf16, {2, 3}));
    layers.emplace_back("6.word.w", tensor("6.word.w", Dtype::bf16, {3, 2}));
    add_layers(joined, layers, {"3.seen"});
    CHECK(joined.aliases == std::vector<AliasGroup>{{"tied_modules.embed.word.w", "1.word.w", "4.word.w"}});
    REQUIRE(joined.weights.size() == 8);
    CHECK(joined.weights[4].name == "2.frozen");
    CHECK(joined.weights[4].kind == Kind::frozen);
    CHECK(joined.weights[5].name == "3.seen");
    CHECK(joined.weights[5].kind == Kind::buffer);
    CHECK(joined.weights[6].name == "5.p");       // fits two modules
    CHECK(joined.weights[7].name == "6.word.w");  // has another shape
}
