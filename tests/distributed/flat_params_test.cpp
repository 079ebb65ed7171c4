// Tests flat parameters: random groups of parameters that are cut among ranks, as FSDP1 and as chunks by hand, and a
// manifest that describes them or contradicts them.
#include "check_error.hpp"
#include "distributed/flat/manifest.hpp"
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"
#include "inspect.hpp"
#include "soak.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace flat_params_test {

using namespace safemap;
using namespace rank_forge;
using state::Contents;

namespace {

struct Parameter {
    std::string name;
    Whole whole;
    std::uint64_t padding = 0;  ///< elements after it
};

std::string shape_json(const Shape& shape) {
    std::string out;
    for (const std::uint64_t size : shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
    return "[" + out + "]";
}

std::string parameter_json(const Parameter& one, std::string_view key, std::optional<std::uint64_t> offset) {
    std::string out = R"({")" + std::string(key) + R"(": ")" + one.name + R"(", "shape": )" +
                      shape_json(one.whole.shape) + R"(, "numel": )" + std::to_string(pt::elements(one.whole.shape));
    if (offset) out += R"(, "offset": )" + std::to_string(*offset);
    return out + "}";
}

std::string filler(std::uint64_t elements) { return std::string(elements * 4, '\x7f'); }

/// A flat parameter of FSDP1.
struct Group {
    std::string key;
    std::vector<Parameter> parameters;
    std::uint64_t end_padding = 0;

    std::string bytes() const {
        std::string out;
        for (const Parameter& one : parameters) out += one.whole.bytes + filler(one.padding);
        return out + filler(end_padding);
    }
    std::string json() const {
        std::string list;
        std::uint64_t offset = 0;
        for (const Parameter& one : parameters) {
            list += (list.empty() ? "" : ", ") + parameter_json(one, "fqn", offset);
            offset += pt::elements(one.whole.shape) + one.padding;
        }
        return R"({"key": ")" + key + R"(", "dtype": "F32", "numel": )" + std::to_string(bytes().size() / 4) +
               R"(, "params": [)" + list + "]}";
    }
};

Group random_group(std::mt19937& random, std::string key, const std::string& prefix) {
    Group out{.key = std::move(key), .parameters = {}, .end_padding = random() % 3};
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) {
        Shape shape;
        for (std::size_t d = random() % 3; d > 0; --d) shape.push_back(random() % 5);
        out.parameters.push_back(
            {prefix + "p" + std::to_string(i), random_whole(random, Dtype::f32, shape), random() % 4});
    }
    return out;
}

/// How the ranks of a set hold a flat parameter.
enum class Form : std::uint8_t { sharded, plain, with_pieces };

/// Returns the part of the flat bytes that a rank holds: chunks of torch.chunk, without padding.
std::pair<std::uint64_t, std::uint64_t> range_of(std::uint64_t numel, std::uint64_t world, std::uint64_t rank) {
    const std::uint64_t size = (numel + world - 1) / world;
    const std::uint64_t first = std::min(numel, rank * size);
    return {first, std::min(numel, first + size) - first};
}

Value flat_value(const Group& group, std::uint64_t world, std::uint64_t rank, Form form) {
    const std::string bytes = group.bytes();
    const std::uint64_t numel = bytes.size() / 4;
    const auto [first, count] = range_of(numel, world, rank);
    std::string own = bytes.substr(first * 4, count * 4);
    if (form == Form::plain) {
        const std::uint64_t size = (numel + world - 1) / world;
        own += filler(size - count);  // padded to the length of a chunk
        return pt::tensor(Dtype::f32, {size}, own);
    }
    std::vector<ForgedShard> shards;
    for (std::uint64_t r = 0; r < world; ++r)
        if (const auto range = range_of(numel, world, r); range.second > 0)
            shards.push_back({{range.first}, {range.second}, r});
    std::vector<std::pair<ForgedShard, Value>> locals;
    if (count > 0) locals.emplace_back(ForgedShard{{first}, {count}, rank}, pt::tensor(Dtype::f32, {count}, own));
    return sharded_tensor(std::move(locals), {numel}, shards, Dtype::f32, rank, world);
}

/// Adds the pieces that FSDP1 also saves under the names of the parameters with use_orig_params.
void add_pieces(Value& state, const Group& group, std::uint64_t world, std::uint64_t rank) {
    const auto [first, count] = range_of(group.bytes().size() / 4, world, rank);
    std::uint64_t at = 0;
    for (const Parameter& one : group.parameters) {
        const std::uint64_t numel = pt::elements(one.whole.shape);
        const std::uint64_t begin = std::clamp(first, at, at + numel);
        const std::uint64_t end = std::clamp(first + count, at, at + numel);
        state.set(one.name, pt::tensor(Dtype::f32, {end - begin}, std::string((end - begin) * 4, 'z')));
        at += numel + one.padding;
    }
}

void check(const Contents& contents, const std::vector<Parameter>& wanted) {
    for (const Parameter& one : wanted) {
        INFO(one.name);
        const LazyTensor* const tensor = find(contents, one.name);
        REQUIRE(tensor != nullptr);
        CHECK(tensor->shape() == one.whole.shape);
        CHECK((bytes_of(*tensor) == one.whole.bytes));
    }
    CHECK(contents.tensors.size() == wanted.size());
    CHECK(contents.layout->kind == "flat_parameters");
}

}  // namespace

TEST_CASE("random flat parameters of FSDP1 through real files") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const std::uint64_t world = 1 + random() % 4;
        const Form form = static_cast<Form>(random() % 3);
        const Group groups[] = {random_group(random, "_flat_param", ""),
                                random_group(random, "blocks.0._flat_param", "blocks.0.")};
        const Parameter buffer{"buffer", random_whole(random, Dtype::i64, {3}), 0};
        std::vector<Parameter> wanted = {buffer};
        ForgedSet set{.prefix = "flat_world_size_"};
        std::string json;
        for (const Group& group : groups) {
            json += (json.empty() ? "" : ", ") + group.json();
            wanted.insert(wanted.end(), group.parameters.begin(), group.parameters.end());
        }
        for (std::uint64_t rank = 0; rank < world; ++rank) {
            Value state = pt::ordered();
            state.set("buffer", pt::tensor(Dtype::i64, {3}, buffer.whole.bytes));
            for (const Group& group : groups) {
                if (form == Form::with_pieces) add_pieces(state, group, world, rank);
                state.set(group.key, flat_value(group, world, rank, form));
            }
            set.ranks[rank] = state;
        }
        CAPTURE(round);
        CHECK_FAULT(set.open(), Errc::manifest_missing);
        set.others["manifest.json"] = R"({"flat_params": [)" + json + "]}";
        check(set.open(), wanted);
    }
}

TEST_CASE("random layers that ranks hold as chunks") {
    std::mt19937 random(soak::seed(2));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const std::uint64_t world = 1 + random() % 4;
        const bool split = random() % 2 == 0;
        std::vector<Parameter> wanted;
        ForgedSet set{.prefix = "zero_world_size_"};
        for (std::uint64_t rank = 0; rank < world; ++rank) set.ranks[rank] = pt::list();
        std::string layers;
        for (int layer = 0; layer < 3; ++layer) {
            std::string kinds;
            std::vector<std::string> own(world);
            std::vector<Value> pairs(world, pt::list());
            for (const char* const kind : {"trainable", "frozen"}) {
                Group group = random_group(random, "", "layers." + std::to_string(layer) + "." + kind + ".");
                if (random() % 4 == 0) group.parameters.clear();
                std::string bytes;
                std::string list;
                for (const Parameter& one : group.parameters) {
                    bytes += one.whole.bytes;
                    list += (list.empty() ? "" : ", ") + parameter_json(one, "name", std::nullopt);
                    wanted.push_back(one);
                }
                const std::uint64_t chunk = (bytes.size() / 4 + world - 1) / world;
                bytes += filler(chunk * world - bytes.size() / 4);
                for (std::uint64_t rank = 0; rank < world; ++rank) {
                    const std::string part = bytes.substr(rank * chunk * 4, chunk * 4);
                    own[rank] += part;
                    pairs[rank].push(pt::tensor(Dtype::f32, {chunk}, part));
                }
                kinds += std::string(kinds.empty() ? "" : ", ") + "\"" + kind + R"(": {"chunk": )" +
                         std::to_string(chunk) + R"(, "params": [)" + list + "]}";
            }
            layers += (layers.empty() ? "{" : ", {") + kinds + "}";
            for (std::uint64_t rank = 0; rank < world; ++rank)
                set.ranks[rank].push(split ? pairs[rank] : pt::tensor(Dtype::f32, {own[rank].size() / 4}, own[rank]));
        }
        CAPTURE(round);
        set.others["manifest.json"] = R"({"layers": [)" + layers + "]}";
        check(set.open(), wanted);
    }
}

namespace {

/// Two ranks with a flat parameter of 28 elements: weight [7, 3] and bias [7].
ForgedSet small_set() {
    std::mt19937 random(1);
    const Group group{.key = "_flat_param",
                      .parameters = {{"weight", random_whole(random, Dtype::f32, {7, 3})},
                                     {"bias", random_whole(random, Dtype::f32, {7})}}};
    ForgedSet set{.prefix = "flat_world_size_"};
    for (std::uint64_t rank = 0; rank < 2; ++rank)
        set.ranks[rank] = pt::dict({{"_flat_param", flat_value(group, 2, rank, Form::sharded)}});
    set.others["manifest.json"] = R"({"flat_params": [)" + group.json() + "]}";
    return set;
}

/// Checks that the manifest with `from` replaced by `to` contradicts the files, or itself, and that the error says so.
void check_manifest(const std::string& from, const std::string& to, const std::string& word) {
    ForgedSet set = small_set();
    std::string& manifest = set.others["manifest.json"];
    const auto at = manifest.find(from);
    REQUIRE(at != std::string::npos);
    manifest.replace(at, from.size(), to);
    CAPTURE(manifest);
    const auto error = error_of([&] { static_cast<void>(set.open()); });
    check_error(error, {Errc::manifest_mismatch}, {});
    CHECK(error->path() == "run/manifest.json");
    INFO(error->message());
    CHECK(error->message().find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("a manifest that contradicts itself or the files") {
    CHECK_OK(small_set().open());
    check_manifest(R"("numel": 21)", R"("numel": 20)", "21");
    check_manifest(R"("shape": [7], "numel": 7)", R"("shape": [70], "numel": 70)", "91");
    check_manifest(R"("numel": 28)", R"("numel": 29)", "29");
    check_manifest(R"("offset": 21)", R"("offset": 20)", "20");
    check_manifest(R"("offset": 21)", R"("offset": 18446744073709551615)", "64 bits");
    check_manifest(R"("offset": 21)", R"("offset": -1)", "offset");
    check_manifest(R"("offset": 21)", R"("off": 21)", "offset");
    check_manifest(R"("F32")", R"("BF16")", "BF16");
    check_manifest(R"("F32")", R"("Q9")", "dtype");
    check_manifest(R"("key": "_flat_param")", R"("key": "x._flat_param")", "_flat_param");
    check_manifest(R"("fqn": "bias")", R"("fqn": "weight")", "twice");
    check_manifest(R"("fqn": "bias")", R"("fqn": 3)", "fqn");
    check_manifest(R"([7, 3])", R"([4294967296, 4294967296, 4294967296])", "too many");
    check_manifest(R"([7, 3])", R"("7x3")", "shape");
    check_manifest(R"([7, 3])", R"([7.5, 3])", "shape");
    check_manifest(R"("params": [)", R"("params": 3, "x": [)", "params");
    check_manifest(R"("flat_params")", R"("flat")", "flat_params");
    check_manifest(R"({"flat_params")", R"({"flat_params)", "JSON");
    check_manifest(R"({"flat_params": [)", R"({"flat_params": [3, )", "key");
    // Parameters that are left out.
    check_manifest(R"({"fqn": "weight", "shape": [7, 3], "numel": 21, "offset": 0}, )", "", "0 to 20");
    check_manifest(R"("numel": 28)", R"("numel": 47)", "28 to 46");
    check_manifest(R"({"flat_params")", R"({"layers": [], "flat_params": [], "x")", "no flat_params");
}

TEST_CASE("a manifest of chunks that contradicts the files") {
    const auto open = [](const std::string& manifest, std::uint64_t chunk) {
        ForgedSet set{.prefix = "zero_world_size_"};
        for (std::uint64_t rank = 0; rank < 2; ++rank)
            set.ranks[rank] = pt::list(
                {pt::tensor(Dtype::f32, {chunk}, filler(chunk - 1) + std::string(4, static_cast<char>(rank)))});
        if (!manifest.empty()) set.others["manifest.json"] = manifest;
        return set.open();
    };
    const std::string good =
        R"({"layers": [{"trainable": {"chunk": 2, "params": [{"name": "w", "shape": [3], "numel": 3}]},)"
        R"( "frozen": {"chunk": 0, "params": []}}]})";
    CHECK_OK(open(good, 2));
    CHECK_FAULT(open("", 2), Errc::manifest_missing);
    CHECK_FAULT(open(good, 3), Errc::manifest_mismatch);
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        REQUIRE(text.find(from) != text.npos);
        return text.replace(text.find(from), from.size(), to);
    };
    CHECK_FAULT(open(changed("[3], \"numel\": 3", "[5], \"numel\": 5"), 2), Errc::manifest_mismatch);
    CHECK_FAULT(open(changed("\"chunk\": 0", "\"chunk\": 1"), 2), Errc::manifest_mismatch);
    CHECK_FAULT(open(changed("[{\"trainable\"", "[{}, {\"trainable\""), 2), Errc::manifest_mismatch);
    CHECK_FAULT(open(R"({"layers": []})", 2), Errc::manifest_mismatch);
    CHECK_FAULT(open(R"({"flat_params": []})", 2), Errc::manifest_mismatch);
    // Lists that all ranks have alike need no manifest.
    ForgedSet same{.prefix = "list_world_size_"};
    for (std::uint64_t rank = 0; rank < 2; ++rank)
        same.ranks[rank] = pt::list({pt::tensor(Dtype::f32, {2}, filler(2))});
    CHECK(same.open().tensors.size() == 1);
}

TEST_CASE("a rank that is missing, and names that do not say how many there are") {
    // Five chunks of two elements, of which the last is padding.
    std::mt19937 random(1);
    const Whole whole = random_whole(random, Dtype::f32, {8});
    ForgedSet chunks{.prefix = "rank_", .sized = false};
    ForgedSet flat{.prefix = "model_rank", .sized = false};
    const Group group{.key = "_flat_param", .parameters = {{"w", whole}}};
    for (std::uint64_t rank = 0; rank < 5; ++rank) {
        const std::string own = (whole.bytes + filler(2)).substr(rank * 8, 8);
        chunks.ranks[rank] = pt::list({pt::tensor(Dtype::f32, {2}, own)});
        flat.ranks[rank] = pt::dict({{"_flat_param", flat_value(group, 5, rank, Form::plain)}});
    }
    chunks.others["manifest.json"] =
        R"({"layers": [{"trainable": {"chunk": 2, "params": [{"name": "w", "shape": [8], "numel": 8}]},)"
        R"( "frozen": {"chunk": 0, "params": []}}]})";
    flat.others["manifest.json"] = R"({"flat_params": [)" + group.json() + "]}";
    check(chunks.open(), {{"w", whole}});
    check(flat.open(), {{"w", whole}});
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
        CAPTURE(rank);
        ForgedSet lacking = chunks;
        lacking.ranks.erase(rank);
        check_error(error_of([&] { static_cast<void>(lacking.open()); }), {Errc::rank_missing}, {chunks.name(rank)});
        // The last chunk is padding: a manifest of four ranks is the same.
        lacking.ranks.erase(4);
        CHECK_FAULT(lacking.open(), Errc::rank_missing);
        lacking = flat;
        lacking.ranks.erase(rank);
        CHECK_FAULT(lacking.open(), Errc::rank_missing);
    }
    chunks.ranks.erase(4);
    check(chunks.open(), {{"w", whole}});
}

TEST_CASE("flat parameters beside pieces of other lengths, and flat tensors of the wrong form") {
    ForgedSet set = small_set();
    for (std::uint64_t rank = 0; rank < 2; ++rank)
        set.ranks[rank].set("bias", pt::tensor(Dtype::f32, {rank == 0 ? 0U : 6U}, filler(rank == 0 ? 0 : 6)));
    CHECK_FAULT(set.open(), Errc::manifest_mismatch);
    // A piece under a name that the manifest does not have.
    std::string& manifest = set.others["manifest.json"];
    manifest.replace(manifest.find("\"bias\""), 6, "\"b\"");
    const auto unknown = error_of([&] { static_cast<void>(set.open()); });
    check_error(unknown, {Errc::ranks_differ}, {});
    CHECK(unknown->hint().find("manifest") != std::string::npos);
    ForgedSet plain = small_set();
    for (auto& [rank, state] : plain.ranks) state["_flat_param"] = pt::tensor(Dtype::f32, {9}, filler(9));
    CHECK_FAULT(plain.open(), Errc::manifest_mismatch);
    for (auto& [rank, state] : plain.ranks) state["_flat_param"] = pt::tensor(Dtype::f32, {14}, filler(14));
    CHECK_OK(plain.open());
}

}  // namespace flat_params_test
