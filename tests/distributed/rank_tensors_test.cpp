// Tests whole tensors out of rank files that are forged byte for byte: random meshes, placements, versions of torch and
// local tensors, compared with the slow twin; and what becomes of replicas, ties, objects and sub-meshes.
#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"
#include "inspect.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/error.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace rank_tensors_test {

using namespace safemap;
using namespace rank_forge;
using state::Contents;
using state::Replica;

namespace {

class Random {
public:
    explicit Random(unsigned seed) : engine(seed) {}
    std::uint64_t operator()(std::uint64_t low, std::uint64_t high) {
        return std::uniform_int_distribution<std::uint64_t>(low, high)(engine);
    }
    template <class List> auto& one_of(List& list) { return list[(*this)(0, std::size(list) - 1)]; }

    std::mt19937 engine;
};

constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::boolean, Dtype::f64};

/// A tensor on the mesh of a set.
struct Placed {
    std::string name = {};
    Whole whole = {};
    slow::Sharded how = {};
    std::vector<std::size_t> cuts = {};  ///< by mesh dimension: the dimension that it cuts, or `none`
    bool stated_order = false;           ///< torch states the order, and no factors

    static constexpr std::size_t none = SIZE_MAX;
};

Placed random_placed(Random& random, const ForgedMesh& mesh, std::string name) {
    Placed out{.name = std::move(name)};
    Shape shape;
    const std::uint64_t rank = random(0, 3);
    for (std::uint64_t d = 0; d < rank; ++d) shape.push_back(random(0, 9));
    out.whole = random_whole(random.engine, random.one_of(dtypes), shape);
    out.how = {.whole = Numbers(shape.begin(), shape.end()), .mesh = mesh.shape()};
    out.how.orders.resize(rank);
    for (std::size_t m = 0; m < out.how.mesh.size(); ++m) {
        const bool cuts = rank > 0 && random(0, 4) > 0;
        out.cuts.push_back(cuts ? random(0, rank - 1) : Placed::none);
        out.how.pieces.push_back(1);
        if (cuts) out.how.orders[out.cuts.back()].push_back(m);
    }
    if (out.how.mesh.size() == 1 && random(0, 2) == 0) out.how.pieces[0] = random(1, 4);
    else
        for (auto& order : out.how.orders) std::shuffle(order.begin(), order.end(), random.engine);
    out.stated_order = out.how.pieces[0] == 1 && random(0, 2) == 0;
    return out;
}

std::vector<Value> placements_of(const Placed& placed, Era era) {
    std::vector<Value> out;
    for (std::size_t m = 0; m < placed.cuts.size(); ++m) {
        const std::size_t d = placed.cuts[m];
        if (d == Placed::none) {
            out.push_back(replicate(era));
            continue;
        }
        const std::uint64_t factor = placed.how.factor(d, m) * placed.how.pieces[m];
        const bool plain = factor == 1 || placed.stated_order;
        out.push_back(plain ? shard(d, era) : strided(d, factor, era));
    }
    return out;
}

/// Returns the field that states the order since torch 2.10.
Value shard_order(const Placed& placed) {
    Value out = pt::tuple();
    for (std::size_t d = 0; d < placed.how.orders.size(); ++d) {
        if (placed.how.orders[d].empty()) continue;
        Value dimensions = pt::tuple();
        for (const std::size_t m : placed.how.orders[d]) dimensions.push(pt::integer(m));
        out.push(pt::call("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry", {pt::integer(d), dimensions}));
    }
    return out;
}

/// Returns a local tensor: alone in its storage, inside a larger one, or stored by columns.
Value local_tensor(Random& random, Dtype dtype, const Shape& shape, const std::string& bytes) {
    const std::size_t size = pt::element_bytes(dtype);
    switch (random(0, 2)) {
        case 0: return pt::tensor(dtype, shape, bytes);
        case 1:
            return pt::tensor(pt::store(dtype, std::string(3 * size, '\x7f') + bytes + std::string(size, '\x7f')),
                              shape, 3);
        default: break;
    }
    if (shape.size() != 2 || bytes.empty()) return pt::tensor(dtype, shape, bytes);
    std::string columns;
    for (std::uint64_t j = 0; j < shape[1]; ++j)
        for (std::uint64_t i = 0; i < shape[0]; ++i) columns += bytes.substr((i * shape[1] + j) * size, size);
    Value out = pt::tensor(dtype, shape, columns);
    out.strides = {1, shape[0]};
    return out;
}

Value dtensor_of(Random& random, const Placed& placed, const ForgedMesh& mesh, std::uint64_t rank, Era era) {
    const Numbers at = mesh.coordinates(rank);
    Shape shape;
    for (const Numbers& list : placed.how.held(at)) shape.push_back(list.size());
    Value local = local_tensor(random, placed.whole.dtype, shape, take(placed.whole, slow::elements(placed.how, at)));
    Value spec = dtensor_spec(device_mesh(mesh, rank, era), placements_of(placed, era), placed.whole.dtype,
                              placed.whole.shape, era);
    if (placed.stated_order) spec.set("shard_order", shard_order(placed));
    return dtensor(std::move(local), placed.whole.shape, std::move(spec), placed.whole.dtype, era);
}

void check(const Contents& contents, const std::string& name, const Whole& wanted) {
    INFO(name);
    const LazyTensor* const tensor = find(contents, name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype() == wanted.dtype);
    CHECK(tensor->shape() == wanted.shape);
    CHECK((bytes_of(*tensor) == wanted.bytes));
}

std::size_t count_replicas(const Contents& contents) {
    std::size_t count = 0;
    contents.replicas.each([&](const Replica& one) {
        ++count;
        CHECK(one.first.shape() == one.other.shape());
        CHECK((bytes_of(one.first) == bytes_of(one.other)));
    });
    return count;
}

/// Returns the number of ranks that hold each part again.
std::size_t copies(const Placed& placed) {
    std::size_t count = 1;
    for (std::size_t m = 0; m < placed.cuts.size(); ++m)
        if (placed.cuts[m] == Placed::none) count *= placed.how.mesh[m];
    return count - 1;
}

TEST_CASE("random meshes and placements through real files") {
    Random random(soak::seed(1));
    for (int round = 0; round < soak::rounds(300); ++round) {
        ForgedMesh mesh;
        const std::uint64_t dimensions = random(1, 3);
        for (std::uint64_t m = 0; m < dimensions; ++m) {
            mesh.root.push_back(random(1, 3));
            mesh.names.push_back("m" + std::to_string(m));
        }
        if (random(0, 3) == 0) mesh.names.clear();
        const std::uint64_t world =
            std::accumulate(mesh.root.begin(), mesh.root.end(), std::uint64_t{1}, std::multiplies<>());
        mesh.ranks.resize(world);
        std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
        if (random(0, 1) == 0) std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random.engine);
        std::vector<Placed> tensors;
        for (int i = 0; i < 4; ++i) tensors.push_back(random_placed(random, mesh, "t" + std::to_string(i)));
        const Whole plain = random_whole(random.engine, Dtype::f32, {3});
        const Era era = random.one_of(eras);
        ForgedSet set;
        std::size_t replicas = world - 1;
        for (const Placed& placed : tensors) replicas += copies(placed);
        for (std::uint64_t rank = 0; rank < world; ++rank) {
            Value state = pt::dict({{"plain", pt::tensor(plain.dtype, plain.shape, plain.bytes)}});
            std::vector<const Placed*> order;
            for (const Placed& placed : tensors) order.push_back(&placed);
            if (random(0, 1) == 0) std::shuffle(order.begin(), order.end(), random.engine);
            for (const Placed* placed : order) state.set(placed->name, dtensor_of(random, *placed, mesh, rank, era));
            set.ranks[rank] = pt::dict({{"model", state}, {"step", pt::integer(7)}});
        }
        CAPTURE(round);
        const Contents contents = set.open({}, random(0, 3) == 0 ? pt::Container::legacy : pt::Container::zip);
        CHECK(contents.tensors.size() == tensors.size() + 1);
        for (const Placed& placed : tensors) check(contents, "model/" + placed.name, placed.whole);
        check(contents, "model/plain", plain);
        CHECK(contents.layout->world_size == world);
        CHECK(contents.layout->mesh == mesh.root);
        CHECK(contents.layout->mesh_names == mesh.names);
        CHECK(count_replicas(contents) == replicas);
    }
}

TEST_CASE("random ShardedTensors through real files") {
    Random random(soak::seed(2));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const std::uint64_t world = random(1, 5);
        const Whole whole = random_whole(random.engine, random.one_of(dtypes), {random(0, 11), random(1, 3)});
        // Chunks of rows, and a rank that has none has no shard. With `twice`, the last rank has the first shard, too.
        const bool twice = world > 1 && random(0, 3) == 0;
        std::vector<ForgedShard> shards;
        const slow::Sharded how{
            .whole = {whole.shape[0], whole.shape[1]}, .mesh = {world}, .orders = {{0}, {}}, .pieces = {1}};
        for (std::uint64_t rank = 0; rank < world; ++rank) {
            const Numbers rows = how.held({rank})[0];
            if (!rows.empty()) shards.push_back({{rows.front(), 0}, {rows.size(), whole.shape[1]}, rank});
        }
        ForgedSet set{.prefix = "optim_world_size_"};
        for (std::uint64_t rank = 0; rank < world; ++rank) {
            std::vector<std::pair<ForgedShard, Value>> locals;
            for (const ForgedShard& shard : shards) {
                if (shard.rank != rank && !(twice && rank + 1 == world && shard.rank == 0)) continue;
                locals.emplace_back(shard, pt::tensor(whole.dtype, {shard.extent[0], shard.extent[1]},
                                                      take(whole, slow::elements(how, {shard.rank}))));
            }
            set.ranks[rank] =
                pt::dict({{"w", sharded_tensor(std::move(locals), whole.shape, shards, whole.dtype, rank, world)}});
        }
        CAPTURE(round);
        const Contents contents = set.open();
        check(contents, "w", whole);
        CHECK(count_replicas(contents) == (twice && !shards.empty() && shards.front().rank == 0 ? 1 : 0));
    }
}

Whole counted(std::uint64_t rows, std::uint64_t columns) {
    std::mt19937 random(1);
    return random_whole(random, Dtype::f32, {rows, columns});
}

TEST_CASE("sub-meshes of a root mesh: the tensor is complete in each, and the others are replicas") {
    const Whole whole = counted(5, 2);
    const ForgedMesh root{.root = {2, 3}, .ranks = {0, 1, 2, 3, 4, 5}, .names = {"replica", "dp"}};
    for (const Era era : eras)
        for (const std::size_t dimension : {std::size_t{0}, std::size_t{1}}) {
            ForgedMesh mesh = root;
            mesh.dimensions = {dimension};
            Placed placed{.name = "w", .whole = whole, .how = {{5, 2}, mesh.shape(), {{0}, {}}, {1}}, .cuts = {0}};
            ForgedSet set;
            Random random(3);
            for (std::uint64_t rank = 0; rank < 6; ++rank)
                set.ranks[rank] = pt::dict({{"w", dtensor_of(random, placed, mesh, rank, era)}});
            const Contents contents = set.open();
            check(contents, "w", whole);
            CHECK(contents.layout->mesh == mesh.shape());
            CHECK(count_replicas(contents) == 6 / mesh.shape()[0] - 1);
        }
}

TEST_CASE("sub-meshes whose tensors have other values are no replicas") {
    const ForgedMesh mesh{.root = {2, 2}, .ranks = {0, 1, 2, 3}, .names = {"ep", "dp"}, .dimensions = {1}};
    ForgedSet set;
    Random random(4);
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
        const Placed placed{.name = "expert",
                            .whole = random_whole(random.engine, Dtype::f32, {4, 2}),
                            .how = {{4, 2}, {2}, {{0}, {}}, {1}},
                            .cuts = {0}};
        set.ranks[rank] = pt::dict({{"expert", dtensor_of(random, placed, mesh, rank, Era::torch_2_13)}});
    }
    CHECK_FAULT(set.open(), Errc::ranks_differ);
}

TEST_CASE("a mesh of some ranks: the others have the tensor without elements") {
    const Whole whole = counted(4, 2);
    const ForgedMesh part{.root = {2}, .ranks = {1, 2}, .names = {}};
    const ForgedMesh all = line(3, {});
    for (const Era era : eras) {
        Random random(5);
        const Placed on_part{.name = "part", .whole = whole, .how = {{4, 2}, {2}, {{0}, {}}, {1}}, .cuts = {0}};
        const Placed on_all{.name = "all", .whole = whole, .how = {{4, 2}, {3}, {{0}, {}}, {1}}, .cuts = {0}};
        ForgedSet set;
        for (std::uint64_t rank = 0; rank < 3; ++rank) {
            set.ranks[rank] = pt::dict({{"all", dtensor_of(random, on_all, all, rank, era)}});
            if (rank > 0) {
                set.ranks[rank].set("part", dtensor_of(random, on_part, part, rank, era));
                continue;
            }
            Value spec = dtensor_spec(device_mesh(part, rank, era), {shard(0, era)}, Dtype::f32, {4, 2}, era);
            // The rank is not in the list, and a layout over all of it does not need it.
            set.ranks[rank].set("part", dtensor(pt::tensor(Dtype::f32, {0}, ""), {4, 2}, spec, Dtype::f32, era));
        }
        const Contents contents = set.open();
        check(contents, "part", whole);
        check(contents, "all", whole);
    }
}

TEST_CASE("FSDP over tensor parallelism where the shapes tell which order was meant") {
    // 9 rows on 4 x 2 ranks: see mesh_test.cpp. torch writes the same placements for both.
    const Whole whole = counted(9, 2);
    const ForgedMesh mesh{.root = {4, 2}, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .names = {"dp", "tp"}};
    for (const bool fsdp : {true, false}) {
        slow::Sharded how{.whole = {9, 2}, .mesh = {4, 2}, .orders = {{1, 0}, {}}, .pieces = {1, 1}};
        if (!fsdp) how = {.whole = {9, 2}, .mesh = {4, 2}, .orders = {{0, 1}, {}}, .pieces = {2, 1}};
        ForgedSet set;
        for (std::uint64_t rank = 0; rank < 8; ++rank) {
            const Numbers at = mesh.coordinates(rank);
            Value local = pt::tensor(Dtype::f32, {how.held(at)[0].size(), 2}, take(whole, slow::elements(how, at)));
            const Era era = Era::torch_2_13;
            Value spec = dtensor_spec(device_mesh(mesh, rank, era), {strided(0, 2), shard(0)}, Dtype::f32, {9, 2}, era);
            set.ranks[rank] = pt::dict({{"w", dtensor(local, {9, 2}, spec, Dtype::f32, era)}});
        }
        check(set.open(), "w", whole);
    }
}

TEST_CASE("names of one tensor are aliases, and several tensors in one storage are not") {
    const Whole whole = counted(4, 2);
    ForgedSet set = rows_on_a_line(whole, 2);
    for (auto& [rank, state] : set.ranks) state.set("tied", state["rows"]);
    const Contents contents = set.open();
    CHECK(contents.tensors.size() == 1);
    REQUIRE(contents.aliases.size() == 1);
    CHECK(contents.aliases[0] == AliasGroup{"rows", "tied"});
    // Rows 0 to 3 and 4 to 7 of one storage.
    ForgedSet views;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const auto storage = pt::store(Dtype::f32, whole.bytes);
        Value state = pt::dict();
        for (std::uint64_t i = 0; i < 2; ++i) {
            Value spec = dtensor_spec(device_mesh(line(2), rank, Era::torch_2_13), {shard(0)}, Dtype::f32, {4, 2},
                                      Era::torch_2_13);
            state.set("v" + std::to_string(i),
                      dtensor(pt::tensor(storage, {2, 2}, i * 4), {4, 2}, spec, Dtype::f32, Era::torch_2_13));
        }
        views.ranks[rank] = state;
    }
    CHECK(views.open().tensors.size() == 2);
}

TEST_CASE("values that differ between ranks are listed below the rank") {
    ForgedSet set = rows_on_a_line(counted(4, 2), 3);
    for (auto& [rank, state] : set.ranks) {
        state.set("args", pt::dict({{"lr", pt::real(0.5)},
                                    {"local_rank", pt::integer(rank)},
                                    {"list", pt::list({pt::integer(1), pt::integer(rank / 2)})}}));
        state.set("rng", pt::dict({{"cpu", pt::call("torch._utils", "_rebuild_nothing", {})}}));
    }
    set.ranks[1].set("only_here", pt::text("x"));
    const Contents contents = set.open();
    const StateTree& tree = *contents.tree;
    const auto integer = [&](std::string_view path) {
        const auto node = tree.find(path);
        INFO(path);
        REQUIRE(node);
        return std::get<std::int64_t>(tree[*node]);
    };
    CHECK(integer("args/local_rank") == 0);
    CHECK(integer("rank_1/args/local_rank") == 1);
    CHECK(integer("rank_2/args/local_rank") == 2);
    CHECK(integer("rank_2/args/list/1") == 1);
    CHECK(tree.find("rank_1/only_here"));
    CHECK_FALSE(tree.find("rank_1/args/lr"));
    CHECK_FALSE(tree.find("rank_1/args/list"));
    CHECK_FALSE(tree.find("rank_1/rng"));
    CHECK_FALSE(tree.find("rank_2/only_here"));
    CHECK(std::any_of(contents.notes.begin(), contents.notes.end(),
                      [](const std::string& note) { return note.find("4 values of 2 ranks differ") == 0; }));
}

TEST_CASE("keys that are tuples are matched by their values, in any order") {
    std::mt19937 random(1);
    const auto key = [](std::int64_t number) {
        return forge::integer(number) + forge::text("x") + '\x86';  // TUPLE2
    };
    constexpr std::int64_t count = 5;
    std::vector<Whole> wholes;
    ForgedSet set;
    for (std::int64_t i = 0; i < count; ++i) {
        wholes.push_back(random_whole(random, Dtype::f32, {4, 2}));
        ForgedSet rows = rows_on_a_line(wholes.back(), 2);
        for (auto& [rank, state] : rows.ranks) {
            set.ranks[rank].kind = Value::Kind::dict;
            set.ranks[rank].raw_keys = true;
            set.ranks[rank].set(key(i), state["rows"]);
        }
    }
    std::reverse(set.ranks[1].keys.begin(), set.ranks[1].keys.end());
    std::reverse(set.ranks[1].items.begin(), set.ranks[1].items.end());
    const Contents contents = set.open();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
        const LazyTensor* const tensor = find(contents, "~k" + std::to_string(i));
        REQUIRE(tensor != nullptr);
        CHECK((bytes_of(*tensor) == wholes[i].bytes));
    }
    // A key that is another one is missing.
    set.ranks[1].keys[0] = key(count);
    const auto error = error_of([&] { set.open(); });
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::ranks_differ);
    CHECK(error->message().find("the key (") != std::string::npos);
    CHECK_FALSE(error->hint().empty());
}

TEST_CASE("values under tuples that only one rank has keep their keys") {
    const auto key = [](std::int64_t rank) { return forge::text("rank") + forge::integer(rank) + '\x86'; };
    ForgedSet set = rows_on_a_line(counted(4, 2), 3);
    for (auto& [rank, state] : set.ranks) {
        Value seen = pt::dict();
        seen.raw_keys = true;
        seen.set(key(static_cast<std::int64_t>(rank)), pt::integer(10 + rank));
        state.set("seen", seen);
    }
    const Contents contents = set.open();
    const StateTree& tree = *contents.tree;
    for (std::uint64_t rank = 1; rank < 3; ++rank) {
        const auto node = tree.find("rank_" + std::to_string(rank) + "/seen");
        REQUIRE(node.has_value());
        const auto& dict = std::get<StateTree::Dict>(tree[*node]);
        REQUIRE(dict.items.size() == 1);
        const auto* const tuple = std::get_if<StateTree::Sequence>(&tree[dict.items[0].first]);
        REQUIRE(tuple != nullptr);
        CHECK(std::get<std::int64_t>(tree[tuple->items[1]]) == static_cast<std::int64_t>(rank));
        CHECK(std::get<std::int64_t>(tree[dict.items[0].second]) == static_cast<std::int64_t>(10 + rank));
    }
}

TEST_CASE("state of an optimizer under addresses, which differ between ranks, is left out") {
    ForgedSet set;
    const ForgedSet rows = rows_on_a_line(counted(4, 2), 2);
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const Value row = pt::dict({{"exp_avg", rows.ranks.at(rank).items[0]}});
        Value state = pt::dict();
        state.raw_keys = true;
        state.set(forge::integer(static_cast<std::int64_t>(1000 + rank)) + forge::integer(2) + '\x86', row);
        const Value optimizer = pt::dict({{"state", state}, {"param_groups", pt::list()}});
        set.ranks[rank] = pt::dict({{"model", rows.ranks.at(rank)}, {"optimizer", optimizer}});
    }
    const Contents contents = set.open();
    CHECK(find(contents, "model/rows") != nullptr);
    CHECK(contents.tensors.size() == 1);
    REQUIRE(contents.optimizer != nullptr);
    CHECK_FAULT(contents.optimizer(), Errc::optimizer_unnamed);
    for (auto& [rank, state] : set.ranks) state = pt::dict({{"optimizer", state["optimizer"]}});
    CHECK_FAULT(set.open(), Errc::optimizer_unnamed);
    for (auto& [rank, state] : set.ranks) state = Value(state["optimizer"]);
    CHECK_FAULT(set.open(), Errc::optimizer_unnamed);
}

TEST_CASE("values that a rank lacks are noted, and a key rank_1 is not overwritten") {
    ForgedSet set = rows_on_a_line(counted(4, 2), 2);
    set.ranks[0].set("only_first", pt::text("x"));
    set.ranks[0].set("rank_1", pt::integer(5));
    set.ranks[1].set("rank_1", pt::integer(6));
    const Contents contents = set.open();
    CHECK(std::any_of(contents.notes.begin(), contents.notes.end(),
                      [](const std::string& note) { return note.find("only_first") != note.npos; }));
    CHECK(std::get<std::int64_t>((*contents.tree)[*contents.tree->find("rank_1")]) == 5);
    CHECK(std::get<std::int64_t>((*contents.tree)[*contents.tree->find("rank_1~0/rank_1")]) == 6);
}

TEST_CASE("the state of a random number generator is a value, also if no tensor is distributed") {
    ForgedSet set{.prefix = "extra_state_world_size_"};
    for (std::uint64_t rank = 0; rank < 3; ++rank)
        set.ranks[rank] =
            pt::dict({{"rng", pt::dict({{"cpu", pt::tensor(Dtype::u8, {16}, std::string(16, rank == 1 ? 'b' : 'a'))}})},
                      {"scheduler", pt::integer(3)}});
    const Contents contents = set.open();
    REQUIRE(find(contents, "rng/cpu") != nullptr);
    CHECK(bytes_of(*find(contents, "rng/cpu")) == std::string(16, 'a'));
    REQUIRE(find(contents, "rank_1/rng/cpu") != nullptr);
    CHECK(bytes_of(*find(contents, "rank_1/rng/cpu")) == std::string(16, 'b'));
    CHECK(contents.tensors.size() == 2);
    CHECK(count_replicas(contents) == 1);
}

TEST_CASE("plain tensors that all ranks have alike are one, and a rank that differs is found") {
    const Whole whole = counted(4, 2);
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 3; ++rank)
        set.ranks[rank] = pt::dict({{"w", pt::tensor(whole.dtype, whole.shape, whole.bytes)}});
    const Contents contents = set.open();
    check(contents, "w", whole);
    CHECK(count_replicas(contents) == 2);
    // Without a distributed tensor, ranks that differ hold local parts of something.
    set.ranks[2] = pt::dict({{"w", pt::tensor(whole.dtype, whole.shape, std::string(32, 'x'))}});
    CHECK_FAULT(set.open(), Errc::ranks_differ);
    // With one, a buffer may differ: the lowest rank's is taken, and verify() finds the other.
    ForgedSet mixed = rows_on_a_line(whole, 3);
    for (auto& [rank, state] : mixed.ranks)
        state.set("w", pt::tensor(whole.dtype, whole.shape, rank == 2 ? std::string(32, 'x') : whole.bytes));
    const Contents found = mixed.open();
    check(found, "w", whole);
    std::vector<std::string> different;
    found.replicas.each([&](const Replica& one) {
        if (bytes_of(one.first) != bytes_of(one.other)) different.push_back(one.other_file);
    });
    CHECK(different == std::vector<std::string>{"model_world_size_3_rank_2.pt"});
}

TEST_CASE("a single rank saves plain tensors, or a mesh of one") {
    const Whole whole = counted(3, 2);
    ForgedSet plain;
    plain.ranks[0] = pt::dict({{"w", pt::tensor(whole.dtype, whole.shape, whole.bytes)}});
    check(plain.open(), "w", whole);
    check(rows_on_a_line(whole, 1).open(), "rows", whole);
}

TEST_CASE("300 ranks are read with 64 descriptors") {
    const Whole whole = counted(700, 2);
    const TempDir dir = TempDir::in_memory();
    rows_on_a_line(whole, 300).write(dir.path());
    CHECK(true_in_child([&] {
        const rlimit both = {64, 64};
        if (::setrlimit(RLIMIT_NOFILE, &both) != 0) return false;
        const Checkpoint checkpoint = Checkpoint::open(dir.path());
        return checkpoint.size() == 1 && bytes_of(checkpoint["rows"]) == whole.bytes;
    }));
}

TEST_CASE("ranks that have the whole of an interleaved tensor, and packed weights") {
    const Whole whole = counted(12, 2);
    const Era era = Era::torch_2_13;
    for (const std::uint64_t world : {1U, 2U, 3U}) {
        const slow::Sharded how{.whole = {12, 2}, .mesh = {world}, .orders = {{0}, {}}, .pieces = {2}};
        ForgedSet set;
        for (std::uint64_t rank = 0; rank < world; ++rank) {
            Value local = pt::tensor(Dtype::f32, {12 / world, 2}, take(whole, slow::elements(how, {rank})));
            Value spec = dtensor_spec(device_mesh(line(world), rank, era), {strided(0, 2)}, Dtype::f32, {12, 2}, era);
            set.ranks[rank] = pt::dict({{"w", dtensor(local, {12, 2}, spec, Dtype::f32, era)}});
        }
        const Contents contents = set.open();
        check(contents, "w", whole);
        CHECK(find(contents, "w")->piece_count() == (world == 1 ? 1 : 2 * world));
    }
}

}  // namespace

}  // namespace rank_tensors_test
