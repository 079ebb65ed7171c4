// Opens DeepSpeed checkpoints in which something that is usually there is left out, or is in another place: what is
// there is read, and what is not is said.
#include "distributed/zero/join_data_ranks.hpp"
#include "distributed/zero_check.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/zero.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero_left_out_test {

using namespace safemap;
using namespace std::string_literals;
using zero_forge::check_tensor;
using zero_forge::check_tensors;
using zero_forge::Expected;
using zero_forge::Forge;
using zero_forge::Opened;
using zero_forge::Run;
using zero_forge::small;
using zero_forge::Spec;

TEST_CASE("sub-groups whose optimizer state is not saved have weights, and the others their state") {
    Spec spec = small(3, 2);
    spec.sub_group_size = 8;
    Run run = Forge::run(spec);
    for (const std::uint64_t rank : {0U, 1U}) {
        pt::Value& state = run.state(rank)["optimizer_state_dict"]["state"];
        REQUIRE(state.keys.size() > 2);
        state.erase("0");
        state.erase(std::string(state.keys.back()));
    }
    const Opened opened(run);
    check_tensors(opened.checkpoint, Forge::weights(spec));
    const auto optimizer = opened.checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    CHECK(has_note(*optimizer, "no file has the state of "));
    std::size_t found = 0;
    for (const auto& [name, wanted] : Forge::moments(spec))
        if (optimizer->find(name) != nullptr) {
            check_tensor(*optimizer, name, wanted);
            ++found;
        }
    CHECK(found > 0);
    CHECK(found < Forge::moments(spec).size());
    const Opened whole(Forge::run(spec));
    CHECK(!has_note(*whole.checkpoint.optimizer(), "no file has the state of "));
}

TEST_CASE("a second name of a tensor whose first name was left out stands for itself") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        const Spec spec = small(stage);
        Run run = Forge::run(spec);
        run.each_model([](pt::Value& file) {
            file["shared_params"] = pt::dict({{"head.weight", pt::text("left.out")}});
            file["module"]["head.weight"] = pt::tensor(Dtype::f32, {2}, "12345678");
        });
        const Opened opened(run);
        check_tensor(opened.checkpoint, "head.weight", {Dtype::f32, {2}, "12345678"});
        run.each_model(
            [](pt::Value& file) { file["module"]["head.weight"] = pt::tensor(Dtype::f32, {0}, std::string()); });
        if (stage != 3) continue;
        const Opened placeholder(run);
        CHECK(placeholder.checkpoint.find("head.weight") == nullptr);
        CHECK(has_note(placeholder.checkpoint, "no file has the values of head.weight"));
    }
}

TEST_CASE("the parameters of a module with two names are named where the placeholders show the first names") {
    const Spec spec = small(3);
    const auto placeholder = [](const pt::StoragePtr& storage) { return pt::tensor(storage, {0}); };
    // One storage for both names: torch.save writes a module with two names so.
    Run shared = Forge::run(spec);
    shared.each_model([&](pt::Value& file) {
        const pt::StoragePtr storage = pt::store(Dtype::bf16, {});
        file["module"]["down.weight"] = placeholder(storage);
        file["module"].set("twin.weight", placeholder(storage));
        file["module"].set("lost.weight", placeholder(pt::store(Dtype::bf16, {})));
    });
    const Opened one(shared);
    check_tensors(one.checkpoint, Forge::weights(spec));
    CHECK(has_note(one.checkpoint, "the values of twin.weight are those of down.weight"));
    CHECK(has_note(one.checkpoint, "no file has the values of lost.weight"));
    CHECK(has_note(one.checkpoint, "if a module has two names"));
    // Several parameters on one storage show nothing.
    Run all = Forge::run(spec);
    all.each_model([&](pt::Value& file) {
        const pt::StoragePtr storage = pt::store(Dtype::bf16, {});
        for (const char* name : {"up.weight", "down.weight"}) file["module"][name] = placeholder(storage);
        file["module"].set("twin.weight", placeholder(storage));
    });
    CHECK(has_note(Opened(all).checkpoint, "no file has the values of twin.weight"));
    // Storages of their own, and one other module with such parameters.
    Run alike = Forge::run(spec);
    alike.each_model([&](pt::Value& file) {
        for (pt::Value* const dict : {&file["module"], &file["param_shapes"][0]})
            std::replace(dict->keys.begin(), dict->keys.end(), "down.weight"s, "down.kernel"s);
        file["module"].set("twin.kernel", placeholder(pt::store(Dtype::bf16, {})));
    });
    CHECK(has_note(Opened(alike).checkpoint, "the values of twin.kernel may be those of down.kernel"));
}

TEST_CASE("a second name can be the first name of another") {
    Run run = Forge::run(small(2));
    run.model()["shared_params"] = pt::dict({{"head.weight", pt::text("embed.weight")},
                                             {"third", pt::text("head.weight")},
                                             {"loop", pt::text("loop")},
                                             {"a", pt::text("b")},
                                             {"b", pt::text("a")}});
    const Opened opened(run);
    CHECK(opened.checkpoint.aliases() == std::vector<AliasGroup>{{"embed.weight", "head.weight", "third"}});
}

TEST_CASE("parameters without elements of other shapes are not tied, although shared_params says so") {
    for (const int stage : {1, 2}) {
        CAPTURE(stage);
        const Spec spec = small(stage);
        Run run = Forge::run(spec);
        run.model()["module"].set("void.other", pt::tensor(Dtype::bf16, {0, 7}, std::string()));
        run.model()["module"].set("void.same", pt::tensor(Dtype::bf16, {0, 3}, std::string()));
        run.model()["shared_params"].set("void.other", pt::text("void.weight"));
        run.model()["shared_params"].set("void.same", pt::text("void.weight"));
        const Opened opened(run);
        check_tensor(opened.checkpoint, "void.other", {Dtype::bf16, {0, 7}, {}});
        check_tensor(opened.checkpoint, "void.weight", {Dtype::bf16, {0, 3}, {}});
        check_tensor(opened.checkpoint, "void.same", {Dtype::bf16, {0, 3}, {}});
        CHECK(opened.checkpoint.aliases() ==
              std::vector<AliasGroup>{{"embed.weight", "head.weight"}, {"void.weight", "void.same"}});
    }
}

TEST_CASE("deepspeed_compat: what shared_params says counts, and nothing else ties") {
    OpenOptions compat;
    compat.deepspeed_compat = true;
    const Spec spec = small(2);
    Run run = Forge::run(spec);
    // Frozen parameters without elements, which have addresses alike, and a second name in the same module.
    pt::Value& file = run.model();
    file["frozen_param_shapes"].set("void.other", pt::size({0, 7}));
    file["frozen_param_fragments"].set("void.other", pt::tensor(Dtype::bf16, {0, 7}, std::string()));
    file["module"].set("void.other", pt::tensor(Dtype::bf16, {0, 7}, std::string()));
    file["shared_params"].set("void.other", pt::text("void.weight"));
    file["module"].set("adapter.again", pt::Value(file["module"]["adapter.weight"]));
    const Opened opened(run);
    check_tensor(opened.checkpoint, "void.other", {Dtype::bf16, {0, 7}, {}});
    CHECK(opened.checkpoint.find("adapter.again") != nullptr);
    const Opened as_script(run, compat);
    check_tensor(as_script.checkpoint, "void.other", {Dtype::bf16, {0, 3}, {}});
    CHECK(as_script.checkpoint.find("adapter.again") == nullptr);
    CHECK(as_script.checkpoint.aliases() == std::vector<AliasGroup>{{"embed.weight", "head.weight"}});
}

TEST_CASE("values of the module that are neither parameters nor buffers are read, or named in a note") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        run.each_model([](pt::Value& file) {
            file["module"].set("fp8._extra_state", pt::tensor(Dtype::i32, {1}, "abcd"));
            file["module"].set("scales._extra_state", pt::dict({{"a", pt::integer(1)}}));
            file["module"].set("none._extra_state", pt::none());
        });
        const Opened opened(run);
        check_tensor(opened.checkpoint, "fp8._extra_state", {Dtype::i32, {1}, "abcd"});
        CHECK(has_note(opened.checkpoint, "values other than tensors, which are not read: scales._extra_state"));
        CHECK(!has_note(opened.checkpoint, "fp8._extra_state"));
        CHECK(!has_note(opened.checkpoint, "none._extra_state"));
        if (stage == 3) continue;
        OpenOptions options;
        options.deepspeed_compat = true;
        const Opened compat(run, options);
        CHECK(compat.checkpoint.find("fp8._extra_state") == nullptr);
    }
}

TEST_CASE(
    "a frozen weight that is listed and is not there is refused, and the order of the fragments does not matter") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        const Spec spec = small(stage);
        Run run = Forge::run(spec);
        run.each_model([](pt::Value& file) {
            pt::Value& fragments = file["frozen_param_fragments"];
            std::reverse(fragments.keys.begin(), fragments.keys.end());
            std::reverse(fragments.items.begin(), fragments.items.end());
        });
        check_tensors(Opened(run).checkpoint, Forge::weights(spec));
        run.each_model([](pt::Value& file) { file["frozen_param_fragments"].erase("adapter.weight"); });
        const auto error = zero_forge::refusal(run);
        check_error(error, {Errc::field_missing}, {});
        CHECK(error->tensor() == "adapter.weight");
    }
}

TEST_CASE("state of a partition that is not of its elements is left out, with a note") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        for (const std::uint64_t rank : {0U, 1U}) {
            run.moments(rank).set("absmax", pt::tensor(Dtype::f32, {2}, "12345678"));
            run.moments(rank).set("count", pt::tensor(Dtype::f32, {1}, "1234"));
        }
        const auto optimizer = Opened(run).checkpoint.optimizer();
        REQUIRE(optimizer.has_value());
        CHECK(has_note(*optimizer, "not read: absmax, which"));
        const auto has = [&](std::string_view ending) {
            return std::any_of(optimizer->begin(), optimizer->end(),
                               [&](const LazyTensor& tensor) { return tensor.name().ends_with(ending); });
        };
        CHECK(!has("/absmax"));
        CHECK(has("/count"));
        CHECK(has("/exp_avg"));
    }
}

TEST_CASE("tensors of the client state belong to the optimizer's state, and are counted") {
    const auto skipped = [](const Checkpoint& checkpoint, std::string_view name) {
        std::string why;
        for (const SkippedObject& object : checkpoint.skipped())
            if (object.name == name) why = object.why;
        return why;
    };
    const Expected averaged{Dtype::f32, {1000}, std::string(4000, 'x')};
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        CHECK(skipped(Opened(run).checkpoint, "optimizer").find("client") == std::string::npos);
        run.each_model([&](pt::Value& file) {
            file.set("ema", pt::dict({{"w", pt::tensor(averaged.dtype, averaged.shape, averaged.bytes)}}));
        });
        const Opened opened(run);
        CHECK(skipped(opened.checkpoint, "optimizer").find("tensors of the client state, 4000 bytes") !=
              std::string::npos);
        check_tensor(*opened.checkpoint.optimizer(), "optimizer/training/ema/w", averaged);
        if (stage != 0) continue;
        run.model()["optimizer"] = pt::none();
        const Opened without(run);
        CHECK(!without.checkpoint.optimizer().has_value());
        CHECK(skipped(without.checkpoint, "client_state").find("4000 bytes") != std::string::npos);
    }
}

TEST_CASE("fields of an optimizer that have the names of other entries are kept beside them") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage));
        for (const char* const name : {"state", "training"})
            run.state(0).set(name, pt::dict({{"odd", pt::tensor(Dtype::i32, {1}, "abcd")}}));
        const Opened opened(run);
        const auto optimizer = opened.checkpoint.optimizer();
        REQUIRE(optimizer.has_value());
        save(opened.dir / "out", *optimizer);
        const Checkpoint saved = Checkpoint::open(opened.dir / "out");  // duplicate keys would be refused
        for (const char* const name : {"state_", "training_"})
            check_tensor(saved, "optimizer/" + std::string(name) + "/odd", {Dtype::i32, {1}, "abcd"});
        for (const auto& [name, wanted] : Forge::moments(run.spec)) check_tensor(saved, name, wanted);
    }
}

TEST_CASE("two tensors of one name are refused") {
    Spec spec = small(0);
    spec.buffers.push_back({"fp32/0/0", Dtype::i64, {}});
    const Run run = Forge::run(spec);
    OpenOptions masters;
    masters.weights = Weights::fp32;
    static_cast<void>(Opened(run));
    CHECK_FAULT(Opened(run, masters), Errc::duplicate_name);
}

TEST_CASE("folders that zero_to_fp32 fails on are read, but not with deepspeed_compat") {
    OpenOptions compat;
    compat.deepspeed_compat = true;
    for (const int stage : {1, 2, 3})
        for (const std::string key : {"buffer_names", "shared_params", "partition_count"}) {
            CAPTURE(stage);
            CAPTURE(key);
            Run run = Forge::run(small(stage));
            static_cast<void>(Opened(run, compat));
            if (key == "partition_count") run.each_state([&](pt::Value& state) { state.erase(key); });
            else run.each_model([&](pt::Value& file) { file.erase(key); });
            static_cast<void>(Opened(run));
            CHECK_FAULT(Opened(run, compat), Errc::invalid_argument);
        }
}

TEST_CASE("modules without tensors are named, whatever dots their names have") {
    const auto notes_on = [](std::vector<std::string> modules, int stage = 2, std::uint64_t experts = 0) {
        distributed::ModelRankFiles set;
        set.models.push_back({.modules = std::move(modules), .without_frozen = true});
        if (experts > 0) set.models.front().experts = {experts};
        set.optimizers.push_back({.stage = stage});
        std::vector<distributed::ModelWeights::Weight> masters;
        for (const char* name : {"a.b.weight", "a-b.c", "top"})
            masters.push_back({name, LazyTensor(name, stored_run(Dtype::u8, {1}, forge::source("x"), 0)), {}, {}});
        std::string all;
        for (const std::string& note : distributed::list_weights(set, {}, std::move(masters)).notes) all += note;
        return all;
    };
    CHECK(notes_on({"", "a", "a.b", "a-b"}).empty());
    CHECK(notes_on({"", "a", "a.b", "a-b", "a.bc", "c", "c.d", "top", "a.b.weigh"})
              .ends_with(" have no tensors in it: a.bc, c.d, top, a.b.weigh"));
    // Files of stage 1 do not say whether there are frozen parameters.
    CHECK(notes_on({"", "a", "c", "top"}, 1)
              .ends_with("if they have frozen parameters, these were excluded when it was saved: c, top"));
    CHECK(notes_on({"b", "c", "d", "e", "f", "g", "h", "i", "j"}, 1).ends_with(" i and 1 more"));
    CHECK(notes_on({"", "a", "c", "top"}, 1, 2).empty());
    const std::clock_t begin = std::clock();
    CHECK(!notes_on({std::string(400'000, '.'), "a"}).empty());
    CHECK(std::clock() - begin < 2 * CLOCKS_PER_SEC);
}

TEST_CASE("slices that no rule merges keep all state of their optimizer, under their own names") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage, 2));
        run.double_model_ranks();
        const Opened opened(run);
        const auto optimizer = opened.checkpoint.optimizer();
        REQUIRE(optimizer.has_value());
        for (const std::string rank : {"mp_rank_00", "mp_rank_01"})
            for (const std::string state : {"exp_avg", "step"}) {
                const std::string name = "optimizer/state/" + rank + "~1up.weight/" + state;
                CHECK_MESSAGE(optimizer->find(name) != nullptr, name.c_str());
            }
        std::vector<std::string> groups;
        const StateTree& tree = *optimizer->tree();
        for (StateTree::NodeId id = 0; id < tree.size(); ++id)
            if (const auto* const text = std::get_if<std::string>(&tree[id])) groups.push_back(*text);
        const auto has = [&groups](const char* name) { return std::count(groups.begin(), groups.end(), name) > 1; };
        CHECK(has("mp_rank_01/up.weight"));  // a key of the state, and a name of a group
        CHECK(std::count(groups.begin(), groups.end(), "up.weight") == 0);
    }
}

TEST_CASE("masters of stage 0 that are one flat tensor of each group are named by the group") {
    Spec spec = small(0);
    spec.dtype = Dtype::f16;
    Run run = Forge::run(spec);
    OpenOptions options;
    options.weights = Weights::fp32;
    const Opened listed(run, options);
    CHECK(listed.checkpoint.find("fp32/0/0") != nullptr);
    run.model()["optimizer"].erase("fp32_groups");
    run.model()["optimizer"].set("fp32_groups_flat", pt::list({pt::tensor(Dtype::f32, {2}, "12345678")}));
    const Opened opened(run, options);
    check_tensor(opened.checkpoint, "fp32/0", {Dtype::f32, {2}, "12345678"});
    CHECK(opened.checkpoint.find("fp32/0/0") == nullptr);
}

}  // namespace zero_left_out_test
