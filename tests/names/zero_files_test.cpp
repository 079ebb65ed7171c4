// Tests the names of DeepSpeed's files: those of every version, numbers that are hostile, and ranks that are repeated
// or missing.
#include "names/zero_files.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace zero_files_test {

using namespace safemap;
using names::RankedName;
using names::zero_files;
using names::zero_name;
using names::ZeroFiles;
using Kind = names::NameKind;

namespace {

std::string model(unsigned model_rank) {
    return std::string("mp_rank_") + (model_rank < 10 ? "0" : "") + std::to_string(model_rank) + "_model_states.pt";
}
std::string ranked(unsigned rank, unsigned model_rank, const std::string& what, const std::string& prefix = {}) {
    return prefix + "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_" + (model_rank < 10 ? "0" : "") +
           std::to_string(model_rank) + "_" + what + "_states.pt";
}

void check_name(const std::string& file, const RankedName& wanted) {
    CAPTURE(file);
    const auto found = zero_name(file);
    REQUIRE(found.has_value());
    CHECK(found->kind == wanted.kind);
    CHECK(found->rank == wanted.rank);
    CHECK(found->model_rank == wanted.model_rank);
    CHECK(found->layer == wanted.layer);
    CHECK(found->expert == wanted.expert);
    CHECK(found->prefix == wanted.prefix);
}

void check_missing(const std::vector<std::string>& files, Errc code, const std::string& text) {
    check_error(error_of([&] { static_cast<void>(zero_files(files)); }), {code}, {text});
}

}  // namespace

TEST_CASE("names of files of every version") {
    check_name("mp_rank_00_model_states.pt", {.kind = Kind::zero_model});
    check_name("mp_rank_123_model_states.pt", {.kind = Kind::zero_model, .model_rank = 123});
    check_name("zero_pp_rank_7_mp_rank_03_model_states.pt",
               {.kind = Kind::zero_ranked_model, .rank = 7, .model_rank = 3});
    for (const std::string prefix : {"", "bf16_", "fp16_"})
        check_name(prefix + "zero_pp_rank_12_mp_rank_00_optim_states.pt",
                   {.kind = Kind::zero_optimizer, .rank = 12, .prefix = prefix});
    check_name("zero_pp_rank_1_mp_rank_02optim_states.pt", {.kind = Kind::zero_optimizer, .rank = 1, .model_rank = 2});
    check_name("layer_3_expert_5_mp_rank_01_model_states.pt",
               {.kind = Kind::zero_expert, .model_rank = 1, .layer = 3, .expert = 5});
    check_name("expert_5_mp_rank_01_model_states.pt", {.kind = Kind::zero_expert, .model_rank = 1, .expert = 5});
    check_name("expp_rank_2_mp_rank_00_optim_states.pt", {.kind = Kind::zero_expert_optimizer, .expert = 2});
    check_name("layer_09-model_01-model_states.pt", {.kind = Kind::zero_layer, .model_rank = 1, .layer = 9});
    check_name("layer_09-model_states.pt", {.kind = Kind::zero_shared_layer, .layer = 9});
    check_name("mp_rank_16777216_model_states.pt", {.kind = Kind::zero_model, .model_rank = 1 << 24});
}

TEST_CASE("names that are not of this format") {
    for (const char* file : {"",
                             "mp_rank_",
                             "mp_rank__model_states.pt",
                             "mp_rank_00_model_states",
                             "mp_rank_00_model_states.pt.tmp",
                             "mp_rank_-1_model_states.pt",
                             "mp_rank_+1_model_states.pt",
                             "mp_rank_ 1_model_states.pt",
                             "mp_rank_0x1_model_states.pt",
                             "mp_rank_16777217_model_states.pt",
                             "mp_rank_4294967296_model_states.pt",
                             "mp_rank_18446744073709551616_model_states.pt",
                             "xmp_rank_00_model_states.pt",
                             "MP_RANK_00_model_states.pt",
                             "fp32_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                             "bf16_mp_rank_00_model_states.pt",
                             "zero_pp_rank_0_mp_rank_00optim_states",
                             "zero_pp_rank_99999999999_mp_rank_00_optim_states.pt",
                             "zero_pp_rank_0_mp_rank_00__optim_states.pt",
                             "layer_-model_states.pt",
                             "layer_1-model_-model_states.pt",
                             "layer_1_mp_rank_00_model_states.pt",
                             "layer_1_expert__mp_rank_00_model_states.pt",
                             "layer_1.pt",
                             "expp_rank_0_mp_rank_00_model_states.pt"}) {
        CAPTURE(file);
        CHECK(!zero_name(file).has_value());
    }
    CHECK(zero_files({"README.md", model(0), "latest", "zero_to_fp32.py"}).models.size() == 1);
}

TEST_CASE("files are sorted by model rank and rank, whatever their order") {
    std::vector<std::string> names;
    for (unsigned model_rank = 0; model_rank < 2; ++model_rank)
        for (unsigned rank = 0; rank < 12; ++rank) {
            names.push_back(ranked(rank, model_rank, "model"));
            names.push_back(ranked(rank, model_rank, "optim", "bf16_"));
        }
    std::mt19937 random(1);
    std::shuffle(names.begin(), names.end(), random);
    const ZeroFiles files = zero_files(names);
    CHECK(files.ranks == 12);
    CHECK(files.model_ranks == 2);
    CHECK(files.ranked_models);
    REQUIRE(files.models.size() == 24);
    REQUIRE(files.optimizers.size() == 24);
    for (unsigned i = 0; i < 24; ++i) {
        CHECK(files.models[i].file == ranked(i % 12, i / 12, "model"));
        CHECK(files.optimizers[i].file == ranked(i % 12, i / 12, "optim", "bf16_"));
    }
}

TEST_CASE("files of stage 0 have no ranks, those of stage 2 one file of model states") {
    const ZeroFiles plain = zero_files({model(1), model(0)});
    CHECK(plain.ranks == 0);
    CHECK(plain.model_ranks == 2);
    CHECK(!plain.ranked_models);
    const ZeroFiles two = zero_files({model(0), ranked(1, 0, "optim"), ranked(0, 0, "optim")});
    CHECK(two.ranks == 2);
    CHECK(two.models.size() == 1);
    CHECK(two.optimizers.size() == 2);
}

TEST_CASE("experts and layers are listed apart") {
    const ZeroFiles files = zero_files(
        {model(0), "expp_rank_1_mp_rank_00_optim_states.pt", "expp_rank_0_mp_rank_00_optim_states.pt",
         "layer_1_expert_0_mp_rank_00_model_states.pt", "layer_0_expert_10_mp_rank_00_model_states.pt",
         "layer_0_expert_2_mp_rank_00_model_states.pt", "layer_10-model_states.pt", "layer_02-model_states.pt"});
    CHECK(files.models.size() == 1);
    REQUIRE(files.expert_optimizers.size() == 2);
    CHECK(files.expert_optimizers[0].name.expert == 0);
    REQUIRE(files.experts.size() == 3);
    CHECK(files.experts[0].name.expert == 2);
    CHECK(files.experts[1].name.expert == 10);
    CHECK(files.experts[2].name.layer == 1);
    REQUIRE(files.layers.size() == 2);
    CHECK(files.layers[0].file == "layer_02-model_states.pt");
}

TEST_CASE("two files of one rank are refused, with both names") {
    check_missing({model(0), ranked(0, 0, "optim"), ranked(0, 0, "optim", "bf16_")}, Errc::rank_repeated,
                  "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt and zero_pp_rank_0");
    check_missing({model(0), "mp_rank_0_model_states.pt"}, Errc::rank_repeated, "mp_rank_0_model_states.pt");
    check_missing({model(0), ranked(0, 0, "model")}, Errc::rank_repeated, "rank 0");
    check_missing({model(0), "layer_1-model_states.pt", "layer_01-model_states.pt"}, Errc::rank_repeated, "layer_01");
}

TEST_CASE("optimizer files with several prefixes are of several runs") {
    check_missing({model(0), ranked(0, 0, "optim", "bf16_"), ranked(1, 0, "optim")}, Errc::ranks_differ,
                  "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt and zero_pp_rank_1");
    check_missing({model(0), model(1), ranked(0, 0, "optim"), ranked(0, 1, "optim", "fp16_")}, Errc::ranks_differ,
                  "fp16_zero_pp_rank_0_mp_rank_01_optim_states.pt");
}

TEST_CASE("files of ranks that are missing are listed by name") {
    check_missing({model(0), ranked(2, 0, "optim", "fp16_")}, Errc::rank_missing,
                  "2 files of ranks are missing: fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt, "
                  "fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
    check_missing({ranked(0, 0, "optim")}, Errc::rank_missing, "1 file of a rank is missing: " + model(0));
    check_missing({model(2)}, Errc::rank_missing, model(0) + ", " + model(1));
    check_missing({ranked(0, 0, "model"), ranked(1, 0, "model"), ranked(0, 0, "optim")}, Errc::rank_missing,
                  "1 file of a rank is missing: " + ranked(1, 0, "optim"));
    check_missing({ranked(0, 0, "model"), ranked(0, 0, "optim"), ranked(1, 0, "optim")}, Errc::rank_missing,
                  "1 file of a rank is missing: " + ranked(1, 0, "model"));
    check_missing({model(0), model(1), ranked(0, 0, "optim"), ranked(1, 0, "optim"), ranked(0, 1, "optim")},
                  Errc::rank_missing, ranked(1, 1, "optim"));
    check_missing({}, Errc::rank_missing, model(0));
}

TEST_CASE("each file that is left out of a complete folder is named") {
    std::vector<std::string> names;
    for (unsigned i = 0; i < 6; ++i)
        for (const char* what : {"model", "optim"}) names.push_back(ranked(i % 3, i / 3, what));
    CHECK_OK(zero_files(names));
    for (std::size_t left_out = 0; left_out < names.size(); ++left_out) {
        std::vector<std::string> some = names;
        some.erase(some.begin() + static_cast<std::ptrdiff_t>(left_out));
        check_missing(some, Errc::rank_missing, "1 file of a rank is missing: " + names[left_out]);
    }
}

TEST_CASE("files with numbers that no run has are not passed by") {
    for (const std::string number : {"16777217", "100000000", "4294967296", "99999999999999999999"})
        for (const auto& [before, after] : {std::pair{"zero_pp_rank_", "_mp_rank_00_optim_states.pt"},
                                            {"bf16_zero_pp_rank_0_mp_rank_", "_optim_states.pt"},
                                            {"mp_rank_", "_model_states.pt"},
                                            {"layer_", "-model_states.pt"},
                                            {"layer_01-model_", "-model_states.pt"},
                                            {"layer_0_expert_", "_mp_rank_00_model_states.pt"},
                                            {"layer_", "_expert_0_mp_rank_00_model_states.pt"},
                                            {"expp_rank_", "_mp_rank_00_optim_states.pt"}}) {
            const std::string file = before + number + after;
            CHECK(!zero_name(file).has_value());
            check_missing({model(0), file}, Errc::world_mismatch, file);
        }
    CHECK_OK(zero_files({model(0), "layer_16777216-model_states.pt"}));
}

TEST_CASE("without any file of model states, both names are asked for") {
    check_missing({ranked(0, 0, "optim")}, Errc::rank_missing, model(0));
    check_missing({ranked(0, 0, "optim")}, Errc::rank_missing, ranked(0, 0, "model"));
}

TEST_CASE("names of huge ranks are refused at once, and messages stay short") {
    check_missing({model(0), ranked(1 << 24, 0, "optim")}, Errc::rank_missing, "missing");
    check_missing({model(0), ranked(1 << 24, 1 << 24, "optim")}, Errc::rank_missing, "missing");
    check_missing({model(1 << 24)}, Errc::rank_missing, "missing");
    const auto error = error_of([] { static_cast<void>(zero_files({model(0), ranked(100000, 0, "optim")})); });
    REQUIRE(error.has_value());
    CHECK(error->message().find("more") != std::string::npos);
    CHECK(error->message().size() < 5000);
}

TEST_CASE("the names of optimizer files from a rank on") {
    const RankedName like = {.kind = Kind::zero_optimizer, .model_rank = 3, .prefix = "bf16_"};
    CHECK(names::optimizer_names(like, 1, 3) == ranked(1, 3, "optim", "bf16_") + ", " + ranked(2, 3, "optim", "bf16_"));
    CHECK(names::optimizer_names(like, 3, 3).empty());
    CHECK(names::optimizer_names(like, 0, ~0ULL).size() < 5000);
    CHECK(names::optimizer_names(like, ~0ULL - 1, ~0ULL).size() < 5000);
}

}  // namespace zero_files_test
