// Tests the table of file names: a name that was spelled is read again, and names that only look similar are not.
#include "names/file_names.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <random>
#include <string>

namespace file_names_test {

using namespace safemap;
using names::NameKind;
using names::RankedName;
using names::spelled;

namespace {

std::string numbers_in(const std::optional<RankedName>& name) {
    if (!name) return "-";
    std::string text = name->prefix;
    for (const std::uint64_t number : {name->rank, name->model_rank, name->layer, name->expert, name->shard, name->file,
                                       name->files, name->world_size.value_or(0)})
        text += ' ' + std::to_string(number);
    return text;
}

std::string dcp_numbers(std::string_view file) {
    const auto name = names::dcp_name(file);
    return name ? std::to_string(name->rank) + ' ' + std::to_string(name->file) : "-";
}

}  // namespace

TEST_CASE("a name that was spelled is read again") {
    std::mt19937 random(soak::seed(35));
    for (int round = 0; round < soak::rounds(300); ++round) {
        const std::uint64_t most[] = {3, 10, 100'000, 1 << 24};
        const auto number = [&] { return random() % most[random() % 4]; };
        RankedName name{.kind = static_cast<NameKind>(random() % 7), .model_rank = number()};
        const bool is_ranked = name.kind == NameKind::zero_ranked_model || name.kind == NameKind::zero_optimizer;
        if (is_ranked) name.rank = number();
        if (is_ranked) name.prefix = random() % 2 ? "bf16_" : "";
        if (name.kind == NameKind::zero_expert || name.kind == NameKind::zero_expert_optimizer) name.expert = number();
        if (name.kind >= NameKind::zero_layer || name.kind == NameKind::zero_expert) name.layer = number();
        if (name.kind == NameKind::zero_shared_layer) name.model_rank = 0;
        CAPTURE(spelled(name));
        CHECK(numbers_in(names::zero_name(spelled(name))) == numbers_in(name));
        const RankedName shard{.kind = NameKind::hf_shard, .shard = number(), .file = number(), .files = number()};
        CHECK(numbers_in(names::shard_file(spelled(shard))) == numbers_in(shard));
    }
    CHECK(spelled({.kind = NameKind::zero_layer, .model_rank = 1, .layer = 9}) == "layer_09-model_01-model_states.pt");
    CHECK(spelled({.kind = NameKind::hf_shard, .shard = 2, .file = 1, .files = 100'000}) ==
          "shard-00002-model-00001-of-100000.safetensors");
}

TEST_CASE("Hugging Face shards have numbers of five digits, or of more without zeros before them") {
    CHECK(names::shard_file("shard-00000-model-99999-of-123456789.safetensors"));
    for (const char* file :
         {"shard-0001-model-00001-of-00001.safetensors", "shard-000001-model-00001-of-00001.safetensors",
          "shard-00001-model-00001-of-1234567890.safetensors", "shard-00001-model-00001.safetensors",
          "shard--model-00001-of-00001.safetensors", "xshard-00001-model-00001-of-00001.safetensors",
          "shard-00001-model-00001-of-00001.safetensors2"})
        CHECK_FALSE(names::shard_file(file));
}

TEST_CASE("files of DCP give the rank and the number of the file, as far as they fit") {
    CHECK(dcp_numbers("__3_1.distcp") == "3 1");
    CHECK(dcp_numbers("__03.metadata") == "3 0");
    CHECK(dcp_numbers("__18446744073709551615_0.distcp") == "18446744073709551615 0");
    for (const char* file :
         {"__18446744073709551616_0.distcp", "__0_18446744073709551616.distcp", "__.metadata", "__0_.distcp",
          "__0.distcp", "__0_0.distcp.tmp", "_0_0.distcp", "__-1_0.distcp", ".metadata"})
        CHECK(dcp_numbers(file) == "-");
    CHECK(names::is_dcp_metadata("__99999999999999999999999.metadata"));
    CHECK(names::is_kind("__0.metadata.tmp", NameKind::dcp_unfinished));
    CHECK_FALSE(names::is_kind("__x.metadata.tmp", NameKind::dcp_unfinished));
}

TEST_CASE("folders of Megatron, and items of torch_checkpointing") {
    for (const char* folder : {"mp_rank_00", "mp_rank_10_002"}) CHECK(names::is_kind(folder, NameKind::megatron_rank));
    for (const char* folder : {"mp_rank_0", "mp_rank_000", "mp_rank_00_01", "mp_rank_00_", "xmp_rank_00"})
        CHECK_FALSE(names::is_kind(folder, NameKind::megatron_rank));
    for (const char* file : {"model_rank_0.pt", "a_rank_1_rank_2.x", "m_rank_3", "x_rank_3.5"})
        CHECK(names::is_item_of_rank(file));
    for (const char* file : {"_rank_0.pt", "rank_0.pt", "model_rank_0.b.c", "model_rank_.pt", ".model_rank_0", ""})
        CHECK_FALSE(names::is_item_of_rank(file));
}

TEST_CASE("the newest save of a run is the one with the largest number, spelled as most of them are") {
    const auto newest = [](const names::FileNames& names) { return names::newest_save(names); };
    CHECK(newest({"checkpoint-100", "checkpoint-1000", "checkpoint-200"}) == "checkpoint-1000");
    CHECK(newest({"iter_0000100", "iter_0000020"}) == "iter_0000100");
    CHECK(newest({"ep0-ba100", "ep1-ba20"}) == "ep1-ba20");
    CHECK(newest({"epoch=9-step=90.ckpt", "epoch=10-step=100.ckpt", "last.ckpt"}) == "epoch=10-step=100.ckpt");
    CHECK(newest({"epoch=1-step=5-loss=0.9.ckpt", "epoch=1-step=6-loss=0.1.ckpt"}) == "epoch=1-step=6-loss=0.1.ckpt");
    CHECK(newest({"global_step5", "global_step40", "best"}) == "global_step40");
    CHECK(newest({"step7", "Step_8", "epoch_3", "step9-unsharded"}) == "step9-unsharded");
    CHECK(newest({"a-step-10", "b-step-9", "b-step-11"}) == "b-step-11");
    CHECK(newest({"checkpoint-99999999999999999999", "checkpoint-100000000000000000000"}) ==
          "checkpoint-100000000000000000000");
    for (const names::FileNames& none : {names::FileNames{},
                                         {"best", "last"},
                                         {"actor", "critic"},
                                         {"pytorch_model_fsdp_0", "pytorch_model_fsdp_1"},
                                         {"checkpoint-1", "epoch-2"},
                                         {"step-7", "step-07"},
                                         {"timestep-1", "timestep-2"},
                                         {"checkpoint", "step-"}})
        CHECK(newest(none).empty());
    for (const char* save : {"checkpoint-3", "checkpoint_0", "step-7", "epoch_3", "global_step500", "ckpt-1"})
        CHECK(names::is_numbered_save(save));
    for (const char* other : {"final", "optimizer_0", "mp_rank_00", "step", "steps-of-1", "a-1", ""})
        CHECK_FALSE(names::is_numbered_save(other));
}

TEST_CASE("names that stand for a model or for the state of an optimizer alone") {
    for (const char* name : {"model", "weights", "pytorch_model_fsdp_0", "pytorch_model_1"})
        CHECK(names::names_model(name));
    for (const char* name : {"optimizer", "optimizer_12", "optim"}) CHECK(names::names_optimizer(name));
    for (const char* name : {"actor_model", "model_and_optim", "", "best"}) CHECK_FALSE(names::names_model(name));
    for (const char* name : {"actor_optimizer", "model_and_optim", "optimus"})
        CHECK_FALSE(names::names_optimizer(name));
}

}  // namespace file_names_test
