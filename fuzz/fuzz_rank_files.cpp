// Fuzzes sets of rank files: small forged sets of each kind, in which one pickle is replaced or changed. Property: the
// set opens, its tensors load and its replicas can be read, or an Error says that the data is wrong, in time and memory
// proportional to the input.
//
// The first byte of an input picks the set and the file with seven bits. If its highest bit is set, the rest is a list
// of changes of that file's pickle: a kind, a place of two bytes, and a value. Otherwise the rest is the pickle itself.
#include "forge/ranks.hpp"
#include "fuzz_target.hpp"

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz_rank_files {

using namespace safemap;
using namespace rank_forge;

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

/// A forged set, and the rank whose file an input replaces.
struct Target {
    ForgedSet set;
    std::uint64_t rank;
};

Whole some_whole(const Shape& shape) {
    std::mt19937 random(1);
    return random_whole(random, Dtype::f32, shape);
}

/// FSDP over packed tensor parallelism, with a plain tensor, an object and a tied name beside it.
ForgedSet strided_set() {
    const ForgedMesh mesh{.root = {2, 2}, .ranks = {0, 1, 2, 3}, .names = {"dp", "tp"}};
    const slow::Sharded how{.whole = {8, 2}, .mesh = {2, 2}, .orders = {{1, 0}, {}}, .pieces = {1, 2}};
    const Whole whole = some_whole({8, 2});
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
        const Numbers at = mesh.coordinates(rank);
        Value local = pt::tensor(Dtype::f32, {2, 2}, take(whole, slow::elements(how, at)));
        const Era era = eras[rank];
        Value spec = dtensor_spec(device_mesh(mesh, rank, era), {strided(0, 2, era), strided(0, 2, era)}, Dtype::f32,
                                  {8, 2}, era);
        spec.set("shard_order", pt::none());
        Value state = pt::dict({{"w", dtensor(local, {8, 2}, spec, Dtype::f32, era)},
                                {"plain", pt::tensor(Dtype::f32, {2}, "aaaabbbb")},
                                {"args", pt::dict({{"rank", pt::integer(rank)}, {"list", pt::integers({1, 2})}})}});
        state.set("tied", state["w"]);
        set.ranks[rank] = state;
    }
    return set;
}

ForgedSet sharded_set() {
    const std::vector<ForgedShard> shards = {{{0, 0}, {2, 2}, 0}, {{2, 0}, {1, 2}, 1}};
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const Shape shape = {rank == 0 ? 2U : 1U, 2};
        Value local = pt::tensor(Dtype::f32, shape, std::string(pt::elements(shape) * 4, 'v'));
        set.ranks[rank] = pt::dict(
            {{"state",
              pt::dict({{"w", sharded_tensor({{shards[rank], local}}, {3, 2}, shards, Dtype::f32, rank, 2)}})}});
    }
    return set;
}

ForgedSet flat_set() {
    const std::vector<ForgedShard> shards = {{{0}, {3}, 0}, {{3}, {2}, 1}};
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        Value local = pt::tensor(Dtype::f32, {3 - rank}, std::string(4 * (3 - rank), 'v'));
        set.ranks[rank] =
            pt::dict({{"a._flat_param", sharded_tensor({{shards[rank], local}}, {5}, shards, Dtype::f32, rank, 2)},
                      {"a.w", pt::tensor(Dtype::f32, {rank == 0 ? 3U : 1U}, std::string(rank == 0 ? 12 : 4, 'v'))}});
    }
    set.others["manifest.json"] =
        R"({"flat_params": [{"key": "a._flat_param", "numel": 5, "params": [{"fqn": "a.w", "shape": [2, 2], )"
        R"("numel": 4, "offset": 0}]}]})";
    return set;
}

ForgedSet chunk_set() {
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 2; ++rank)
        set.ranks[rank] =
            pt::list({pt::tensor(Dtype::f32, {3}, std::string(12, 'v')),
                      pt::list({pt::tensor(Dtype::f32, {2}, std::string(8, 'v')), pt::tensor(Dtype::f32, {0}, "")})});
    const std::string chunk = R"({"trainable": {"chunk": 2, "params": [{"name": "NAME", "shape": [4], "numel": 4}]}, )"
                              R"("frozen": {"chunk": SIZE, "params": []}})";
    const auto filled = [&](const std::string& name, const std::string& size) {
        std::string text = chunk;
        text.replace(text.find("NAME"), 4, name);
        return text.replace(text.find("SIZE"), 4, size);
    };
    set.others["manifest.json"] = R"({"layers": [)" + filled("a", "1") + ", " + filled("b", "0") + "]}";
    return set;
}

ForgedSet olmo_set() {
    ForgedSet set;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const Value info = pt::tuple(
            {pt::boolean(true), pt::integer(0), pt::integer(2), pt::integer(2 * rank), pt::integer(2 * rank + 1)});
        Value handle = pt::dict({{"flat_param.data", pt::tensor(Dtype::f32, {2}, "aaaabbbb")},
                                 {"flat_param._fqns", pt::texts({"w"})},
                                 {"flat_param._shapes", pt::list({pt::size({2, 2})})},
                                 {"flat_param._shard_param_infos", pt::tuple({info})}});
        if (rank == 1) {
            handle.erase("flat_param._shard_param_infos");
            handle.set("flat_param._shard_param_offsets", pt::tuple({numbers({2, 3})}));
            handle.set("flat_param._shard_indices", numbers({0, 0}));
        }
        set.ranks[rank] =
            pt::dict({{"modules", pt::list({pt::dict({{"name", pt::text("m")}, {"handles", pt::list({handle})}})})}});
    }
    return set;
}

std::vector<Target> forged() {
    std::vector<Target> targets;
    for (const ForgedSet& set : {strided_set(), rows_on_a_line(some_whole({3, 2}), 2, Era::torch_2_6), sharded_set(),
                                 flat_set(), chunk_set(), olmo_set()})
        for (const auto& each : set.ranks) targets.push_back({set, each.first});
    return targets;
}

std::string changed(std::string pickle, std::string_view changes) {
    for (; changes.size() >= 4 && !pickle.empty(); changes.remove_prefix(4)) {
        const auto byte = [changes](std::size_t i) { return static_cast<unsigned char>(changes[i]); };
        const std::size_t place = (byte(1) + 256U * byte(2)) % pickle.size();
        switch (byte(0) % 3) {
            case 0: pickle[place] = changes[3]; break;
            case 1: pickle.insert(place, 1, changes[3]); break;
            default: pickle.erase(place, 1U + byte(3) % 8); break;
        }
    }
    return pickle;
}

void load_small(const LazyTensor& tensor) {
    if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
}

void try_open(const distributed::RankFiles& files) {
    try {
        const state::Contents contents = distributed::read_rank_files(files, {.work = {.threads = 1}});
        for (const LazyTensor& tensor : contents.tensors) load_small(tensor);
        contents.replicas.each([](const state::Replica& one) {
            require(one.first.shape() == one.other.shape() && one.first.dtype() == one.other.dtype());
            load_small(one.other);
        });
    } catch (const Error& error) {
        require(remedy(error.code()) == Remedy::reject_data);
    }
}

}  // namespace

FUZZ_TARGET(rank_files, data, size) {
    static const std::vector<Target> targets = forged();
    if (size == 0) return 0;
    const Target& target = targets[(data[0] & 0x7fU) % targets.size()];
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    const Value& value = target.set.ranks.at(target.rank);
    const std::string pickle = (data[0] & 0x80U) != 0 ? changed(pt::Writer::pickle(value), rest) : std::string(rest);
    std::map<std::string, std::string> files = target.set.others;
    for (const auto& [rank, own] : target.set.ranks)
        files[target.set.name(rank)] =
            rank == target.rank ? pt::Writer::file_with(value, pickle) : pt::Writer::file(own);
    try_open({std::make_shared<forge::Folder>(std::move(files)), target.set.files()});
    return 0;
}

}  // namespace fuzz_rank_files
