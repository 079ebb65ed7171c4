// Tests the local shards of OLMo: random modules that are cut among ranks, in the fields of both versions of torch, the
// state of their optimizer, and fields that contradict each other.
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"
#include "inspect.hpp"
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

ForgedSet files_of(const std::vector<Module>& modules, std::uint64_t world, bool old);

ForgedSet forged(std::mt19937& random, std::vector<Module>& modules, std::uint64_t world, bool old) {
    for (Module& module : modules)
        for (std::size_t i = 0; i < 1 + random() % 4; ++i) {
            Shape shape = {1 + random() % 5};  // OLMo has no parameter without elements
            if (random() % 2 == 0) shape.push_back(1 + random() % 4);
            module.names.push_back("p" + std::to_string(i));
            module.wholes.push_back(random_whole(random, Dtype::f32, shape));
        }
    return files_of(modules, world, old);
}

ForgedSet files_of(const std::vector<Module>& modules, std::uint64_t world, bool old) {
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

/// The state of an optimizer beside a model, and the whole values in the order of its parameters.
struct ForgedOptimizer {
    ForgedSet set;
    std::vector<Whole> moments = {};
    std::string step = bytes_of_i32({7});

    state::Contents open(const ForgedSet& model) const {
        const auto beside = std::make_shared<distributed::RankFiles>(
            distributed::RankFiles{.folder = model.folder(), .files = model.files()});
        return distributed::read_rank_files({.folder = set.folder(), .files = set.files(), .model = beside}, {});
    }
};

/// Cuts a moment of each parameter as handle_of() cuts the parameter. Two groups list the parameters in turn.
ForgedOptimizer forged_optimizer(std::mt19937& random, const std::vector<Module>& modules, std::uint64_t world) {
    ForgedOptimizer out{.set = {.prefix = "olmo_world_size_"}};
    std::vector<Value> groups;
    for (int i = 0; i < 2; ++i)
        groups.push_back(pt::dict({{"params", pt::list()}, {"param_names", pt::list()}, {"lr", pt::real(0.5)}}));
    std::vector<Value> states(world, pt::dict());
    for (Value& state : states) state.number_keys = true;
    for (const Module& module : modules) {
        std::uint64_t numel = 0;
        for (const Whole& whole : module.wholes) numel += pt::elements(whole.shape);
        const std::uint64_t size = (numel + world - 1) / world;
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < module.wholes.size(); ++i) {
            const std::size_t number = out.moments.size();
            Value& group = groups[number % 2];
            group["params"].push(pt::integer(number));
            group["param_names"].push(pt::text(module.name + (module.name.empty() ? "" : ".") + module.names[i]));
            const Whole& moment = out.moments.emplace_back(random_whole(random, Dtype::f32, module.wholes[i].shape));
            const std::uint64_t length = pt::elements(moment.shape);
            for (std::uint64_t rank = 0; rank < world; ++rank) {
                const std::uint64_t begin = std::clamp(rank * size, at, at + length) - at;
                const std::uint64_t end = std::clamp((rank + 1) * size, at, at + length) - at;
                // torch has state of parameters with elements only; empty state is the same.
                if (begin == end && random() % 4 != 0) continue;
                states[rank].set(
                    std::to_string(number),
                    pt::dict({{"step", pt::tensor(Dtype::i32, {}, out.step)},
                              {"exp_avg", pt::tensor(Dtype::f32, {end - begin},
                                                     moment.bytes.substr(begin * 4, (end - begin) * 4))}}));
            }
            at += length;
        }
    }
    for (std::uint64_t rank = 0; rank < world; ++rank)
        out.set.ranks[rank] = pt::dict({{"state", states[rank]}, {"param_groups", pt::list(groups)}});
    return out;
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

TEST_CASE("the state of an optimizer is joined by the lists of its model") {
    std::mt19937 random(soak::seed(5));
    for (int round = 0; round < soak::rounds(200); ++round) {
        auto modules = two_modules();
        const std::uint64_t world = 1 + random() % 5;
        const ForgedSet model = forged(random, modules, world, round % 2 == 0);
        const ForgedOptimizer optimizer = forged_optimizer(random, modules, world);
        CAPTURE(round);
        const auto contents = optimizer.open(model);
        CHECK(contents.tensors.size() == 2 * optimizer.moments.size());
        for (std::size_t i = 0; i < optimizer.moments.size(); ++i) {
            const LazyTensor* const moment = find(contents, "state/" + std::to_string(i) + "/exp_avg");
            REQUIRE(moment != nullptr);
            CHECK(moment->shape() == optimizer.moments[i].shape);
            CHECK((bytes_of(*moment) == optimizer.moments[i].bytes));
            CHECK(find(contents, "state/" + std::to_string(i) + "/step") != nullptr);
        }
        // The names are those of the model.
        const auto name = contents.tree->find("param_groups/0/param_names/0");
        REQUIRE(name.has_value());
        CHECK(std::get<std::string>((*contents.tree)[*name]) == modules.front().prefix + "p0");
    }
}

TEST_CASE("the state of an optimizer that contradicts its model or itself") {
    std::mt19937 random(soak::seed(6));
    // Each rank has elements of both parameters.
    std::vector<Module> modules = two_modules();
    for (Module& module : modules) {
        module.names = {"weight"};
        module.wholes = {random_whole(random, Dtype::f32, {3, 4})};
    }
    const ForgedSet model = files_of(modules, 3, false);
    const ForgedOptimizer good = forged_optimizer(random, modules, 3);
    CHECK_OK(good.open(model));
    const auto refused = [&](Errc code, const auto& change) {
        ForgedOptimizer bad = good;
        change(bad.set.ranks);
        CHECK_FAULT(bad.open(model), code);
    };
    refused(Errc::rank_missing, [](auto& ranks) { ranks.erase(1); });
    refused(Errc::ranks_differ, [](auto& ranks) { ranks[2]["param_groups"][0].set("lr", pt::real(0.25)); });
    refused(Errc::ranks_differ, [](auto& ranks) {
        for (Value& state : ranks[1]["state"].items) state.set("step", pt::tensor(Dtype::i32, {}, bytes_of_i32({8})));
    });
    refused(Errc::ranks_differ, [](auto& ranks) {
        for (Value& state : ranks[1]["state"].items) state.set("exp_avg", pt::tensor(Dtype::i32, {1}, "abcd"));
    });
    refused(Errc::field_missing, [](auto& ranks) { ranks[0]["state"].items[0].set("step", pt::integer(7)); });
    refused(Errc::field_missing, [](auto& ranks) { ranks[1]["state"].keys[0] = "77"; });
    refused(Errc::field_missing, [](auto& ranks) {
        for (auto& rank : ranks) rank.second["param_groups"][0]["params"].push(pt::integer(99));
    });
    refused(Errc::field_missing, [](auto& ranks) {
        for (auto& rank : ranks) rank.second["param_groups"][0]["param_names"][0] = pt::text("other");
    });
    refused(Errc::not_covered, [](auto& ranks) { ranks[0]["state"].items[0].erase("exp_avg"); });
    refused(Errc::piece_mismatch, [](auto& ranks) {
        Value& moment = ranks[0]["state"].items[0]["exp_avg"];
        moment = pt::tensor(Dtype::f32, {moment.shape[0] + 1}, std::string(moment.shape[0] * 4 + 4, 'x'));
    });
    refused(Errc::optimizer_unnamed, [](auto& ranks) {
        for (auto& rank : ranks) rank.second["param_groups"][0].erase("param_names");
    });
    // Without the model, nothing says which elements a rank has.
    CHECK_FAULT(good.set.open(), Errc::optimizer_unnamed);
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
