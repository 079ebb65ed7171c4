// Tests the local shards of OLMo: random modules that are cut among ranks, in the fields of both versions of torch, and
// fields that contradict each other.
#include "distributed/rank_forge.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace olmo_ranks_test {

using namespace safemap;
using namespace rank_forge;

namespace {

struct Module {
    std::string name;    ///< as FSDP spells it
    std::string prefix;  ///< begins the names of the parameters
    std::vector<std::string> names = {};
    std::vector<Whole> wholes = {};
};

/// Returns the fields of one handle for one rank. `old`: the fields of torch 2.0.
Value handle_of(const Module& module, std::uint64_t world, std::uint64_t rank, bool old) {
    std::string flat;
    for (const Whole& whole : module.wholes) flat += whole.bytes;
    const std::uint64_t numel = flat.size() / 4;
    const std::uint64_t size = (numel + world - 1) / world;
    const std::uint64_t first = std::min(numel, rank * size);
    const std::uint64_t count = std::min(numel, first + size) - first;
    Value infos = pt::tuple();
    Value offsets = pt::tuple();
    std::vector<std::uint64_t> indices;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < module.wholes.size(); ++i) {
        const std::uint64_t length = pt::elements(module.wholes[i].shape);
        const std::uint64_t begin = std::clamp(first, at, at + length) - at;
        const std::uint64_t end = std::clamp(first + count, at, at + length) - at;
        const bool in_shard = end > begin;
        Value info = pt::tuple({pt::boolean(in_shard)});
        for (const std::uint64_t number : {at + begin - first, end - begin, begin, end - 1})
            info.push(in_shard ? pt::integer(number) : pt::none());
        // A named tuple, or a plain one.
        infos.push(rank % 2 == 0 ? pt::call("torch.distributed.fsdp._flat_param", "_ShardParamInfo", info.items)
                                 : info);
        if (in_shard) {
            offsets.push(pt::tuple({pt::integer(begin), pt::integer(end - 1)}));
            indices.push_back(i);
        }
        at += length;
    }
    Value shapes = pt::list();
    for (const Whole& whole : module.wholes) shapes.push(pt::size(whole.shape));
    std::string own = flat.substr(first * 4, count * 4) + std::string((size - count) * 4, '\0');
    Value out = pt::dict({{"flat_param.data", pt::tensor(Dtype::f32, {size}, own)},
                          {"flat_param._fqns", pt::texts(module.names)},
                          {"flat_param._shapes", shapes},
                          {"flat_param._shard_numel_padded", pt::integer(size - count)}});
    if (!old) out.set("flat_param._shard_param_infos", infos);
    else {
        out.set("flat_param._shard_param_offsets", offsets);
        if (!indices.empty()) out.set("flat_param._shard_indices", numbers({indices.front(), indices.back()}));
    }
    return out;
}

ForgedSet forged(std::mt19937& random, std::vector<Module>& modules, std::uint64_t world, bool old) {
    for (Module& module : modules)
        for (std::size_t i = 0; i < 1 + random() % 4; ++i) {
            Shape shape = {1 + random() % 5};  // OLMo has no parameter without elements
            if (random() % 2 == 0) shape.push_back(1 + random() % 4);
            module.names.push_back("p" + std::to_string(i));
            module.wholes.push_back(random_whole(random, Dtype::f32, shape));
        }
    ForgedSet set{.prefix = "olmo_world_size_"};
    for (std::uint64_t rank = 0; rank < world; ++rank) {
        Value list = pt::list();
        for (const Module& module : modules)
            list.push(pt::dict(
                {{"name", pt::text(module.name)}, {"handles", pt::list({handle_of(module, world, rank, old)})}}));
        set.ranks[rank] = pt::dict({{"modules", list}});
    }
    return set;
}

std::vector<Module> two_modules() {
    return {{"", ""}, {"_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module", "blocks.0."}};
}

}  // namespace

TEST_CASE("random modules through real files, in the fields of torch 2.0 and 2.1") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(200); ++round) {
        auto modules = two_modules();
        const ForgedSet set = forged(random, modules, 1 + random() % 5, round % 2 == 0);
        CAPTURE(round);
        const auto contents = set.open();
        CHECK(contents.layout->kind == "flat_parameters");
        std::size_t count = 0;
        for (const Module& module : modules)
            for (std::size_t i = 0; i < module.names.size(); ++i, ++count) {
                const LazyTensor* const tensor = find(contents, module.prefix + module.names[i]);
                REQUIRE(tensor != nullptr);
                CHECK(tensor->shape() == module.wholes[i].shape);
                CHECK((bytes_of(*tensor) == module.wholes[i].bytes));
            }
        CHECK(contents.tensors.size() == count);
    }
}

TEST_CASE("a rank that is missing, and names that do not say how many there are") {
    std::mt19937 random(soak::seed(3));
    for (std::uint64_t world = 2; world < 6; ++world) {
        auto modules = two_modules();
        ForgedSet set = forged(random, modules, world, world % 2 == 0);
        set.prefix = "rank";
        set.sized = false;
        CHECK_OK(set.open());
        ForgedSet lacking = set;
        lacking.ranks.erase(random() % (world - 1));
        CHECK_FAULT(lacking.open(), Errc::rank_missing);
        // The last rank may have nothing but padding.
        const auto has_elements = [&](const Module& module) {
            std::uint64_t numel = 0;
            for (const Whole& whole : module.wholes) numel += whole.bytes.size() / 4;
            return (numel + world - 1) / world * (world - 1) < numel;
        };
        set.ranks.erase(world - 1);
        CAPTURE(world);
        if (std::any_of(modules.begin(), modules.end(), has_elements)) CHECK_FAULT(set.open(), Errc::rank_missing);
        else CHECK_OK(set.open());
    }
}

TEST_CASE("fields that are missing, contradict each other, or reach outside") {
    std::mt19937 random(2);
    const auto with = [&](bool old, const std::function<void(Value&)>& change) {
        auto modules = two_modules();
        ForgedSet set = forged(random, modules, 2, old);
        change(set.ranks[1]["modules"][0]["handles"][0]);
        return set;
    };
    const auto erase = [](const char* field) { return [field](Value& handle) { handle.erase(field); }; };
    for (const char* const field :
         {"flat_param.data", "flat_param._fqns", "flat_param._shapes", "flat_param._shard_param_infos"})
        CHECK_FAULT(with(false, erase(field)).open(), Errc::field_missing);
    CHECK_FAULT(with(false, [](Value& handle) { handle["flat_param.data"] = pt::integer(1); }).open(),
                Errc::field_missing);
    CHECK_FAULT(with(false, [](Value& handle) { handle["flat_param._fqns"].push(pt::text("x")); }).open(),
                Errc::field_missing);
    CHECK_FAULT(with(false, [](Value& handle) { handle["flat_param._shard_param_infos"].push(pt::none()); }).open(),
                Errc::field_missing);
    CHECK_FAULT(with(false, [](Value& handle) { handle["flat_param._fqns"].items.back() = pt::text("other"); }).open(),
                Errc::ranks_differ);
    const auto info = [](std::uint64_t from, std::uint64_t count, std::uint64_t first, std::uint64_t last) {
        return [=](Value& handle) {
            handle["flat_param._shard_param_infos"].items.back() = pt::tuple(
                {pt::boolean(true), pt::integer(from), pt::integer(count), pt::integer(first), pt::integer(last)});
        };
    };
    CHECK_FAULT(with(false, info(0, 2, 0, 0)).open(), Errc::field_missing);
    CHECK_FAULT(with(false, info(0, 0, 0, 0)).open(), Errc::field_missing);
    CHECK_FAULT(with(false, info(0, 1000, 0, 999)).open(), Errc::piece_outside);
    CHECK_FAULT(with(false, info(1000, 1, 0, 0)).open(), Errc::piece_outside);
    CHECK_FAULT(with(false, info(0, 1, std::uint64_t{1} << 62, std::uint64_t{1} << 62)).open(), Errc::piece_outside);
    // The last element of the last parameter is in no slice.
    auto modules = two_modules();
    ForgedSet lost = forged(random, modules, 1, false);
    lost.ranks[0]["modules"][1]["handles"][0]["flat_param._shard_param_infos"].items.back() =
        pt::tuple({pt::boolean(false), pt::none(), pt::none(), pt::none(), pt::none()});
    CHECK_FAULT(lost.open(), Errc::not_covered);
    // The last parameter begins where the first one does.
    do modules = two_modules(), lost = forged(random, modules, 1, false);
    while (modules[1].names.size() < 2);
    const std::uint64_t numel = pt::elements(modules[1].wholes.back().shape);
    lost.ranks[0]["modules"][1]["handles"][0]["flat_param._shard_param_infos"].items.back() =
        pt::tuple({pt::boolean(true), pt::integer(0), pt::integer(numel), pt::integer(0), pt::integer(numel - 1)});
    CHECK_FAULT(lost.open(), Errc::pieces_overlap);
    CHECK_FAULT(
        with(true, [](Value& handle) { handle["flat_param._shard_param_offsets"].push(pt::tuple({pt::integer(1)})); })
            .open(),
        Errc::field_missing);
}

}  // namespace olmo_ranks_test
