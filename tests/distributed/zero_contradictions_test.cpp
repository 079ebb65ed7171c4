// Opens DeepSpeed checkpoints whose files are each well-formed, and contradict each other: they are refused, or a note
// says so. Nothing may vanish, and no parameter may get the values of another.
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
