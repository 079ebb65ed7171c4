// Tests under which name a tied tensor is stored: the one that the base class of a model loads, or the caller's choice.
#include <safemap/checkpoint.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/diff.hpp>
#include <safemap/save.hpp>

#include <string>
#include <vector>

namespace tied_test {

using namespace safemap;
using Names = std::vector<std::string>;

namespace {

pt::Value tied(const Names& names) {
    const pt::Value weight = pt::tensor(Dtype::u8, {4}, "wwww");
    pt::Value dict = pt::dict({{"first", pt::tensor(Dtype::u8, {4}, "ffff")}});
    for (const std::string& name : names) dict.set(name, weight);
    return dict;
}

Checkpoint open(const pt::Value& value) { return Checkpoint::open(forge::source(pt::Writer::file(value))); }

}  // namespace

TEST_CASE("the stored name is the one of the input embedding") {
    const std::vector<std::pair<Names, std::string>> rows{
        {{"lm_head.weight", "model.embed_tokens.weight"}, "model.embed_tokens.weight"},  // Llama, Gemma, Qwen
        {{"lm_head.weight", "transformer.wte.weight"}, "transformer.wte.weight"},        // GPT-2
        {{"embed_out.weight", "gpt_neox.embed_in.weight"}, "gpt_neox.embed_in.weight"},
        {{"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "shared.weight"},
         "shared.weight"},  // T5
        {{"lm_head.weight", "model.decoder.embed_tokens.weight", "model.shared.weight"},
         "model.shared.weight"},  // BART
        {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
         "bert.embeddings.word_embeddings.weight"},
        {{"cls.predictions.decoder.bias", "cls.predictions.bias"}, "cls.predictions.bias"},
        {{"proj_out.weight", "model.decoder.embed_tokens.weight"}, "model.decoder.embed_tokens.weight"},  // Whisper
        {{"lm_loss.weight", "transformer.word_embedding.weight"}, "transformer.word_embedding.weight"},   // XLNet
        {{"output.weight", "tok_embeddings.weight"}, "tok_embeddings.weight"},  // Llama of Meta, torchtune
        {{"model.embed_tokens.weight", "lm_head.weight"}, "model.embed_tokens.weight"},
        {{"b", "a"}, "b"},                                             // names that say nothing: the first one
        {{"my_lm_head.weight", "other.weight"}, "my_lm_head.weight"},  // only whole parts of names count
    };
    for (const auto& row : rows) {
        const Names& names = row.first;
        const std::string& stored = row.second;
        CAPTURE(stored);
        const Checkpoint checkpoint = open(tied(names));
        REQUIRE(checkpoint.aliases().size() == 1);
        CHECK(checkpoint.aliases().front().front() == stored);
        CHECK(checkpoint.aliases().front().size() == names.size());
        CHECK(names_of(checkpoint) == Names{"first", stored});
        for (const StructurePolicy policy : {StructurePolicy::automatic, StructurePolicy::keep}) {
            const TempDir folder = TempDir::in_memory();
            save(folder / "out.safetensors", checkpoint, {.structure = policy});
            const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
            CHECK(again.aliases().front().front() == stored);
            CHECK(diff(checkpoint, again).equal());
            CHECK((policy == StructurePolicy::automatic || again.tree() != nullptr));
        }
    }
}

TEST_CASE("a caller chooses the stored name") {
    const Checkpoint checkpoint = open(tied({"lm_head.weight", "model.embed_tokens.weight", "third"}));
    const Names chosen{"lm_head.weight"};
    const Checkpoint other = checkpoint.stored_as(chosen);
    CHECK(other.aliases() == std::vector<AliasGroup>{{"lm_head.weight", "model.embed_tokens.weight", "third"}});
    const Checkpoint back = other.stored_as();
    CHECK(back.aliases().front().front() == "model.embed_tokens.weight");
    const Checkpoint same = checkpoint.stored_as(Names{"first"});
    CHECK(same.aliases() == checkpoint.aliases());
    const Names unknown{"lm_heat.weight"};
    CHECK(error_of([&] { return checkpoint.stored_as(unknown); })->code() == Errc::tensor_not_found);
    const Names both{"lm_head.weight", "third"};
    CHECK(error_of([&] { return checkpoint.stored_as(both); })->code() == Errc::invalid_argument);
    const TempDir folder = TempDir::in_memory();
    save(folder / "out.safetensors", other);
    const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
    CHECK(names_of(again) == Names{"first", "lm_head.weight"});  // a file says which name is stored
    const Checkpoint moved = again.stored_as();
    CHECK(moved.aliases().front().front() == "model.embed_tokens.weight");
    CHECK(moved.metadata().size() == again.metadata().size());
}

TEST_CASE("untie writes a tensor for each name") {
    for (const bool nested : {false, true}) {
        const pt::Value flat = tied({"lm_head.weight", "model.embed_tokens.weight"});
        const Checkpoint checkpoint = open(nested ? pt::dict({{"model", flat}, {"step", pt::integer(1)}}) : flat);
        const TempDir folder = TempDir::in_memory();
        const SaveReport report = save(folder / "out.safetensors", checkpoint, {.untie = true});
        CHECK(report.tensors == 3);
        const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
        CHECK(again.size() == 3);
        CHECK(again.aliases().empty());
        CHECK(diff(checkpoint, again).equal());
        const Checkpoint part = checkpoint.select(Selection::names({"lm_head.weight"}));
        CHECK(save(folder / "part.safetensors", part, {.untie = true}).tensors == 1);
    }
}

}  // namespace tied_test
