// Tests saves of training folders, whose tensors are in the files of many ranks: a killed save is continued, and only
// if all files are the same; the optimizer is saved in the same commit.
#include "distributed/zero_check.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <safemap/save.hpp>

#include <chrono>

namespace training_folders_test {

using namespace safemap;
using namespace samples;

namespace {

zero_forge::Spec spec_of(int stage) {
    return {.stage = stage,
            .world = 3,
            .groups = {{{"a.weight", {40, 25}}, {"b.weight", {7, 11}}, {"c.weight", {900}}},
                       {{"a.bias", {40}}, {"c.bias", {1}}}},
            .buffers = {{"seen", Dtype::i64, {}}}};
}

SaveOptions options_for(const Checkpoint* optimizer = nullptr) {
    SaveOptions options{.max_shard_size = 2'000, .resume = true};
    options.work.threads = 1;
    if (optimizer != nullptr) options.folders.emplace("optimizer", *optimizer);
    return options;
}

}  // namespace

TEST_CASE("a save of a DeepSpeed folder that is killed at any system call is continued, and gives the same files") {
    for (const int stage : {2, 3}) {
        CAPTURE(stage);
        const TempDir dir = TempDir::in_memory();
        const fs::path run = dir / "run";
        zero_forge::Forge::run(spec_of(stage)).write(run);
        const Checkpoint model = Checkpoint::open(run);
        const auto optimizer = model.optimizer();
        REQUIRE(optimizer);
        const SaveOptions options = options_for(&*optimizer);
        save(dir / "whole", model, options);
        const auto expected = contents_of(dir / "whole");

        std::size_t most_kept = 0;
        bool died = true;
        for (int nth = soak::step(16); died; nth += soak::step(16)) {
            CAPTURE(nth);
            REQUIRE(nth < 2'000);
            fs::remove_all(dir / "out");
            died = killed_at(nth, run, dir / "out", options);
            if (!died || fs::exists(dir / "out")) continue;  // the save had finished
            const SaveReport report = save(dir / "out", Checkpoint::open(run), options);
            most_kept = std::max(most_kept, report.resumed.size());
            CHECK(contents_of(dir / "out") == expected);
        }
        CHECK(most_kept > 0);
        zero_forge::check_tensors(Checkpoint::open(dir / "whole"), zero_forge::Forge::weights(spec_of(stage)));
    }
}

TEST_CASE("a killed save of a DeepSpeed folder begins anew if the file of one rank has changed") {
    const TempDir dir = TempDir::in_memory();
    const fs::path run = dir / "run";
    const zero_forge::Run made = zero_forge::Forge::run(spec_of(3));
    made.write(run);
    const auto resumed_after = [&](bool change) {
        fs::remove_all(dir / "out");
        // The call is late enough for finished shards, whatever the number of calls of a save.
        int nth = 40;
        while (killed_at(nth, run, dir / "out", options_for()) == false) nth /= 2;
        if (change) {
            const fs::path file = run / made.spec.tag / made.optimizer_name(2);
            fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(3));
        }
        return save(dir / "out", Checkpoint::open(run), options_for()).resumed.size();
    };
    CHECK(resumed_after(false) > 0);
    CHECK(resumed_after(true) == 0);
    zero_forge::check_tensors(Checkpoint::open(dir / "out"), zero_forge::Forge::weights(spec_of(3)));
}

}  // namespace training_folders_test
