// Tests what the files of a pipeline's layers add to its masters.
#include "distributed/parallel/pipeline.hpp"

#include "doctest_safemap.hpp"

namespace pipeline_layers_test {

using namespace safemap;
using distributed::add_layers;
using distributed::join_model_ranks;
using distributed::join_stages;
using distributed::ModelRank;
using distributed::ModelWeights;
using distributed::Named;

namespace {

using Kind = ModelWeights::Weight::Kind;

LazyTensor tensor(const std::string& name, Dtype dtype, const Shape& shape) {
    return {name, stored_run(dtype, shape, memory_source("file", std::vector<std::byte>(256)), 0)};
}

ModelRank stage(std::uint64_t number, const std::vector<std::string>& names, const Shape& shape = {2, 3}) {
    ModelRank made{.number = number, .file = "stage " + std::to_string(number)};
    for (const std::string& name : names)
        made.joined.weights.push_back({name, tensor(name, Dtype::f32, shape), Kind::master, {}});
    return made;
}

}  // namespace

TEST_CASE("a weight of two stages is listed once, and can be compared") {
    const ModelWeights joined =
        join_stages({stage(0, {"0.w", "tied_modules.embed.w"}), stage(1, {"tied_modules.embed.w"})});
    CHECK(joined.weights.size() == 2);
    REQUIRE(joined.replicas.size() == 1);
    CHECK(joined.replicas[0].other_file == "stage 1");
    CHECK_FAULT(join_stages({stage(0, {"0.w"}), stage(1, {"0.w"}, {3, 2})}), Errc::ranks_differ);
    CHECK_FAULT(join_model_ranks({stage(0, {"0.w"}), stage(1, {"1.w"}), stage(2, {"2.w"})}, 2, nullptr),
                Errc::world_mismatch);
}

TEST_CASE("files of layers add frozen weights and buffers, and second names of tied layers") {
    ModelWeights joined =
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

TEST_CASE("a weight of a layer is a second name of a tied weight only if it has its values") {
    constexpr std::uint64_t count = 60'000;  // longer than the parts that are compared
    const auto filled = [](const std::string& name, std::uint64_t changed) {
        std::vector<std::byte> bytes(count * 4, std::byte{0x3f});
        if (changed < count) bytes[changed * 4] = std::byte{0x40};
        return LazyTensor(name, stored_run(Dtype::f32, {count}, memory_source("file", std::move(bytes)), 0));
    };
    const auto joined_with = [&](const std::string& name, std::uint64_t changed,
                                 std::vector<std::string> buffers = {}) {
        ModelWeights joined;
        joined.weights.push_back({"tied_modules.embed.w", filled("tied_modules.embed.w", count), Kind::master, {}});
        add_layers(joined, {{name, filled(name, changed)}}, buffers);
        return joined;
    };
    const ModelWeights same = joined_with("0.w", count);
    CHECK(same.aliases == std::vector<AliasGroup>{{"tied_modules.embed.w", "0.w"}});
    CHECK(same.weights.size() == 1);
    REQUIRE(same.replicas.size() == 1);
    CHECK(same.replicas[0].name == "0.w");
    for (const std::uint64_t changed : {std::uint64_t{0}, count / 2, count - 1}) {
        const ModelWeights other = joined_with("0.w", changed);
        CHECK(other.aliases.empty());
        CHECK(other.replicas.empty());
        REQUIRE(other.weights.size() == 2);
        CHECK(other.weights[1].name == "0.w");
        CHECK(other.weights[1].kind == Kind::frozen);
    }
    // A difference between these parts is found by verify.
    CHECK(joined_with("0.w", count / 4).replicas.size() == 1);
    const ModelWeights buffer = joined_with("0.w", count, {"0.w"});
    CHECK(buffer.aliases.empty());
    REQUIRE(buffer.weights.size() == 2);
    CHECK(buffer.weights[1].kind == Kind::buffer);
    // Listed by model rank, a weight is tied to that of its own rank.
    CHECK(joined_with("mp_rank_00/0.w", count).aliases.empty());
}

}  // namespace pipeline_layers_test
