// Tests which kind of checkpoint a folder holds, from lists of names. Folders that trainers wrote are in
// tests/interop/training_folders.py.
#include "names/folder_shape.hpp"
#include "names/rank_names.hpp"

#include "base/folder.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"

namespace folder_shape_test {

using namespace safemap;
using names::FileNames;
using names::FolderShape;
using Kind = names::ShapeKind;

namespace {

FolderShape shape(const FileNames& names) {
    return names::shape_of(names::names_in(forge::Folder(forge::files_of(names))));
}

struct Row {
    FileNames names;
    Kind kind;
    FileNames files;
};

void check(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
        CAPTURE(row.names);
        const FolderShape found = shape(row.names);
        CHECK(static_cast<int>(found.kind) == static_cast<int>(row.kind));
        CHECK(found.files == row.files);
    }
}

const std::string optim = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";

}  // namespace

TEST_CASE("a finished model is preferred to everything beside it") {
    check({
        {{"model.safetensors", ".metadata", "__0_0.distcp"}, Kind::file, {"model.safetensors"}},
        {{"model.safetensors", "scheduler.bin", "optimizer.bin", "data.pt"}, Kind::file, {"model.safetensors"}},
        {{"model.safetensors", "latest=global_step1", "global_step1/" + optim}, Kind::file, {"model.safetensors"}},
        {{"model.safetensors", "latest=../x"}, Kind::file, {"model.safetensors"}},
        {{"model.safetensors", "final/model.safetensors"}, Kind::file, {"model.safetensors"}},
        {{"model.safetensors.index.json", "sharded/shard-00001-model-00001-of-00001.safetensors"},
         Kind::index,
         {"model.safetensors.index.json"}},
        {{"pytorch_model.bin", "pytorch_model_rank0.bin"}, Kind::file, {"pytorch_model.bin"}},
        {{"pytorch_model.bin.index.json", "common.pt"}, Kind::index, {"pytorch_model.bin.index.json"}},
    });
    CHECK(shape({"model.safetensors", ".metadata"}).others == FileNames{".metadata"});
    CHECK(shape({"model.safetensors", "sharded/x"}).others == FileNames{"sharded"});
    CHECK(shape({"model.safetensors", "latest=a b", "a b/" + optim}).others == FileNames{"a b"});
}

TEST_CASE("shards with DCP information, and DCP itself, are recognised by names") {
    const std::string shard = "shard-00001-model-00001-of-00001.safetensors";
    check({
        {{shard, "config.json"}, Kind::hf_shards, {shard}},
        {{shard, ".metadata", "__0_0.distcp"}, Kind::hf_shards, {shard}},
        {{"Shard-00001-model-00001-of-00001.safetensors"},
         Kind::file,
         {"Shard-00001-model-00001-of-00001.safetensors"}},
        {{"shard-1-model-1-of-1.safetensors"}, Kind::file, {"shard-1-model-1-of-1.safetensors"}},
        {{".metadata", "__0_0.distcp", "common.pt", "metadata.json"}, Kind::dcp, {".metadata"}},
        {{".metadata", "__0_0.distcp", "meta.pt"}, Kind::dcp, {".metadata"}},
        {{".metadata", ".metadata.tmp"}, Kind::dcp, {".metadata"}},
        {{"__0.metadata", "__1.metadata", "__0_0.distcp"}, Kind::dcp, {"__0.metadata", "__1.metadata"}},
        {{"__x.metadata", "__.metadata", "model.pt"}, Kind::file, {"model.pt"}},
        {{".METADATA", "model.pt"}, Kind::file, {"model.pt"}},
        {{"__0_0.distcp", "common.pt"}, Kind::unfinished, {"__0_0.distcp"}},
        {{".metadata.tmp"}, Kind::unfinished, {".metadata.tmp"}},
        {{"._0_0.distcp", "model.pt"}, Kind::file, {"model.pt"}},
    });
}

TEST_CASE("DeepSpeed is recognised by its tags, and `latest` names one of them") {
    const std::string model = "mp_rank_00_model_states.pt";
    check({
        {{"latest= global_step1\n", "global_step1/" + optim, "data.pt"}, Kind::deepspeed, {"global_step1"}},
        {{"latest=best model", "best model/" + model, "epoch_3/" + model}, Kind::deepspeed, {"best model"}},
        {{"latest_universal=u", "u/zero/a.weight/fp32.pt", "g/" + optim}, Kind::universal, {"u"}},
        {{"latest=g", "latest_universal=u", "u/zero/w/fp32.pt", "g/" + optim}, Kind::deepspeed, {"g"}},
        {{"g/" + optim, "logs/events.txt"}, Kind::deepspeed, {"g"}},
        {{"latest/keep.txt", "g/" + optim}, Kind::deepspeed, {"g"}},
        {{"latest=g", "g/" + optim, "g/offloaded_tensors/r/x"}, Kind::offloaded, {"g/offloaded_tensors"}},
        {{"latest=empty", "empty/log", "g/" + optim}, Kind::deepspeed, {"empty"}},
        {{model}, Kind::deepspeed, {model}},
        {{"layer_00-model_states.pt"}, Kind::deepspeed, {"layer_00-model_states.pt"}},
        {{"zero_pp_rank_0_mp_rank_00optim_states.pt"}, Kind::deepspeed, {"zero_pp_rank_0_mp_rank_00optim_states.pt"}},
        {{"zero/a.weight/fp32.pt"}, Kind::universal, {"zero"}},
        // Names that only look similar.
        {{"my_model_states.pt"}, Kind::file, {"my_model_states.pt"}},
        {{"latest=run", "model.pt", "run/log.txt"}, Kind::file, {"model.pt"}},
        {{"zero/notes.txt", "model.pt"}, Kind::file, {"model.pt"}},
        {{".hidden/" + optim, "model.pt"}, Kind::file, {"model.pt"}},
    });
    for (const char* latest : {"latest=", "latest= \n", "latest=a\ng", "latest=g/..", "latest=..", "latest=.",
                               "latest=/g", "latest=none", "latest=G"}) {
        CAPTURE(latest);
        check({{{latest, "g/" + optim}, Kind::bad_tag, {"latest"}}});
    }
    check({{{"latest=" + std::string(5000, 'g'), "g/" + optim}, Kind::bad_tag, {"latest"}},
           {{"g/" + optim, "h/" + optim}, Kind::bad_tag, {"latest"}}});
    // Without any tag, `latest` still says that the folder is of DeepSpeed.
    check({{{"latest=g", "zero_to_fp32.py"}, Kind::bad_tag, {"latest"}},
           {{"latest=../g", "scheduler.pt", "training_args.bin"}, Kind::bad_tag, {"latest"}},
           {{"latest=g", "g/notes.txt"}, Kind::deepspeed, {"g"}}});
    CHECK(shape({"g/" + optim, "h/" + optim}).fault.find("g, h") != std::string::npos);
}

TEST_CASE("Megatron's pointer file names a folder, and its older format has a folder per rank") {
    const std::string pointer = "latest_checkpointed_iteration.txt=";
    check({
        {{pointer + "50\n", "iter_0000050/.metadata", "iter_0000025/.metadata"}, Kind::folder, {"iter_0000050"}},
        {{pointer + "release", "release/mp_rank_00/model_optim_rng.pt"}, Kind::folder, {"release"}},
        {{pointer + "5", "global_step_5/actor/x"}, Kind::folder, {"global_step_5"}},
        {{pointer + "12345678", "iter_12345678/x"}, Kind::folder, {"iter_12345678"}},
        {{"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"},
         Kind::megatron_ranks,
         {"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"}},
        {{"mp_rank_00_001/model_optim_rng.pt"}, Kind::megatron_ranks, {"mp_rank_00_001/model_optim_rng.pt"}},
        {{"mp_rank_0/model_optim_rng.pt", "model.pt"}, Kind::file, {"model.pt"}},
        {{"mp_rank_00/other", "model.pt"}, Kind::file, {"model.pt"}},
        {{"common.pt", "metadata.json", "decoder.weight/.zarray"}, Kind::megatron_zarr, {"decoder.weight"}},
    });
    CHECK(shape({pointer + "50", "iter_0000050/.metadata", "iter_0000025/x", "logs/x"}).others ==
          FileNames{"iter_0000025"});
    for (const char* text : {"", "51", "x", "-1", "50/", "../50", "iter_0000050", "5\n0"})
        check({{{pointer + text, "iter_0000050/.metadata"}, Kind::bad_tag, {"latest_checkpointed_iteration.txt"}}});
}

TEST_CASE("rank files form one set, and two sets are ambiguous") {
    check({
        {{"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt", "fsdp_config.json"},
         Kind::rank_files,
         {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}},
        {{"model_world_size_1_rank_0.pt", "extra_state_world_size_1_rank_0.pt"},
         Kind::rank_files,
         {"model_world_size_1_rank_0.pt"}},
        {{"model_world_size_1_rank_0.pt", "lr_scheduler_world_size_1_rank_0.pt", "scheduler_rank0.bin",
          "rng_state_0_rank0.bin"},
         Kind::rank_files,
         {"model_world_size_1_rank_0.pt"}},
        {{"lr_scheduler_world_size_1_rank_0.pt"}, Kind::rank_files, {"lr_scheduler_world_size_1_rank_0.pt"}},
        {{"model_world_size_2_rank_0.pt", "value_world_size_2_rank_0.pt"},
         Kind::several,
         {"model_world_size_2_rank_*.pt", "value_world_size_2_rank_*.pt"}},
        {{"model_world_size_2_rank_0.pt", "model_world_size_4_rank_0.pt"},
         Kind::several,
         {"model_world_size_2_rank_*.pt", "model_world_size_4_rank_*.pt"}},
        {{"a_0_rank0.bin", "scheduler.bin"}, Kind::rank_files, {"a_0_rank0.bin"}},
        {{"a_rank0.bin", "a_rank1.bin", "b_rank0.bin"}, Kind::several, {"a_rank*.bin", "b_rank*.bin"}},
        {{"rank0.pt", "rank1.pt"}, Kind::rank_files, {"rank0.pt", "rank1.pt"}},
        {{"rank_0.pt", "rank_1.pt"}, Kind::rank_files, {"rank_0.pt", "rank_1.pt"}},
        {{"checkpoint_0.pt", "checkpoint_1.pt"}, Kind::rank_files, {"checkpoint_0.pt", "checkpoint_1.pt"}},
        // Ranks are missing, or a rank is there twice: the reader says so.
        {{"model_world_size_3_rank_1.pt"}, Kind::rank_files, {"model_world_size_3_rank_1.pt"}},
        {{"pytorch_model_fsdp_0_rank1.bin"}, Kind::rank_files, {"pytorch_model_fsdp_0_rank1.bin"}},
        {{"optimizer_0_rank2.bin"}, Kind::rank_files, {"optimizer_0_rank2.bin"}},
        {{"rank1.pt"}, Kind::rank_files, {"rank1.pt"}},
        {{"rank_3.pt", "rank_7.pt"}, Kind::rank_files, {"rank_3.pt", "rank_7.pt"}},
        {{"a_rank1.bin", "a_rank2.bin"}, Kind::rank_files, {"a_rank1.bin", "a_rank2.bin"}},
        {{"model_world_size_2_rank_0.pt", "model_world_size_2_rank_01.pt", "model_world_size_2_rank_1.pt"},
         Kind::rank_files,
         {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_01.pt", "model_world_size_2_rank_1.pt"}},
        // Names that only look similar.
        {{"a_rank1.bin"}, Kind::file, {"a_rank1.bin"}},
        {{"a_rank2.bin", "a_rank3.bin"}, Kind::several, {"a_rank2.bin", "a_rank3.bin"}},
        {{"checkpoint_1.pt", "checkpoint_2.pt"}, Kind::several, {"checkpoint_1.pt", "checkpoint_2.pt"}},
        {{"lora_rank8.pt"}, Kind::file, {"lora_rank8.pt"}},
        {{"lora_rank4.pt", "lora_rank8.pt"}, Kind::several, {"lora_rank4.pt", "lora_rank8.pt"}},
        {{"checkpoint_5.pt"}, Kind::file, {"checkpoint_5.pt"}},
        {{"checkpoint_0.pt"}, Kind::file, {"checkpoint_0.pt"}},
        {{"checkpoint_10.pt", "checkpoint_20.pt"}, Kind::several, {"checkpoint_10.pt", "checkpoint_20.pt"}},
        {{"ep0-ba100-rank0.pt"}, Kind::file, {"ep0-ba100-rank0.pt"}},
        {{"a_RANK0.pt"}, Kind::file, {"a_RANK0.pt"}},
        {{"a_rank0.safetensors"}, Kind::file, {"a_rank0.safetensors"}},
        {{"._rank0.pt", "a.pt"}, Kind::file, {"a.pt"}},
        {{"a_rank.pt"}, Kind::file, {"a_rank.pt"}},
        {{"a_rank99999999999999999999.pt"}, Kind::file, {"a_rank99999999999999999999.pt"}},
        {{"metadata.pkl", "model_rank_0.pt", "model_rank_1.pt"}, Kind::torch_checkpointing, {"metadata.pkl"}},
        {{"metadata.pkl", "model.pt"}, Kind::file, {"model.pt"}},
        {{"checkpoint_metadata.json", "model/a"}, Kind::nanotron, {"checkpoint_metadata.json"}},
    });
}

TEST_CASE("a model and its optimizer are told apart by their names") {
    struct Pair {
        const char* model;
        const char* optimizer;
    };
    const auto pair_of = [](const char* a, const char* b) {
        const auto found = names::model_and_optimizer({a, b});
        const auto turned = names::model_and_optimizer({b, a});
        CHECK(found.has_value() == turned.has_value());
        if (!found) return std::string();
        CHECK(found->model == turned->model);
        return found->model + " " + found->optimizer;
    };
    for (const Pair& pair : {Pair{"model_world_size_8_rank_*.pt", "optim_world_size_8_rank_*.pt"},
                             Pair{"actor_model_world_size_8_rank_*.pt", "actor_optim_world_size_8_rank_*.pt"},
                             Pair{"pytorch_model_fsdp_0_rank*.bin", "optimizer_0_rank*.bin"},
                             Pair{"pytorch_model_fsdp_rank*.bin", "optimizer_0_rank*.bin"},
                             Pair{"pytorch_model_fsdp_12", "optimizer_12"}, Pair{"pytorch_model_0", "optimizer_0"},
                             Pair{"weights", "optimizer"}, Pair{"model", "optim"}, Pair{"model", "optimizer_0"}})
        CHECK(pair_of(pair.model, pair.optimizer) == std::string(pair.model) + " " + pair.optimizer);
    for (const Pair& pair : {Pair{"model_world_size_8_rank_*.pt", "optim_world_size_4_rank_*.pt"},
                             Pair{"a_model_world_size_8_rank_*.pt", "b_optim_world_size_8_rank_*.pt"},
                             Pair{"pytorch_model_fsdp_0_rank*.bin", "optimizer_1_rank*.bin"},
                             Pair{"pytorch_model_fsdp_0_rank*.bin", "optimizer_0_rank*.pt"},
                             Pair{"pytorch_model_fsdp_0", "pytorch_model_fsdp_1"}, Pair{"optimizer_0", "optimizer_1"},
                             Pair{"model_and_optim", "optim"}, Pair{"actor", "optimizer"}, Pair{"models", "optim"},
                             Pair{"model_00", "optim"}, Pair{"model", "optims"}})
        CHECK(pair_of(pair.model, pair.optimizer).empty());
    CHECK_FALSE(names::model_and_optimizer({"model"}).has_value());
    CHECK_FALSE(names::model_and_optimizer({"model", "optim", "optimizer"}).has_value());
}

TEST_CASE("a model with its optimizer beside it is one checkpoint") {
    const auto sets = shape({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
                             "optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt",
                             "extra_state_world_size_2_rank_0.pt", "fsdp_config.json", "huggingface/config.json"});
    CHECK(sets.kind == Kind::rank_files);
    CHECK(sets.files == FileNames{"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"});
    CHECK(sets.optimizer == FileNames{"optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt"});
    CHECK(sets.others == FileNames{"extra_state_world_size_2_rank_0.pt"});
    CHECK(shape({"model_world_size_1_rank_0.pt", "optimizer_world_size_1_rank_0.pt",
                 "lr_scheduler_world_size_1_rank_0.pt"})
              .optimizer == FileNames{"optimizer_world_size_1_rank_0.pt"});
    const auto lacks = shape({"model_world_size_2_rank_0.pt", "optim_world_size_2_rank_0.pt"});
    CHECK(lacks.kind == Kind::rank_files);
    const auto folders = shape({"pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "scheduler.pt", "rng/x"});
    CHECK(folders.kind == Kind::folder);
    CHECK(folders.files == FileNames{"pytorch_model_fsdp_0"});
    CHECK(folders.optimizer == FileNames{"optimizer_0"});
    const auto local = shape({"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank1.bin", "optimizer_0/.metadata"});
    CHECK(local.kind == Kind::rank_files);
    CHECK(local.optimizer_inside == "optimizer_0");
    CHECK(shape({"pytorch_model_fsdp_1_rank0.bin", "optimizer_0/.metadata"}).optimizer_inside.empty());
    CHECK(shape({"pytorch_model_fsdp_rank0.bin", "optimizer_0/model.safetensors"}).optimizer_inside.empty());
    check({
        {{"pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_1/.metadata", "optimizer_0/.metadata"},
         Kind::several,
         {"pytorch_model_fsdp_0", "pytorch_model_fsdp_1"}},
        {{"pytorch_model_fsdp_0/.metadata", "optimizer_1/.metadata"}, Kind::folder, {"pytorch_model_fsdp_0"}},
        {{"optimizer_0/.metadata", "actor/.metadata"}, Kind::folder, {"actor"}},
        {{"optimizer_0/.metadata", "optimizer_1/.metadata"}, Kind::several, {"optimizer_0", "optimizer_1"}},
        {{"pytorch_model_fsdp_0_rank0.bin", "optimizer_0_rank0.bin", "pytorch_model_fsdp_1_rank0.bin"},
         Kind::several,
         {"optimizer_0_rank*.bin", "pytorch_model_fsdp_0_rank*.bin", "pytorch_model_fsdp_1_rank*.bin"}},
    });
}

TEST_CASE("files that trainers write beside a model have the lowest preference") {
    check({
        {{"adapter.pt", "data.pt", "common.pt", "meta.pt", "sampler_1.bin"}, Kind::file, {"adapter.pt"}},
        {{"data.pt"}, Kind::file, {"data.pt"}},
        {{"data.pt", "logs/x"}, Kind::file, {"data.pt"}},
        {{"scheduler.bin", "model_0/.metadata"}, Kind::folder, {"model_0"}},
        {{"data.pt", "actor/rank0.pt", "critic/rank0.pt"}, Kind::several, {"actor", "critic"}},
        {{"dataloader_0.pt", "model/model.safetensors"}, Kind::folder, {"model"}},
        {{"train_dataloader.pt", "policy/weights/x"}, Kind::companions, {"train_dataloader.pt"}},
        {{"train_dataloader.pt", ".cache/x"}, Kind::file, {"train_dataloader.pt"}},
        {{"optimizer.pt", "scheduler.pt"}, Kind::companions, {"optimizer.pt", "scheduler.pt"}},
        {{"Scheduler.bin", "data.pt"}, Kind::file, {"Scheduler.bin"}},
        {{"data.pth", "common.pt"}, Kind::file, {"data.pth"}},
    });
}

TEST_CASE("a folder with one checkpoint is that checkpoint") {
    check({
        {{"final/model.safetensors", "logs/x", ".cache/model.safetensors"}, Kind::folder, {"final"}},
        {{"step-7/.metadata", "step-8.tmp/__0_0.distcp", "step-9.lock/.metadata", "config.json"},
         Kind::folder,
         {"step-7"}},
        {{"x.ckpt/latest", "x.ckpt/checkpoint/y"}, Kind::folder, {"x.ckpt"}},
        {{"model_and_optim/.metadata", "train/rank0.pt"}, Kind::folder, {"model_and_optim"}},
        {{"train/rank0.pt"}, Kind::folder, {"train"}},
        {{"a/model.safetensors", "b/.metadata"}, Kind::several, {"a", "b"}},
        {{"a/adapter.pt"}, Kind::nothing, {}},  // not a model's name: it must be named explicitly
        {{"a/b/model.safetensors"}, Kind::nothing, {}},
        {{"step-1/__0_0.distcp", "step-2/.metadata.tmp"}, Kind::unfinished, {"step-1", "step-2"}},
        {{"notes.txt"}, Kind::nothing, {}},
        {{}, Kind::nothing, {}},
    });
    CHECK(shape({"step-1/.metadata", "step-2/__0_0.distcp"}).unfinished == FileNames{"step-2"});
    CHECK(shape({"a/model.safetensors", "b/weights.pt", "c/optimizer.pt"}).others == FileNames{"b"});
    // Every name that libraries give to a model counts.
    for (const char* name : {"diffusion_pytorch_model.safetensors", "adapter_model.bin", "open_clip_pytorch_model.bin",
                             "pytorch_lora_weights.safetensors", "consolidated.00.pth", "model.fp16.safetensors",
                             "diffusion_pytorch_model.safetensors.index.fp16.json", "x-00001-of-00002.bin"}) {
        CAPTURE(name);
        check({{{"a/" + std::string(name)}, Kind::folder, {"a"}},
               {{"a/" + std::string(name), "b/model.safetensors"}, Kind::several, {"a", "b"}}});
    }
}

TEST_CASE("a run opens from its top if it has one save, and the newest of several is known") {
    const auto run = [](std::string save) {
        return FileNames{save + "/pytorch_model_fsdp_0/.metadata", save + "/optimizer_0/.metadata",
                         save + "/trainer_state.json"};
    };
    check({
        {run("checkpoint-3"), Kind::folder, {"checkpoint-3"}},
        {run("final"), Kind::nothing, {}},  // no number: the level below is not listed
        {{"step7/model_and_optim/.metadata", "step7/train/rank0.pt"}, Kind::folder, {"step7"}},
        {{"checkpoint-3/runs/x"}, Kind::nothing, {}},
        {{"checkpoint-3/pytorch_model_fsdp_0/__0_0.distcp"}, Kind::unfinished, {"checkpoint-3"}},
        {{"checkpoint-3/pytorch_model_fsdp_0/__0_0.distcp", "checkpoint-3/optimizer_0/.metadata"},
         Kind::unfinished,
         {"checkpoint-3"}},
        {{"tmp-checkpoint-4/model.safetensors", "checkpoint-3/model.safetensors"}, Kind::folder, {"checkpoint-3"}},
    });
    // The model of the run's end is not one of its saves.
    const auto ended = shape({"pytorch_model_fsdp_0/.metadata", "checkpoint-3/pytorch_model_fsdp_0/.metadata"});
    CHECK(ended.files == FileNames{"pytorch_model_fsdp_0"});
    CHECK(ended.others == FileNames{"checkpoint-3"});

    const auto newest = [](const FileNames& names) {
        const FolderShape found = shape(names);
        CHECK(static_cast<int>(found.kind) == static_cast<int>(Kind::several));
        return found.newest;
    };
    const FileNames saves = {"checkpoint-100/model.safetensors", "checkpoint-1000/model.safetensors",
                             "checkpoint-200/model.safetensors", "best/model.safetensors"};
    CHECK(newest(saves) == "checkpoint-1000");
    const auto with = [&](const FileNames& more) {
        FileNames all = saves;
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    CHECK(newest(with({"checkpoint-2000/model-00001-of-00002.safetensors"})) == "checkpoint-1000");
    CHECK(newest(with({"checkpoint-2000/model_world_size_2_rank_0.pt"})) == "checkpoint-1000");
    CHECK(newest(with({"checkpoint-2000/__0_0.distcp"})) == "checkpoint-1000");
    CHECK(newest(with({"checkpoint-100/trainer_state.json", "checkpoint-200/trainer_state.json"})) == "checkpoint-200");
    CHECK(newest(with({"checkpoint-2000/optimizer_0/.metadata"})) == "checkpoint-1000");
    CHECK(newest({"s/step-1/latest", "s/step-1/g/" + optim, "step-1/latest", "step-1/g/" + optim, "step-2/latest",
                  "step-2/g/" + optim, "step-3/g/" + optim}) == "step-2");
    CHECK(newest({"epoch_1.pth", "epoch_12.pth", "epoch_3.pth"}) == "epoch_12.pth");
    CHECK(newest({"actor/.metadata", "critic/.metadata"}).empty());
    const FolderShape tags = shape({"global_step5/" + optim, "global_step40/" + optim});
    CHECK(tags.kind == Kind::bad_tag);
    CHECK(tags.newest == "global_step40");
}

TEST_CASE("in the cache of a model hub, refs/main names the snapshot") {
    const std::string first = "snapshots/0a1b/model.safetensors";
    const std::string second = "snapshots/ffff/model.safetensors";
    check({
        {{"refs/main=ffff\n", first, second, "blobs/x"}, Kind::folder, {"snapshots/ffff"}},
        {{"refs/main=0a1b", first}, Kind::folder, {"snapshots/0a1b"}},
        {{first, "blobs/x"}, Kind::folder, {"snapshots/0a1b"}},
        {{first, second, "refs/v1=ffff"}, Kind::several, {"snapshots/0a1b", "snapshots/ffff"}},
        {{"refs/main=1234", first, second}, Kind::no_snapshot, {"snapshots/1234"}},
        {{"refs/main=../../etc", first}, Kind::bad_tag, {"refs/main"}},
        {{"refs/main=..", first}, Kind::bad_tag, {"refs/main"}},
        {{"refs/main=", first}, Kind::bad_tag, {"refs/main"}},
        {{"refs/main=0a1b\nffff", first, second}, Kind::bad_tag, {"refs/main"}},
        {{"refs/main=main", first}, Kind::bad_tag, {"refs/main"}},
        {{"refs/main=" + std::string(5000, 'a'), first}, Kind::bad_tag, {"refs/main"}},
        {{first}, Kind::nothing, {}},  // a hub's cache has more folders
        {{"models--a--b/" + first, "models--a--b/refs/main=0a1b"}, Kind::folder, {"models--a--b"}},
        {{"models--a--b/" + first, "models--a--b/blobs/x", "models--c--d/" + first, "models--c--d/blobs/x",
          "datasets--e--f/" + first, "datasets--e--f/blobs/x"},
         Kind::several,
         {"models--a--b", "models--c--d"}},
    });
}

TEST_CASE("numbered shards without an index are a model if all are there") {
    const FileNames shards = {"x-00001-of-00002.bin", "x-00002-of-00002.bin"};
    check({
        {shards, Kind::shards, shards},
        {{"x-00001-of-00001.bin"}, Kind::file, {"x-00001-of-00001.bin"}},
        {{shards[0]}, Kind::shards_lack, {shards[0]}},
        {{shards[1], "optimizer.pt"}, Kind::shards_lack, {shards[1]}},
        {{shards[0], "other.bin"}, Kind::several, {"other.bin", shards[0]}},
        {{shards[0], "model.safetensors"}, Kind::file, {"model.safetensors"}},
        {{shards[0], ".metadata", "__0_0.distcp"}, Kind::dcp, {".metadata"}},
        {{"model.sft"}, Kind::file, {"model.sft"}},
        {{"odd.sft", "config.json"}, Kind::file, {"odd.sft"}},
        {{"m-1-of-2.sft"}, Kind::shards_lack, {"m-1-of-2.sft"}},
        {{"m_1_of_2.bin", "optimizer.pt"}, Kind::shards_lack, {"m_1_of_2.bin"}},
        {{"M-2-OF-2.sft", "M-1-OF-2.sft"}, Kind::shards, {"M-1-OF-2.sft", "M-2-OF-2.sft"}},
        {{shards[0], shards[1], "adapter_model.bin", "x.bin.index.json"}, Kind::index, {"x.bin.index.json"}},
    });
    CHECK(shape({shards[0], shards[1], "old.ckpt"}).others == FileNames{"old.ckpt"});
    CHECK(shape({shards[0], shards[1]}).finished);
}

TEST_CASE("a pipeline of diffusers has a model in each component") {
    const std::string unet = "unet/diffusion_pytorch_model.safetensors";
    const std::string text = "text_encoder/model.safetensors";
    check({
        {{"model_index.json", unet, text, "scheduler/config.json", "scheduler/scheduler.bin"},
         Kind::several,
         {"text_encoder", "unet"}},
        {{"model_index.json", unet, "vae/odd name.ckpt"}, Kind::several, {"unet", "vae"}},
        {{"model_index.json", unet, "v1-5.ckpt"}, Kind::several, {"unet", "v1-5.ckpt"}},
        {{"model_index.json", unet, "model.safetensors"}, Kind::several, {"unet", "model.safetensors"}},
        {{"model_index.json", unet, ".cache/model.safetensors"}, Kind::folder, {"unet"}},
        {{"model_index.json", "model.safetensors"}, Kind::file, {"model.safetensors"}},
        {{unet, text}, Kind::several, {"text_encoder", "unet"}},
    });
    // The components that the list names and the folder lacks are listed.
    const std::string list =
        R"(model_index.json={"_class_name":"X","unet":["diffusers","UNet2DConditionModel"],"vae":["diffusers","A"],)"
        R"("scheduler":["diffusers","PNDMScheduler"],"tokenizer":["transformers","CLIPTokenizer"],"gone":[null,null]})";
    check({{{list, unet, "vae/config.json"}, Kind::several, {"unet"}},
           {{list, unet, "vae/model.fp16.safetensors"}, Kind::several, {"unet", "vae"}},
           {{"model_index.json=[1", unet}, Kind::folder, {"unet"}},
           {{list, "scheduler/x"}, Kind::nothing, {}}});
    CHECK(shape({list, unet}).others == FileNames{"vae"});
    CHECK(shape({list, unet, "vae/x.bin"}).others.empty());
    // sentence-transformers: the first module is here, the others are named.
    CHECK(shape({"modules.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"}).others ==
          FileNames{"2_Dense"});
}

TEST_CASE("the first module of sentence-transformers is the model, and the other modules are named") {
    const std::string list =
        R"(modules.json=[{"idx":0,"path":"10_Transformer"},{"idx":1,"path":"1_Pooling"},{"idx":2,"path":"2_Dense"}])";
    const std::string transformer = "10_Transformer/model.safetensors";
    const FolderShape found = shape({list, transformer, "1_Pooling/config.json", "2_Dense/model.safetensors"});
    CHECK(found.kind == Kind::folder);
    CHECK(found.files == FileNames{"10_Transformer"});
    CHECK(found.others == FileNames{"2_Dense"});
    CHECK(shape({list, "10_Transformer/model.onnx", "2_Dense/model.safetensors"}).others ==
          FileNames{"10_Transformer/model.onnx"});
    check(
        {{{list, transformer}, Kind::folder, {"10_Transformer"}},
         {{list, "10_Transformer/config.json"}, Kind::nothing, {}},
         {{list, transformer, "model.safetensors"}, Kind::file, {"model.safetensors"}},
         {{"modules.json={}", transformer, "2_Dense/model.safetensors"}, Kind::several, {"10_Transformer", "2_Dense"}},
         {{"modules.json=[1,{\"path\":2},{\"path\":\"../2_Dense\"}]", transformer}, Kind::folder, {"10_Transformer"}}});
}

TEST_CASE("folders whose weights are of another framework are named") {
    const std::string text = "text_encoder/model.safetensors";
    const auto others = [&](const std::string& file) { return shape({text, file}).others; };
    for (const char* file : {"vision/tf_model.h5", "vision/flax_model.msgpack", "unet/flux.gguf", "unet/model.onnx",
                             "step2/weights.npz"}) {
        CHECK(shape({text, file}).kind == Kind::folder);
        CHECK(others(file) == FileNames{file});
    }
    CHECK(others("vision/config.json").empty());
    CHECK(others("text_encoder/model.onnx").empty());
    CHECK(others("vision/.model.onnx").empty());
    CHECK(others("vision.tmp/model.onnx").empty());
    CHECK(shape({text, "v/ema.pt", "v/model.onnx"}).others == FileNames{"v"});

    const std::string list =
        R"(model_index.json={"text_encoder":["transformers","T"],"unet":["diffusers","U"],"vae":["diffusers","V"],)"
        R"("scheduler":["mine","S"],"tokenizer_2":["mine","T"],"feature_extractor":["mine","F"]})";
    const FolderShape pipeline = shape({list, text, "unet/model.onnx"});
    CHECK(pipeline.kind == Kind::several);
    CHECK(pipeline.files == FileNames{"text_encoder"});
    CHECK(pipeline.others == FileNames{"vae"});
    CHECK(pipeline.foreign == FileNames{"unet/model.onnx"});
    CHECK(shape({"model_index.json", text, "unet/model.onnx"}).kind == Kind::several);
}

TEST_CASE("files that the caller lists are one set of ranks also without rank 0") {
    CHECK(names::shape_of_files({"a_rank2.bin", "a_rank1.bin"}).kind == Kind::rank_files);
    CHECK(names::shape_of_files({"a_rank1.bin"}).kind == Kind::nothing);
    CHECK(names::shape_of_files({"model_world_size_1_rank_0.pt"}).kind == Kind::rank_files);
    CHECK(names::shape_of_files({"a_rank1.bin", "b_rank1.bin"}).kind == Kind::nothing);
    CHECK(names::shape_of_files({"a_rank8.bin", "a_rank4.bin"}).kind == Kind::rank_files);
    CHECK(shape({"a_rank8.bin", "a_rank4.bin"}).kind == Kind::several);
}

TEST_CASE("a save replaces only the safetensors model of the folder itself") {
    using names::safetensors_heads;
    CHECK(safetensors_heads({"model.safetensors", "pytorch_model.bin"}) == FileNames{"model.safetensors"});
    CHECK(safetensors_heads({"a.safetensors.index.json", "model.safetensors"}) ==
          FileNames{"a.safetensors.index.json"});
    CHECK(safetensors_heads({"flax_model.msgpack.index.json", "pytorch_model.bin", "a.safetensors"}).empty());
    // A model in a subfolder does not conflict.
    const auto own = names::shape_of_folder(names::names_in(forge::Folder(forge::files_of({"a/model.safetensors"}))));
    CHECK(own.kind == Kind::nothing);
}

TEST_CASE("a rank and its set are recognised by the file name") {
    const auto named = names::rank_file("model_world_size_4_rank_3.pt");
    REQUIRE(named.has_value());
    CHECK(named->set == "model_world_size_4_rank_*.pt");
    CHECK(named->rank == 3);
    CHECK(named->world_size == std::uint64_t{4});
    CHECK(names::ranks_in_set(*named, {}) == 4);
    const auto counted = names::rank_file("m_0_rank1.bin");
    REQUIRE(counted.has_value());
    CHECK(counted->set == "m_0_rank*.bin");
    CHECK_FALSE(counted->world_size.has_value());
    CHECK(names::ranks_in_set(*counted, {"m_0_rank0.bin", "m_0_rank1.bin", "m_1_rank0.bin", "m_0_rank2.pt"}) == 2);
    for (const char* name : {"", ".", ".pt", "rank.pt", "1.pt", "a_rank_1.pt", "checkpoint_1.bin", "a_rank1.pth"})
        CHECK_FALSE(names::rank_file(name).has_value());
}

}  // namespace folder_shape_test
