// Tests that folders in an unsupported layout are refused, and that training state beside a model is noted.
#include "open/layouts.hpp"

#include "base/folder.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "open/read.hpp"

namespace layouts_test {

using namespace safemap;
using names::FileNames;

namespace {

Error refused(std::map<std::string, std::string> files) {
    const auto error = error_of([&] {
        ThrowFirst faults;
        static_cast<void>(open::read_located(open::locate(std::make_shared<forge::Folder>(files)), {}, faults));
    });
    REQUIRE(error.has_value());
    return *error;
}

const std::string one = forge::u8_file({{"one", 1}});
const std::string empty = forge::u8_file({{"one", 0}});
const std::string optim = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";

}  // namespace

TEST_CASE("an unsupported layout is refused by name, with a hint") {
    const std::vector<std::pair<FileNames, std::string>> rows = {
        {{"scheduler.bin", "model_0/metadata.pkl", "model_0/model_rank_0.pt"}, "torch_checkpointing"},
        {{"g/" + optim, "g/offloaded_tensors/a/b"}, "offloaded_tensors"},
        {{"metadata.pkl", "model_rank_0.pt"}, "torch_checkpointing"},
        {{"checkpoint_metadata.json", "model/x"}, "nanotron"},
        {{"w/.zarray", "common.pt"}, "zarr"},
    };
    for (const auto& row : rows) {
        const FileNames& names = row.first;
        const std::string& name = row.second;
        CAPTURE(names);
        const Error error = refused(forge::files_of(names));
        CHECK(error.code() == Errc::unsupported_layout);
        CHECK(error.message().find(name) != std::string::npos);
        CHECK_FALSE(error.hint().empty());
        CHECK(error.path().starts_with("folder"));
    }
    CHECK(refused(forge::files_of({"scheduler.bin", "model_0/metadata.pkl", "model_0/model_rank_0.pt"})).path() ==
          "folder/model_0");
    CHECK(refused(forge::files_of({"latest=..", "g/" + optim})).code() == Errc::bad_tag);
    CHECK(refused(forge::files_of({"latest=g", "g/" + optim})).code() == Errc::rank_missing);
    CHECK(refused(forge::files_of({"__0_0.distcp"})).code() == Errc::unfinished_checkpoint);
    CHECK(refused(forge::files_of({"model_world_size_2_rank_1.pt"})).code() == Errc::rank_missing);
    const Error several = refused(forge::files_of({"a/model.safetensors", "b/.metadata"}));
    CHECK(several.code() == Errc::several_models);
    CHECK(several.message().find("folder/a, folder/b") != std::string::npos);
    const Error files = refused(forge::files_of({"x0.pt", "x1.pt"}));
    CHECK(files.hint().find("rank_0.pt") != std::string::npos);
    CHECK(refused(forge::files_of({"x0.sft", "x1.pt"})).hint().find("rank_0.pt") == std::string::npos);
    const Error pipeline = refused(forge::files_of(
        {R"(model_index.json={"vae":["diffusers","V"]})", "text_encoder/model.safetensors", "unet/model.onnx"}));
    CHECK(pipeline.message().find("without weights: vae; with weights that safemap does not read: "
                                  "folder/unet/model.onnx") != std::string::npos);
}

TEST_CASE("the hint names the newest save of a run, and what to do about a snapshot that is missing") {
    const Error saves = refused(forge::files_of({"checkpoint-90/model.safetensors", "checkpoint-100/.metadata"}));
    CHECK(saves.code() == Errc::several_models);
    CHECK(saves.hint() == "give one of them; the newest is folder/checkpoint-100");
    const Error tags = refused(forge::files_of({"global_step5/" + optim, "global_step40/" + optim}));
    CHECK(tags.code() == Errc::bad_tag);
    CHECK(tags.hint() == "give one of them; the newest is folder/global_step40");

    const Error missing = refused(forge::files_of({"refs/main=12ab", "snapshots/ff/model.safetensors"}));
    CHECK(missing.code() == Errc::shard_missing);
    CHECK(missing.message() == "refs/main names snapshots/12ab, but there is no such folder");
    CHECK(missing.hint() == "download the model again, or give one of folder/snapshots/ff");
    const Error hostile = refused(forge::files_of({"refs/main=../../etc", "snapshots/ff/model.safetensors"}));
    CHECK(hostile.code() == Errc::bad_tag);
    CHECK(hostile.hint() == "give a folder in snapshots/ instead");
    const Error several = refused(forge::files_of({"blobs/x", "snapshots/a/x.pt", "snapshots/b/x.pt"}));
    CHECK(several.code() == Errc::several_models);
    CHECK(several.message().find("2 snapshots, and no refs/main") == 0);
}

TEST_CASE("a single file of a DCP checkpoint is refused") {
    for (const char* name : {"x/.metadata", "x/__3.metadata", "x/__0_0.distcp", "model.nemo"}) {
        ThrowFirst faults;
        CHECK_FAULT(open::read_file(forge::source(one, name), {}, faults), Errc::unsupported_layout);
    }
    for (const char* name : {"x/.metadata.tmp", "x/__3.metadata.tmp"}) {
        ThrowFirst faults;
        CHECK_FAULT(open::read_file(forge::source("N.", name), {}, faults), Errc::unfinished_checkpoint);
    }
}

TEST_CASE("a model of empty tensors beside training state was not gathered: the state is read instead") {
    CHECK(refused({{"model.safetensors", empty}, {"latest", "g"}, {"g/" + optim, "x"}}).code() == Errc::rank_missing);
    CHECK(refused({{"model.safetensors", empty}, {".metadata", "N."}}).path() == "folder/.metadata");
    ThrowFirst faults;
    const auto alone =
        std::make_shared<forge::Folder>(std::map<std::string, std::string>{{"model.safetensors", empty}});
    CHECK(open::read_located(open::locate(alone), {}, faults).tensors.size() == 1);
    const auto full = std::make_shared<forge::Folder>(
        std::map<std::string, std::string>{{"model.safetensors", one}, {"latest", "g"}, {"g/" + optim, "x"}});
    const auto contents = open::read_located(open::locate(full), {}, faults);
    CHECK(contents.tensors.at(0).name() == "one");
    CHECK(contents.notes.at(0) == "read model.safetensors; not read: g");
}

TEST_CASE("a model in the only subfolder is read with a note, and that subfolder is where its extras are") {
    ThrowFirst faults;
    const auto folder = std::make_shared<forge::Folder>(std::map<std::string, std::string>{
        {"run/model.safetensors", one}, {"run/config.json", "{}"}, {"log.txt", "x"}});
    const auto contents = open::read_located(open::locate(folder), {}, faults);
    CHECK(contents.tensors.size() == 1);
    CHECK(contents.notes.at(0) == "read the checkpoint in run");
    CHECK(contents.files == FileNames{"model.safetensors"});
    CHECK(contents.model_file == "model.safetensors");
    CHECK(contents.folder->name() == "folder/run");
}

TEST_CASE("ranks that cannot be merged are listed side by side under the names of their folders") {
    ThrowFirst faults;
    const auto folder = std::make_shared<forge::Folder>(
        std::map<std::string, std::string>{{"latest_checkpointed_iteration.txt", "7\n"},
                                           {"iter_0000007/mp_rank_00/model_optim_rng.pt", one},
                                           {"iter_0000007/mp_rank_01/model_optim_rng.pt", one}});
    const auto contents = open::read_located(open::locate(folder), {}, faults);
    REQUIRE(contents.tensors.size() == 2);
    CHECK(contents.tensors[0].name() == "mp_rank_00/one");
    CHECK(contents.tensors[1].name() == "mp_rank_01/one");
    CHECK(contents.files == FileNames{"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"});
    REQUIRE(contents.notes.size() == 2);
    CHECK(contents.notes[0] == "read the checkpoint in iter_0000007");
    CHECK(contents.notes[1].find("never merged") != std::string::npos);
}

}  // namespace layouts_test
