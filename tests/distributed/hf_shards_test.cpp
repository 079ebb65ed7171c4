// Tests Hugging Face shards: random tilings by boxes against a slow twin, the same with one box moved, doubled or lost,
// and every fault of names and places.
#include "distributed/hf_shards.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/hf_shards.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"
#include "open/read.hpp"
#include "reference/random_boxes.hpp"
#include "soak.hpp"

#include <algorithm>
#include <random>

namespace hf_shards_test {

using namespace safemap;
using hf_forge::file;
using hf_forge::Part;
using hf_forge::shard_name;
using state::Contents;

namespace {

using Files = std::map<std::string, std::string>;

Contents read(const Files& files, FaultSink& faults) {
    return open::read_located(open::locate(std::make_shared<forge::Folder>(files)), {}, faults);
}
Contents read(const Files& files) {
    ThrowFirst faults;
    return read(files, faults);
}

const LazyTensor& tensor(const Contents& contents, const std::string& name) {
    const auto found = std::find_if(contents.tensors.begin(), contents.tensors.end(),
                                    [&](const LazyTensor& each) { return each.name() == name; });
    REQUIRE(found != contents.tensors.end());
    return *found;
}

/// Returns rows [first, first + count) of a matrix with three columns, whose elements are its own numbers.
Part rows(const std::string& name, std::uint64_t first, std::uint64_t count) {
    Part part{.name = name, .start = {first, 0}, .shape = {count, 3}};
    for (std::uint64_t i = 0; i < count * 3; ++i)
        part.bytes += forge::little_endian(static_cast<std::uint32_t>(first * 3 + i));
    return part;
}

Part scalar(const std::string& name, std::uint32_t value) {
    return {.name = name, .bytes = forge::little_endian(value)};
}

void refused(const Files& files, Errc code, const std::string& path, const std::string& tensor,
             const std::string& text) {
    check_error(error_of([&] { static_cast<void>(read(files)); }), {code}, {text},
                {.tensor = tensor, .path = (path.empty() ? "folder" : "folder/" + path)});
}

// Random tilings.

/// A tensor, and the boxes that it is cut into.
struct Cut {
    std::string name;
    Shape shape;
    std::string values;
    reference::Places boxes;
};

std::uint64_t number_of(const Shape& index, const Shape& shape) {
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + index[d];
    return number;
}

/// Returns the bytes of a box, element by element.
std::string bytes_in(const Cut& cut, const Box& box, std::size_t size) {
    std::string bytes;
    const std::uint64_t count = *element_count(box.extent);
    for (std::uint64_t i = 0; i < count; ++i) {
        Shape index = box.start;
        std::uint64_t rest = i;
        for (std::size_t d = box.extent.size(); d-- > 0;) {
            index[d] += rest % box.extent[d];
            rest /= box.extent[d];
        }
        bytes += cut.values.substr(number_of(index, cut.shape) * size, size);
    }
    return bytes;
}

struct Dtyped {
    std::string name;
    std::size_t size;
};

Dtyped random_dtype(std::mt19937& random) {
    const std::vector<Dtyped> all = {{"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"BF16", 2},
                                     {"I32", 4}, {"F64", 8},  {"C64", 8}};
    return all[random() % all.size()];
}

/// A checkpoint in shards, part by part.
struct Shards {
    std::vector<Cut> cuts;
    std::vector<std::vector<Part>> ranks;
    bool stated = false;  ///< the shape of the whole is stated

    Files files() const {
        Files all;
        for (std::size_t r = 0; r < ranks.size(); ++r)
            if (!ranks[r].empty()) all.emplace(shard_name(static_cast<int>(r) + 1), file(ranks[r]));
        return all;
    }
};

Shards random_shards(std::mt19937& random) {
    Shards shards;
    shards.ranks.resize(1 + random() % 5);
    shards.stated = random() % 2 == 0;
    for (std::size_t t = 0; t < 1 + random() % 3; ++t) {
        Cut cut{.name = "tensor." + std::to_string(t), .shape = {}, .values = {}, .boxes = {}};
        for (std::size_t d = random() % 4; d > 0; --d) cut.shape.push_back(random() % 8);
        const Dtyped dtype = random_dtype(random);
        for (std::uint64_t i = 0; i < *element_count(cut.shape) * dtype.size; ++i)
            cut.values += static_cast<char>(dtype.name == "BOOL" ? random() % 2 : random() % 256);
        cut.boxes = reference::random_places(random, cut.shape);
        for (std::size_t b = 0; b < cut.boxes.size(); ++b) {
            std::vector<Part>& rank = shards.ranks[random() % shards.ranks.size()];
            const bool other = std::any_of(rank.begin(), rank.end(), [&](const Part& p) { return p.name == cut.name; });
            rank.push_back({.name = cut.name,
                            .dtype = dtype.name,
                            .start = cut.boxes[b].start,
                            .shape = cut.boxes[b].extent,
                            .bytes = bytes_in(cut, cut.boxes[b], dtype.size),
                            .stored = other ? cut.name + ".part" + std::to_string(b) : "",
                            .global_shape = shards.stated ? hf_forge::list(cut.shape) : ""});
        }
        shards.cuts.push_back(std::move(cut));
    }
    // Without any file there is nothing to recognise.
    if (shards.files().empty()) return random_shards(random);
    return shards;
}

void check_values(const Contents& contents, const Shards& shards) {
    REQUIRE(contents.tensors.size() == shards.cuts.size());
    for (const Cut& cut : shards.cuts) {
        CAPTURE(cut.name);
        const LazyTensor& whole = tensor(contents, cut.name);
        CHECK(whole.shape() == cut.shape);
        CHECK(bytes_of(whole) == cut.values);
    }
}

/// Picks a part with elements, of a tensor of at least one dimension; null if no part is such.
Part* random_part(std::mt19937& random, Shards& shards) {
    std::vector<Part*> parts;
    for (auto& rank : shards.ranks)
        for (Part& part : rank)
            if (!part.shape.empty() && !part.bytes.empty()) parts.push_back(&part);
    return parts.empty() ? nullptr : parts[random() % parts.size()];
}

}  // namespace

TEST_CASE("random tilings by boxes give the tensors that were cut") {
    const unsigned seed = soak::seed(181);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < soak::rounds(400); ++round) {
        CAPTURE(round);
        const Shards shards = random_shards(random);
        std::uint64_t chunks = 0;
        for (const auto& rank : shards.ranks) chunks += rank.size();
        const Contents contents = read(shards.files());
        check_values(contents, shards);
        CHECK(contents.format == Format::dcp);
        REQUIRE(contents.layout.has_value());
        CHECK(contents.layout->kind == "hf_shards");
        CHECK(contents.layout->chunks == chunks);
        CHECK(contents.replicas.empty());
    }
}

TEST_CASE("a tiling with one box moved, doubled or lost is refused") {
    const unsigned seed = soak::seed(182);
    CAPTURE(seed);
    std::mt19937 random(seed);
    int moved = 0;
    int doubled = 0;
    int lost = 0;
    for (int round = 0; round < soak::rounds(400, 3); ++round) {
        CAPTURE(round);
        Shards shards = random_shards(random);
        Part* const part = random_part(random, shards);
        if (part == nullptr) continue;
        const std::size_t d = random() % part->shape.size();
        switch (random() % 3) {
            case 0: {  // moved: something is now covered twice, or not at all, or stands outside
                part->start[d] += 1 + random() % 3;
                const auto error = error_of([&] { static_cast<void>(read(shards.files())); });
                REQUIRE(error.has_value());
                CHECK((error->code() == Errc::pieces_overlap || error->code() == Errc::not_covered ||
                       error->code() == Errc::piece_outside || error->code() == Errc::rank_missing));
                ++moved;
                break;
            }
            case 1: {  // doubled in part: the first slice again
                Part again = *part;
                again.stored = part->name + ".again";
                again.shape[d] = 1;
                if (again.shape == part->shape) break;  // a replica, if it is in another file
                again.bytes.assign(part->bytes.size() / *element_count(part->shape) * *element_count(again.shape), 'x');
                shards.ranks[random() % shards.ranks.size()].push_back(again);
                CHECK_FAULT(read(shards.files()), Errc::pieces_overlap);
                ++doubled;
                break;
            }
            default: {  // lost, and its rank wrote something else
                Part other = scalar("other", 7);
                const std::string name = part->name;
                *part = other;
                std::size_t left = 0;
                for (const auto& rank : shards.ranks)
                    left += static_cast<std::size_t>(
                        std::count_if(rank.begin(), rank.end(), [&](const Part& each) { return each.name == name; }));
                const auto error = error_of([&] {
                    const Contents contents = read(shards.files());
                    // Without a stated shape, the end of a tensor can be lost unseen: then it is smaller.
                    CHECK((!shards.stated || left == 0));
                    for (const Cut& cut : shards.cuts)
                        if (cut.name == name)
                            for (const LazyTensor& whole : contents.tensors)
                                CHECK((whole.name() != name || whole.shape() != cut.shape));
                });
                if (error) CHECK((error->code() == Errc::not_covered || error->code() == Errc::rank_missing));
                ++lost;
            }
        }
    }
    CHECK(moved > 0);
    CHECK(doubled > 0);
    CHECK(lost > 0);
}

TEST_CASE("tensors are listed by rank, and without elements and dimensions too") {
    const Contents contents =
        read({{shard_name(2), file({rows("w", 2, 1), scalar("late", 5), {.name = "e", .start = {0}, .shape = {0}}})},
              {shard_name(1), file({scalar("s", 9), rows("w", 0, 2)})},
              {shard_name(10), file({rows("v", 0, 1), {.name = "w", .start = {3, 0}, .shape = {0, 3}}})}});
    std::vector<std::string> names;
    for (const LazyTensor& each : contents.tensors) names.push_back(each.name());
    CHECK(names == std::vector<std::string>{"s", "w", "late", "e", "v"});
    CHECK(tensor(contents, "w").shape() == Shape{3, 3});
    CHECK(tensor(contents, "e").shape() == Shape{0});
    CHECK(bytes_of(tensor(contents, "s")) == forge::little_endian(std::uint32_t{9}));
    CHECK(contents.layout->world_size == 10);
    CHECK(contents.layout->chunks == 7);
    CHECK(contents.files == std::vector<std::string>{shard_name(1), shard_name(2), shard_name(10)});
    // Ranks 3 to 9 may have had nothing to write.
    REQUIRE(contents.notes.size() == 1);
    CHECK(contents.notes[0].find("shard-00003-model-00001-of-00001.safetensors") != std::string::npos);
    CHECK(contents.notes[0].find("shard-00009") != std::string::npos);
}

TEST_CASE("a part that several ranks hold is taken from the lowest, and the others are for verify to compare") {
    Part other = rows("w", 0, 4);
    other.bytes[0] = 'x';
    other.stored = "w.2";
    const Contents contents = read({{shard_name(1), file({scalar("s", 1)})},
                                    {shard_name(2), file({rows("w", 0, 4), scalar("s", 1)})},
                                    {shard_name(3), file({rows("w", 4, 3), other})},
                                    {shard_name(4), file({rows("w", 4, 3)})}});
    CHECK(bytes_of(tensor(contents, "w")) == rows("w", 0, 7).bytes);
    REQUIRE(contents.replicas.size() == 3);
    CHECK(contents.replicas[0].name == "s");
    CHECK(contents.replicas[0].first_file == shard_name(1));
    CHECK(contents.replicas[0].other_file == shard_name(2));
    CHECK(contents.replicas[1].other_file == shard_name(3));
    CHECK(bytes_of(contents.replicas[1].other) == other.bytes);
    CHECK(contents.replicas[2].first_file == shard_name(3));
    CHECK(contents.layout->chunks == 6);
    // Twice in the files of one rank is a fault.
    Part again = rows("w", 0, 4);
    again.stored = "again";
    refused({{shard_name(1), file({rows("w", 0, 4), again})}}, Errc::pieces_overlap, shard_name(1), "w", "two parts");
    refused({{shard_name(1, 1, 2), file({rows("w", 0, 4)})}, {shard_name(1, 2, 2), file({rows("w", 0, 4)})}},
            Errc::pieces_overlap, shard_name(1, 2, 2), "w", "two parts");
}

TEST_CASE("rows of a dtype that is smaller than a byte are joined, and other parts of it are refused") {
    const auto part = [](Shape start, Shape shape, std::string bytes) {
        return Part{.name = "f", .dtype = "F4", .start = std::move(start), .shape = std::move(shape), .bytes = bytes};
    };
    const Contents contents = read(
        {{shard_name(1), file({part({0, 0}, {1, 4}, "ab")})}, {shard_name(2), file({part({1, 0}, {2, 4}, "cdef")})}});
    CHECK(tensor(contents, "f").shape() == Shape{3, 4});
    CHECK(bytes_of(tensor(contents, "f")) == "abcdef");
    CHECK(bytes_of(tensor(read({{shard_name(1), file({part({0, 0}, {1, 4}, "ab")})}}), "f")) == "ab");
    refused({{shard_name(1), file({part({0, 0}, {2, 2}, "ab")})}, {shard_name(2), file({part({0, 2}, {2, 2}, "cd")})}},
            Errc::piece_mismatch, shard_name(1), "f", "sub-byte");
}

TEST_CASE("places that contradict the tensors are refused") {
    const auto with = [](Part second) {
        return Files{{shard_name(1), file({rows("w", 0, 4)})}, {shard_name(2), file({std::move(second)})}};
    };
    refused(with(rows("w", 3, 4)), Errc::pieces_overlap, shard_name(2), "w", "[3, 0]");
    refused(with(rows("w", 5, 3)), Errc::not_covered, shard_name(2), "w", "3 of 24");
    Part part = rows("w", 4, 3);
    part.info = "\"saved_offsets\": [-4, 0]";
    refused(with(part), Errc::piece_outside, shard_name(2), "w", "-4");
    part.info = "\"saved_offsets\": [4]";
    refused(with(part), Errc::piece_mismatch, shard_name(2), "w", "1 dimension");
    part.info = "\"other_offsets\": [4, 0]";
    refused(with(part), Errc::field_missing, shard_name(2), "w", "saved_offsets");
    part.info = "\"saved_offsets\": [18446744073709551615, 0]";
    refused(with(part), Errc::shape_overflow, "", "w", "64 bits");
    part.info = "\"saved_offsets\": [18446744073709551000, 0]";
    refused(with(part), Errc::shape_overflow, "", "w", "64 bits");
    part.info = {};
    part.global_shape = "[8, 3]";
    refused(with(part), Errc::not_covered, shard_name(2), "w", "3 of 24");
    part.global_shape = "[6, 3]";
    refused(with(part), Errc::piece_outside, shard_name(2), "w", "[6, 3]");
    part.global_shape = "[7]";
    refused(with(part), Errc::piece_mismatch, shard_name(2), "w", "global_shape");
    part.global_shape = "[7, 3]";
    CHECK(tensor(read(with(part)), "w").shape() == Shape{7, 3});
}

TEST_CASE("a tensor with two places is refused, unless they are the same") {
    const auto with = [](const std::string& info) {
        return Files{{shard_name(1), file({rows("w", 0, 4)}, {{"DCP_SHARDING_INFO", info}})},
                     {shard_name(2), file({rows("w", 4, 3)})}};
    };
    for (const std::string info : {R"({"w": {"saved_offsets": [4, 0]}, "w": {"saved_offsets": [0, 0]}})",
                                   R"({"w": [{"saved_offsets": [4, 0]}, {"saved_offsets": [0, 0]}]})",
                                   R"({"w": {"saved_offsets": [0, 0]}, "v": {"saved_offsets": [0, 0], )"
                                   R"("storage_key": "w"}})"})
        refused(with(info), Errc::header_bad_metadata, shard_name(1), "w", "two different places");
    const std::string same = R"({"w": [{"saved_offsets": [0, 0]}, {"saved_offsets": [0, 0]}]})";
    CHECK(tensor(read(with(same)), "w").shape() == Shape{7, 3});
}

TEST_CASE("files that contradict each other are refused") {
    Part other = rows("w", 4, 3);
    other.dtype = "I32";
    refused({{shard_name(1), file({rows("w", 0, 4)})}, {shard_name(2), file({other})}}, Errc::ranks_differ,
            shard_name(2), "w", "I32 here, and U32 in " + shard_name(1));
    Part flat = rows("w", 4, 3);
    flat.start = {4};
    flat.shape = {9};
    refused({{shard_name(1), file({rows("w", 0, 4)})}, {shard_name(2), file({flat})}}, Errc::ranks_differ,
            shard_name(2), "w", "1 here, and 2 in");
    Part stated = rows("w", 0, 4);
    stated.global_shape = "[7, 3]";
    Part stated_else = rows("w", 4, 3);
    stated_else.global_shape = "[8, 3]";
    refused({{shard_name(1), file({stated})}, {shard_name(2), file({stated_else})}}, Errc::ranks_differ, shard_name(2),
            "w", "[8, 3] here, and [7, 3] in");
    refused({{shard_name(1), file({rows("w", 0, 4)})},
             {shard_name(2), file({rows("w", 4, 3)}, {{"DCP_SHARDING_INFO", "{}"}})}},
            Errc::field_missing, shard_name(2), "w", "saved_offsets");
    refused({{shard_name(1), file({rows("w", 0, 4)})}, {shard_name(2), forge::u8_file({{"w", 3}})}},
            Errc::field_missing, shard_name(2), "", "DCP_SHARDING_INFO");
    refused({{shard_name(1), file({rows("w", 0, 4)}, {{"DCP_SHARDING_INFO", "[1"}})}}, Errc::header_bad_metadata,
            shard_name(1), "", "not JSON");
}

TEST_CASE("missing files are named, if elements are missing") {
    const Files all = {{shard_name(1), file({rows("w", 0, 2)})},
                       {shard_name(2), file({rows("w", 2, 2)})},
                       {shard_name(3), file({rows("w", 4, 2)})}};
    for (int lost = 1; lost <= 2; ++lost) {
        Files some = all;
        some.erase(shard_name(lost));
        refused(some, Errc::rank_missing, shard_name(3), "w", shard_name(lost));
    }
    // No file says that there is a third rank.
    Files two = all;
    two.erase(shard_name(3));
    CHECK(tensor(read(two), "w").shape() == Shape{4, 3});
    // A file of a rank that has others.
    refused({{shard_name(1, 1, 2), file({rows("w", 0, 2)})},
             {shard_name(1, 2, 2), file({rows("v", 0, 2)})},
             {shard_name(2, 2, 2), file({rows("v", 4, 2)})}},
            Errc::shard_missing, shard_name(2, 2, 2), "v", shard_name(2, 1, 2));
    CHECK(read({{shard_name(1, 1, 2), file({rows("w", 0, 2)})}}).notes.at(0).find(shard_name(1, 2, 2)) !=
          std::string::npos);
    const auto far = read({{"shard-999999999-model-00001-of-00001.safetensors", file({rows("w", 0, 2)})}});
    CHECK(far.notes.at(0).find("999999990 more") != std::string::npos);
    CHECK(far.layout->world_size == 999'999'999);
}

TEST_CASE("names of two saves in one folder are refused") {
    refused({{shard_name(1), file({rows("w", 0, 4)})}, {shard_name(2, 1, 2), file({rows("w", 4, 3)})}},
            Errc::world_mismatch, shard_name(2, 1, 2), "", "2 files");
    refused({{shard_name(1, 3, 2), file({rows("w", 0, 4)})}}, Errc::world_mismatch, shard_name(1, 3, 2), "",
            "contradict");
    refused({{shard_name(0), file({rows("w", 0, 4)})}}, Errc::world_mismatch, shard_name(0), "", "contradict");
}

TEST_CASE("verify gets every fault, and none that follows from another") {
    Part part = rows("w", 4, 3);
    part.info = "\"x\": 1";
    CollectFaults faults;
    const Contents contents = read({{shard_name(1), file({rows("w", 0, 4), rows("v", 0, 1)})},
                                    {shard_name(2), file({part})},
                                    {shard_name(3), file({rows("v", 5, 2)})},
                                    {shard_name(4), "no header"}},
                                   faults);
    REQUIRE(faults.faults().size() == 2);
    CHECK(faults.faults()[0].code() == Errc::header_too_large);
    CHECK(faults.faults()[1].code() == Errc::field_missing);
    CHECK(contents.layout.has_value());
}

TEST_CASE("an object that torch wrote before the header is named") {
    const auto error = error_of([] {
        static_cast<void>(read({{shard_name(1), forge::pt({{"w", {1}, {1}}}) + file({rows("w", 0, 4)})}}));
    });
    check_error(error, {Errc::header_too_large}, {});
    CHECK(error->hint().find("object before the header") != std::string::npos);
}

TEST_CASE("metadata that all files agree on is kept, and from the first what is about the whole") {
    const Contents contents =
        read({{shard_name(1), file({rows("w", 0, 4)}, {{"a", "1"}, {"b", "1"}, {"other", "w"}, {"safemap.x", "y"}})},
              {shard_name(2), file({rows("w", 4, 3)}, {{"a", "1"}, {"b", "2"}, {"other", "w"}})}});
    CHECK(contents.metadata == state::Metadata{{"a", "1"}, {"format", "pt"}, {"other", "w"}, {"safemap.x", "y"}});
    REQUIRE(contents.aliases.size() == 1);
    CHECK(contents.aliases[0] == AliasGroup{"w", "other"});
}

TEST_CASE("a structure document in shards is read") {
    const std::string document = R"({"v":1,"root":{"model":{"w":["T"]},"step":7}})";
    Part first = rows("model/w", 0, 4);
    const Contents contents = read({{shard_name(1), file({first}, {{"safemap.structure", document}})},
                                    {shard_name(2), file({rows("model/w", 4, 3)})}});
    REQUIRE(contents.tree != nullptr);
    CHECK(contents.metadata == state::Metadata{{"format", "pt"}});
    CHECK(tensor(contents, "model/w").shape() == Shape{7, 3});
}

TEST_CASE("files of any name are joined, and beside them other files are named") {
    const Files files = {{"rank-b.safetensors", file({rows("w", 4, 3)})},
                         {"rank-a.safetensors", file({rows("w", 0, 4)})},
                         {"adapter.safetensors", forge::u8_file({{"x", 3}})},
                         {".metadata", "x"}};
    const Contents contents = read(files);
    CHECK(bytes_of(tensor(contents, "w")) == rows("w", 0, 7).bytes);
    CHECK_FALSE(contents.layout->world_size.has_value());
    REQUIRE(contents.notes.size() == 1);
    CHECK(contents.notes[0].find("adapter.safetensors") != std::string::npos);
    CHECK(contents.notes[0].find(".metadata") != std::string::npos);
    // In a folder inside, too; but a finished model wins.
    Files inside;
    for (const auto& each : files) inside.emplace("a/" + each.first, each.second);
    CHECK(tensor(read(inside), "w").shape() == Shape{7, 3});
    Files finished = files;
    finished.emplace("model.safetensors", forge::u8_file({{"one", 1}}));
    CHECK(read(finished).tensors.at(0).name() == "one");
    // Without a tensor in common they are rivals, as before.
    CHECK_FAULT(read({{"a.safetensors", file({rows("w", 0, 4)})}, {"b.safetensors", file({rows("v", 0, 4)})}}),
                Errc::several_models);
}

TEST_CASE("a finished model whose metadata says that its tensors are parts is opened with a note") {
    const auto notes_on = [](Files files) {
        std::size_t count = 0;
        for (const std::string& note : read(std::move(files)).notes)
            if (note.find("holds parts of tensors") != std::string::npos) ++count;
        return count;
    };
    Part whole = rows("w", 0, 4);
    Part first = whole;
    first.global_shape = "[7, 3]";
    const std::string index = R"({"weight_map":{"v":"a.safetensors","w":"b.safetensors"}})";
    for (const Part& part : {first, rows("w", 4, 3)}) {
        CHECK(notes_on({{"model.safetensors", file({part})}}) == 1);
        CHECK(notes_on({{"other.safetensors", file({part})}}) == 1);
        CHECK(notes_on({{"a.safetensors", file({rows("v", 0, 4)})},
                        {"b.safetensors", file({part})},
                        {"model.safetensors.index.json", index}}) == 1);
    }
    whole.global_shape = "[4, 3]";
    CHECK(notes_on({{"model.safetensors", file({whole})}}) == 0);
    CHECK(notes_on({{"model.safetensors", file({rows("w", 0, 4)})}}) == 0);
    // The first of several files.
    CHECK(notes_on({{"a.safetensors", file({rows("v", 4, 3)})},
                    {"b.safetensors", file({rows("w", 4, 3)})},
                    {"model.safetensors.index.json", index}}) == 1);
}

}  // namespace hf_shards_test
