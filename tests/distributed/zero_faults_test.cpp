// Opens DeepSpeed checkpoints with one fault each, one element, field or file away from a good one. Each is refused by
// its code, before anything is read, and the message names the file and what is wrong.
#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zero.hpp"

#include <bit>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace zero_faults_test {

using namespace safemap;
using namespace std::string_literals;
using zero_forge::check_fault;
using zero_forge::check_optimizer_fault;
using zero_forge::check_refused;
using zero_forge::Forge;
using zero_forge::Opened;
using zero_forge::refusal;
using zero_forge::refusal_of_files;
using zero_forge::resize;
using zero_forge::Run;
using zero_forge::small;
using zero_forge::Spec;

namespace {

/// A folder of the fault list in which all is well, so that a refusal is due to the fault.
Run good(int stage, std::uint64_t world = 3) { return Forge::run(small(stage, world)); }

const std::vector<int> every = {1, 2, 3};
const Codes length_codes = {Errc::not_covered, Errc::piece_mismatch, Errc::ranks_differ, Errc::piece_outside};

/// Sets what all ranks say of the number of ranks.
void set_partition_count(Run& run, std::uint64_t count) {
    run.each_state([&](pt::Value& state) {
        state["partition_count"] = run.spec.stage == 3 ? pt::integer(count) : pt::integers({count, count});
    });
}

/// Sets the shape that all ranks say of a weight of the first group.
void set_shape(Run& run, const Shape& shape) {
    run.each_model([&](pt::Value& file) { file["param_shapes"][0]["embed.weight"] = pt::size(shape); });
}

void swap_optimizers(Run& run) { std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]); }

/// Puts the optimizer file of rank 1 of another run in.
template <class Change> void replace_rank(Run& run, Change&& change) {
    Spec other = small(run.spec.stage, 3);
    change(other);
    run.optimizer_file(1) = Forge::run(other).optimizer_file(1);
}

pt::Value attack() { return pt::raw(forge::call("os", "system", {forge::text("true")})); }

}  // namespace

TEST_CASE("the folders that the faults are made of are good") {
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        CHECK_OK(Opened(good(stage)));
    }
    Run run = good(2);
    run.latest = " global_step7 \r\n";
    CHECK_OK(Opened(run));
    // The module needs no file of the optimizer.
    for (const std::uint64_t rank : {0U, 1U, 2U}) run.files.erase(run.optimizer_name(rank));
    CHECK_OK(Opened(run, {.weights = Weights::module}));
}

TEST_CASE("missing files of ranks are named, all in one message") {
    for (const int stage : every) {
        CAPTURE(stage);
        Run run = good(stage, 4);
        Words missing;
        for (const std::uint64_t rank : {3U, 2U, 0U, 1U}) {
            run.files.erase(run.optimizer_name(rank));
            if (rank >= 2) missing.push_back(run.optimizer_name(rank));
            check_refused(run, {Errc::rank_missing},
                          rank == 0   ? Words{"<optimizer 0>"}
                          : rank == 1 ? Words{}
                                      : missing);
        }
    }
    check_fault("the model file is missing", {1, 2, 3}, {Errc::rank_missing}, {"<model 0>"},
                [](Run& run) { run.files.erase(run.model_name()); });
    check_fault("the model file of rank 1 is missing", {3}, {Errc::rank_missing}, {"<model 1>"},
                [](Run& run) { run.files.erase(run.model_name(1)); });
    check_fault("the model file of rank 2 is missing", {3}, {Errc::rank_missing}, {"<model 2>"},
                [](Run& run) { run.files.erase(run.model_name(2)); });
}

TEST_CASE("files of too many ranks, or of other runs") {
    check_fault("two files for one rank", {2, 3}, {Errc::rank_repeated},
                {" zero_pp_rank_1_mp_rank_00_optim_states.pt", "<optimizer 1>"},
                [](Run& run) { run.files[run.optimizer_name(1).substr(5)] = run.optimizer_file(1); });
    check_fault("partition_count is one rank less", every, {Errc::world_mismatch, Errc::rank_missing},
                {"rank", "3", "2"}, [](Run& run) { set_partition_count(run, 2); });
    check_fault("partition_count is one rank more", every, {Errc::world_mismatch, Errc::rank_missing},
                {"rank", "3", "4"}, [](Run& run) { set_partition_count(run, 4); });
    check_fault("files that an older and larger run left", every, {Errc::world_mismatch}, {"5", "3"}, [](Run& run) {
        Run older = good(run.spec.stage, 5);
        for (const std::uint64_t rank : {3U, 4U}) {
            run.files[older.optimizer_name(rank)] = older.optimizer_file(rank);
            if (run.spec.stage == 3) run.files[older.model_name(rank)] = older.model(rank);
        }
    });
    check_fault("partition_count of one rank differs", {2, 3}, {Errc::ranks_differ, Errc::world_mismatch},
                {"partition_count"}, [](Run& run) {
                    run.state(1)["partition_count"] = run.spec.stage == 3 ? pt::integer(4) : pt::integers({4, 4});
                });
    check_fault("stages are mixed", every, {Errc::ranks_differ}, {"stage", "<optimizer 1>"}, [](Run& run) {
        run.state(1)["zero_stage"] = pt::integer(static_cast<std::uint64_t>(run.spec.stage % 3 + 1));
    });
    check_fault("a stage that does not exist", {2}, {Errc::ranks_differ, Errc::unsupported_layout, Errc::field_missing},
                {"stage"}, [](Run& run) { run.state(1)["zero_stage"] = pt::integer(4); });
    check_fault("a stage by a name that does not exist", {2}, {Errc::field_missing}, {"zero_stage"}, [](Run& run) {
        run.state(1)["zero_stage"] = pt::raw(forge::global("deepspeed.runtime.zero.config", "ZeroStageEnum.fourth"));
    });
    check_fault("a rank of a run with another shape", every, length_codes, {"<optimizer 1>"}, [](Run& run) {
        replace_rank(run, [](Spec& spec) { spec.groups[0][1].shape = {40, 3}; });
    });
    check_fault("a rank of a run with one more group", every, {Errc::ranks_differ}, {"<optimizer 1>", "group"},
                [](Run& run) { replace_rank(run, [](Spec& spec) {
                                   spec.groups.push_back({{"more", {3}}});
                               }); });
    check_fault("a rank of a run of another version", every, {Errc::ranks_differ},
                {"<optimizer 1>", "0.19.7", "0.19.8"},
                [](Run& run) { replace_rank(run, [](Spec& spec) { spec.version = "0.19.7"; }); });
    check_fault("model files contradict each other", {3}, {Errc::ranks_differ}, {"up.weight", "<model 1>"},
                [](Run& run) {
                    run.model(1)["param_shapes"][0]["up.weight"] = pt::size({3, 4});
                });
    check_fault("model files contradict each other on a frozen weight", {3}, {Errc::ranks_differ},
                {"adapter.weight", "<model 2>"}, [](Run& run) {
                    run.model(2)["frozen_param_shapes"]["adapter.weight"] = pt::size({1, 9});
                });
    check_fault("the step of a rank, a tensor, is another", {2, 3}, {Errc::ranks_differ},
                {"step", "8", "7", "<optimizer 1>"}, [](Run& run) {
                    const auto other = forge::little(std::bit_cast<std::uint32_t>(8.0F), 4);
                    run.moments(1)["step"] = pt::tensor(Dtype::f32, {}, other);
                });
    check_fault("the step of a rank, a number, is another", {2, 3}, {Errc::ranks_differ},
                {"step", "6", "7", "<optimizer 1>"}, [](Run& run) { run.moments(1)["step"] = pt::integer(6); });
    for (const int stage : {2, 3}) {
        Run run = good(stage);
        run.moments(1)["step"] = pt::integer(7);
        CHECK_OK(Opened(run));
    }
}

TEST_CASE("ranks are swapped, and their paddings or the parameters that they name tell") {
    check_fault("ranks with padding are swapped", {1, 2}, {Errc::ranks_differ, Errc::piece_mismatch, Errc::not_covered},
                {"optim_states.pt"}, swap_optimizers, 2);
    Spec spec = small(2, 2);
    spec.groups = {{{"a", {4}}, {"b", {2}}, {"c", {6}}}};
    spec.ties = {};
    Run run = Forge::run(spec);
    CHECK_OK(Opened(run));
    swap_optimizers(run);
    check_refused(run, {Errc::ranks_differ, Errc::piece_mismatch}, {"optim_states.pt"});
}

TEST_CASE("a partition is one element short or long, in any rank and group") {
    for (const int stage : every)
        for (const std::uint64_t rank : {0U, 1U, 2U})
            for (const std::size_t group : {0U, 1U})
                for (const int by : {-1, 1}) {
                    CAPTURE(stage);
                    CAPTURE(rank);
                    CAPTURE(group);
                    CAPTURE(by);
                    Run run = good(stage);
                    pt::Value& flat = run.masters(rank)[group];
                    if (by < 0 && flat.shape[0] == 0) continue;
                    resize(flat, by);
                    check_refused(run, length_codes, {"elements", "optim_states.pt"});
                }
}

TEST_CASE("a partition of BF16_Optimizer is one element short or long: its padding hides nothing") {
    Spec spec = small(1, 3);
    spec.bf16_optimizer = true;
    for (const std::uint64_t rank : {0U, 1U, 2U})
        for (const int by : {-1, 1}) {
            CAPTURE(rank);
            CAPTURE(by);
            Run run = Forge::run(spec);
            resize(run.masters(rank)[0], by);
            check_refused(run, length_codes, {"elements"});
        }
}

TEST_CASE("partitions and shapes that do not fit each other") {
    check_fault("all partitions of a group are short", {2, 3}, length_codes, {"elements"}, [](Run& run) {
        for (const std::uint64_t rank : {0U, 1U, 2U}) {
            pt::Value& flat = run.masters(rank)[0];
            resize(flat, -static_cast<std::int64_t>(flat.shape[0]) / 2);
        }
    });
    check_fault("a shape wants one row less", every, length_codes, {"elements"}, [](Run& run) {
        set_shape(run, {4, 3});
    });
    check_fault("a shape wants one row more", every, length_codes, {"elements"}, [](Run& run) {
        set_shape(run, {6, 3});
    });
    check_fault("a shape of more elements than 64 bits count", {2, 3}, {Errc::shape_overflow, Errc::not_covered},
                {"embed.weight"}, [](Run& run) {
                    set_shape(run, {std::uint64_t{1} << 40, std::uint64_t{1} << 40});
                });
    check_fault("shapes of more elements than 64 bits count, together", {2},
                {Errc::shape_overflow, Errc::not_covered, Errc::piece_mismatch}, {}, [](Run& run) {
                    set_shape(run, {std::uint64_t{1} << 62, 1});
                    run.model()["param_shapes"][0]["up.weight"] = pt::size({std::uint64_t{1} << 62, 3});
                });
    check_fault("the number of groups contradicts the shapes", {2, 3},
                {Errc::not_covered, Errc::piece_mismatch, Errc::ranks_differ, Errc::world_mismatch}, {"group"},
                [](Run& run) {
                    for (const std::uint64_t rank : {0U, 1U, 2U}) run.masters(rank).items.pop_back();
                });
    check_fault("a partition of another dtype", {2, 3}, {Errc::piece_mismatch, Errc::ranks_differ}, {"F64", "F32"},
                [](Run& run) {
                    pt::Value& flat = run.masters(1)[0];
                    flat = pt::tensor(Dtype::f64, {flat.shape[0]}, std::string(flat.shape[0] * 8, '\1'));
                });
    check_fault("a partition of two dimensions", {2, 3}, {Errc::piece_mismatch, Errc::ranks_differ}, {"<optimizer 1>"},
                [](Run& run) { run.masters(1)[0].shape.push_back(1); });
    check_fault("a partition that is no tensor", {2}, {Errc::piece_mismatch, Errc::field_missing},
                {"<optimizer 1>", "single_partition_of_fp32_groups"},
                [](Run& run) { run.masters(1)[0] = pt::integer(3); });
    check_fault("a partition that is no tensor", {3}, {Errc::piece_mismatch, Errc::field_missing},
                {"<optimizer 1>", "fp32_flat_groups"}, [](Run& run) { run.masters(1)[0] = pt::integer(3); });
    check_fault("a frozen slice that is too short", {3}, {Errc::piece_mismatch, Errc::not_covered, Errc::ranks_differ},
                {"adapter.weight", "<model 1>"}, [](Run& run) {
                    run.model(1)["frozen_param_fragments"]["adapter.weight"] = pt::tensor(Dtype::bf16, {2}, "1234");
                });
    check_fault("a frozen slice of another dtype", {3}, {Errc::piece_mismatch, Errc::ranks_differ},
                {"adapter.weight", "<model 1>"}, [](Run& run) {
                    run.model(1)["frozen_param_fragments"]["adapter.weight"] = pt::tensor(Dtype::f16, {3}, "123456");
                });
    check_fault("a frozen slice that is missing", {3},
                {Errc::piece_mismatch, Errc::not_covered, Errc::ranks_differ, Errc::field_missing},
                {"adapter.weight", "<model 1>"},
                [](Run& run) { run.model(1)["frozen_param_fragments"].erase("adapter.weight"); });
    check_fault(
        "a frozen shape that is missing", {3}, {Errc::field_missing}, {"frozen_param_shapes", "adapter.weight"},
        [](Run& run) { run.each_model([](pt::Value& file) { file["frozen_param_shapes"].erase("adapter.weight"); }); });
    check_fault("a frozen shape that is not that of the weight", {2}, {Errc::piece_mismatch, Errc::not_covered},
                {"adapter.weight"}, [](Run& run) {
                    run.model()["frozen_param_shapes"]["adapter.weight"] = pt::size({3, 4});
                });
    Run run = good(2);
    set_shape(run, {std::uint64_t{1} << 62, 3});
    run.model()["param_shapes"][0]["up.weight"] = pt::size({std::uint64_t{1} << 62, 3});
    const auto error = refusal(run);
    REQUIRE(error.has_value());
    CHECK(error->message() == "the total size of the parameters does not fit in 64 bits");
    CHECK(error->path().ends_with("mp_rank_00_model_states.pt"));
}

TEST_CASE("shapes that are refused by one code or another") {
    Run run = good(2);
    run.model()["param_shapes"][0]["embed.weight"] = pt::raw(forge::call("torch", "Size", {forge::numbers({-5, -3})}));
    CHECK(refusal(run).has_value());
    // Two groups name one parameter.
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        run = good(stage);
        run.each_model([](pt::Value& file) { file["param_shapes"][1].keys[0] = "embed.weight"; });
        CHECK(refusal(run).has_value());
    }
}

TEST_CASE("a field is missing") {
    check_fault("the masters", {1, 2}, {Errc::field_missing}, {"single_partition_of_fp32_groups", "<optimizer 1>"},
                [](Run& run) { run.state(1).erase("single_partition_of_fp32_groups"); });
    check_fault("the masters", {3}, {Errc::field_missing}, {"fp32_flat_groups", "<optimizer 1>"},
                [](Run& run) { run.state(1).erase("fp32_flat_groups"); });
    check_fault("the state of the optimizer", every, {Errc::field_missing}, {"optimizer_state_dict", "<optimizer 2>"},
                [](Run& run) { run.optimizer_file(2).erase("optimizer_state_dict"); });
    check_fault("param_shapes", every, {Errc::field_missing, Errc::ranks_differ}, {"param_shapes", "<model 0>"},
                [](Run& run) { run.model().erase("param_shapes"); });
    check_fault("partition_count", every, {Errc::field_missing, Errc::ranks_differ, Errc::world_mismatch},
                {"partition_count", "<optimizer 1>"}, [](Run& run) { run.state(1).erase("partition_count"); });
}

TEST_CASE("gaps that contradict the parameters") {
    const auto refused = [](const char* fault, const Codes& codes, const Words& words, void (*inflict)(Run&)) {
        CAPTURE(fault);
        Spec spec = small(2, 2);
        spec.alignment = 8;
        Run run = Forge::run(spec);
        inflict(run);
        check_refused(run, codes, words);
    };
    refused("a gap is missing", {Errc::piece_mismatch, Errc::field_missing, Errc::ranks_differ},
            {"param_alignment_paddings"}, [](Run& run) {
                run.each_state([](pt::Value& state) { state["param_alignment_paddings"][0].items.pop_back(); });
            });
    refused("a gap is very long", {Errc::piece_mismatch, Errc::not_covered}, {"elements"}, [](Run& run) {
        run.each_state([](pt::Value& state) { state["param_alignment_paddings"][0][0] = pt::integer(1U << 30); });
    });
    refused("a gap of one rank differs", {Errc::ranks_differ}, {"param_alignment_paddings", "<optimizer 1>"},
            [](Run& run) { run.state(1)["param_alignment_paddings"][0][0] = pt::integer(5); });
}

TEST_CASE("latest names no tag of the folder") {
    for (const std::string& tag : {"global_step8"s, ".."s, "."s, ""s, "\n"s, "/"s, "global_step7/"s, "../run"s, "/etc"s,
                                   "global_step7\nglobal_step7"s, "global_step7\0x"s}) {
        CAPTURE(tag);
        Run run = good(2);
        run.latest = tag;
        check_refused(run, {Errc::bad_tag}, {"latest"});
    }
    // There is no other tag, either.
    Run none = good(2);
    none.files.clear();
    none.others["zero_to_fp32.py"] = "x";
    for (const char* const tag : {"global_step7", "../run", ""}) {
        CAPTURE(tag);
        none.latest = tag;
        check_refused(none, {Errc::bad_tag}, {"latest"});
    }
    none.others = {{"global_step7/notes.txt", "x"}};
    none.latest = "global_step7";
    check_refused(none, {Errc::rank_missing}, {"mp_rank_00_model_states.pt"});
    // Several tags, and no latest.
    Run run = good(2);
    auto files = run.packed();
    run.spec.tag = "global_step8";
    for (auto& [name, bytes] : run.packed()) files[name] = bytes;
    files.erase("latest");
    zero_forge::check_text(refusal_of_files(files), {Errc::bad_tag}, {"latest", "global_step7", "global_step8"});
}

TEST_CASE("AutoEP is refused by name, and its keys without layers mean nothing") {
    for (const int stage : {2, 3})
        for (const std::string key : {"ds_autoep_layers", "autoep_layers"}) {
            CAPTURE(stage);
            CAPTURE(key);
            Run run = good(stage);
            run.each_model([&](pt::Value& file) { file.set(key, pt::list()); });
            CHECK_OK(Opened(run));
            run.each_model([&](pt::Value& file) {
                file[key].push(pt::dict({{"checkpoint_format", pt::text("zero3_partitioned")}}));
            });
            check_refused(run, {Errc::unsupported_layout}, {"AutoEP"});
        }
}

TEST_CASE("layouts that are not read, and calls that would run code, in a key that is read and in one that is not") {
    check_fault("partitions of AutoEP", {3}, {Errc::unsupported_layout}, {"AutoEP"}, [](Run& run) {
        run.each_state([](pt::Value& state) {
            state.set("ds_zero_partition_groups",
                      pt::list({pt::dict({{"sub_group", pt::integer(1)}, {"partition_count", pt::integer(1)}})}));
        });
    });
    check_fault("partitions that lie in swap files", {2, 3}, {Errc::unsupported_layout}, {"offloaded_tensors"},
                [](Run& run) {
                    for (const std::uint64_t rank : {0U, 1U, 2U})
                        for (pt::Value& flat : run.masters(rank).items) flat = pt::tensor(Dtype::f32, {0}, {});
                    run.others["global_step7/offloaded_tensors/rank00/0_1_param.tensor.swp"] = "x";
                });
    check_fault("a call in a note", {0, 2, 3}, {Errc::unsafe_call}, {"os", "system", "<model 0>"},
                [](Run& run) { run.model()["note"] = attack(); });
    check_fault("a call in the version", {0, 2, 3}, {Errc::unsafe_call}, {"<model 0>"},
                [](Run& run) { run.model().set("ds_version", attack()); });
    check_fault("a call in an optimizer", {2, 3}, {Errc::unsafe_call}, {"<optimizer 1>"},
                [](Run& run) { run.state(1)["overflow"] = attack(); });
    check_fault("a call in the stage", {2, 3}, {Errc::unsafe_call}, {"<optimizer 2>"},
                [](Run& run) { run.state(2)["zero_stage"] = attack(); });
}

TEST_CASE("a file that ends early, is empty, or is no file of torch") {
    for (const int stage : {2, 3})
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
                const auto error = refusal_of_files(files);
                REQUIRE(error.has_value());
                INFO(std::string(error->what()));
                CHECK(remedy(error->code()) == Remedy::reject_data);
                CHECK(std::string(error->what()).find(run.optimizer_name(1)) != std::string::npos);
            }
            auto files = whole;
            files[file].pop_back();
            CHECK(refusal_of_files(files).has_value());
            files[file] = "not a checkpoint";
            zero_forge::check_text(refusal_of_files(files), {Errc::unsupported_layout, Errc::pickle_bad_opcode},
                                   {run.optimizer_name(1)});
        }
}

TEST_CASE("states of the optimizer that do not fit: only the optimizer is refused") {
    check_optimizer_fault("one state of one rank is of another length", every, length_codes,
                          {"exp_avg", "<optimizer 1>"}, [](Run& run) { resize(run.moments(1)["exp_avg"], 1); });
    check_optimizer_fault("one rank lacks a state", every, {Errc::ranks_differ, Errc::field_missing, Errc::not_covered},
                          {"exp_avg_sq"}, [](Run& run) { run.moments(1).erase("exp_avg_sq"); });
    // No other rank has it. The padding is one element, and may be stripped.
    check_optimizer_fault(
        "exp_avg is two elements short", every, length_codes, {"exp_avg", "<optimizer 0>"},
        [](Run& run) { resize(run.moments(0)["exp_avg"], -2); }, 1);
    check_optimizer_fault(
        "exp_avg is one element long", every, length_codes, {"exp_avg", "<optimizer 0>"},
        [](Run& run) { resize(run.moments(0)["exp_avg"], 1); }, 1);
    check_optimizer_fault(
        "exp_avg_sq is two elements short", every, length_codes, {"exp_avg_sq", "<optimizer 0>"},
        [](Run& run) { resize(run.moments(0)["exp_avg_sq"], -2); }, 1);
    check_optimizer_fault(
        "exp_avg_sq is one element long", every, length_codes, {"exp_avg_sq", "<optimizer 0>"},
        [](Run& run) { resize(run.moments(0)["exp_avg_sq"], 1); }, 1);
}

TEST_CASE("numbers that no checkpoint has take neither memory nor time") {
    constexpr std::uint64_t huge = std::uint64_t{1} << 40;
    check_fault("2^40 ranks", {2, 3}, {Errc::rank_missing, Errc::world_mismatch, Errc::field_missing}, {},
                [](Run& run) {
                    set_partition_count(run, huge);
                    run.each_model([](pt::Value& file) { file["dp_world_size"] = pt::integer(huge); });
                });
    check_fault("the file of rank 16,000,000", {2, 3}, {Errc::rank_missing, Errc::world_mismatch}, {}, [](Run& run) {
        run.files["bf16_zero_pp_rank_16000000_mp_rank_00_optim_states.pt"] = run.optimizer_file(0);
    });
    check_fault(
        "the file of model rank 16,000,000", {2, 3}, {Errc::rank_missing, Errc::world_mismatch}, {},
        [](Run& run) { run.files["bf16_zero_pp_rank_0_mp_rank_16000000_optim_states.pt"] = run.optimizer_file(0); });
    check_fault("rank 0 by two spellings", {2, 3}, {Errc::rank_repeated},
                {"bf16_zero_pp_rank_00_mp_rank_00_optim_states.pt"},
                [](Run& run) { run.files["bf16_zero_pp_rank_00_mp_rank_00_optim_states.pt"] = run.optimizer_file(0); });
    for (const std::string_view field : {"group_paddings", "param_alignment_paddings"})
        for (const std::uint64_t number : {huge, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
            CAPTURE(field);
            CAPTURE(number);
            Run run = good(2);
            run.each_state([&](pt::Value& state) {
                pt::Value& numbers = state[field][0];
                (numbers.kind == pt::Value::Kind::list ? numbers[0] : numbers) = pt::integer(number);
            });
            CHECK(refusal(run).has_value());
        }
}

TEST_CASE("ties that lead nowhere, to themselves or in a circle are passed by") {
    for (const int stage : every) {
        CAPTURE(stage);
        Spec spec = small(stage);
        spec.ties = {};
        Run run = Forge::run(spec);
        for (const auto& [second, first] : std::initializer_list<std::pair<std::string, std::string>>{
                 {"nowhere", "missing"}, {"self", "self"}, {"one", "two"}, {"two", "one"}, {"gain", "up.bias"}})
            run.model()["shared_params"].set(second, pt::text(first));
        const Opened opened(run);
        for (const auto& [name, tensor] : Forge::weights(spec))
            if (name != "gain") zero_forge::check_tensor(opened.checkpoint, name, tensor);
        for (const char* const name : {"nowhere", "self", "one", "two"}) CHECK(opened.checkpoint.find(name) == nullptr);
    }
}

TEST_CASE("lists of the optimizer that are shorter than the groups, or no lists") {
    for (const int stage : every) {
        CAPTURE(stage);
        const auto opens_or_is_refused = [](const Run& run) {
            const auto error = error_of([&] {
                const Opened opened(run);
                if (const auto optimizer = opened.checkpoint.optimizer())
                    for (const LazyTensor& tensor : *optimizer) static_cast<void>(tensor.load());
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
        };
        const std::string base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
        Run run = good(stage);
        run.each_state([&](pt::Value& state) { state[base]["state"].erase("1"); });
        opens_or_is_refused(run);
        run.each_state([&](pt::Value& state) { state[base]["state"].erase("0"); });
        opens_or_is_refused(run);
        run.adam(1) = pt::integer(3);
        opens_or_is_refused(run);
        run = good(stage);
        run.each_state([&](pt::Value& state) { state[base]["param_groups"] = pt::text("none"); });
        opens_or_is_refused(run);
        run.each_state([&](pt::Value& state) { state.erase(base); });
        opens_or_is_refused(run);
    }
}

}  // namespace zero_faults_test
