// Tests the file names of models: what a name says, which shards are a set, and which model of a folder is preferred.
#include "names/model_names.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace model_names_test {

using namespace safemap;
using Kind = names::ModelName::Kind;
using Names = std::vector<std::string>;

namespace {

/// "kind stem variant ending number/shards", or "-" for a name of no model.
std::string parsed(const char* file) {
    const auto name = names::model_name(file);
    if (!name) return "-";
    const char* const kind = name->kind == Kind::index ? "index" : name->kind == Kind::file ? "file" : "shard";
    std::string text = std::string(kind) + ' ' + name->stem + " [" + name->variant + "] " + name->ending;
    if (name->kind == Kind::shard) text += ' ' + std::to_string(name->number) + '/' + std::to_string(name->shards);
    return text;
}

std::string preferred(Names names) {
    const names::Heads heads = names::find_heads(names);
    std::string text;
    for (const std::string& file : heads.files) text += (text.empty() ? "" : " ") + file;
    for (const std::string& file : heads.equals) text += " = " + file;
    return text;
}

}  // namespace

TEST_CASE("the name of a file says what it is of a model") {
    CHECK(parsed("model.safetensors") == "file model [] .safetensors");
    CHECK(parsed("pytorch_model.bin") == "file pytorch_model [] .bin");
    CHECK(parsed("model.fp16.safetensors") == "file model [fp16] .safetensors");
    CHECK(parsed("diffusion_pytorch_model.non_ema.bin") == "file diffusion_pytorch_model [non_ema] .bin");
    CHECK(parsed("adapter_model.bin") == "file adapter_model [] .bin");
    CHECK(parsed("open_clip_pytorch_model.bin") == "file open_clip_pytorch_model [] .bin");
    CHECK(parsed("pytorch_lora_weights.safetensors") == "file pytorch_lora_weights [] .safetensors");
    CHECK(parsed("consolidated.safetensors") == "file consolidated [] .safetensors");
    CHECK(parsed("consolidated.00.pth") == "file consolidated.00 [] .pth");

    CHECK(parsed("model.safetensors.index.json") == "index model [] .safetensors");
    CHECK(parsed("pytorch_model.bin.index.json") == "index pytorch_model [] .bin");
    CHECK(parsed("model.safetensors.index.fp16.json") == "index model [fp16] .safetensors");
    CHECK(parsed("model.fp16.safetensors.index.json") == "index model [fp16] .safetensors");
    CHECK(parsed("any.name-1.safetensors.index.json") == "index any.name-1 [] .safetensors");
    CHECK(parsed("any.bin.index.bf16.json") == "index any [bf16] .bin");

    CHECK(parsed("model-00001-of-00003.safetensors") == "shard model [] .safetensors 1/3");
    CHECK(parsed("pytorch_model-2-of-3.bin") == "shard pytorch_model [] .bin 2/3");
    CHECK(parsed("model.fp16-00001-of-00002.safetensors") == "shard model [fp16] .safetensors 1/2");
    CHECK(parsed("model-00001-of-00002.fp16.safetensors") == "shard model [fp16] .safetensors 1/2");
    CHECK(parsed("my.model-v1.5-00000-of-00002.pt") == "shard my.model-v1.5 [] .pt 0/2");

    // Endings, underscores and upper case of some programs.
    CHECK(parsed("model.sft") == "file model [] .sft");
    CHECK(parsed("model-00001-of-00003.sft") == "shard model [] .sft 1/3");
    CHECK(parsed("my_model_00001_of_00003.safetensors") == "shard my_model [] .safetensors 1/3");
    CHECK(parsed("X-00001-OF-00002.fp16.safetensors") == "shard X [fp16] .safetensors 1/2");

    for (const char* none : {"weights.safetensors",
                             "models.safetensors",
                             "model",
                             "model.txt",
                             ".model.safetensors",
                             "my_model.bin",
                             "model.fp-16.safetensors",
                             "model.a.b.safetensors",
                             "model.index.json",
                             "model.safetensors.index",
                             "flax_model.msgpack.index.json",
                             "index.json",
                             ".index.json",
                             "model.safetensors.index.a.b.json",
                             "model.safetensors.index.1.json",
                             "x-4-of-3.bin",
                             "x-1-of-0.bin",
                             "-1-of-2.bin",
                             "x-of-2.bin",
                             "x-1-of-.bin",
                             "x1-of-2.bin",
                             "x-1of-2.bin",
                             "x-1-of-2.txt",
                             "x-1234567890-of-1234567890.bin",
                             "shard-00001-model-00001-of-00002.safetensors",
                             "x-1_of_2.bin",
                             "x_1-of-2.bin",
                             "x_1_of-2.bin",
                             "x1of2.bin",
                             "x-1-at-2.bin",
                             "_1_of_2.bin",
                             "-of-2.bin",
                             "of-2.bin",
                             "consolidated.x.y.pth",
                             ""}) {
        CAPTURE(none);
        CHECK(parsed(none) == "-");
    }
}

TEST_CASE("shards of one model are a set, whatever is missing of it is named") {
    const Names names = {"a-00001-of-00003.safetensors",
                         "a-00003-of-00003.safetensors",
                         "a-00001-of-00002.safetensors",
                         "a-00002-of-00002.safetensors",
                         "a-00001-of-00003.bin",
                         "b-0-of-2.pt",
                         "b-1-of-2.pt",
                         "model.safetensors"};
    const auto sets = names::shard_sets(names);
    REQUIRE(sets.size() == 4);
    CHECK(sets[0].text() == "a-*-of-00003.bin");
    CHECK(sets[0].lacks == Names{"a-00002-of-00003.bin", "a-00003-of-00003.bin"});
    CHECK(sets[1].complete());
    CHECK(sets[1].files == Names{"a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"});
    CHECK(sets[2].lacks == Names{"a-00002-of-00003.safetensors"});
    CHECK(sets[3].complete());

    const auto complete = [](Names some) { return names::shard_sets(some).front().complete(); };
    CHECK_FALSE(complete({"x-0-of-2.pt", "x-2-of-2.pt"}));
    CHECK_FALSE(complete({"x-0-of-3.pt", "x-1-of-3.pt", "x-3-of-3.pt"}));
    CHECK_FALSE(complete({"x-00001-of-00002.pt", "x-2-of-2.pt"}));  // two exports
    CHECK(complete({"x-0-of-2.pt", "x-1-of-2.pt", "x-2-of-2.pt"}));
    CHECK(names::shard_sets(Names{"x-0-of-2.pt", "x-1-of-2.pt", "x-2-of-2.pt"})[0].files.size() == 2);

    const auto large = names::shard_sets(Names{"m-000007-of-999999999.bin"});
    REQUIRE(large.size() == 1);
    CHECK(large[0].missing == 999'999'998);
    CHECK(large[0].lacks.size() == 8);
    CHECK(large[0].lacks.back() == "m-000009-of-999999999.bin");
    const Error error = names::lacks_shards(large[0]);
    CHECK(error.code() == Errc::shard_missing);
    CHECK(std::string(error.what()).find("m-000008-of-999999999.bin") != std::string::npos);
    CHECK(std::string(error.what()).ends_with(" and 999999990 more"));
}

TEST_CASE("a set has one spelling, and what is missing of it has the same") {
    const auto lacks = [](const Names& names) {
        std::string text;
        for (const names::ShardSet& set : names::shard_sets(names))
            for (const std::string& name : set.lacks) text += set.text() + " lacks " + name + "; ";
        return text;
    };
    CHECK(lacks({"model_00001_of_00003.bin", "model_00003_of_00003.bin"}) ==
          "model_*_of_00003.bin lacks model_00002_of_00003.bin; ");
    CHECK(lacks({"X-00001-OF-00002.sft"}) == "X-*-OF-00002.sft lacks X-00002-OF-00002.sft; ");
    CHECK(lacks({"a-1-of-2-00001-of-00002.pt"}) == "a-1-of-2-*-of-00002.pt lacks a-1-of-2-00002-of-00002.pt; ");
    CHECK(lacks({"x_1_of_2.bin", "x-2-of-2.bin"}) ==
          "x-*-of-2.bin lacks x-1-of-2.bin; x_*_of_2.bin lacks x_2_of_2.bin; ");
    CHECK(lacks({"model_1_of_2.bin", "model_2_of_2.bin"}).empty());
}

TEST_CASE("shards beside those that are named are of the same set") {
    const auto beside = [](const Names& named, const Names& all) { return names::shards_beside(named, all); };
    const Names all = {"a-00001-of-00003.bin",
                       "a-00002-of-00003.bin",
                       "a-00003-of-00003.bin",
                       "a-00001-of-00002.bin",
                       "b-00003-of-00003.bin",
                       "a-00003-of-00003.pt",
                       "model.bin"};
    CHECK(beside({all[0], all[1]}, all) == Names{all[2]});
    CHECK(beside({all[2]}, all) == Names{all[0], all[1]});
    CHECK(beside({all[0], all[1], all[2]}, all).empty());
    CHECK(beside({"model.bin"}, all).empty());
    CHECK(beside({}, all).empty());
    CHECK(beside({all[0], "a-00002-of-00003.bin"}, {}).empty());
}

TEST_CASE("a random part of a set lacks exactly the other numbers") {
    std::mt19937 random(soak::seed(34));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const auto shards = static_cast<int>(random() % 8 + 1);
        const int first = static_cast<int>(random() % 2);
        const auto file = [&](int n) { return "x-" + std::to_string(n) + "-of-" + std::to_string(shards) + ".bin"; };
        Names given;
        std::set<std::string> lacks;
        for (int n = first; n < first + shards; ++n) {
            if (random() % 3 != 0) given.push_back(file(n));
            else lacks.insert(file(n));
        }
        // Without the file of number 0, the numbers begin with 1.
        if (given.empty() || (first == 0 && given.front() != file(0))) continue;
        std::shuffle(given.begin(), given.end(), random);
        const auto sets = names::shard_sets(given);
        REQUIRE(sets.size() == 1);
        CHECK(std::set<std::string>(sets[0].lacks.begin(), sets[0].lacks.end()) == lacks);
        CHECK(sets[0].complete() == lacks.empty());
    }
}

TEST_CASE("one of several models of a folder is preferred, or they are equal") {
    CHECK(preferred({}) == "");
    CHECK(preferred({"weights.safetensors", "config.json"}) == "");
    CHECK(preferred({"model.fp16.safetensors", "model.safetensors"}) == "model.safetensors");
    CHECK(preferred({"model.fp16.safetensors", "pytorch_model.bin"}) == "pytorch_model.bin");
    CHECK(preferred({"model.safetensors", "model.safetensors.index.fp16.json"}) == "model.safetensors");
    CHECK(preferred({"model.safetensors", "x.safetensors.index.json"}) == "x.safetensors.index.json");
    CHECK(preferred({"adapter_model.safetensors", "pytorch_model.bin"}) == "pytorch_model.bin");
    CHECK(preferred({"adapter_model.bin", "adapter_model.safetensors"}) == "adapter_model.safetensors");
    CHECK(preferred({"model.sft", "pytorch_model.bin"}) == "model.sft");
    CHECK(preferred({"model.sft", "model.safetensors"}) == "model.safetensors");
    CHECK(preferred({"x_1_of_2.bin", "x_2_of_2.bin"}) == "x_1_of_2.bin x_2_of_2.bin");
    CHECK(preferred({"consolidated.safetensors", "model-1-of-1.safetensors"}) == "model-1-of-1.safetensors");
    CHECK(preferred({"model-1-of-2.safetensors", "model-2-of-2.safetensors"}) ==
          "model-1-of-2.safetensors model-2-of-2.safetensors");
    CHECK(preferred({"model-1-of-2.safetensors", "model-3-of-2.safetensors"}) == "");
    CHECK(preferred({"model-1-of-2.safetensors", "model-2-of-2.safetensors", "model.safetensors.index.json"}) ==
          "model.safetensors.index.json");
    CHECK(preferred({"model.fp16.safetensors", "model.bf16.safetensors"}) ==
          "model.fp16.safetensors = model.bf16.safetensors");
    CHECK(preferred({"a.bin.index.json", "b.bin.index.json"}) == "a.bin.index.json = b.bin.index.json");
    CHECK(preferred({"consolidated.00.pth", "consolidated.01.pth"}) == "consolidated.00.pth = consolidated.01.pth");
    CHECK(preferred({"diffusion_pytorch_model.safetensors", "open_clip_model.safetensors"}) ==
          "diffusion_pytorch_model.safetensors = open_clip_model.safetensors");
}

TEST_CASE("a model is saved under the name that its library looks for") {
    CHECK(names::stem_of_saved("adapter_model.bin") == "adapter_model");
    CHECK(names::stem_of_saved("diffusion_pytorch_model.safetensors.index.fp16.json") == "diffusion_pytorch_model");
    CHECK(names::stem_of_saved("open_clip_pytorch_model.bin") == "open_clip_model");
    CHECK(names::stem_of_saved("pytorch_model.bin.index.json") == "model");
    CHECK(names::stem_of_saved("consolidated.00.pth") == "model");
    CHECK(names::stem_of_saved("consolidated.safetensors") == "consolidated");
    for (const char* other : {"", "weights.safetensors", "x-1-of-2.bin", "x.safetensors.index.json"})
        CHECK(names::stem_of_saved(other) == "model");
}

}  // namespace model_names_test
