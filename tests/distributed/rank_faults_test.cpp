// Tests what is wrong with a set of rank files: one change of a good set at a time, and the code and the words of the
// error; then hostile files, each of which is one clear error in little time and memory.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"

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

std::optional<Error> error_in(const ForgedSet& set) {
    return error_of([&] { static_cast<void>(set.open()); });
}

void check(const ForgedSet& set, Errc code, const Words& words) {
    const auto error = error_in(set);
    check_error(error, {code}, {});
    const std::string text = error->what();
    INFO(text);
    for (const std::string& word : words) CHECK_MESSAGE(text.find(word) != std::string::npos, word.c_str());
}

/// One fault: changes a good set, and checks that it is refused.
void check_fault(const char* fault, Errc code, const Words& words, void (*inflict)(ForgedSet&)) {
    CAPTURE(fault);
    ForgedSet set = good();
    inflict(set);
    check(set, code, words);
}

/// Checks a set in which rank 1 has another DTensor `rows`.
void check_rows(const char* fault, Errc code, const Words& words, const Value& rows) {
    CAPTURE(fault);
    ForgedSet set = good();
    set.ranks[1]["rows"] = rows;
    check(set, code, words);
}
void check_rows(const char* fault, Errc code, const Words& words, void (*inflict)(Parts&)) {
    Parts other;
    inflict(other);
    check_rows(fault, code, words, other.make());
}

/// Checks a set in which both ranks have the same change of the DTensor.
void check_both(const char* fault, Errc code, const Words& words, void (*inflict)(Parts&)) {
    CAPTURE(fault);
    ForgedSet set = good();
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        Parts parts{.rank = rank, .local = {rank == 0 ? 4U : 3U, 3}};
        inflict(parts);
        set.ranks[rank]["rows"] = parts.make();
    }
    check(set, code, words);
}

Value ranks_tensor(const Numbers& list) { return pt::tensor(Dtype::i32, {list.size()}, bytes_of_i32(list)); }

/// Checks a set in which all ranks have the same change of the mesh.
void check_mesh(const char* fault, Errc code, const Words& words, const std::function<void(Value&)>& inflict,
                Era of = era) {
    CAPTURE(fault);
    ForgedSet set = good(of);
    for (auto& [rank, state] : set.ranks) {
        Value mesh = device_mesh(line(2), rank, of);
        inflict(mesh);
        Value spec = dtensor_spec(mesh, {shard(0, of)}, Dtype::f32, {7, 3}, of);
        const Shape local = {rank == 0 ? 4U : 3U, 3};
        state["rows"] = dtensor(pt::tensor(Dtype::f32, local, std::string(pt::elements(local) * 4, 'v')), {7, 3}, spec,
                                Dtype::f32, of);
    }
    check(set, code, words);
}

Value plain_rows() { return pt::tensor(Dtype::f32, {3, 3}, std::string(36, 'v')); }
Value spec_of(const Shape& stated) {
    return dtensor_spec(device_mesh(line(2), 1, era), {shard(0)}, Dtype::f32, stated, era);
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
    check_rows("another placement", Errc::ranks_differ, {"Shard(0)", "Shard(1)", first_file, second_file, "rows"},
               [](Parts& other) { other.placements = {shard(1)}; });
    check_rows("another shape", Errc::ranks_differ, {"[7, 3]", "[9, 3]", first_file, second_file}, [](Parts& other) {
        other.stated = {9, 3};
    });
    check_rows("another dtype", Errc::ranks_differ, {"F32", "F64", first_file, second_file},
               [](Parts& other) { other.dtype = Dtype::f64; });
    check_rows("a mesh of two dimensions", Errc::ranks_differ, {"meshes", "[2] (dp)", "[1, 2] (a, b)"},
               [](Parts& other) {
                   other.mesh = {.root = {1, 2}, .ranks = {0, 1}, .names = {"a", "b"}};
                   other.placements = {replicate(), shard(0)};
               });
    check_rows("a mesh of another name", Errc::ranks_differ, {"[2] (dp)", "[2] (tp)"},
               [](Parts& other) { other.mesh.names = {"tp"}; });
    check_rows("a plain tensor", Errc::ranks_differ, {"a DTensor", "a plain tensor"},
               pt::tensor(Dtype::f32, {7, 3}, std::string(84, 'v')));
    check_rows("a number", Errc::ranks_differ, {"a DTensor", "no tensor"}, pt::integer(3));
    check_fault("the second rank lacks a tensor", Errc::ranks_differ, {"missing", "rows", first_file},
                [](ForgedSet& set) { set.ranks[1].erase("rows"); });
    check_fault("the first rank lacks a tensor", Errc::ranks_differ, {"missing", "rows", first_file},
                [](ForgedSet& set) { set.ranks[0].erase("rows"); });
    check_fault("a plain tensor of another shape", Errc::ranks_differ, {"[4]", "[5]", "plain"},
                [](ForgedSet& set) { set.ranks[1]["plain"] = pt::tensor(Dtype::f32, {5}, std::string(20, 'p')); });
    check_fault("a plain tensor of another dtype", Errc::ranks_differ, {"F32", "I32"},
                [](ForgedSet& set) { set.ranks[1]["plain"] = pt::tensor(Dtype::i32, {4}, std::string(16, 'p')); });
    check_fault("a longer list", Errc::ranks_differ, {"lengths", "list"}, [](ForgedSet& set) {
        for (auto& [rank, state] : set.ranks) {
            state.set("list", pt::list({state["plain"]}));
            if (rank == 1) state["list"].push(state["plain"]);
        }
    });
    ForgedSet set = good();
    for (auto& [rank, state] : set.ranks) state.set("tied", state["rows"]);
    // The second name is a tensor of its own in one file.
    set.ranks[1]["tied"] = Parts().make();
    CHECK_OK(set.open());
}

TEST_CASE("local values of the wrong shape or kind") {
    check_rows("too few rows", Errc::piece_mismatch, {"[2, 3]", "[3, 3]", "rank 1", "Shard(0)", "rows", second_file},
               [](Parts& other) {
                   other.local = {2, 3};
               });
    check_rows("too few columns", Errc::piece_mismatch, {"[3, 2]"}, [](Parts& other) { other.local = {3, 2}; });
    check_rows("a text", Errc::piece_mismatch, {"no plain tensor"},
               dtensor(pt::text("no tensor"), {7, 3}, spec_of({7, 3}), Dtype::f32, era));
    check_rows("a dtype that is not that of the tensor", Errc::piece_mismatch, {"BF16", "F32"},
               dtensor(plain_rows(), {7, 3}, spec_of({7, 3}), Dtype::bf16, era));
    check_rows("a shape that is not that of the spec", Errc::piece_mismatch, {"[7, 3]", "[7, 4]"},
               dtensor(plain_rows(), {7, 3}, spec_of({7, 4}), Dtype::f32, era));
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
    check_both("a sum", Errc::partial_placement, {"Partial", "sum"},
               [](Parts& parts) { parts.placements = {partial()}; });
    check_both("a norm", Errc::partial_placement, {"_NormPartial"},
               [](Parts& parts) { parts.placements = {partial("_NormPartial")}; });
    check_both("a dimension that does not exist", Errc::piece_outside, {"Shard(2)", "2 dimensions", "rows"},
               [](Parts& parts) { parts.placements = {shard(2)}; });
    check_both("an unknown class", Errc::unsupported_layout, {"my.shards.Ragged"},
               [](Parts& parts) { parts.placements = {pt::object("my.shards", "Ragged")}; });
    check_both("two, for a mesh of one dimension", Errc::field_missing, {"placements"}, [](Parts& parts) {
        parts.placements = {shard(0), shard(1)};
    });
    check_both("none", Errc::field_missing, {"placements"}, [](Parts& parts) { parts.placements = {}; });
    check_both("a number", Errc::field_missing, {"placements"},
               [](Parts& parts) { parts.placements = {pt::integer(3)}; });
    check_both("a split factor of zero", Errc::field_missing, {"split_factor"},
               [](Parts& parts) { parts.placements = {strided(0, 0)}; });
    check_both("a split factor below zero", Errc::field_missing, {"split_factor"}, [](Parts& parts) {
        parts.placements = {strided(0, 1)};
        parts.placements[0]["split_factor"] = pt::integer(static_cast<std::uint64_t>(-3));
    });
    check_both("no dimension", Errc::field_missing, {"dim"}, [](Parts& parts) {
        parts.placements = {shard(0)};
        parts.placements[0].erase("dim");
    });
    check_both("very many", Errc::field_missing, {"100000"},
               [](Parts& parts) { parts.placements.assign(100'000, shard(0)); });
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
    const auto map = [](const Numbers& list) { return [=](Value& mesh) { mesh["_rank_map"] = ranks_tensor(list); }; };
    check_mesh("a rank twice", Errc::world_mismatch, {"rank 0 twice"}, map({0, 0}));
    check_mesh("a rank without a file", Errc::world_mismatch, {"rank 5"}, map({0, 5}));
    check_mesh("a rank too many", Errc::world_mismatch, {"3 ranks"}, map({0, 1, 2}));
    check_mesh("a rank too few", Errc::world_mismatch, {"_rank_map"}, map({0}));
    check_mesh("no ranks", Errc::world_mismatch, {"_rank_map"}, map({}));
    check_mesh("a negative rank", Errc::field_missing, {"negative"}, map({0xffff'ffff, 1}));
    check_mesh("a number of ranks", Errc::field_missing, {"_rank_map"},
               [](Value& mesh) { mesh["_rank_map"] = pt::integer(2); });
    check_mesh("ranks that are floats", Errc::field_missing, {"I32"},
               [](Value& mesh) { mesh["_rank_map"] = pt::tensor(Dtype::f32, {2}, std::string(8, '\0')); });
    check_mesh("no list of ranks", Errc::field_missing, {"_rank_map"}, [](Value& mesh) { mesh.erase("_rank_map"); });
    check_mesh("no layout", Errc::field_missing, {"_layout"}, [](Value& mesh) { mesh.erase("_layout"); });
    check_mesh("no axes", Errc::field_missing, {"shape"}, [](Value& mesh) { mesh["_layout"].erase("axes"); });
    check_mesh("names that are a number", Errc::field_missing, {"names"},
               [](Value& mesh) { mesh["_mesh_dim_names"] = pt::integer(1); });
    check_mesh("a name too many", Errc::field_missing, {"names"}, [](Value& mesh) {
        mesh["_mesh_dim_names"] = text_tuple({"a", "b"});
    });
    check_mesh("a rank that is a text", Errc::field_missing, {"_rank"},
               [](Value& mesh) { mesh["_rank"] = pt::text("1"); });
    const auto axis = [](std::uint64_t size, std::uint64_t stride) {
        return [=](Value& mesh) {
            Value& one = mesh["_layout"]["axes"][0];
            one["shape"] = numbers({size});
            one["stride"] = numbers({stride});
        };
    };
    check_mesh("a stride that reaches outside", Errc::field_missing, {"_layout"}, axis(2, 5));
    check_mesh("a stride that reaches the first place outside", Errc::field_missing, {"_layout"}, axis(2, 2));
    check_mesh("a size of zero", Errc::field_missing, {"_layout"}, axis(0, 1));
    check_mesh("a very large size", Errc::world_mismatch, {"ranks"}, axis(std::uint64_t{1} << 60, 1));
    check_mesh("a stride far beyond 64 bits", Errc::field_missing, {"_layout"}, axis(2, std::uint64_t{1} << 62));
    check_mesh("a stride of zero", Errc::world_mismatch, {"twice"}, axis(2, 0));
}

TEST_CASE("meshes that are tensors, which cannot be read, or have other ranks than there are files") {
    const auto check_old = [](const char* fault, Errc code, const Words& words, void (*inflict)(Value&)) {
        check_mesh(fault, code, words, inflict, Era::torch_2_6);
    };
    check_old("a rank too many", Errc::world_mismatch, {"3 ranks"}, [](Value& mesh) {
        mesh["mesh"] = ranks_tensor({0, 1, 2});
    });
    check_old("no ranks", Errc::field_missing, {"at least one"}, [](Value& mesh) { mesh["mesh"] = ranks_tensor({}); });
    check_old("a coordinate outside", Errc::field_missing, {"_coordinate_on_dim"},
              [](Value& mesh) { mesh["_coordinate_on_dim"] = numbers({7}); });
    check_old("a coordinate too many", Errc::field_missing, {"_coordinate_on_dim"}, [](Value& mesh) {
        mesh["_coordinate_on_dim"] = numbers({0, 0});
    });
    check_old("2^40 ranks in four bytes", Errc::world_mismatch, {"ranks"}, [](Value& mesh) {
        mesh["mesh"] = pt::tensor(Dtype::i32, {std::uint64_t{1} << 40}, std::string(4, '\0'));
        mesh["mesh"].strides = {0};
    });
}

TEST_CASE("files that are missing, too many, or of other ranks") {
    check_fault("the names say three ranks", Errc::world_mismatch, {"3 ranks", "2 files"},
                [](ForgedSet& set) { set.world = 3; });
    check_fault("the names say three ranks, and only they tell for a plain set", Errc::rank_missing,
                {"model_world_size_3_rank_2.pt"}, [](ForgedSet& set) {
                    set.world = 3;
                    for (auto& [rank, state] : set.ranks) state.erase("rows");
                });
    check_fault("the first file is missing", Errc::rank_missing, {"model_world_size_2_rank_0.pt"}, [](ForgedSet& set) {
        set.world = 2;
        set.ranks.erase(0);
    });
    check_fault("a third file", Errc::world_mismatch, {"model_world_size_2_rank_2.pt"}, [](ForgedSet& set) {
        set.world = 2;
        set.ranks[2] = set.ranks[1];
    });
    check_fault("the first file twice", Errc::rank_repeated, {"rank 0", first_file, second_file},
                [](ForgedSet& set) { set.ranks[1] = set.ranks[0]; });
    check_fault("files are swapped", Errc::ranks_differ, {"rank 1", "name"},
                [](ForgedSet& set) { std::swap(set.ranks[0], set.ranks[1]); });
    for (const Era old : {Era::torch_2_3, Era::torch_2_6}) {
        ForgedSet set = good(old);
        set.ranks[1] = set.ranks[0];
        check(set, Errc::rank_repeated, {"rank 0"});
    }
    // A third rank that is in no mesh.
    ForgedSet third = good();
    Parts parts{.rank = 2, .local = {0, 3}};
    third.ranks[2] = pt::dict({{"rows", parts.make()}, {"plain", third.ranks[0]["plain"]}});
    check(third, Errc::world_mismatch, {"rank 2", "no mesh"});
    parts.local = {3, 3};
    third.ranks[2]["rows"] = parts.make();
    check(third, Errc::world_mismatch, {"rank 2"});
}

TEST_CASE("names without a number of ranks: the mesh says what is missing, and no rank below the highest is") {
    const ForgedSet set = good();
    const auto refusal = [&](const std::map<std::string, std::uint64_t>& names) {
        std::map<std::string, std::string> files;
        std::vector<std::string> listed;
        for (const auto& [name, rank] : names) {
            files[name] = pt::Writer::file(set.ranks.at(rank));
            listed.push_back(name);
        }
        return error_of([&] {
            static_cast<void>(distributed::read_rank_files({std::make_shared<forge::Folder>(files), listed}, {}));
        });
    };
    check_error(refusal({{"a_rank0.bin", 0}}), {Errc::rank_missing}, {"a_rank1.bin"});
    check_error(refusal({{"a_rank1.bin", 1}, {"a_rank3.bin", 1}}), {Errc::rank_missing}, {"a_rank0.bin, a_rank2.bin"});
    check_error(refusal({}), {Errc::rank_missing}, {});
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
    const auto refused = [](const char* fault, Errc code, const Words& words, void (*inflict)(ShardedSet&)) {
        CAPTURE(fault);
        ShardedSet set;
        inflict(set);
        check(set.make(), code, words);
    };
    refused("an overlap", Errc::pieces_overlap, {"element", "w"},
            [](ShardedSet& set) { set.shards[1].start[0] = set.locals[1][0].start[0] = 3; });
    refused("outside", Errc::piece_outside, {"w"},
            [](ShardedSet& set) { set.shards[1].start[0] = set.locals[1][0].start[0] = 5; });
    refused("a gap", Errc::not_covered, {"w"}, [](ShardedSet& set) {
        set.shards[1] = set.locals[1][0] = {{5, 0}, {2, 3}, 1};
    });
    refused("nowhere", Errc::piece_missing, {"rank 1", "[4, 0]"}, [](ShardedSet& set) { set.locals[1].clear(); });
    refused("another place", Errc::piece_mismatch, {"[3, 0]"}, [](ShardedSet& set) { set.locals[1][0].start[0] = 3; });
    refused("another dtype", Errc::piece_mismatch, {"I32", "F32"}, [](ShardedSet& set) { set.dtype = Dtype::i32; });
    refused("one rank twice", Errc::rank_repeated, {"rank 0"}, [](ShardedSet& set) { set.stated_rank = 0; });
    refused("a third rank", Errc::world_mismatch, {"rank 2"}, [](ShardedSet& set) {
        set.shards.push_back({{7, 0}, {0, 3}, 2});
    });
    refused("one shard twice", Errc::pieces_overlap, {"[4, 0]", "twice"},
            [](ShardedSet& set) { set.shards.push_back(set.shards[1]); });
    refused("offsets of one dimension", Errc::field_missing, {"offsets"},
            [](ShardedSet& set) { set.shards[1].extent = set.locals[1][0].extent = {9}; });
}

TEST_CASE("ShardedTensors that are malformed, or differ between ranks") {
    ForgedSet set = ShardedSet().make();
    ShardedSet other;
    other.shards = other.locals[0] = {{{0, 0}, {7, 3}, 0}};
    other.locals[1] = {};
    set.ranks[1] = other.make().ranks[1];
    check(set, Errc::ranks_differ, {"shards", "2 shards", "1 shard"});
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
        check_error(error_in(bad), {Errc::field_missing, Errc::piece_mismatch}, {});
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
