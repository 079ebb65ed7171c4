// Tests `.metadata`: every version, chunks and items found by offset, every fault, bounds on what a small pickle can
// ask for, and the files of ranks that are joined.
#include "distributed/dcp/dcp_metadata.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "inspect.hpp"
#include "soak.hpp"

#include <chrono>
#include <functional>
#include <limits>

namespace dcp_metadata_test {

using namespace safemap;
using namespace std::string_literals;
using namespace dcp_forge;
using distributed::DcpEntry;
using distributed::DcpItem;
using distributed::DcpMetadata;
using distributed::DcpStep;

namespace {

DcpMetadata read(const std::string& pickle, bool strict = false) {
    torch::NamedGlobals globals(strict);
    return distributed::read_dcp_metadata(*forge::source(pickle, ".metadata"), globals);
}

Item at(std::int64_t offset, std::string file = "__0_0.distcp") {
    return {.file = std::move(file), .offset = offset, .length = 100};
}

/// A tensor of two rows of chunks, and an object.
Metadata small() {
    Metadata out;
    out.entries.push_back({.name = "model.w",
                           .path = std::vector<Step>{"model", "w"},
                           .dtype = "bfloat16",
                           .shape = {7, 3},
                           .chunks = {{{0, 0}, {4, 3}, at(0)}, {{4, 0}, {3, 3}, at(100, "__1_0.distcp")}}});
    out.entries.push_back({.name = "groups.1.lr", .path = std::vector<Step>{"groups", 1, "lr"}, .item = at(200)});
    return out;
}

/// One fault: changes `small()`, and checks the code.
void check_fault(const char* fault, Errc code, const std::function<void(Metadata&)>& inflict) {
    CAPTURE(fault);
    Metadata changed = small();
    inflict(changed);
    check_error(error_of([&] { read(changed.pickle()); }), {code}, {}, {.path = ".metadata"});
}

}  // namespace

TEST_CASE("the metadata of every version says the same") {
    for (const Era era : {Era::torch_1_13, Era::torch_2_2, Era::torch_2_13, Era::megatron}) {
        Metadata forged = small();
        forged.era = era;
        const DcpMetadata found = read(forged.pickle(), true);
        REQUIRE(found.entries.size() == 2);
        const DcpEntry& tensor = found.entries[0];
        CHECK(tensor.tensor);
        CHECK(tensor.dtype == Dtype::bf16);
        CHECK(tensor.shape == Shape{7, 3});
        REQUIRE(tensor.item_count == 2);
        CHECK(Shape(found.start(tensor, 1)) == Shape{4, 0});
        CHECK(Shape(found.size(tensor, 1)) == Shape{3, 3});
        CHECK(found.files.at(found.items[tensor.first_item + 1].file) == "__1_0.distcp");
        CHECK(found.items[tensor.first_item + 1].offset == 100);
        CHECK_FALSE(found.entries[1].tensor);
        CHECK(found.items[found.entries[1].first_item].extent() == Extent{200, 100});
        REQUIRE(found.path(found.entries[1]).size() == 3);
        CHECK(found.texts.at(found.path(found.entries[1])[0].text) == "groups");
        CHECK(found.path(found.entries[1])[1].text == DcpStep::no_text);
        CHECK(found.path(found.entries[1])[1].place == 1);
        CHECK(found.version == (era == Era::torch_2_13 || era == Era::megatron ? "1.0.0" : ""));
        CHECK(found.notes.empty());
    }
}

TEST_CASE("items are found by offset, whatever their order and index") {
    std::mt19937 random(5);
    Metadata forged;
    Entry entry{.name = "w", .dtype = "float32", .shape = {40, 9}};
    for (std::int64_t i = 0; i < 40; ++i) entry.chunks.push_back({{i, 0}, {1, 9}, at(1000 * i)});
    for (int round = 0; round < 20; ++round) {
        std::shuffle(entry.chunks.begin(), entry.chunks.end(), random);
        forged.entries = {entry};
        // storage_data in another order than the chunks, and with an index that is wrong: that of forge is the place.
        Metadata stored = forged;
        std::shuffle(stored.entries[0].chunks.begin(), stored.entries[0].chunks.end(), random);
        std::string pickle = forged.pickle();
        const std::string others = stored.pickle();
        const std::string key = forge::text("storage_data");
        pickle = pickle.substr(0, pickle.find(key)) + others.substr(others.find(key));
        const DcpMetadata found = read(pickle);
        for (std::size_t k = 0; k < 40; ++k) CHECK(found.items[k].offset == 1000 * found.start(found.entries[0], k)[0]);
    }
}

TEST_CASE("scalars, tensors without elements, and chunks without elements") {
    Metadata forged;
    forged.entries = {
        {.name = "scalar", .dtype = "int64", .shape = {}, .chunks = {{{}, {}, at(0)}}},
        {.name = "none",
         .dtype = "int64",
         .shape = {0, 4},
         .chunks = {{{0, 0}, {0, 2}, at(1)}, {{0, 2}, {0, 2}, at(2)}}},
        {.name = "uneven", .dtype = "int64", .shape = {1}, .chunks = {{{0}, {1}, at(3)}, {{1}, {0}, at(4)}}},
    };
    const DcpMetadata found = read(forged.pickle());
    CHECK(found.entries[0].shape.empty());
    CHECK(found.items.size() == 5);
    CHECK(found.items[4].offset == 4);
    // If chunks begin at one place, the one with elements has the item.
    forged.entries = {{.name = "w", .dtype = "int64", .shape = {2}, .chunks = {{{0}, {0}, at(1)}, {{0}, {2}, at(2)}}}};
    const DcpMetadata twice = read(forged.pickle());
    CHECK(twice.items[0].file == DcpItem::not_needed);
    CHECK(twice.items[1].offset == 2);
}

TEST_CASE("elements of float4 are counted one by one, where torch counts pairs") {
    const auto forged = [](const Numbers& shape, const Numbers& start, const Numbers& size) {
        Metadata out;
        out.entries = {{.name = "w",
                        .dtype = "float4_e2m1fn_x2",
                        .shape = shape,
                        .chunks = {{{0, 0}, {4, 1}, at(1)}, {start, size, at(2)}}}};
        return out.pickle();
    };
    const DcpMetadata found = read(forged({4, 3}, {0, 1}, {4, 2}));
    CHECK(found.entries[0].shape == Shape{4, 6});
    CHECK(Shape(found.start(found.entries[0], 1)) == Shape{0, 2});
    CHECK(Shape(found.size(found.entries[0], 1)) == Shape{4, 4});
    CHECK(found.items[1].offset == 2);
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    CHECK_FAULT(read(forged({1, largest}, {0, 1}, {1, 2})), Errc::shape_overflow);
    CHECK_FAULT(read(forged({4, 3}, {0, largest}, {4, 2})), Errc::piece_outside);
}

TEST_CASE("every contradiction has its code") {
    const auto chunk = [](const char* fault, Errc code, void (*inflict)(Chunk&)) {
        check_fault(fault, code, [&](Metadata& m) { inflict(m.entries[0].chunks[0]); });
    };
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    chunk("an offset too few", Errc::piece_mismatch, [](Chunk& one) { one.offsets = {0}; });
    chunk("a size too many", Errc::piece_mismatch, [](Chunk& one) { one.sizes = {4, 3, 1}; });
    chunk("an offset below zero", Errc::piece_outside, [](Chunk& one) { one.offsets = {-1, 0}; });
    chunk("a size below zero", Errc::piece_outside, [](Chunk& one) { one.sizes = {-4, 3}; });
    chunk("a size too large", Errc::piece_outside, [](Chunk& one) { one.sizes = {8, 3}; });
    chunk("the largest offset", Errc::piece_outside, [](Chunk& one) { one.offsets = {largest, 0}; });
    chunk("no item", Errc::piece_missing, [](Chunk& one) { one.item.listed = false; });
    chunk("an item before its file", Errc::piece_missing, [](Chunk& one) { one.item.offset = -1; });
    chunk("an item of negative length", Errc::piece_missing, [](Chunk& one) { one.item.length = -1; });
    for (const std::string& path : {"/a"s, "../a"s, "a/../../b"s, ".."s, ""s, "a\0b"s})
        check_fault(path.c_str(), Errc::shard_outside_folder,
                    [&](Metadata& m) { m.entries[0].chunks[0].item.file = path; });
    check_fault("a negative dimension", Errc::bad_tensor, [](Metadata& m) { m.entries[0].shape = {-7, 3}; });
    check_fault("65 dimensions", Errc::bad_tensor, [](Metadata& m) { m.entries[0].shape = Numbers(65, 1); });
    check_fault("the largest dimension", Errc::shape_overflow, [](Metadata& m) { m.entries[0].shape = {largest, 3}; });
    check_fault("2^80 elements", Errc::shape_overflow, [](Metadata& m) {
        m.entries[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
    });
    check_fault("an unknown dtype", Errc::unknown_dtype, [](Metadata& m) { m.entries[0].dtype = "float31"; });
    check_fault("an object without an item", Errc::piece_missing,
                [](Metadata& m) { m.entries[1].item.listed = false; });
    check_fault("a name twice", Errc::duplicate_name, [](Metadata& m) { m.entries.push_back(m.entries[0]); });
    check_fault("a call", Errc::unsafe_call,
                [](Metadata& m) { m.planner = forge::call("os", "system", {forge::text("x")}); });
}

TEST_CASE("an integer beyond 64 bits is a fault of its place") {
    const std::string big = "\x8a\x09" + std::string(8, '\0') + "\x01";
    const auto replaced = [&](const std::string& what) {
        std::string pickle = small().pickle();
        const std::size_t found = pickle.find(what);
        REQUIRE(found != std::string::npos);
        return pickle.replace(found, what.size(), big);
    };
    CHECK_FAULT(read(replaced(forge::integer(7))), Errc::shape_overflow);
    CHECK_FAULT(read(replaced(forge::integer(4))), Errc::piece_outside);
    CHECK_FAULT(read(replaced(forge::integer(100))), Errc::piece_missing);
}

TEST_CASE("other values than torch writes are refused, and say what they are") {
    CHECK_FAULT(read(forge::pickle("](K\1K\2e")), Errc::not_a_checkpoint);
    CHECK_FAULT(read(forge::pickle(forge::call("torch", "Size", {forge::tuple({})}))), Errc::not_a_checkpoint);
    CHECK_FAULT(read(""), Errc::pickle_truncated);
    const auto metadata = [](const std::string& fields) {
        return forge::pickle(Metadata::object("torch.distributed.checkpoint.metadata", "Metadata", fields));
    };
    CHECK_FAULT(read(metadata(forge::text("x") + "N")), Errc::field_missing);
    CHECK_FAULT(read(metadata(forge::text("state_dict_metadata") + "N")), Errc::field_missing);
    CHECK_FAULT(read(metadata(forge::text("state_dict_metadata") + forge::dict({"K\1", "N"}))), Errc::field_missing);
    CHECK_FAULT(read(metadata(forge::text("state_dict_metadata") + forge::dict({forge::text("a"), "N"}))),
                Errc::field_missing);
    const DcpMetadata empty = read(metadata(forge::text("state_dict_metadata") + "}"));
    CHECK(empty.entries.empty());
    // Storage by something else than FileSystemWriter.
    std::string pickle = small().pickle();
    for (std::size_t at = 0; (at = pickle.find("_StorageInfo", at)) != std::string::npos;)
        pickle.replace(at, 12, "_OtherStorag");
    check_error(error_of([&] { read(pickle); }), {Errc::unsupported_layout},
                {"an object of the class torch.distributed.checkpoint.filesystem._OtherStorag"});
    CHECK_FAULT(read(pickle, true), Errc::unknown_global);
}

TEST_CASE("items of nothing, planner data without paths, and Megatron's flat tensors are noted") {
    Metadata forged = small();
    Entry gone = forged.entries[0];
    gone.name = "gone";
    forged.entries.push_back(gone);
    std::string pickle = forged.pickle();
    const std::string key = forge::text("storage_data");
    const std::string few = small().pickle();
    const DcpMetadata found = read(few.substr(0, few.find(key)) + pickle.substr(pickle.find(key)));
    CHECK(only_of(found.notes).find("2 items") != std::string::npos);

    forged = small();
    forged.planner = "](K\1e";
    CHECK(read(forged.pickle()).notes.at(0).find("planner_data is a list") != std::string::npos);
    forged.planner = forge::dict({forge::text("model.w"), forge::tuple({"G" + std::string(8, '\0')})});
    CHECK(read(forged.pickle()).notes.at(0).find("no path for 1 name") != std::string::npos);
    CHECK(read(forged.pickle()).entries[0].step_count == 0);

    forged = small();
    forged.era = Era::megatron;
    forged.mcore = {{"model.w", {21}}};
    CHECK(read(forged.pickle()).notes.at(0).find("model.w of shape [21] as [7, 3]") != std::string::npos);
}

TEST_CASE("a small pickle that names one chunk, name or step a million times is bounded") {
    constexpr int many = 1'000'000;
    const auto started = std::chrono::steady_clock::now();
    const auto with_chunks = [&](const std::string& chunk, int count) {
        Metadata forged = small();
        std::string pickle = forged.pickle();
        const std::string key = forge::text("chunks") + "](";
        const std::size_t at = pickle.find(key) + key.size();
        std::string more = chunk + "q\x7f";  // BINPUT
        for (int i = 1; i < count; ++i) more += "h\x7f";
        return pickle.insert(at, more);
    };
    // Chunks of many dimensions, and of as many as fit: the same place a million times.
    Metadata forged = small();
    const std::string chunk = forged.chunk(forged.entries[0].chunks[0]);
    const DcpMetadata found = read(with_chunks(chunk, many));
    CHECK(found.entries[0].item_count == many + 2);
    CHECK_FAULT(read(with_chunks(forged.chunk({Numbers(64, 0), Numbers(64, 1), {}}), many)), Errc::piece_mismatch);
    CHECK_FAULT(read(with_chunks(chunk, 5 * many)), Errc::pickle_too_large);
    // Ranks share what one pickle may take.
    torch::NamedGlobals globals(false);
    const auto of_ranks = [&](const std::string& pickle, std::size_t ranks) {
        return distributed::read_dcp_metadata(*forge::source(pickle, "__0.metadata"), globals, ranks);
    };
    CHECK_FAULT(of_ranks(with_chunks(chunk, many), 100), Errc::pickle_too_large);
    CHECK(of_ranks(forged.pickle(), 1'000'000).entries.size() == forged.entries.size());

    // Half a million chunks at one offset, and an item for each.
    const auto with_items = [&](std::string pickle, int count) {
        const std::string key = forge::text("storage_data") + "}(";
        const std::size_t at = pickle.find(key) + key.size();
        const std::size_t end =
            pickle.find(forge::global("torch.distributed.checkpoint.metadata", "MetadataIndex"), at + 1);
        const std::string pair = pickle.substr(at, end - at);
        std::string more;
        for (int i = 0; i < count; ++i) more += pair;
        return pickle.insert(at, more);
    };
    CHECK_FAULT(read(with_items(with_chunks(chunk, many / 10), many / 10)), Errc::pickle_too_large);

    // A state of very many attributes that all objects share.
    std::string attributes = "}(";
    for (int i = 0; i < 1000; ++i) attributes += forge::text("a" + std::to_string(i)) + "N";
    std::string pickle = forged.pickle();
    const std::string with = forge::text("chunks") + "](";
    pickle.insert(
        pickle.find(with) + with.size(),
        forge::global("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata") + ")\x81" + attributes + "ub");
    CHECK_FAULT(read(pickle), Errc::field_missing);

    // Paths of a million steps.
    std::string steps = "(" + forge::text("k") + "q\x7f";
    for (int i = 1; i < many; ++i) steps += "h\x7f";
    forged.planner = forge::dict({forge::text("model.w"), steps + "tq\x7e", forge::text("groups.1.lr"), "h\x7e"});
    const auto deep = error_of([&] { read(forged.pickle()); });
    CHECK((!deep || deep->code() == Errc::pickle_too_large));
    CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(60));
}

// ---- Ranks that save without each other.

namespace {

/// Two ranks: rows that are sharded, and what both have.
std::vector<Metadata> two_ranks() {
    std::vector<Metadata> ranks(2);
    for (std::int64_t r = 0; r < 2; ++r) {
        const std::string file = "__" + std::to_string(r) + "_0.distcp";
        Metadata& rank = ranks[static_cast<std::size_t>(r)];
        rank.entries = {
            {.name = "rows", .dtype = "float32", .shape = {7, 3}, .chunks = {{{4 * r, 0}, {4 - r, 3}, at(0, file)}}},
            {.name = "both",
             .path = std::vector<Step>{"both"},
             .dtype = "int64",
             .shape = {4},
             .chunks = {{{0}, {4}, at(100, file)}}},
            {.name = "few", .dtype = "int64", .shape = {1}, .chunks = {{{r}, {1 - r}, at(200, file)}}},
            {.name = "step", .item = at(300, file)},
        };
    }
    return ranks;
}

DcpMetadata join(const std::vector<Metadata>& ranks) {
    std::vector<DcpMetadata> all;
    std::vector<std::string> files;
    for (const Metadata& rank : ranks) {
        all.push_back(read(rank.pickle()));
        files.push_back("__" + std::to_string(files.size()) + ".metadata");
    }
    return distributed::joined(std::move(all), files);
}

/// One fault: changes the second rank, and checks that both ranks and a tensor are named.
void check_ranks_differ(const char* fault, void (*inflict)(Metadata&)) {
    CAPTURE(fault);
    std::vector<Metadata> ranks = two_ranks();
    inflict(ranks[1]);
    const auto error = error_of([&] { join(ranks); });
    check_error(error, {Errc::ranks_differ}, {});
    for (const char* const file : {"__0.metadata", "__1.metadata"})
        CHECK(error->message().find(file) != std::string::npos);
    CHECK_FALSE(error->tensor().empty());
}

}  // namespace

TEST_CASE("metadata of ranks is joined by offset, and what all have is taken from the first") {
    const DcpMetadata found = join(two_ranks());
    REQUIRE(found.entries.size() == 4);
    CHECK(found.entries[0].item_count == 2);
    CHECK(Shape(found.start(found.entries[0], 1)) == Shape{4, 0});
    CHECK(found.files.at(found.items[1].file) == "__1_0.distcp");
    CHECK(found.entries[1].item_count == 1);
    CHECK(found.entries[2].item_count == 2);
    CHECK(found.entries[3].item_count == 1);
    REQUIRE(found.replicas.size() == 2);
    CHECK(found.replicas[0].item == found.entries[1].first_item);
    CHECK(found.files.at(found.replicas[0].other.file) == "__1_0.distcp");
    CHECK(found.items[found.replicas[1].item].entry == 3);
    // A name that only one rank has.
    std::vector<Metadata> ranks = two_ranks();
    ranks[1].entries.push_back({.name = "own", .item = at(400, "__1_0.distcp")});
    CHECK(join(ranks).entries.size() == 5);
}

TEST_CASE("ranks that contradict each other are refused") {
    check_ranks_differ("the shape", [](Metadata& m) { m["rows"].shape = {9, 3}; });
    check_ranks_differ("the dtype", [](Metadata& m) { m["rows"].dtype = "int32"; });
    check_ranks_differ("the path", [](Metadata& m) { m["both"].path = std::vector<Step>{"b", "oth"}; });
    check_ranks_differ("no path", [](Metadata& m) { m["both"].path.reset(); });
    check_ranks_differ("the size of a chunk", [](Metadata& m) { m["both"].chunks[0].sizes = {2}; });
    check_ranks_differ("an object and a tensor", [](Metadata& m) {
        m["step"] = m["both"];
        m.entries[3].name = "step";
    });
}

TEST_CASE("every change of one byte of the metadata is read or refused, and never crashes") {
    const std::string whole = small().pickle();
    int opened = 0;
    for (std::size_t i = soak::stride(3) - 1; i < whole.size(); i += soak::stride(3))
        for (const int by : {1, 0x20, 0x80}) {
            CAPTURE(i);
            CAPTURE(by);
            std::string changed = whole;
            changed[i] = static_cast<char>(changed[i] ^ by);
            const auto error = error_of([&] {
                const DcpMetadata found = read(changed);
                for (const DcpEntry& entry : found.entries)
                    for (std::size_t k = 0; entry.tensor && k < entry.item_count; ++k)
                        for (std::size_t d = 0; d < entry.shape.size(); ++d)
                            CHECK(found.start(entry, k)[d] + found.size(entry, k)[d] <= entry.shape[d]);
                ++opened;
            });
            if (error) CHECK(exit_code(error->code()) == 1);
        }
    CHECK(opened > 0);
    for (std::size_t size = soak::stride(3) - 1; size < whole.size(); size += soak::stride(3)) {
        CAPTURE(size);
        CHECK(error_of([&] { read(whole.substr(0, size)); }).has_value());
    }
}

}  // namespace dcp_metadata_test
