// Opens DeepSpeed checkpoints with one fault each, one element, field or file away from a good one. Each is refused by
// its code, before anything is read, and the message names the file and what is wrong.
#include "distributed/zero_check.hpp"
#include "distributed/zero_forge.hpp"
#include "doctest_safemap.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero_faults_test {

using namespace safemap;
using zero_forge::Forge;
using zero_forge::Run;
using zero_forge::small;
using zero_forge::Spec;

namespace {

using Words = std::initializer_list<std::string_view>;
using Codes = std::initializer_list<Errc>;

std::optional<Error> error_of_files(const std::map<std::string, std::string>& files, const OpenOptions& options = {}) {
    const TempDir dir = TempDir::in_memory();
    for (const auto& [name, bytes] : files) {
        std::filesystem::create_directories((dir / name).parent_path());
        dir.write(name, bytes);
    }
    return error_of([&] { static_cast<void>(Checkpoint::open(dir.path(), options)); });
}

/// Checks that the error has one of the codes, and that its text has all words.
void check_error(const std::optional<Error>& error, Codes codes, Words words) {
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK_MESSAGE(std::find(codes.begin(), codes.end(), error->code()) != codes.end(),
                  std::string(name(error->code())).c_str());
    for (const std::string_view word : words) {
        CHECK_MESSAGE(std::string_view(error->what()).find(word) != std::string_view::npos, std::string(word).c_str());
    }
}

void refused(const Run& run, Codes codes, Words words) { check_error(error_of_files(run.packed()), codes, words); }
void refused(const Run& run, Errc code, Words words) { refused(run, {code}, words); }

/// Changes the number of elements of a flat tensor: the storage too, so that only the length tells.
void resize(pt::Value& flat, std::int64_t by) {
    const std::uint64_t count = flat.shape[0] + static_cast<std::uint64_t>(by);
    std::string bytes = flat.storage->bytes.substr(flat.offset * 4, flat.shape[0] * 4);
    bytes.resize(count * 4, '\1');
    flat = pt::tensor(Dtype::f32, {count}, std::move(bytes));
}

std::string masters_of(int stage) { return stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups"; }

/// A folder of the fault list in which all is well, so that a refusal is due to the fault.
Run good(int stage, std::uint64_t world = 3) { return Forge::run(small(stage, world)); }

const Codes length_codes = {Errc::not_covered, Errc::piece_mismatch, Errc::ranks_differ, Errc::piece_outside};

}  // namespace

TEST_CASE("the folders that the faults are made of are good") {
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        const auto error = error_of_files(good(stage).packed());
        CHECK_MESSAGE(!error.has_value(), std::string(error ? error->what() : "").c_str());
    }
}

TEST_CASE("missing files of ranks are named, all in one message") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage, 4);
        run.files.erase(run.optimizer_name(3));
        refused(run, Errc::rank_missing, {run.optimizer_name(3)});
        run.files.erase(run.optimizer_name(2));
        refused(run, Errc::rank_missing, {run.optimizer_name(2), run.optimizer_name(3)});
        run.files.erase(run.optimizer_name(0));
        refused(run, Errc::rank_missing, {run.optimizer_name(0)});
        run.files.erase(run.optimizer_name(1));
        refused(run, Errc::rank_missing, {});
    }
}

TEST_CASE("a missing model file is named") {
    for (const int stage : {1, 2}) {
        Run run = good(stage);
        run.files.erase(run.model_name());
        refused(run, Errc::rank_missing, {run.model_name()});
    }
    for (const std::uint64_t rank : {0U, 1U, 2U}) {
        Run run = good(3);
        run.files.erase(run.model_name(rank));
        refused(run, Errc::rank_missing, {run.model_name(rank)});
    }
}

TEST_CASE("the module needs no file of the optimizer") {
    Run run = good(2);
    for (const std::uint64_t rank : {0U, 1U, 2U}) run.files.erase(run.optimizer_name(rank));
    CHECK_FALSE(error_of_files(run.packed(), {.weights = Weights::module}).has_value());
}

TEST_CASE("two files for one rank") {
    for (const int stage : {2, 3}) {
        Run run = good(stage);
        const std::string second = run.optimizer_name(1).substr(std::string("bf16_").size());
        run.files[second] = run.optimizer_file(1);
        refused(run, Errc::rank_repeated, {second, run.optimizer_name(1)});
    }
}

TEST_CASE("the number of ranks: files, partition_count and the model file disagree") {
    for (const int stage : {1, 2, 3}) {
        for (const int by : {-1, 1}) {
            CAPTURE(stage);
            CAPTURE(by);
            Run run = good(stage);
            for (const std::uint64_t rank : {0U, 1U, 2U}) {
                pt::Value& count = run.state(rank)["partition_count"];
                const auto changed = static_cast<std::uint64_t>(3 + by);
                count = stage == 3 ? pt::integer(changed) : pt::integers({changed, changed});
            }
            refused(run, {Errc::world_mismatch, Errc::rank_missing}, {"rank", "3", std::to_string(3 + by)});
        }
    }
}

TEST_CASE("more files than ranks, left by an older and larger run") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        const Run older = good(stage, 5);
        for (const std::uint64_t rank : {3U, 4U})
            run.files[older.optimizer_name(rank)] = older.files.at(older.optimizer_name(rank));
        for (const std::uint64_t rank : {3U, 4U})
            if (stage == 3) run.files[older.model_name(rank)] = older.files.at(older.model_name(rank));
        refused(run, Errc::world_mismatch, {"5", "3"});
    }
}

TEST_CASE("partition_count of one rank differs") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        run.state(1)["partition_count"] = stage == 3 ? pt::integer(4) : pt::integers({4, 4});
        refused(run, {Errc::ranks_differ, Errc::world_mismatch}, {"partition_count"});
    }
}

TEST_CASE("stages are mixed") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        run.state(1)["zero_stage"] = pt::integer(static_cast<std::uint64_t>(stage % 3 + 1));
        refused(run, Errc::ranks_differ, {"stage", run.optimizer_name(1)});
    }
    Run run = good(2);
    run.state(1)["zero_stage"] = pt::integer(4);
    refused(run, {Errc::ranks_differ, Errc::unsupported_layout, Errc::field_missing}, {"stage"});
    run.state(1)["zero_stage"] = pt::raw(forge::global("deepspeed.runtime.zero.config", "ZeroStageEnum.fourth"));
    refused(run, Errc::field_missing, {"zero_stage"});
}

TEST_CASE("a partition is one element short or long, in any rank and group") {
    for (const int stage : {1, 2, 3}) {
        for (const std::uint64_t rank : {0U, 1U, 2U}) {
            for (const std::size_t group : {0U, 1U}) {
                for (const int by : {-1, 1}) {
                    CAPTURE(stage);
                    CAPTURE(rank);
                    CAPTURE(group);
                    CAPTURE(by);
                    Run run = good(stage);
                    pt::Value& flat = run.state(rank)[masters_of(stage)][group];
                    if (by < 0 && flat.shape[0] == 0) continue;
                    resize(flat, by);
                    refused(run, length_codes, {"elements", "optim_states.pt"});
                }
            }
        }
    }
}

TEST_CASE("a partition of BF16_Optimizer is one element short or long: its padding hides nothing") {
    Spec spec = small(1, 3);
    spec.bf16_optimizer = true;
    for (const std::uint64_t rank : {0U, 1U, 2U}) {
        for (const int by : {-1, 1}) {
            CAPTURE(rank);
            CAPTURE(by);
            Run run = Forge::run(spec);
            resize(run.state(rank)["single_partition_of_fp32_groups"][std::size_t{0}], by);
            refused(run, length_codes, {"elements"});
        }
    }
}

TEST_CASE("all partitions of a group are short") {
    for (const int stage : {2, 3}) {
        Run run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U}) {
            pt::Value& flat = run.state(rank)[masters_of(stage)][std::size_t{0}];
            resize(flat, -static_cast<std::int64_t>(flat.shape[0]) / 2);
        }
        refused(run, length_codes, {"elements"});
    }
}

TEST_CASE("a shape wants one row more or less than the partitions hold") {
    for (const int stage : {1, 2, 3}) {
        for (const std::uint64_t rows : {4U, 6U}) {
            CAPTURE(stage);
            CAPTURE(rows);
            Run run = good(stage);
            for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank)
                run.model(rank)["param_shapes"][std::size_t{0}]["embed.weight"] = pt::size({rows, 3});
            refused(run, length_codes, {"elements"});
        }
    }
}

TEST_CASE("a shape of more elements than 64 bits count") {
    for (const int stage : {2, 3}) {
        Run run = good(stage);
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank)
            run.model(rank)["param_shapes"][std::size_t{0}]["embed.weight"] =
                pt::size({std::uint64_t{1} << 40, std::uint64_t{1} << 40});
        refused(run, {Errc::shape_overflow, Errc::not_covered}, {"embed.weight"});
    }
    Run run = good(2);
    run.model()["param_shapes"][std::size_t{0}]["embed.weight"] = pt::size({std::uint64_t{1} << 62, 1});
    run.model()["param_shapes"][std::size_t{0}]["up.weight"] = pt::size({std::uint64_t{1} << 62, 3});
    refused(run, {Errc::shape_overflow, Errc::not_covered, Errc::piece_mismatch}, {});
    run.model()["param_shapes"][std::size_t{0}]["embed.weight"] = pt::size({std::uint64_t{1} << 62, 3});
    const auto error = error_of_files(run.packed());
    REQUIRE(error.has_value());
    CHECK(error->message() == "the total size of the parameters does not fit in 64 bits");
    CHECK(error->path().ends_with("mp_rank_00_model_states.pt"));
}

TEST_CASE("a shape with negative dimensions") {
    Run run = good(2);
    run.model()["param_shapes"][std::size_t{0}]["embed.weight"] =
        pt::raw(forge::call("torch", "Size", {forge::tuple({forge::integer(-5), forge::integer(-3)})}));
    CHECK(error_of_files(run.packed()).has_value());
}

TEST_CASE("ranks are swapped, and their paddings tell") {
    for (const int stage : {1, 2}) {
        CAPTURE(stage);
        Run run = good(stage, 2);
        std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
        refused(run, {Errc::ranks_differ, Errc::piece_mismatch, Errc::not_covered}, {"optim_states.pt"});
    }
}

TEST_CASE("ranks without padding are swapped, and the parameters that they name tell") {
    Spec spec = small(2, 2);
    spec.groups = {{{"a", {4}}, {"b", {2}}, {"c", {6}}}};
    spec.ties = {};
    Run run = Forge::run(spec);
    CHECK_FALSE(error_of_files(run.packed()).has_value());
    std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
    refused(run, {Errc::ranks_differ, Errc::piece_mismatch}, {"optim_states.pt"});
}

TEST_CASE("a rank is of another run") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        Spec other = small(stage, 3);
        other.groups[0][1].shape = {40, 3};
        run.optimizer_file(1) = Forge::run(other).optimizer_file(1);
        refused(run, length_codes, {run.optimizer_name(1)});

        other = small(stage, 3);
        other.groups.push_back({{"more", {3}}});
        run.optimizer_file(1) = Forge::run(other).optimizer_file(1);
        refused(run, Errc::ranks_differ, {run.optimizer_name(1), "group"});

        other = small(stage, 3);
        other.version = "0.19.7";
        run.optimizer_file(1) = Forge::run(other).optimizer_file(1);
        refused(run, Errc::ranks_differ, {run.optimizer_name(1), "0.19.7", "0.19.8"});
    }
}

TEST_CASE("model files of stage 3 contradict each other") {
    Run run = good(3);
    run.model(1)["param_shapes"][std::size_t{0}]["up.weight"] = pt::size({3, 4});
    refused(run, Errc::ranks_differ, {"up.weight", run.model_name(1)});
    run = good(3);
    run.model(2)["frozen_param_shapes"]["adapter.weight"] = pt::size({1, 9});
    refused(run, Errc::ranks_differ, {"adapter.weight", run.model_name(2)});
}

TEST_CASE("the number of groups contradicts the shapes") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U}) run.state(rank)[masters_of(stage)].items.pop_back();
        refused(run, {Errc::not_covered, Errc::piece_mismatch, Errc::ranks_differ, Errc::world_mismatch}, {"group"});
    }
}

TEST_CASE("a partition of another dtype, of two dimensions, or that is no tensor") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        pt::Value& flat = run.state(1)[masters_of(stage)][std::size_t{0}];
        const std::uint64_t count = flat.shape[0];
        flat = pt::tensor(Dtype::f64, {count}, std::string(count * 8, '\1'));
        refused(run, {Errc::piece_mismatch, Errc::ranks_differ}, {"F64", "F32"});
        run = good(stage);
        run.state(1)[masters_of(stage)][std::size_t{0}].shape = {count, 1};
        refused(run, {Errc::piece_mismatch, Errc::ranks_differ}, {run.optimizer_name(1)});
        run = good(stage);
        run.state(1)[masters_of(stage)][std::size_t{0}] = pt::integer(3);
        refused(run, {Errc::piece_mismatch, Errc::field_missing}, {run.optimizer_name(1), masters_of(stage)});
    }
}

TEST_CASE("a frozen parameter's slice is too short, missing, or of another dtype") {
    Run run = good(3);
    pt::Value& slice = run.model(1)["frozen_param_fragments"]["adapter.weight"];
    slice = pt::tensor(Dtype::bf16, {2}, "1234");
    refused(run, {Errc::piece_mismatch, Errc::not_covered, Errc::ranks_differ}, {"adapter.weight", run.model_name(1)});
    slice = pt::tensor(Dtype::f16, {3}, "123456");
    refused(run, {Errc::piece_mismatch, Errc::ranks_differ}, {"adapter.weight", run.model_name(1)});
    run.model(1)["frozen_param_fragments"].erase("adapter.weight");
    refused(run, {Errc::piece_mismatch, Errc::not_covered, Errc::ranks_differ, Errc::field_missing},
            {"adapter.weight", run.model_name(1)});
    run = good(3);
    for (const std::uint64_t rank : {0U, 1U, 2U}) run.model(rank)["frozen_param_shapes"].erase("adapter.weight");
    refused(run, Errc::field_missing, {"frozen_param_shapes", "adapter.weight"});
    run = good(2);
    run.model()["frozen_param_shapes"]["adapter.weight"] = pt::size({3, 4});
    refused(run, {Errc::piece_mismatch, Errc::not_covered}, {"adapter.weight"});
}

TEST_CASE("a field is missing") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        run.state(1).erase(masters_of(stage));
        refused(run, Errc::field_missing, {masters_of(stage), run.optimizer_name(1)});
        run = good(stage);
        run.optimizer_file(2).erase("optimizer_state_dict");
        refused(run, Errc::field_missing, {"optimizer_state_dict", run.optimizer_name(2)});
        run = good(stage);
        run.model().erase("param_shapes");
        refused(run, {Errc::field_missing, Errc::ranks_differ}, {"param_shapes", run.model_name()});
        run = good(stage);
        run.state(1).erase("partition_count");
        refused(run, {Errc::field_missing, Errc::ranks_differ, Errc::world_mismatch},
                {"partition_count", run.optimizer_name(1)});
    }
}

TEST_CASE("gaps that contradict the parameters") {
    Spec spec = small(2, 2);
    spec.alignment = 8;
    const Run aligned = Forge::run(spec);
    Run run = aligned;
    for (const std::uint64_t rank : {0U, 1U})
        run.state(rank)["param_alignment_paddings"][std::size_t{0}].items.pop_back();
    refused(run, {Errc::piece_mismatch, Errc::field_missing, Errc::ranks_differ}, {"param_alignment_paddings"});
    run = aligned;
    for (const std::uint64_t rank : {0U, 1U})
        run.state(rank)["param_alignment_paddings"][std::size_t{0}][std::size_t{0}] = pt::integer(1U << 30);
    refused(run, {Errc::piece_mismatch, Errc::not_covered}, {"elements"});
    run = aligned;
    run.state(1)["param_alignment_paddings"][std::size_t{0}][std::size_t{0}] = pt::integer(5);
    refused(run, Errc::ranks_differ, {"param_alignment_paddings", run.optimizer_name(1)});
}

TEST_CASE("latest names no tag of the folder") {
    const std::vector<std::string> tags = {"global_step8",
                                           "..",
                                           ".",
                                           "",
                                           "\n",
                                           "/",
                                           "global_step7/",
                                           "../run",
                                           "/etc",
                                           "global_step7\nglobal_step7",
                                           std::string("global_step7\0x", 14)};
    for (const std::string& tag : tags) {
        CAPTURE(tag);
        Run run = good(2);
        run.latest = tag;
        refused(run, Errc::bad_tag, {"latest"});
    }
    Run run = good(2);
    run.latest = " global_step7 \r\n";
    CHECK_FALSE(error_of_files(run.packed()).has_value());
}

TEST_CASE("several tags, and no latest") {
    Run run = good(2);
    auto files = run.packed();
    run.spec.tag = "global_step8";
    for (auto& [name, bytes] : run.packed()) files[name] = bytes;
    files.erase("latest");
    check_error(error_of_files(files), {Errc::bad_tag}, {"latest", "global_step7", "global_step8"});
}

TEST_CASE("latest names a tag of which only other files are there") {
    Run run = good(2);
    run.files.clear();
    run.others["global_step7/notes.txt"] = "x";
    check_error(error_of_files(run.packed()), {Errc::rank_missing}, {"mp_rank_00_model_states.pt"});
}

TEST_CASE("latest names a tag that is missing, and there is no other") {
    Run run = good(2);
    run.files.clear();
    run.others["zero_to_fp32.py"] = "x";
    for (const char* const tag : {"global_step7", "../run", ""}) {
        CAPTURE(tag);
        run.latest = tag;
        check_error(error_of_files(run.packed()), {Errc::bad_tag}, {"latest"});
    }
}

TEST_CASE("AutoEP is refused by name, and its keys without layers mean nothing") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        for (const std::string key : {"ds_autoep_layers", "autoep_layers"}) {
            CAPTURE(key);
            Run run = good(stage);
            for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank) run.model(rank).set(key, pt::list());
            CHECK_FALSE(error_of_files(run.packed()).has_value());
            for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank)
                run.model(rank)[key].push(pt::dict({{"checkpoint_format", pt::text("zero3_partitioned")}}));
            refused(run, Errc::unsupported_layout, {"AutoEP"});
        }
    }
    Run run = good(3);
    for (const std::uint64_t rank : {0U, 1U, 2U})
        run.state(rank).set("ds_zero_partition_groups",
                            pt::list({pt::dict({{"sub_group", pt::integer(1)}, {"partition_count", pt::integer(1)}})}));
    refused(run, Errc::unsupported_layout, {"AutoEP"});
}

TEST_CASE("partitions that lie in swap files") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U})
            for (const std::size_t group : {0U, 1U})
                run.state(rank)[masters_of(stage)][group] = pt::tensor(Dtype::f32, {0}, {});
        run.others["global_step7/offloaded_tensors/rank00/0_1_param.tensor.swp"] = "x";
        refused(run, Errc::unsupported_layout, {"offloaded_tensors"});
    }
}

TEST_CASE("a call that would run code, in a key that is read and in one that is not") {
    const std::string call = forge::call("os", "system", {forge::text("true")});
    for (const int stage : {0, 2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        run.model()["note"] = pt::raw(call);
        refused(run, Errc::unsafe_call, {"os", "system", run.model_name()});
        run = good(stage);
        run.model().set("ds_version", pt::raw(call));
        refused(run, Errc::unsafe_call, {run.model_name()});
        if (stage == 0) continue;
        run = good(stage);
        run.state(1)["overflow"] = pt::raw(call);
        refused(run, Errc::unsafe_call, {run.optimizer_name(1)});
        run = good(stage);
        run.state(2)["zero_stage"] = pt::raw(call);
        refused(run, Errc::unsafe_call, {run.optimizer_name(2)});
    }
}

TEST_CASE("a file that ends early, is empty, or is no file of torch") {
    for (const int stage : {2, 3}) {
        for (const pt::Container container : {pt::Container::zip, pt::Container::legacy}) {
            CAPTURE(stage);
            Spec spec = small(stage, 3);
            spec.container = container;
            const Run run = Forge::run(spec);
            const std::string file = spec.tag + "/" + run.optimizer_name(1);
            const auto whole = run.packed();
            for (const std::size_t part : {0U, 1U, 2U, 3U}) {
                CAPTURE(part);
                auto files = whole;
                files[file].resize(files[file].size() * part / 4);
                const auto error = error_of_files(files);
                REQUIRE(error.has_value());
                INFO(std::string(error->what()));
                CHECK(remedy(error->code()) == Remedy::reject_data);
                CHECK(std::string(error->what()).find(run.optimizer_name(1)) != std::string::npos);
            }
            auto files = whole;
            files[file].pop_back();
            CHECK(error_of_files(files).has_value());
            files[file] = "not a checkpoint";
            check_error(error_of_files(files), {Errc::unsupported_layout, Errc::pickle_bad_opcode},
                        {run.optimizer_name(1)});
        }
    }
}

TEST_CASE("one state of the optimizer is of another length, or one rank lacks it: only the optimizer is refused") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        const std::string base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
        Run run = good(stage);
        resize(run.state(1)[base]["state"]["0"]["exp_avg"], 1);
        TempDir dir = TempDir::in_memory();
        run.write(dir.path());
        CHECK_OK(Checkpoint::open(dir.path()));
        const auto error = error_of([&] { static_cast<void>(Checkpoint::open(dir.path()).optimizer()); });
        check_error(error, length_codes, {"exp_avg", run.optimizer_name(1)});

        run = good(stage);
        run.state(1)[base]["state"]["0"].erase("exp_avg_sq");
        run.write(dir.path());
        CHECK_OK(Checkpoint::open(dir.path()));
        check_error(error_of([&] { static_cast<void>(Checkpoint::open(dir.path()).optimizer()); }),
                    {Errc::ranks_differ, Errc::field_missing, Errc::not_covered}, {"exp_avg_sq"});
    }
}

TEST_CASE("a moment is of another length, and no other rank has it") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        const std::string base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
        for (const char* const moment : {"exp_avg", "exp_avg_sq"})
            for (const int more : {-2, 1}) {  // the padding is one element, and may be stripped
                Run run = Forge::run(small(stage, 1));
                resize(run.state(0)[base]["state"]["0"][moment], more);
                TempDir dir = TempDir::in_memory();
                run.write(dir.path());
                CHECK_OK(Checkpoint::open(dir.path()));
                const auto error = error_of([&] { static_cast<void>(Checkpoint::open(dir.path()).optimizer()); });
                check_error(error, length_codes, {moment, run.optimizer_name(0)});
            }
    }
}

TEST_CASE("numbers that no checkpoint has take neither memory nor time") {
    const std::uint64_t huge = std::uint64_t{1} << 40;
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U})
            run.state(rank)["partition_count"] = stage == 3 ? pt::integer(huge) : pt::integers({huge, huge});
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank)
            run.model(rank)["dp_world_size"] = pt::integer(huge);
        refused(run, {Errc::rank_missing, Errc::world_mismatch, Errc::field_missing}, {});

        run = good(stage);
        run.files["bf16_zero_pp_rank_16000000_mp_rank_00_optim_states.pt"] = run.optimizer_file(0);
        refused(run, {Errc::rank_missing, Errc::world_mismatch}, {});
        run = good(stage);
        run.files["bf16_zero_pp_rank_0_mp_rank_16000000_optim_states.pt"] = run.optimizer_file(0);
        refused(run, {Errc::rank_missing, Errc::world_mismatch}, {});
        run = good(stage);
        run.files["bf16_zero_pp_rank_00_mp_rank_00_optim_states.pt"] = run.optimizer_file(0);
        refused(run, Errc::rank_repeated, {"bf16_zero_pp_rank_00_mp_rank_00_optim_states.pt"});
    }
    for (const std::string_view field : {"group_paddings", "param_alignment_paddings"}) {
        for (const std::uint64_t number : {huge, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
            CAPTURE(field);
            CAPTURE(number);
            Run run = good(2);
            for (const std::uint64_t rank : {0U, 1U, 2U}) {
                pt::Value& numbers = run.state(rank)[field][std::size_t{0}];
                (numbers.kind == pt::Value::Kind::list ? numbers[std::size_t{0}] : numbers) = pt::integer(number);
            }
            CHECK(error_of_files(run.packed()).has_value());
        }
    }
}

TEST_CASE("two groups name one parameter") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = good(stage);
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 3U : 1U); ++rank) {
            pt::Value& group = run.model(rank)["param_shapes"][std::size_t{1}];
            group.keys[0] = "embed.weight";
        }
        CHECK(error_of_files(run.packed()).has_value());
    }
}

TEST_CASE("ties that lead nowhere, to themselves or in a circle are passed by") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Spec spec = small(stage);
        spec.ties = {};
        Run run = Forge::run(spec);
        pt::Value& shared = run.model()["shared_params"];
        for (const auto& [second, first] : std::initializer_list<std::pair<std::string, std::string>>{
                 {"nowhere", "missing"}, {"self", "self"}, {"one", "two"}, {"two", "one"}, {"gain", "up.bias"}})
            shared.set(second, pt::text(first));
        const TempDir dir = TempDir::in_memory();
        run.write(dir.path());
        const Checkpoint checkpoint = Checkpoint::open(dir.path());
        for (const auto& [name, tensor] : Forge::weights(spec))
            if (name != "gain") zero_forge::check_tensor(checkpoint, name, tensor);
        for (const char* const name : {"nowhere", "self", "one", "two"}) CHECK(checkpoint.find(name) == nullptr);
    }
}

TEST_CASE("the optimizer file of another step is refused, whether steps are tensors or numbers") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        const char* const base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
        Run run = good(stage);
        const auto other = forge::little(std::bit_cast<std::uint32_t>(8.0F), 4);
        run.state(1)[base]["state"]["0"]["step"] = pt::tensor(Dtype::f32, {}, other);
        refused(run, Errc::ranks_differ, {"step", "8", "7", run.optimizer_name(1)});
        run.state(1)[base]["state"]["0"]["step"] = pt::integer(6);
        refused(run, Errc::ranks_differ, {"step", "6", "7", run.optimizer_name(1)});
        run.state(1)[base]["state"]["0"]["step"] = pt::integer(7);
        CHECK_FALSE(error_of_files(run.packed()).has_value());
    }
}

TEST_CASE("lists of the optimizer that are shorter than the groups, or no lists") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        const std::string base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
        const auto opens_or_is_refused = [](const Run& run) {
            const TempDir dir = TempDir::in_memory();
            run.write(dir.path());
            const auto error = error_of([&] {
                const Checkpoint checkpoint = Checkpoint::open(dir.path());
                if (const auto optimizer = checkpoint.optimizer())
                    for (const LazyTensor& tensor : *optimizer) static_cast<void>(tensor.load());
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
        };
        Run run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U}) run.state(rank)[base]["state"].erase("1");
        opens_or_is_refused(run);
        for (const std::uint64_t rank : {0U, 1U, 2U}) run.state(rank)[base]["state"].erase("0");
        opens_or_is_refused(run);
        run.state(1)[base] = pt::integer(3);
        opens_or_is_refused(run);
        run = good(stage);
        for (const std::uint64_t rank : {0U, 1U, 2U}) run.state(rank)[base]["param_groups"] = pt::text("none");
        opens_or_is_refused(run);
        for (const std::uint64_t rank : {0U, 1U, 2U}) run.state(rank).erase(base);
        opens_or_is_refused(run);
    }
}

}  // namespace zero_faults_test
