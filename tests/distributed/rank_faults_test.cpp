// Tests what is wrong with a set of rank files: one change of a good set at a time, and the code and the words of the
// error; then hostile files, each of which is one clear error in little time and memory.
#include "distributed/rank_forge.hpp"
#include "doctest_safemap.hpp"

#include <safemap/error.hpp>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace rank_faults_test {

using namespace safemap;
using namespace rank_forge;

namespace {

constexpr Era era = Era::torch_2_13;

Whole seven_rows() {
    std::mt19937 random(1);
    return random_whole(random, Dtype::f32, {7, 3});
}

/// Two ranks of a line, with a DTensor `rows` and a plain tensor.
ForgedSet good(Era of = era) {
    ForgedSet set = rows_on_a_line(seven_rows(), 2, of);
    for (auto& [rank, state] : set.ranks) state.set("plain", pt::tensor(Dtype::f32, {4}, std::string(16, 'p')));
    return set;
}

/// The parts of a DTensor, of which a test changes one.
struct Parts {
    Whole whole = seven_rows();
    std::uint64_t rank = 1;
    ForgedMesh mesh = line(2);
    std::vector<Value> placements = {shard(0)};
    Shape local = {3, 3};
    Dtype dtype = Dtype::f32;
    Shape stated = {7, 3};

    Value make() const {
        const std::string bytes(pt::elements(local) * pt::element_bytes(dtype), 'v');
        Value spec = dtensor_spec(device_mesh(mesh, rank, era), placements, dtype, stated, era);
        return dtensor(pt::tensor(dtype, local, bytes), stated, spec, dtype, era);
    }
};

/// Returns the error of a set. If it opens, the test fails.
Error error_in(const ForgedSet& set, OpenOptions options = {}) {
    const auto error = error_of([&] { static_cast<void>(set.open(options)); });
    REQUIRE(error.has_value());
    return *error;
}

void check(const ForgedSet& set, Errc code, const std::vector<std::string>& words) {
    const Error error = error_in(set);
    const std::string all = std::string(error.what()) + " " + error.hint();
    INFO(all);
    CHECK(error.code() == code);
    for (const std::string& word : words) {
        CAPTURE(word);
        CHECK(all.find(word) != std::string::npos);
    }
}

/// Checks a set in which rank 1 has another DTensor `rows`.
void check_rows(const Value& rows, Errc code, const std::vector<std::string>& words) {
    ForgedSet set = good();
    set.ranks[1]["rows"] = rows;
    check(set, code, words);
}

/// Checks a set in which both ranks have the same change of the DTensor.
void check_both(const std::function<void(Parts&)>& change, Errc code, const std::vector<std::string>& words) {
    ForgedSet set = good();
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        Parts parts{.rank = rank, .local = {rank == 0 ? 4U : 3U, 3}};
        change(parts);
        set.ranks[rank]["rows"] = parts.make();
    }
    check(set, code, words);
}

const std::string first_file = "model_world_size_2_rank_0.pt";
const std::string second_file = "run/model_world_size_2_rank_1.pt";

}  // namespace

TEST_CASE("a good set opens") {
    for (const Era each : eras) CHECK_OK(good(each).open());
    ForgedSet set = good();
    set.ranks[1]["rows"] = Parts().make();
    CHECK_OK(set.open());
}

TEST_CASE("ranks that contradict each other") {
    Parts other;
    other.placements = {shard(1)};
    check_rows(other.make(), Errc::ranks_differ, {"Shard(0)", "Shard(1)", first_file, second_file, "rows"});
    other = {};
    other.stated = {9, 3};
    check_rows(other.make(), Errc::ranks_differ, {"[7, 3]", "[9, 3]", first_file, second_file});
    other = {};
    other.dtype = Dtype::f64;
    check_rows(other.make(), Errc::ranks_differ, {"F32", "F64", first_file, second_file});
    other = {};
    other.mesh = {.root = {1, 2}, .ranks = {0, 1}, .names = {"a", "b"}};
    other.placements = {replicate(), shard(0)};
    check_rows(other.make(), Errc::ranks_differ, {"meshes", "[2] (dp)", "[1, 2] (a, b)"});
    other = {};
    other.mesh.names = {"tp"};
    check_rows(other.make(), Errc::ranks_differ, {"[2] (dp)", "[2] (tp)"});
    check_rows(pt::tensor(Dtype::f32, {7, 3}, std::string(84, 'v')), Errc::ranks_differ,
               {"a DTensor", "a plain tensor"});
    check_rows(pt::integer(3), Errc::ranks_differ, {"a DTensor", "no tensor"});
    ForgedSet set = good();
    set.ranks[1].erase("rows");
    check(set, Errc::ranks_differ, {"missing", "rows", first_file});
    set = good();
    set.ranks[0].erase("rows");
    check(set, Errc::ranks_differ, {"missing", "rows", first_file});
    set = good();
    set.ranks[1]["plain"] = pt::tensor(Dtype::f32, {5}, std::string(20, 'p'));
    check(set, Errc::ranks_differ, {"[4]", "[5]", "plain"});
    set = good();
    set.ranks[1]["plain"] = pt::tensor(Dtype::i32, {4}, std::string(16, 'p'));
    check(set, Errc::ranks_differ, {"F32", "I32"});
    set = good();
    for (auto& [rank, state] : set.ranks) {
        state.set("list", pt::list({state["plain"]}));
        if (rank == 1) state["list"].push(state["plain"]);
    }
    check(set, Errc::ranks_differ, {"lengths", "list"});
    set = good();
    for (auto& [rank, state] : set.ranks) state.set("tied", state["rows"]);
    // The second name is a tensor of its own in one file.
    set.ranks[1]["tied"] = Parts().make();
    CHECK_OK(set.open());
}

TEST_CASE("local values of the wrong shape or kind") {
    Parts other;
    other.local = {2, 3};
    check_rows(other.make(), Errc::piece_mismatch, {"[2, 3]", "[3, 3]", "rank 1", "Shard(0)", "rows", second_file});
    other.local = {3, 2};
    check_rows(other.make(), Errc::piece_mismatch, {"[3, 2]"});
    Value spec = dtensor_spec(device_mesh(line(2), 1, era), {shard(0)}, Dtype::f32, {7, 3}, era);
    check_rows(dtensor(pt::text("no tensor"), {7, 3}, spec, Dtype::f32, era), Errc::piece_mismatch,
               {"no plain tensor"});
    const Value local = pt::tensor(Dtype::f32, {3, 3}, std::string(36, 'v'));
    check_rows(dtensor(local, {7, 3}, spec, Dtype::bf16, era), Errc::piece_mismatch, {"BF16", "F32"});
    Value meta = dtensor_spec(device_mesh(line(2), 1, era), {shard(0)}, Dtype::f32, {7, 4}, era);
    check_rows(dtensor(local, {7, 3}, meta, Dtype::f32, era), Errc::piece_mismatch, {"[7, 3]", "[7, 4]"});
    // Some ranks fit one reading of the placements, and some the other.
    const ForgedMesh mesh{.root = {4, 2}, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .names = {}};
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 8; ++rank) {
        const Numbers at = mesh.coordinates(rank);
        const Numbers rows[] = {{2, 2, 1, 0}, {1, 1, 1, 1}};
        std::uint64_t held = rows[at[1]][at[0]];
        if (rank == 6) held = 1;  // as if the order were that of the mesh, whose rank 7 would have none
        Parts parts{
            .rank = rank, .mesh = mesh, .placements = {strided(0, 2), shard(0)}, .local = {held, 3}, .stated = {9, 3}};
        set.ranks[rank] = pt::dict({{"rows", parts.make()}});
    }
    check(set, Errc::piece_mismatch, {"_StridedShard(0, 2)", "some ranks"});
}

TEST_CASE("placements that cannot be read") {
    check_both([](Parts& parts) { parts.placements = {partial()}; }, Errc::partial_placement, {"Partial", "sum"});
    check_both([](Parts& parts) { parts.placements = {partial("_NormPartial")}; }, Errc::partial_placement,
               {"_NormPartial"});
    check_both([](Parts& parts) { parts.placements = {shard(2)}; }, Errc::piece_outside,
               {"Shard(2)", "2 dimensions", "rows"});
    check_both([](Parts& parts) { parts.placements = {pt::object("my.shards", "Ragged")}; }, Errc::unsupported_layout,
               {"my.shards.Ragged"});
    check_both([](Parts& parts) { parts.placements = {shard(0), shard(1)}; }, Errc::field_missing, {"placements"});
    check_both([](Parts& parts) { parts.placements = {}; }, Errc::field_missing, {"placements"});
    check_both([](Parts& parts) { parts.placements = {pt::integer(3)}; }, Errc::field_missing, {"placements"});
    check_both([](Parts& parts) { parts.placements = {strided(0, 0)}; }, Errc::field_missing, {"split_factor"});
    check_both(
        [](Parts& parts) {
            parts.placements = {strided(0, 1)};
            parts.placements[0]["split_factor"] = pt::integer(static_cast<std::uint64_t>(-3));
        },
        Errc::field_missing, {"split_factor"});
    check_both(
        [](Parts& parts) {
            parts.placements = {shard(0)};
            parts.placements[0].erase("dim");
        },
        Errc::field_missing, {"dim"});
    check_both([](Parts& parts) { parts.placements.assign(100'000, shard(0)); }, Errc::field_missing, {"100000"});
}

TEST_CASE("orders that do not fit the placements") {
    const auto with_order = [](Value order) {
        Value spec = dtensor_spec(device_mesh(line(2), 0, era), {shard(0)}, Dtype::f32, {7, 3}, era);
        spec.set("shard_order", std::move(order));
        ForgedSet set = good();
        set.ranks[0]["rows"] =
            dtensor(pt::tensor(Dtype::f32, {4, 3}, std::string(48, 'v')), {7, 3}, spec, Dtype::f32, era);
        return set;
    };
    const auto entry = [](std::uint64_t dimension, const Numbers& mesh) {
        return pt::call("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry",
                        {pt::integer(dimension), numbers(mesh)});
    };
    for (const Value& order : {pt::tuple({entry(1, {0})}), pt::tuple({entry(0, {1})}), pt::tuple({entry(0, {0, 0})}),
                               pt::tuple({entry(0, {})}), pt::tuple(), pt::tuple({pt::integer(1)})})
        check(with_order(order), Errc::field_missing, {"shard_order"});
}

TEST_CASE("meshes that cannot be read, or have other ranks than there are files") {
    const auto with_mesh = [](const std::function<void(Value&)>& change, Era of = era) {
        ForgedSet set = good(of);
        for (auto& [rank, state] : set.ranks) {
            Value mesh = device_mesh(line(2), rank, of);
            change(mesh);
            Value spec = dtensor_spec(mesh, {shard(0, of)}, Dtype::f32, {7, 3}, of);
            const Shape local = {rank == 0 ? 4U : 3U, 3};
            state["rows"] = dtensor(pt::tensor(Dtype::f32, local, std::string(pt::elements(local) * 4, 'v')), {7, 3},
                                    spec, Dtype::f32, of);
        }
        return set;
    };
    const auto ranks = [](const Numbers& list) { return pt::tensor(Dtype::i32, {list.size()}, bytes_of_i32(list)); };
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = ranks({0, 0}); }), Errc::world_mismatch, {"rank 0 twice"});
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = ranks({0, 5}); }), Errc::world_mismatch, {"rank 5"});
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = ranks({0, 1, 2}); }), Errc::world_mismatch, {"3 ranks"});
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = ranks({0}); }), Errc::world_mismatch, {"_rank_map"});
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = ranks({}); }), Errc::world_mismatch, {"_rank_map"});
    check(with_mesh([&](Value& mesh) {
              mesh["_rank_map"] = ranks({0xffff'ffff, 1});
          }),
          Errc::field_missing, {"negative"});
    check(with_mesh([&](Value& mesh) { mesh["_rank_map"] = pt::integer(2); }), Errc::field_missing, {"_rank_map"});
    check(with_mesh([](Value& mesh) { mesh["_rank_map"] = pt::tensor(Dtype::f32, {2}, std::string(8, '\0')); }),
          Errc::field_missing, {"I32"});
    check(with_mesh([](Value& mesh) { mesh.erase("_rank_map"); }), Errc::field_missing, {"_rank_map"});
    check(with_mesh([](Value& mesh) { mesh.erase("_layout"); }), Errc::field_missing, {"_layout"});
    check(with_mesh([](Value& mesh) { mesh["_layout"].erase("axes"); }), Errc::field_missing, {"shape"});
    check(with_mesh([](Value& mesh) { mesh["_mesh_dim_names"] = pt::integer(1); }), Errc::field_missing, {"names"});
    check(with_mesh([](Value& mesh) {
              mesh["_mesh_dim_names"] = text_tuple({"a", "b"});
          }),
          Errc::field_missing, {"names"});
    check(with_mesh([](Value& mesh) { mesh["_rank"] = pt::text("1"); }), Errc::field_missing, {"_rank"});
    // Strides and sizes that reach outside, or far beyond 64 bits.
    const auto axis = [&](std::uint64_t size, std::uint64_t stride) {
        return [=](Value& mesh) {
            Value& one = mesh["_layout"]["axes"][0];
            one["shape"] = numbers({size});
            one["stride"] = numbers({stride});
        };
    };
    check(with_mesh(axis(2, 5)), Errc::field_missing, {"_layout"});
    check(with_mesh(axis(0, 1)), Errc::field_missing, {"_layout"});
    check(with_mesh(axis(std::uint64_t{1} << 60, 1)), Errc::world_mismatch, {"ranks"});
    check(with_mesh(axis(2, std::uint64_t{1} << 62)), Errc::field_missing, {"_layout"});
    check(with_mesh(axis(2, 0)), Errc::world_mismatch, {"twice"});
    // A mesh that is a tensor.
    const Era old = Era::torch_2_6;
    check(with_mesh([&](Value& mesh) { mesh["mesh"] = ranks({0, 1, 2}); }, old), Errc::world_mismatch, {"3 ranks"});
    check(with_mesh([&](Value& mesh) { mesh["mesh"] = ranks({}); }, old), Errc::field_missing, {"at least one"});
    check(with_mesh([](Value& mesh) { mesh["_coordinate_on_dim"] = numbers({7}); }, old), Errc::field_missing,
          {"_coordinate_on_dim"});
    check(with_mesh(
              [](Value& mesh) {
                  mesh["_coordinate_on_dim"] = numbers({0, 0});
              },
              old),
          Errc::field_missing, {"_coordinate_on_dim"});
    // A tensor of 2^40 ranks in four bytes.
    check(with_mesh(
              [](Value& mesh) {
                  mesh["mesh"] = pt::tensor(Dtype::i32, {std::uint64_t{1} << 40}, std::string(4, '\0'));
                  mesh["mesh"].strides = {0};
              },
              old),
          Errc::world_mismatch, {"ranks"});
}

TEST_CASE("files that are missing, too many, or of other ranks") {
    ForgedSet set = good();
    set.world = 3;
    check(set, Errc::world_mismatch, {"3 ranks", "2 files"});
    // Only the names tell for a plain set.
    set.ranks[0] = set.ranks[1] = pt::dict({{"plain", pt::tensor(Dtype::f32, {4}, std::string(16, 'p'))}});
    check(set, Errc::rank_missing, {"model_world_size_3_rank_2.pt"});
    set = good();
    set.world = 2;
    set.ranks.erase(0);
    check(set, Errc::rank_missing, {"model_world_size_2_rank_0.pt"});
    set = good();
    set.world = 2;
    set.ranks[2] = set.ranks[1];
    check(set, Errc::world_mismatch, {"model_world_size_2_rank_2.pt"});
    set = good();
    set.ranks[1] = set.ranks[0];
    check(set, Errc::rank_repeated, {"rank 0", first_file, second_file});
    set = good();
    std::swap(set.ranks[0], set.ranks[1]);
    check(set, Errc::ranks_differ, {"rank 1", "name"});
    for (const Era old : {Era::torch_2_3, Era::torch_2_6}) {
        set = good(old);
        set.ranks[1] = set.ranks[0];
        check(set, Errc::rank_repeated, {"rank 0"});
    }
    // Names without a number of ranks: the mesh says what is missing.
    ForgedSet named = good();
    named.ranks.erase(1);
    auto files = std::map<std::string, std::string>{{"a_rank0.bin", pt::Writer::file(named.ranks[0])}};
    const auto missing = error_of([&] {
        static_cast<void>(distributed::read_rank_files({std::make_shared<forge::Folder>(files), {"a_rank0.bin"}}, {}));
    });
    REQUIRE(missing);
    CHECK(missing->code() == Errc::rank_missing);
    CHECK(missing->message().find("a_rank1.bin") != std::string::npos);
    // Names without a number of ranks: no rank below the highest is missing.
    named = good();
    files = {{"a_rank1.bin", pt::Writer::file(named.ranks[1])}, {"a_rank3.bin", pt::Writer::file(named.ranks[1])}};
    const auto gap = error_of([&] {
        const auto folder = std::make_shared<forge::Folder>(files);
        static_cast<void>(distributed::read_rank_files({folder, {"a_rank1.bin", "a_rank3.bin"}}, {}));
    });
    REQUIRE(gap);
    CHECK(gap->code() == Errc::rank_missing);
    CHECK(gap->message().find("a_rank0.bin, a_rank2.bin") != std::string::npos);
    // A third rank that is in no mesh.
    ForgedSet third = good();
    Parts parts{.rank = 2, .local = {0, 3}};
    third.ranks[2] = pt::dict({{"rows", parts.make()}, {"plain", third.ranks[0]["plain"]}});
    check(third, Errc::world_mismatch, {"rank 2", "no mesh"});
    parts.local = {3, 3};
    third.ranks[2]["rows"] = parts.make();
    check(third, Errc::world_mismatch, {"rank 2"});
    CHECK_FAULT(distributed::read_rank_files({std::make_shared<forge::Folder>(files), {}}, {}), Errc::rank_missing);
}

TEST_CASE("ranks of one mesh that state different meshes") {
    // Rank 0 is in a mesh with rank 1, which says that it is in one with rank 2.
    ForgedSet set;
    const ForgedMesh meshes[] = {{.root = {2}, .ranks = {0, 1}, .names = {}},
                                 {.root = {2}, .ranks = {1, 2}, .names = {}},
                                 {.root = {2}, .ranks = {1, 2}, .names = {}}};
    const std::uint64_t rows[] = {4, 4, 3};
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
        Parts parts{.rank = rank, .mesh = meshes[rank], .local = {rows[rank], 3}};
        set.ranks[rank] = pt::dict({{"rows", parts.make()}});
    }
    check(set, Errc::ranks_differ, {"meshes", "rank 1"});
}

namespace {

/// Two ranks with the rows 0 to 3 and 4 to 6 of a ShardedTensor.
struct ShardedSet {
    std::vector<ForgedShard> shards = {{{0, 0}, {4, 3}, 0}, {{4, 0}, {3, 3}, 1}};
    std::vector<std::vector<ForgedShard>> locals = {{shards[0]}, {shards[1]}};
    Dtype dtype = Dtype::f32;
    std::uint64_t stated_rank = 1;  ///< by the second file

    ForgedSet make() const {
        ForgedSet set;
        for (std::uint64_t rank = 0; rank < 2; ++rank) {
            std::vector<std::pair<ForgedShard, Value>> values;
            for (const ForgedShard& one : locals[rank]) {
                const Shape shape(std::span<const std::uint64_t>(one.extent));
                values.emplace_back(one, pt::tensor(dtype, shape, std::string(pt::elements(shape) * 4, 'v')));
            }
            set.ranks[rank] = pt::dict(
                {{"w", sharded_tensor(std::move(values), {7, 3}, shards, Dtype::f32, rank == 0 ? 0 : stated_rank, 2)}});
        }
        return set;
    }
};

}  // namespace

TEST_CASE("ShardedTensors whose shards overlap, reach outside, leave gaps or are nowhere") {
    CHECK_OK(ShardedSet().make().open());
    const auto moved = [](std::uint64_t start) {
        ShardedSet set;
        set.shards[1].start[0] = set.locals[1][0].start[0] = start;
        return set.make();
    };
    check(moved(3), Errc::pieces_overlap, {"element", "w"});
    check(moved(5), Errc::piece_outside, {"w"});
    ShardedSet gap;
    gap.shards[1] = gap.locals[1][0] = {{5, 0}, {2, 3}, 1};
    check(gap.make(), Errc::not_covered, {"w"});
    ShardedSet lost;
    lost.locals[1].clear();
    check(lost.make(), Errc::piece_missing, {"rank 1", "[4, 0]"});
    ShardedSet other;
    other.locals[1][0].start[0] = 3;
    check(other.make(), Errc::piece_mismatch, {"[3, 0]"});
    ShardedSet dtype;
    dtype.dtype = Dtype::i32;
    check(dtype.make(), Errc::piece_mismatch, {"I32", "F32"});
    ShardedSet rank;
    rank.stated_rank = 0;
    check(rank.make(), Errc::rank_repeated, {"rank 0"});
    ShardedSet third;
    third.shards.push_back({{7, 0}, {0, 3}, 2});
    check(third.make(), Errc::world_mismatch, {"rank 2"});
    ShardedSet twice;
    twice.shards.push_back(twice.shards[1]);
    check(twice.make(), Errc::pieces_overlap, {"[4, 0]", "twice"});
}

TEST_CASE("ShardedTensors that are malformed, or differ between ranks") {
    ForgedSet set = ShardedSet().make();
    ShardedSet other;
    other.shards = other.locals[0] = {{{0, 0}, {7, 3}, 0}};
    other.locals[1] = {};
    set.ranks[1] = other.make().ranks[1];
    check(set, Errc::ranks_differ, {"shards", "2 shards", "1 shard"});
    ShardedSet uneven;
    uneven.shards[1].extent = uneven.locals[1][0].extent = {9};
    check(uneven.make(), Errc::field_missing, {"offsets"});
    // A local tensor that is larger than its metadata say.
    set = ShardedSet().make();
    Value local = pt::tensor(Dtype::f32, {2, 3}, std::string(24, 'v'));
    set.ranks[1]["w"] = sharded_tensor({{{{4, 0}, {3, 3}, 1}, local}}, {7, 3}, ShardedSet().shards, Dtype::f32, 1, 2);
    check(set, Errc::piece_mismatch, {"[2, 3]", "[3, 3]"});
}

TEST_CASE("a call that would run code in any file is refused") {
    ForgedSet set = good();
    set.ranks[1].set("extra", pt::call("os", "system", {pt::text("echo unpickled")}));
    check(set, Errc::unsafe_call, {"os.system", second_file});
    set = good();
    set.ranks[1].set("extra", pt::call("my.library", "Thing", {}));
    CHECK_OK(set.open());
    CHECK_FAULT(set.open({.strict_globals = true}), Errc::unknown_global);
    CHECK_OK(good().open({.strict_globals = true}));
}

TEST_CASE("hostile files end in one clear error, or open, in little time") {
    // Placements that cut a large tensor, which takes no bytes in the file, into a piece for each element.
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const std::uint64_t rows = std::uint64_t{1} << 40;
        Value local = pt::tensor(Dtype::f32, {rows / 2}, std::string(4, 'v'));
        local.strides = {0};
        Value spec = dtensor_spec(device_mesh(line(2), rank, era), {strided(0, rows / 2)}, Dtype::f32, {rows}, era);
        set.ranks[rank] = pt::dict({{"w", dtensor(local, {rows}, spec, Dtype::f32, era)}});
    }
    check(set, Errc::pickle_too_large, {"pieces"});
    // A shape whose size overflows.
    for (auto& [rank, state] : set.ranks) {
        const std::uint64_t huge = std::uint64_t{1} << 62;
        Value local = pt::tensor(Dtype::f32, {0, huge}, "");
        Value spec = dtensor_spec(device_mesh(line(2), rank, era), {shard(0)}, Dtype::f32, {0, huge}, era);
        state["w"] = dtensor(local, {0, huge}, spec, Dtype::f32, era);
    }
    CHECK_OK(set.open());
    // Sizes below zero, and beyond 64 dimensions.
    for (const Value& size : {pt::tuple({pt::integer(static_cast<std::uint64_t>(-7))}),
                              pt::tuple(std::vector<Value>(65, pt::integer(1))), pt::integer(3), pt::none()}) {
        ForgedSet bad = good();
        for (auto& [rank, state] : bad.ranks) state["rows"].items[2].items[2] = size;
        const auto error = error_in(bad);
        INFO(std::string(error.what()));
        CHECK((error.code() == Errc::field_missing || error.code() == Errc::piece_mismatch));
    }
}

TEST_CASE("a list of shards in many places is read only so often") {
    // Each of 5,000 ShardedTensors has the same list of 5,000 shards: 25 million, in a file of 600 KB.
    ForgedSet set;
    Value all = pt::list();
    for (std::uint64_t i = 0; i < 5000; ++i) all.push(shard_metadata({{i}, {1}, 0}));
    const std::string list = pt::Writer::pickle(all);
    std::string pickle = "]" + std::string("(");
    const std::string body = list.substr(2, list.size() - 3);
    const Value hole = sharded_tensor({}, {5000}, {}, Dtype::f32, 0, 1);
    // The list is memoised as number 1000, and each tensor gets it from there.
    const std::string empty = pt::Writer::pickle(hole);
    std::string one = empty.substr(2, empty.size() - 3);
    const std::string field = forge::text("shards_metadata") + "]";
    const std::size_t at = one.find(field);
    REQUIRE(at != std::string::npos);
    const std::string memo = std::string("r") + forge::little(1000, 4);
    const std::string again = std::string("j") + forge::little(1000, 4);
    const std::string head = one.substr(0, at + field.size() - 1);
    const std::string tail = one.substr(at + field.size());
    pickle += head + body + memo + tail;
    for (int i = 0; i < 5000; ++i) pickle += head + again + tail;
    pickle += "e";
    set.ranks[0] = pt::dict({{"list", pt::raw(pickle)}});
    check(set, Errc::pickle_too_large, {"many places"});
}

}  // namespace rank_faults_test
