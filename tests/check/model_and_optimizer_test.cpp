// Tests folders with a model and its optimizer beside it: files of ranks that verl wrote, compared with what torch
// reads in them, and folders of which one part is damaged.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/diff.hpp>
#include <safemap/verify.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace model_and_optimizer_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

const fs::path reports = fs::path(SAFEMAP_TEST_DATA) / "reports";
const fs::path actor = reports / "verl_actor_folder";

bool is_equal(const Checkpoint& a, const fs::path& expected) {
    const Checkpoint b = Checkpoint::open(expected);
    return diff(a, b).equal();
}

/// Returns a copy of verl's folder.
fs::path copied(const TempDir& temp) {
    const fs::path copy = temp.path() / "actor";
    fs::copy(actor, copy, fs::copy_options::recursive);
    return copy;
}

/// Changes a byte of the pickle, with which a file begins.
void damage(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(512);
    const auto at = stream.tellg();
    const int byte = stream.get();
    stream.seekp(at);
    stream.put(static_cast<char>(byte ^ 1));
    REQUIRE(stream.good());
}

bool has_word(const std::vector<std::string>& texts, std::string_view word) {
    return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return text.find(word) != text.npos; });
}

}  // namespace

TEST_CASE("the optimizer of OLMo's folder is joined as OLMo joins it") {
    const Checkpoint model = Checkpoint::open(reports / "olmo_folder");
    CHECK(is_equal(model, reports / "olmo_expected/model.safetensors"));
    const auto optimizer = model.optimizer();
    REQUIRE(optimizer.has_value());
    CHECK(is_equal(*optimizer, reports / "olmo_expected/optimizer.safetensors"));
    const VerifyReport report = verify(reports / "olmo_folder");
    CHECK(report.ok());
    CHECK(report.tensors == model.size() + optimizer->size());
    // By itself it is sound, and not read.
    CHECK_FAULT(Checkpoint::open(reports / "olmo_folder/optim"), Errc::optimizer_unnamed);
    const VerifyReport alone = verify(reports / "olmo_folder/optim");
    CHECK(alone.ok());
    CHECK(has_word(alone.notes, "not read: state"));
    CHECK(alone.checked_bytes > 0);
}

TEST_CASE("a record of OLMo's optimizer that is damaged is a fault") {
    const TempDir temp;
    const fs::path copy = temp.path() / "run";
    fs::copy(reports / "olmo_folder", copy, fs::copy_options::recursive);
    damage(copy / "optim/rank1.pt");
    CHECK_FALSE(verify(copy).ok());
    CHECK(Checkpoint::open(copy).size() == Checkpoint::open(reports / "olmo_folder").size());
}

TEST_CASE("FSDP1: the model opens beside an optimizer without names, which is refused only if it is asked for") {
    for (const char* const folder : {"fsdp1_raw_optimizer", "fsdp1_raw_state"}) {
        CAPTURE(folder);
        const Checkpoint model = Checkpoint::open(reports / folder);
        CHECK(model.size() == 9);
        CHECK_FAULT(model.optimizer(), Errc::optimizer_unnamed);
        const VerifyReport report = verify(reports / folder);
        CHECK(report.ok());
        CHECK(has_word(report.notes, "holds what each rank has"));
        CHECK(std::any_of(model.skipped().begin(), model.skipped().end(),
                          [](const auto& one) { return one.type == "the state of the optimizer"; }));
    }
    CHECK_FAULT(Checkpoint::open(reports / "fsdp1_raw_optimizer/optimizer_0_rank*.bin"), Errc::optimizer_unnamed);
    // Both sets are checked.
    const TempDir temp;
    const fs::path copy = temp.path() / "run";
    fs::copy(reports / "fsdp1_raw_optimizer", copy, fs::copy_options::recursive);
    damage(copy / "optimizer_0_rank2.bin");
    CHECK_FALSE(verify(copy).ok());
}

TEST_CASE("the model of verl's folder opens, and gives its optimizer") {
    const Checkpoint model = Checkpoint::open(actor);
    CHECK(is_equal(model, reports / "verl_expected/model.safetensors"));
    CHECK(model.files() == std::vector<std::string>{"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"});
    CHECK(has_word(model.notes(), "optim_world_size_2_rank_*.pt"));
    CHECK(has_word(model.notes(), "not read: extra_state_world_size_2_rank_0.pt"));
    REQUIRE(model.skipped().size() == 1);
    CHECK(model.skipped()[0].name == "optimizer");
    const auto optimizer = model.optimizer();
    REQUIRE(optimizer.has_value());
    CHECK(is_equal(*optimizer, reports / "verl_expected/optimizer.safetensors"));
}

TEST_CASE("globs of the two sets give the same tensors") {
    CHECK(is_equal(Checkpoint::open(actor / "model_*.pt"), reports / "verl_expected/model.safetensors"));
    CHECK(is_equal(Checkpoint::open(actor / "optim_*.pt"), reports / "verl_expected/optimizer.safetensors"));
    const Checkpoint all = Checkpoint::open(actor / "*.pt");
    CHECK(is_equal(all, reports / "verl_expected/model.safetensors"));
    CHECK(is_equal(*all.optimizer(), reports / "verl_expected/optimizer.safetensors"));
}

TEST_CASE("verify reads the files of the optimizer too") {
    const TempDir temp;
    const fs::path folder = copied(temp);
    const VerifyReport good = verify(folder);
    CHECK(good.ok());
    damage(folder / "optim_world_size_2_rank_1.pt");
    const VerifyReport bad = verify(folder);
    REQUIRE_FALSE(bad.ok());
    CHECK(bad.faults.front().path().find("optim_world_size_2_rank_1.pt") != std::string::npos);
}

TEST_CASE("a rank that is missing in the optimizer only is an error when the optimizer is asked for") {
    const TempDir temp;
    const fs::path folder = copied(temp);
    fs::remove(folder / "optim_world_size_2_rank_1.pt");
    const Checkpoint model = Checkpoint::open(folder);
    CHECK(is_equal(model, reports / "verl_expected/model.safetensors"));
    check_error(error_of([&] { static_cast<void>(model.optimizer()); }), {Errc::rank_missing},
                {"optim_world_size_2_rank_1.pt"});
    CHECK_FALSE(verify(folder).ok());
    fs::remove(folder / "model_world_size_2_rank_0.pt");
    CHECK_FAULT(Checkpoint::open(folder), Errc::rank_missing);
    // The note names no file of the set: one is missing, and the other is checked.
    const std::vector<std::string> notes = verify(folder).notes;
    CHECK(has_word(notes, "not read: extra_state_world_size_2_rank_0.pt"));
    CHECK_FALSE(has_word(notes, "model_world_size_2_rank_"));
}

TEST_CASE("an optimizer of another world, and a third set, are refused with a list") {
    const auto refused = [](const fs::path& folder, std::initializer_list<std::string_view> globs) {
        const auto error = error_of([&] { static_cast<void>(Checkpoint::open(folder)); });
        check_error(error, {Errc::several_models}, {});
        for (const std::string_view glob : globs) CHECK(error->message().find(glob) != std::string::npos);
    };
    const TempDir temp;
    const fs::path folder = copied(temp);
    fs::copy_file(folder / "model_world_size_2_rank_0.pt", folder / "value_world_size_2_rank_0.pt");
    refused(folder, {"model_world_size_2_rank_*.pt", "optim_world_size_2_rank_*.pt", "value_world_size_2_rank_*.pt"});
    fs::remove(folder / "value_world_size_2_rank_0.pt");
    for (const char* rank : {"0", "1"})
        fs::rename(folder / (std::string("optim_world_size_2_rank_") + rank + ".pt"),
                   folder / (std::string("optim_world_size_4_rank_") + rank + ".pt"));
    refused(folder, {"model_world_size_2_rank_*.pt", "optim_world_size_4_rank_*.pt"});
}

TEST_CASE("two folders side by side are a model and its optimizer") {
    const TempDir temp;
    const fs::path run = temp.path() / "checkpoint-3";
    fs::create_directories(run / "optimizer_0");
    fs::create_directories(run / "pytorch_model_fsdp_0");
    for (const auto& file : fs::directory_iterator(actor)) {
        const std::string name = file.path().filename().native();
        if (name.starts_with("model_")) fs::copy_file(file, run / "pytorch_model_fsdp_0" / name);
        if (name.starts_with("optim_")) fs::copy_file(file, run / "optimizer_0" / name);
    }
    const Checkpoint model = Checkpoint::open(run);
    CHECK(is_equal(model, reports / "verl_expected/model.safetensors"));
    CHECK(is_equal(*model.optimizer(), reports / "verl_expected/optimizer.safetensors"));
    CHECK(has_word(model.notes(), "optimizer_0/"));
    const VerifyReport good = verify(run);
    CHECK(good.ok());
    CHECK(good.tensors == model.size() + model.optimizer()->size());
    damage(run / "optimizer_0/optim_world_size_2_rank_0.pt");
    CHECK_FALSE(verify(run).ok());
}

}  // namespace model_and_optimizer_test
