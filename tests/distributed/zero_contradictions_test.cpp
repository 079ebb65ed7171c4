// Opens DeepSpeed checkpoints whose files are each well-formed, and contradict each other: they are refused, or a note
// says so. Nothing may vanish, and no parameter may get the values of another.
#include "distributed/zero_check.hpp"
#include "distributed/zero_forge.hpp"
#include "doctest_safemap.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero_contradictions_test {

using namespace safemap;
using zero_forge::check_tensors;
using zero_forge::Forge;
using zero_forge::Run;
using zero_forge::small;
using zero_forge::Spec;

namespace {

using Words = std::initializer_list<std::string_view>;

void write(const TempDir& dir, const Run& run) {
    for (const auto& [name, bytes] : run.packed()) {
        std::filesystem::create_directories((dir / name).parent_path());
        dir.write(name, bytes);
    }
}

/// Checks that the error has the code, and that its text has all words.
void check_error(const std::optional<Error>& error, Errc code, Words words) {
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK(error->code() == code);
    for (const std::string_view word : words)
        CHECK_MESSAGE(std::string_view(error->what()).find(word) != std::string_view::npos, std::string(word).c_str());
}

void refused(const Run& run, Errc code, Words words) {
    const TempDir dir = TempDir::in_memory();
    write(dir, run);
    check_error(error_of([&] { static_cast<void>(Checkpoint::open(dir.path())); }), code, words);
}

/// Checks that the weights open, and the optimizer is refused.
void optimizer_refused(const Run& run, Errc code, Words words) {
    const TempDir dir = TempDir::in_memory();
    write(dir, run);
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    check_error(error_of([&] { static_cast<void>(checkpoint.optimizer()); }), code, words);
}

struct Opened {
    explicit Opened(const Run& run) : checkpoint((write(dir, run), Checkpoint::open(dir.path()))) {}
    TempDir dir = TempDir::in_memory();
    Checkpoint checkpoint;
};

/// Returns the state of a group in the optimizer file of a rank.
pt::Value& state_of(Run& run, std::uint64_t rank, const std::string& group = "0") {
    pt::Value& state = run.state(rank);
    pt::Value& base = run.spec.stage == 3 ? state["optimizer_state_dict"] : state["base_optimizer_state"];
    return base["state"][group];
}

/// Changes the number of elements of a flat tensor: the storage too, so that only the length tells.
void resize(pt::Value& flat, std::int64_t by) {
    const std::uint64_t count = flat.shape[0] + static_cast<std::uint64_t>(by);
    const std::size_t size = pt::element_bytes(flat.storage->dtype);
    std::string bytes = flat.storage->bytes.substr(flat.offset * size, flat.shape[0] * size);
    bytes.resize(count * size, '\1');
    flat = pt::tensor(flat.storage->dtype, {count}, std::move(bytes));
}

}  // namespace

TEST_CASE("a state that one rank lacks is refused, whichever rank it is") {
    for (const int stage : {1, 2, 3}) {
        for (const std::uint64_t rank : {0U, 1U, 2U}) {
            CAPTURE(stage);
            CAPTURE(rank);
            Run run = Forge::run(small(stage, 3));
            state_of(run, rank).erase("exp_avg");
            optimizer_refused(run, Errc::ranks_differ, {"exp_avg", "other ranks", run.optimizer_name(rank)});
            state_of(run, rank).erase("exp_avg_sq");
            optimizer_refused(run, Errc::ranks_differ, {"exp_avg", run.optimizer_name(rank)});
            run = Forge::run(small(stage, 3));
            resize(state_of(run, rank)["exp_avg"], 1);
            optimizer_refused(run, Errc::piece_mismatch, {"exp_avg", run.optimizer_name(rank)});
        }
    }
}

TEST_CASE("the names of state have a limit, since each is a tensor for each parameter") {
    Run run = Forge::run(small(2, 2));
    const auto fill = [&run](int names) {
        for (const std::uint64_t rank : {0U, 1U}) {
            pt::Value& state = state_of(run, rank);
            const pt::Value moment = state["exp_avg"];
            for (int i = 0; i < names; ++i) state.set("s" + std::to_string(i), moment);
        }
    };
    fill(253);  // beside exp_avg, exp_avg_sq and step
    const Opened opened(run);
    CHECK(opened.checkpoint.layout()->optimizer.size() == 255);
    fill(260);
    refused(run, Errc::pickle_too_large, {"256", run.optimizer_name(0)});
}

TEST_CASE("ranks that have padding only need no state, and no rank has any before the first step") {
    Spec spec = small(3, 4);
    spec.groups = {{{"a", {6}}, {"b", {8}}}, {{"gain", {1}}}};
    spec.ties = {};
    Run run = Forge::run(spec);
    for (const std::uint64_t rank : {1U, 2U, 3U}) state_of(run, rank, "1").erase("exp_avg");
    const Opened opened(run);
    const auto optimizer = opened.checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    for (const auto& [name, wanted] : Forge::moments(spec)) zero_forge::check_tensor(*optimizer, name, wanted);

    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run fresh = Forge::run(small(stage, 3));
        for (const std::uint64_t rank : {0U, 1U, 2U})
            for (const char* const group : {"0", "1"}) state_of(fresh, rank, group) = pt::dict();
        const Opened before(fresh);
        const auto none = before.checkpoint.optimizer();
        REQUIRE(none.has_value());
        CHECK(none->size() == 0);
        check_tensors(before.checkpoint, Forge::weights(small(stage, 3)));
    }
}

TEST_CASE("scales of a partition that have the length of a shorter partition by chance are no state of parameters") {
    Spec spec = small(2, 2);
    spec.groups = {{{"a", {5}}, {"b", {5}}}};  // 6 elements, and 4
    spec.ties = {};
    for (const std::uint64_t length : {4U, 5U}) {
        CAPTURE(length);
        Run run = Forge::run(spec);
        for (const std::uint64_t rank : {0U, 1U})
            state_of(run, rank).set("absmax", pt::tensor(Dtype::f32, {length}, std::string(length * 4, '1')));
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
        for (std::uint64_t rank = 0; rank < spec.world; ++rank)
            resize(run.state(rank)["single_partition_of_fp32_groups"][std::size_t{0}], by);
        return run;
    };
    Spec spec = small(1, 2);
    spec.groups = {{{"a", {5}}, {"b", {4}}}};  // 9 elements: 12 with padding
    spec.ties = {};
    spec.bf16_optimizer = true;
    check_tensors(Opened(Forge::run(spec)).checkpoint, Forge::weights(spec));
    refused(with(spec, -1), Errc::not_covered, {"10 elements", "12"});
    refused(with(spec, 1), Errc::piece_mismatch, {"14 elements", "12"});

    spec = small(2, 3);
    spec.groups = {{{"a", {4}}, {"b", {5}}}};  // 9 elements: 12 with padding
    spec.ties = {};
    check_tensors(Opened(Forge::run(spec)).checkpoint, Forge::weights(spec));
    refused(with(spec, 1), Errc::piece_mismatch, {"12 elements", "9"});
    spec.alignment = 4;
    check_tensors(Opened(Forge::run(spec)).checkpoint, Forge::weights(spec));
    refused(with(spec, 1), Errc::piece_mismatch, {"12 elements", "9"});
}

TEST_CASE("a frozen share is longer than the shape says") {
    for (const std::uint64_t rank : {0U, 1U}) {
        CAPTURE(rank);
        Run run = Forge::run(small(3, 2));
        resize(run.model(rank)["frozen_param_fragments"]["adapter.weight"], 1);
        refused(run, Errc::piece_mismatch, {"adapter.weight", "6 elements", "5", run.model_name(rank)});
    }
    Run run = Forge::run(small(3, 2));
    for (const std::uint64_t rank : {0U, 1U})
        run.model(rank)["frozen_param_shapes"]["adapter.weight"] = pt::size({2, 3});
    refused(run, Errc::piece_mismatch, {"adapter.weight", "[2, 3]"});
}

TEST_CASE("sub-groups of stage 3 are swapped in all ranks") {
    Spec spec = small(3, 2);
    spec.sub_group_size = 7;
    Run run = Forge::run(spec);
    check_tensors(Opened(run).checkpoint, Forge::weights(spec));
    for (const std::uint64_t rank : {0U, 1U}) {
        pt::Value& masters = run.state(rank)["fp32_flat_groups"];
        REQUIRE(masters.items.size() > 2);
        REQUIRE(masters[std::size_t{0}].shape != masters[std::size_t{1}].shape);
        std::swap(masters.items[0], masters.items[1]);
    }
    refused(run, Errc::piece_mismatch, {"sub-group 0", run.optimizer_name(0)});
}

TEST_CASE("param_shapes and the module disagree on a shape") {
    for (const int stage : {1, 2}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        run.model()["param_shapes"][std::size_t{0}]["up.weight"] = pt::size({3, 4});
        refused(run, Errc::piece_mismatch, {"up.weight", "[3, 4]", "[4, 3]", run.model_name()});
    }
}

TEST_CASE("param_shapes is in another order than the mappings of all ranks") {
    const auto turned = [](const Spec& spec) {
        Run run = Forge::run(spec);
        for (pt::Value& group : run.model()["param_shapes"].items) {
            std::reverse(group.keys.begin(), group.keys.end());
            std::reverse(group.items.begin(), group.items.end());
        }
        return run;
    };
    Spec spec = small(2, 2);
    spec.groups = {{{"a", {4}}, {"b", {3}}, {"c", {2}}, {"d", {3}}}};
    spec.ties = {};
    refused(turned(spec), Errc::ranks_differ, {"param_slice_mappings", "order", "optim_states.pt"});
    // The lists are wrong with round_robin_gradients, so that they say nothing.
    spec.round_robin = true;
    CHECK_OK(Opened(turned(spec)));
}

TEST_CASE("mappings of old versions also list the parameter that ends where a partition begins") {
    Spec spec = small(2, 2);
    spec.groups = {{{"a", {4}}, {"b", {4}}}};
    spec.ties = {};
    Run run = Forge::run(spec);
    pt::Value& held = run.state(1)["param_slice_mappings"][std::size_t{0}];
    pt::Value both = pt::ordered();
    both.set("a", pt::Value(held["b"]));
    both.set("b", pt::Value(held["b"]));
    held = both;
    check_tensors(Opened(run).checkpoint, Forge::weights(spec));
}

TEST_CASE("ranks of aligned parameters are swapped, with round_robin_gradients too") {
    for (const bool round_robin : {false, true}) {
        CAPTURE(round_robin);
        Spec spec = small(2, 2);
        spec.groups = {{{"a", {6}}, {"b", {7}}, {"c", {5}}, {"d", {8}}}};
        spec.ties = {};
        spec.alignment = 8;
        spec.round_robin = round_robin;
        Run run = Forge::run(spec);
        check_tensors(Opened(run).checkpoint, Forge::weights(spec));
        std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
        refused(run, Errc::ranks_differ, {"param_slice_mappings", run.optimizer_name(0)});
    }
}

TEST_CASE("ranks of stage 3 are swapped, and tied weights tell") {
    Run run = Forge::run(small(3, 2));
    std::swap(run.files[run.model_name(0)], run.files[run.model_name(1)]);
    std::swap(run.files[run.optimizer_name(0)], run.files[run.optimizer_name(1)]);
    refused(run, Errc::ranks_differ, {"shared_params", run.model_name(1)});
}

TEST_CASE("files have the names that they were saved under, where nothing else in them tells ranks apart") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Spec spec = small(stage, 3);
        spec.ties = {};
        const Run run = Forge::run(spec);
        const TempDir dir = TempDir::in_memory();
        write(dir, run);
        const auto tag = dir.path() / spec.tag;
        const auto opened = [&] { return error_of([&] { static_cast<void>(Checkpoint::open(dir.path())); }); };
        REQUIRE(!opened().has_value());

        std::filesystem::copy_file(tag / run.optimizer_name(0), tag / run.optimizer_name(1),
                                   std::filesystem::copy_options::overwrite_existing);
        check_error(opened(), Errc::ranks_differ, {"was saved as", run.optimizer_name(0), run.optimizer_name(1)});
    }
}

TEST_CASE("files of model states of stage 3 are equal unless they hold frozen fragments") {
    Spec spec = small(3, 3);
    spec.ties = {};
    for (const bool frozen : {false, true}) {
        CAPTURE(frozen);
        spec.frozen = {};
        if (frozen) spec.frozen = {{"frozen.weight", {5, 2}}};
        const Run run = Forge::run(spec);
        const TempDir dir = TempDir::in_memory();
        write(dir, run);
        const auto tag = dir.path() / spec.tag;
        std::filesystem::copy_file(tag / run.model_name(1), tag / run.model_name(2),
                                   std::filesystem::copy_options::overwrite_existing);
        const auto error = error_of([&] { static_cast<void>(Checkpoint::open(dir.path())); });
        if (frozen) check_error(error, Errc::ranks_differ, {"was saved as", run.model_name(1), run.model_name(2)});
        else CHECK(!error.has_value());
    }
}

TEST_CASE("the prefix of a name, and a name that is not DeepSpeed's, tell nothing") {
    Run run = Forge::run(small(2, 2));
    const TempDir dir = TempDir::in_memory();
    for (const std::string root :
         {"archive", "bf16_zero_pp_rank_0_mp_rank_00_optim_states", "mp_rank_07_model_states"}) {
        write(dir, run);
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
    for (const std::uint64_t rank : {0U, 1U}) {
        run.model(rank)["shared_params"] = pt::dict();
        run.model(rank)["module"]["head.weight"] = pt::tensor(Dtype::bf16, {0}, std::string());
    }
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
                state_of(run, 1, group)["step"] = step;
                refused(run, Errc::ranks_differ, {"step", "8", "7", run.optimizer_name(1)});
            }
            Run run = Forge::run(small(stage, 3));
            state_of(run, 2, group)["step"] = pt::tensor(Dtype::i64, {}, forge::little(7, 8));
            CHECK_OK(Opened(run));
            state_of(run, 0, group).erase("step");
            optimizer_refused(run, Errc::ranks_differ, {"step", run.optimizer_name(0)});
        }
        Run run = Forge::run(small(stage, 3));
        pt::Value& base = run.state(1)[stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"];
        base["param_groups"][std::size_t{1}]["lr"] = pt::real(0.015);
        refused(run, Errc::ranks_differ, {"learning rate of group 1", "0.015", "0.01", run.optimizer_name(1)});
    }
}

TEST_CASE("the step is in param_groups") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage, 2));
        for (const std::uint64_t rank : {0U, 1U}) {
            for (const char* const group : {"0", "1"}) state_of(run, rank, group).erase("step");
            pt::Value& base = run.state(rank)[stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"];
            base["param_groups"][std::size_t{0}].set("step", pt::integer(7 + rank));
        }
        refused(run, Errc::ranks_differ, {"step", "8", "7", run.optimizer_name(1)});
    }
}

TEST_CASE("files of models and of optimizers are of different saves") {
    Run run = Forge::run(small(3, 2));
    run.model(1)["global_steps"] = pt::integer(6);
    refused(run, Errc::ranks_differ, {"global_steps: 6", "7", run.model_name(1)});
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        run = Forge::run(small(stage, 2));
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 2U : 1U); ++rank)
            run.model(rank)["ds_version"] = pt::text("0.19.7");
        refused(run, Errc::ranks_differ, {"ds_version", "0.19.7", "0.19.8", run.optimizer_name(0)});

        run = Forge::run(small(stage, 2));
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 2U : 1U); ++rank)
            run.model(rank)["global_steps"] = pt::integer(9);
        const auto noted = [&run] {
            const Opened opened(run);
            const auto& notes = opened.checkpoint.notes();
            return std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
                return note.starts_with("the optimizer counts 7 steps, and the model 9");
            });
        };
        CHECK(noted());
        for (std::uint64_t rank = 0; rank < (stage == 3 ? 2U : 1U); ++rank)
            run.model(rank)["skipped_steps"] = pt::integer(2);
        CHECK_FALSE(noted());
    }
}

namespace {

/// Returns a run of two model ranks whose files are alike.
Run two_model_ranks(int stage) {
    Run run = Forge::run(small(stage, 2));
    for (std::uint64_t rank = 0; rank < (stage == 3 ? 2U : 1U); ++rank)
        run.model(rank)["mp_world_size"] = pt::integer(2);
    const auto files = run.files;
    for (const auto& [name, value] : files) {
        std::string other = name;
        other.replace(other.find("mp_rank_00"), 10, "mp_rank_01");
        run.files[other] = value;
    }
    return run;
}

}  // namespace

TEST_CASE("model ranks are of different saves") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        const Run good = two_model_ranks(stage);
        CHECK_OK(Opened(good));
        const auto each = [](Run& run, std::string_view kind, const auto& change) {
            for (auto& [name, file] : run.files)
                if (name.find("mp_rank_01") != name.npos && name.ends_with(kind)) change(file);
        };
        Run run = good;
        each(run, "model_states.pt", [](pt::Value& file) { file["global_steps"] = pt::integer(8); });
        refused(run, Errc::ranks_differ, {"global_steps: 8", "mp_rank_01_model_states.pt"});
        run = good;
        for (const char* const kind : {"model_states.pt", "optim_states.pt"})
            each(run, kind, [](pt::Value& file) { file["ds_version"] = pt::text("0.19.7"); });
        refused(run, Errc::ranks_differ, {"0.19.7", "0.19.8", "mp_rank_01"});
        run = good;
        each(run, "optim_states.pt", [&](pt::Value& file) {
            pt::Value& state = file["optimizer_state_dict"];
            state[stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"]["state"]["0"]["step"] = pt::integer(8);
        });
        refused(run, Errc::ranks_differ, {"step", "8", "7", "mp_rank_01_optim_states.pt"});
    }
}

}  // namespace zero_contradictions_test
