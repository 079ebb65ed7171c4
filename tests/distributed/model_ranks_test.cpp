// Tests that the files of all model ranks must be there: runs of which only some of the ranks were copied.
#include "distributed/zero/one_run.hpp"

#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/zero.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>

#include <optional>
#include <string>
#include <vector>

namespace model_ranks_test {

using namespace safemap;
using distributed::ModelFile;
using names::zero_files;
using zero_forge::Forge;
using zero_forge::Run;
using zero_forge::small;

namespace {

std::optional<Error> error_of_run(const Run& run, const OpenOptions& options = {}) {
    const TempDir dir = TempDir::in_memory();
    run.write(dir.path());
    return error_of([&] { static_cast<void>(Checkpoint::open(dir.path(), options)); });
}

void set_in_models(Run& run, const std::string& key, const pt::Value& value) {
    for (auto& [name, file] : run.files)
        if (name.find("_model_states.pt") != std::string::npos) file.set(key, value);
}

pt::Value degrees(pt::Value stages, pt::Value tensor_ranks) {
    return pt::dict({{"pp_degree", std::move(stages)}, {"tp_degree", std::move(tensor_ranks)}});
}

void check_missing(const std::optional<Error>& error, const std::vector<std::string>& words) {
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK(error->code() == Errc::rank_missing);
    CHECK(error->path().find("mp_rank_00_model_states.pt") != std::string::npos);
    for (const std::string& word : words) CHECK(error->message().find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("all files of a model rank are missing: mp_world_size says so, of every stage") {
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        set_in_models(run, "mp_world_size", pt::integer(2));
        std::vector<std::string> missing = {stage == 3 ? "zero_pp_rank_1_mp_rank_01_model_states.pt"
                                                       : "mp_rank_01_model_states.pt"};
        if (stage > 0) missing.emplace_back("bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt");
        check_missing(error_of_run(run), missing);
        if (stage < 3) check_missing(error_of_run(run, {.weights = Weights::module}), missing);
    }
}

TEST_CASE("checkpoint_parallel_dimensions: stages times tensor ranks. The larger number counts") {
    Run run = Forge::run(small(2));
    set_in_models(run, "checkpoint_parallel_dimensions", degrees(pt::integer(3), pt::integer(2)));
    check_missing(error_of_run(run), {"pp_degree 3, tp_degree 2", "6 model ranks", "mp_rank_05_model_states.pt"});
    set_in_models(run, "checkpoint_parallel_dimensions", degrees(pt::integer(1), pt::integer(1)));
    CHECK_FALSE(error_of_run(run).has_value());
    set_in_models(run, "mp_world_size", pt::integer(4));
    check_missing(error_of_run(run), {"mp_world_size", "4 model ranks", "mp_rank_03_model_states.pt"});
    // A degree of 0 says nothing, and neither does one alone.
    set_in_models(run, "checkpoint_parallel_dimensions", degrees(pt::integer(0), pt::integer(2)));
    set_in_models(run, "mp_world_size", pt::integer(0));
    CHECK_FALSE(error_of_run(run).has_value());
}

TEST_CASE("a degree that is no number is refused with the file") {
    Run run = Forge::run(small(2));
    set_in_models(run, "checkpoint_parallel_dimensions", degrees(pt::integer(1), pt::text("two")));
    const auto error = error_of_run(run);
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::field_missing);
    CHECK(error->path().ends_with("global_step7/mp_rank_00_model_states.pt"));
    CHECK(error->message().find("tp_degree") != std::string::npos);
}

TEST_CASE("huge numbers of model ranks make a short message at once") {
    for (const std::uint64_t ranks : {std::uint64_t{1} << 62, std::uint64_t{1} << 33}) {
        Run run = Forge::run(small(3));
        set_in_models(run, "checkpoint_parallel_dimensions", degrees(pt::integer(ranks), pt::integer(ranks)));
        const auto error = error_of_run(run);
        check_missing(error, {"more"});
        CHECK(error->message().size() < 8192);
    }
}

TEST_CASE("more model ranks than the file says are an older, larger run") {
    Run run = Forge::run(small(1));
    for (const std::string& name : {run.model_name(), run.optimizer_name(0), run.optimizer_name(1)}) {
        std::string other = name;
        other.replace(other.find("mp_rank_00"), 10, "mp_rank_01");
        run.files[other] = run.files.at(name);
    }
    const auto error = error_of_run(run);
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::world_mismatch);
    CHECK(error->message().find("mp_world_size says that the run has 1 model rank,") != std::string::npos);
}

TEST_CASE("files of model states of stage 3 are compared with dp_world_size") {
    const auto files = zero_files({"zero_pp_rank_0_mp_rank_00_model_states.pt"});
    ModelFile model{.file = "run/zero_pp_rank_0_mp_rank_00_model_states.pt"};
    CHECK_OK(distributed::require_ranked_models(model, files));
    model.data_ranks = 1;
    CHECK_OK(distributed::require_ranked_models(model, files));
    model.data_ranks = 3;
    const auto error = error_of([&] { distributed::require_ranked_models(model, files); });
    check_missing(error, {"zero_pp_rank_1_mp_rank_00_model_states.pt, zero_pp_rank_2_mp_rank_00_model_states.pt"});
    // Stages 1 and 2 have one file for all ranks.
    CHECK_OK(distributed::require_ranked_models(model, zero_files({"mp_rank_00_model_states.pt"})));
}

}  // namespace model_ranks_test
