// Opens DeepSpeed checkpoints whose files are each well-formed, and contradict each other: they are refused, or a note
// says so. Nothing may vanish, and no parameter may get the values of another.
#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zero.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero_contradictions_test {

using namespace safemap;
using zero_forge::check_fault;
using zero_forge::check_optimizer_refused;
using zero_forge::check_refused;
using zero_forge::check_tensors;
using zero_forge::Forge;
using zero_forge::Opened;
using zero_forge::resize;
using zero_forge::Run;
using zero_forge::small;
using zero_forge::Spec;

namespace {

/// Returns a spec of one group, without ties.
Spec one_group(int stage, std::uint64_t world, std::vector<zero_forge::Param> group) {
    Spec spec = small(stage, world);
    spec.groups = {std::move(group)};
    spec.ties = {};
    return spec;
}

void check_opens(const Run& run) { check_tensors(Opened(run).checkpoint, Forge::weights(run.spec)); }

void reverse(pt::Value& dict) {
    std::reverse(dict.keys.begin(), dict.keys.end());
    std::reverse(dict.items.begin(), dict.items.end());
}

/// Writes a run in which one file is a copy of another, and returns the error of opening it.
std::optional<Error> refusal_of_copy(const Run& run, const std::string& from, const std::string& to) {
    const TempDir dir = TempDir::in_memory();
    run.write(dir.path());
    const auto tag = dir.path() / run.spec.tag;
    std::filesystem::copy_file(tag / from, tag / to, std::filesystem::copy_options::overwrite_existing);
    return error_of([&] { static_cast<void>(Checkpoint::open(dir.path())); });
}

}  // namespace

TEST_CASE("a state that one rank lacks is refused, whichever rank it is") {
    for (const int stage : {1, 2, 3})
        for (const std::uint64_t rank : {0U, 1U, 2U}) {
            CAPTURE(stage);
            CAPTURE(rank);
            Run run = Forge::run(small(stage, 3));
            run.moments(rank).erase("exp_avg");
            check_optimizer_refused(run, {Errc::ranks_differ}, {"exp_avg", "other ranks", run.optimizer_name(rank)});
            run.moments(rank).erase("exp_avg_sq");
            check_optimizer_refused(run, {Errc::ranks_differ}, {"exp_avg", run.optimizer_name(rank)});
            run = Forge::run(small(stage, 3));
            resize(run.moments(rank)["exp_avg"], 1);
            check_optimizer_refused(run, {Errc::piece_mismatch}, {"exp_avg", run.optimizer_name(rank)});
        }
}

TEST_CASE("the names of state have a limit, since each is a tensor for each parameter") {
    Run run = Forge::run(small(2, 2));
    const auto fill = [&run](int names) {
        for (const std::uint64_t rank : {0U, 1U}) {
            pt::Value& state = run.moments(rank);
            const pt::Value moment = state["exp_avg"];
            for (int i = 0; i < names; ++i) state.set("s" + std::to_string(i), moment);
        }
    };
    fill(253);  // beside exp_avg, exp_avg_sq and step
    const Opened opened(run);
    CHECK(opened.checkpoint.layout()->optimizer.size() == 255);
    fill(260);
    check_refused(run, {Errc::pickle_too_large}, {"256", run.optimizer_name(0)});
}

TEST_CASE("ranks that have padding only need no state, and no rank has any before the first step") {
    Spec spec = one_group(3, 4, {{"a", {6}}, {"b", {8}}});
    spec.groups.push_back({{"gain", {1}}});
    Run run = Forge::run(spec);
    for (const std::uint64_t rank : {1U, 2U, 3U}) run.moments(rank, "1").erase("exp_avg");
    const Opened opened(run);
    const auto optimizer = opened.checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    for (const auto& [name, wanted] : Forge::moments(spec)) zero_forge::check_tensor(*optimizer, name, wanted);

    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run fresh = Forge::run(small(stage, 3));
        for (const std::uint64_t rank : {0U, 1U, 2U})
            for (const char* const group : {"0", "1"}) fresh.moments(rank, group) = pt::dict();
        const Opened before(fresh);
        const auto none = before.checkpoint.optimizer();
        REQUIRE(none.has_value());
        CHECK(none->size() == 0);
        check_tensors(before.checkpoint, Forge::weights(small(stage, 3)));
    }
}

TEST_CASE("scales of a partition that have the length of a shorter partition by chance are no state of parameters") {
    const Spec spec = one_group(2, 2, {{"a", {5}}, {"b", {5}}});  // 6 elements, and 4
    for (const std::uint64_t length : {4U, 5U}) {
        CAPTURE(length);
        Run run = Forge::run(spec);
        for (const std::uint64_t rank : {0U, 1U})
            run.moments(rank).set("absmax", pt::tensor(Dtype::f32, {length}, std::string(length * 4, '1')));
        const Opened opened(run);
        const auto optimizer = opened.checkpoint.optimizer();
        REQUIRE(optimizer.has_value());
        CHECK(optimizer->find("optimizer/state/a/exp_avg") != nullptr);
        CHECK(optimizer->find("optimizer/state/b/absmax") == nullptr);
    }
}

TEST_CASE("all ranks are an element short or long, and would still fill whole partitions") {
    const auto with = [](const Spec& spec, int by) {
        Run run = Forge::run(spec);
        for (std::uint64_t rank = 0; rank < spec.world; ++rank) resize(run.masters(rank)[0], by);
        return run;
    };
    Spec spec = one_group(1, 2, {{"a", {5}}, {"b", {4}}});  // 9 elements: 12 with padding
    spec.bf16_optimizer = true;
    check_opens(Forge::run(spec));
    check_refused(with(spec, -1), {Errc::not_covered}, {"10 elements", "12"});
    check_refused(with(spec, 1), {Errc::piece_mismatch}, {"14 elements", "12"});

    spec = one_group(2, 3, {{"a", {4}}, {"b", {5}}});  // 9 elements: 12 with padding
    check_opens(Forge::run(spec));
    check_refused(with(spec, 1), {Errc::piece_mismatch}, {"12 elements", "9"});
    spec.alignment = 4;
    check_opens(Forge::run(spec));
    check_refused(with(spec, 1), {Errc::piece_mismatch}, {"12 elements", "9"});
}

TEST_CASE("param_shapes is in another order than the mappings of all ranks") {
    const auto turned = [](const Spec& spec) {
        Run run = Forge::run(spec);
        for (pt::Value& group : run.model()["param_shapes"].items) reverse(group);
        return run;
    };
    Spec spec = one_group(2, 2, {{"a", {4}}, {"b", {3}}, {"c", {2}}, {"d", {3}}});
    check_refused(turned(spec), {Errc::ranks_differ}, {"param_slice_mappings", "order", "optim_states.pt"});
    // The lists are wrong with round_robin_gradients, so that they say nothing.
    spec.round_robin = true;
    CHECK_OK(Opened(turned(spec)));
}

TEST_CASE("mappings of old versions also list the parameter that ends where a partition begins") {
    Run run = Forge::run(one_group(2, 2, {{"a", {4}}, {"b", {4}}}));
    pt::Value& held = run.state(1)["param_slice_mappings"][0];
    pt::Value both = pt::ordered();
    both.set("a", pt::Value(held["b"]));
    both.set("b", pt::Value(held["b"]));
    held = both;
    check_opens(run);
}

TEST_CASE("ranks of aligned parameters are swapped, with round_robin_gradients too") {
    for (const bool round_robin : {false, true}) {
        CAPTURE(round_robin);
        Spec spec = one_group(2, 2, {{"a", {6}}, {"b", {7}}, {"c", {5}}, {"d", {8}}});
        spec.alignment = 8;
        spec.round_robin = round_robin;
        Run run = Forge::run(spec);
        check_opens(run);
        std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
        check_refused(run, {Errc::ranks_differ}, {"param_slice_mappings", run.optimizer_name(0)});
    }
}

TEST_CASE("files of two ranks that contradict each other") {
    const auto refused = [](const char* fault, const std::vector<int>& stages, const Words& words,
                            void (*inflict)(Run&),
                            Errc code = Errc::ranks_differ) { check_fault(fault, stages, {code}, words, inflict, 2); };
    refused(
        "the frozen share of rank 0 is longer than the shape says", {3},
        {"adapter.weight", "6 elements", "5", "<model 0>"},
        [](Run& run) { resize(run.model(0)["frozen_param_fragments"]["adapter.weight"], 1); }, Errc::piece_mismatch);
    refused(
        "the frozen share of rank 1 is longer than the shape says", {3},
        {"adapter.weight", "6 elements", "5", "<model 1>"},
        [](Run& run) { resize(run.model(1)["frozen_param_fragments"]["adapter.weight"], 1); }, Errc::piece_mismatch);
    refused(
        "the shape of a frozen share is smaller", {3}, {"adapter.weight", "[2, 3]"},
        [](Run& run) {
            run.each_model([](pt::Value& file) { file["frozen_param_shapes"]["adapter.weight"] = pt::size({2, 3}); });
        },
        Errc::piece_mismatch);
    refused(
        "param_shapes and the module disagree on a shape", {1, 2}, {"up.weight", "[3, 4]", "[4, 3]", "<model 0>"},
        [](Run& run) {
            run.model()["param_shapes"][0]["up.weight"] = pt::size({3, 4});
        },
        Errc::piece_mismatch);
    refused("ranks are swapped, and tied weights tell", {3}, {"shared_params", "<model 1>"}, [](Run& run) {
        std::swap(run.files[run.model_name(0)], run.files[run.model_name(1)]);
        std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
    });
    refused("the step is in param_groups", {2, 3}, {"step", "8", "7", "<optimizer 1>"}, [](Run& run) {
        for (const std::uint64_t rank : {0U, 1U}) {
            for (const char* const group : {"0", "1"}) run.moments(rank, group).erase("step");
            run.adam(rank)["param_groups"][0].set("step", pt::integer(7 + rank));
        }
    });
    refused("a model file of another save", {3}, {"global_steps: 6", "7", "<model 1>"},
            [](Run& run) { run.model(1)["global_steps"] = pt::integer(6); });
    refused("model files of another version than the optimizers", {1, 2, 3},
            {"ds_version", "0.19.7", "0.19.8", "<optimizer 0>"},
            [](Run& run) { run.each_model([](pt::Value& file) { file["ds_version"] = pt::text("0.19.7"); }); });
}

TEST_CASE("sub-groups of stage 3 are swapped in all ranks") {
    Spec spec = small(3, 2);
    spec.sub_group_size = 7;
    Run run = Forge::run(spec);
    check_opens(run);
    for (const std::uint64_t rank : {0U, 1U}) {
        pt::Value& masters = run.masters(rank);
        REQUIRE(masters.items.size() > 2);
        REQUIRE(masters[0].shape != masters[1].shape);
        std::swap(masters.items[0], masters.items[1]);
    }
    check_refused(run, {Errc::piece_mismatch}, {"sub-group 0", run.optimizer_name(0)});
}

TEST_CASE("files have the names that they were saved under, where nothing else in them tells ranks apart") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Spec spec = small(stage, 3);
        spec.ties = {};
        const Run run = Forge::run(spec);
        CHECK_OK(Opened(run));
        zero_forge::check_text(refusal_of_copy(run, run.optimizer_name(0), run.optimizer_name(1)), {Errc::ranks_differ},
                               {"was saved as", run.optimizer_name(0), run.optimizer_name(1)});
    }
    // Files of model states of stage 3 are equal unless they hold frozen fragments.
    Spec spec = small(3, 3);
    spec.ties = {};
    spec.frozen = {};
    Run run = Forge::run(spec);
    CHECK(!refusal_of_copy(run, run.model_name(1), run.model_name(2)).has_value());
    spec.frozen = {{"frozen.weight", {5, 2}}};
    run = Forge::run(spec);
    zero_forge::check_text(refusal_of_copy(run, run.model_name(1), run.model_name(2)), {Errc::ranks_differ},
                           {"was saved as", run.model_name(1), run.model_name(2)});
}

TEST_CASE("the prefix of a name, and a name that is not DeepSpeed's, tell nothing") {
    Run run = Forge::run(small(2, 2));
    const TempDir dir = TempDir::in_memory();
    for (const std::string root :
         {"archive", "bf16_zero_pp_rank_0_mp_rank_00_optim_states", "mp_rank_07_model_states"}) {
        run.write(dir.path());
        dir.write(run.spec.tag + "/" + run.optimizer_name(0),
                  pt::Writer::file(run.optimizer_file(0), pt::Container::zip, root));
        check_tensors(Checkpoint::open(dir.path()), Forge::weights(run.spec));
    }
}

TEST_CASE("tensors of many pieces are gathered by four threads unless the caller says how many") {
    const auto buffers = [](const Checkpoint& checkpoint, unsigned threads) {
        SaveOptions options;
        options.work.threads = threads;
        options.plan_only = true;
        return save("/nowhere/out", checkpoint, options).layout.buffer_bytes;
    };
    const Opened opened(Forge::run(small(3, 2)));
    CHECK(buffers(opened.checkpoint, 0) == buffers(opened.checkpoint, 4));
    CHECK(buffers(opened.checkpoint, 0) == 4 * buffers(opened.checkpoint, 1));
}

TEST_CASE("a note on a weight that no file has says what does not list it") {
    Run run = Forge::run(small(3, 2));
    run.each_model([](pt::Value& file) {
        file["shared_params"] = pt::dict();
        file["module"]["head.weight"] = pt::tensor(Dtype::bf16, {0}, std::string());
    });
    const Opened opened(run);
    const auto& notes = opened.checkpoint.notes();
    const auto about = [](const std::string& note) { return note.find("head.weight") != std::string::npos; };
    const auto note = std::find_if(notes.begin(), notes.end(), about);
    REQUIRE(note != notes.end());
    CHECK(note->find("shared_params do not list") != std::string::npos);
    CHECK(note->find("excluded") == std::string::npos);
}

TEST_CASE("a step or a learning rate of one rank differs, in any group and as any number") {
    const auto f64 = [](double value) {
        return pt::tensor(Dtype::f64, {}, forge::little(std::bit_cast<std::uint64_t>(value), 8));
    };
    for (const int stage : {1, 2, 3}) {
        for (const char* const group : {"0", "1"}) {
            CAPTURE(stage);
            CAPTURE(group);
            for (const pt::Value& step :
                 {pt::tensor(Dtype::i64, {}, forge::little(8, 8)), pt::tensor(Dtype::i32, {1}, forge::little(8, 4)),
                  f64(8), pt::integer(8), pt::real(8)}) {
                Run run = Forge::run(small(stage, 3));
                run.moments(1, group)["step"] = step;
                check_refused(run, {Errc::ranks_differ}, {"step", "8", "7", run.optimizer_name(1)});
            }
            Run run = Forge::run(small(stage, 3));
            run.moments(2, group)["step"] = pt::tensor(Dtype::i64, {}, forge::little(7, 8));
            CHECK_OK(Opened(run));
            run.moments(0, group).erase("step");
            check_optimizer_refused(run, {Errc::ranks_differ}, {"step", run.optimizer_name(0)});
        }
        Run run = Forge::run(small(stage, 3));
        run.adam(1)["param_groups"][1]["lr"] = pt::real(0.015);
        check_refused(run, {Errc::ranks_differ}, {"learning rate of group 1", "0.015", "0.01", run.optimizer_name(1)});
    }
}

TEST_CASE("the model and the optimizer count other steps") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage, 2));
        run.each_model([](pt::Value& file) { file["global_steps"] = pt::integer(9); });
        const auto noted = [&run] {
            const Opened opened(run);
            const auto& notes = opened.checkpoint.notes();
            return std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
                return note.starts_with("the optimizer counts 7 steps, and the model 9");
            });
        };
        CHECK(noted());
        run.each_model([](pt::Value& file) { file["skipped_steps"] = pt::integer(2); });
        CHECK_FALSE(noted());
    }
}

TEST_CASE("model ranks are of different saves") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run good = Forge::run(small(stage, 2));
        good.double_model_ranks();
        CHECK_OK(Opened(good));
        const auto refused = [&](std::string_view kind, const Words& words, const auto& change) {
            Run run = good;
            for (auto& [name, file] : run.files)
                if (name.find("mp_rank_01") != name.npos && name.ends_with(kind)) change(file);
            check_refused(run, {Errc::ranks_differ}, words);
        };
        refused("model_states.pt", {"global_steps: 8", "mp_rank_01_model_states.pt"},
                [](pt::Value& file) { file["global_steps"] = pt::integer(8); });
        refused("_states.pt", {"0.19.7", "0.19.8", "mp_rank_01"},
                [](pt::Value& file) { file["ds_version"] = pt::text("0.19.7"); });
        refused("optim_states.pt", {"step", "8", "7", "mp_rank_01_optim_states.pt"}, [&](pt::Value& file) {
            pt::Value& state = file["optimizer_state_dict"];
            state[stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"]["state"]["0"]["step"] = pt::integer(8);
        });
    }
}

}  // namespace zero_contradictions_test
