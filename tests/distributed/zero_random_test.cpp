// Opens forged DeepSpeed checkpoints of every stage, with random groups, world sizes, paddings and orders, and compares
// each tensor with what was cut. The forge cuts as DeepSpeed does and pads with NaN.
#include "distributed/zero_check.hpp"
#include "forge/zero.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/open_options.hpp>

#include "child_process.hpp"

#include <sys/resource.h>

#include <filesystem>
#include <random>
#include <string>

namespace zero_random_test {

using namespace safemap;
using zero_forge::Forge;
using zero_forge::Param;
using zero_forge::Run;
using zero_forge::Spec;

namespace {

std::string described(const Spec& spec) {
    std::string text = "stage " + std::to_string(spec.stage) + ", world " + std::to_string(spec.world);
    if (spec.bf16_optimizer) text += ", BF16_Optimizer";
    if (spec.round_robin) text += ", round robin";
    if (spec.elastic) text += ", elastic";
    if (spec.old_names) text += ", old names";
    if (spec.stage_by_name) text += ", stage by name";
    if (!spec.keep_frozen) text += ", no frozen";
    if (spec.alignment > 1) text += ", aligned to " + std::to_string(spec.alignment);
    if (spec.sub_group_size > 0) text += ", sub groups of " + std::to_string(spec.sub_group_size);
    if (spec.container == pt::Container::legacy) text += ", legacy";
    for (const auto& group : spec.groups) {
        text += ", group";
        for (const Param& param : group) text += ' ' + to_string(param.shape);
    }
    return text;
}

void check_module(const TempDir& dir, const Spec& spec) {
    const OpenOptions options = {.weights = Weights::module};
    if (spec.stage == 3) CHECK_FAULT(Checkpoint::open(dir.path(), options), Errc::invalid_argument);
    else zero_forge::check_tensors(Checkpoint::open(dir.path(), options), Forge::module(spec));
}

void check_compat(const TempDir& dir, const Spec& spec) {
    const OpenOptions options = {.deepspeed_compat = true};
    const auto wanted = Forge::compat(spec);
    if (wanted) zero_forge::check_tensors(Checkpoint::open(dir.path(), options), *wanted);
    else CHECK_FAULT(Checkpoint::open(dir.path(), options), Errc::invalid_argument);
}

/// Checks the moments of each parameter, and that nothing else has a padded value.
void check_optimizer(const Checkpoint& checkpoint, const Spec& spec) {
    const auto optimizer = checkpoint.optimizer();
    REQUIRE(optimizer.has_value());
    const auto wanted = Forge::moments(spec);
    for (const auto& [name, tensor] : wanted) zero_forge::check_tensor(*optimizer, name, tensor);
    for (const LazyTensor& tensor : *optimizer) {
        INFO(tensor.name());
        CHECK(tensor.name().starts_with("optimizer/"));
        if (!wanted.contains(tensor.name())) CHECK(tensor.nbytes() <= 8);  // a number: a step
    }
}

void check_layout(const Checkpoint& checkpoint, const Spec& spec) {
    CHECK(checkpoint.format() == Format::zero);
    REQUIRE(checkpoint.layout().has_value());
    const TrainingLayout& layout = *checkpoint.layout();
    CHECK(layout.kind == "deepspeed");
    CHECK(layout.stage == spec.stage);
    CHECK(layout.world_size == spec.world);
    CHECK(layout.tag == spec.tag);
    if (!spec.old_names) CHECK(layout.version == spec.version);
}

void check_run(const Spec& spec) {
    INFO(described(spec));
    const TempDir dir = TempDir::in_memory();
    Forge::run(spec).write(dir.path());
    const auto opened = error_of([&] {
        const Checkpoint checkpoint = Checkpoint::open(dir.path());
        check_layout(checkpoint, spec);
        zero_forge::check_tensors(checkpoint, Forge::weights(spec));
        if (spec.stage != 0) check_optimizer(checkpoint, spec);
        check_module(dir, spec);
        check_compat(dir, spec);
    });
    CHECK_MESSAGE(!opened.has_value(), std::string(opened ? opened->what() : "").c_str());
}

void check_random(int stage, bool bf16_optimizer = false) {
    const unsigned seed = soak::seed(17U + static_cast<unsigned>(stage));
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int world = 1; world <= 70; world += soak::step(16)) {
        Spec spec = zero_forge::random_spec(random, stage, static_cast<std::uint64_t>(world));
        if (bf16_optimizer) {
            spec.bf16_optimizer = true;
            spec.round_robin = spec.elastic = spec.old_names = false;
            spec.alignment = 1;
        }
        check_run(spec);
    }
}

}  // namespace

TEST_CASE("stage 0: random models") { check_random(0); }
TEST_CASE("stage 1: random models, partitions and orders") { check_random(1); }
TEST_CASE("stage 1 with BF16_Optimizer: random models, partitions with their padding") { check_random(1, true); }
TEST_CASE("stage 2: random models, partitions and orders") { check_random(2); }
TEST_CASE("stage 3: random models and sub groups") { check_random(3); }

TEST_CASE("every stage: parameters with fewer elements than ranks, and one more or less than a multiple of them") {
    for (const int stage : {1, 2, 3}) {
        for (const std::uint64_t world : {2U, 5U, 8U}) {
            Spec spec = zero_forge::small(stage, world);
            spec.groups = {{{"one", {1}}, {"scalar", {}}}, {}};
            for (const std::uint64_t n : {world - 1, world, world + 1, 2 * world - 1, 2 * world, 2 * world + 1})
                spec.groups[1].push_back({"n" + std::to_string(spec.groups[1].size()), {n}});
            spec.ties = {};
            check_run(spec);
        }
    }
}

TEST_CASE("every stage: an older version without lists of gaps, a model without buffers, and one without groups") {
    for (const int stage : {1, 2, 3}) {
        Spec spec = zero_forge::small(stage, 3);
        spec.version = "0.10.0";
        check_run(spec);
        spec.buffers = {};
        check_run(spec);
    }
}

TEST_CASE("every stage, as Python 3.11.2 pickles it: the name of a member of an enumeration") {
    for (const int stage : {1, 2, 3}) {
        Spec spec = zero_forge::small(stage);
        spec.stage_by_name = true;
        check_run(spec);
    }
}

TEST_CASE("the tag folder opens as its root does, and so does a linked, a moved and a read-only one") {
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        const Spec spec = zero_forge::small(stage);
        const TempDir dir;
        Run run = Forge::run(spec);
        run.write(dir / "run");
        const auto wanted = Forge::weights(spec);
        zero_forge::check_tensors(Checkpoint::open(dir / "run/global_step7"), wanted);
        std::filesystem::create_directory_symlink(dir / "run", dir / "link");
        zero_forge::check_tensors(Checkpoint::open(dir / "link"), wanted);
        std::filesystem::rename(dir / "run", dir / "moved");
        zero_forge::check_tensors(Checkpoint::open(dir / "moved"), wanted);
        std::filesystem::remove(dir / "moved/latest");
        zero_forge::check_tensors(Checkpoint::open(dir / "moved"), wanted);
        const auto set_all = [&](std::filesystem::perms file, std::filesystem::perms folder) {
            std::filesystem::permissions(dir / "moved", std::filesystem::perms(0755));
            std::filesystem::permissions(dir / "moved/global_step7", std::filesystem::perms(0755));
            for (const auto& entry : std::filesystem::directory_iterator(dir / "moved/global_step7"))
                std::filesystem::permissions(entry.path(), file);
            std::filesystem::permissions(dir / "moved/global_step7", folder);
            std::filesystem::permissions(dir / "moved", folder);
        };
        set_all(std::filesystem::perms(0444), std::filesystem::perms(0555));
        zero_forge::check_tensors(Checkpoint::open(dir / "moved"), wanted);
        set_all(std::filesystem::perms(0644), std::filesystem::perms(0755));
    }
}

TEST_CASE("fp32 masters of stage 0 are named by their place") {
    const Spec spec = zero_forge::small(0);
    const zero_forge::Opened masters(Forge::run(spec), {.weights = Weights::fp32});
    for (std::size_t g = 0; g < spec.groups.size(); ++g) {
        for (std::size_t i = 0; i < spec.groups[g].size(); ++i) {
            const Param& param = spec.groups[g][i];
            zero_forge::check_tensor(masters.checkpoint, "fp32/" + std::to_string(g) + "/" + std::to_string(i),
                                     Forge::master_of(param));
        }
    }
}

TEST_CASE("names that no file has values for are in the notes") {
    Spec spec = zero_forge::small(3);
    spec.keep_frozen = false;
    const zero_forge::Opened opened(Forge::run(spec));
    CHECK(has_note(opened.checkpoint, "void.weight"));
    CHECK(has_note(opened.checkpoint, "adapter"));  // the file names the module, and not the weight
}

TEST_CASE("an optimizer that is not asked for is skipped, with its size") {
    const zero_forge::Opened opened(Forge::run(zero_forge::small(2)));
    bool named = false;
    for (const SkippedObject& object : opened.checkpoint.skipped()) named |= object.name.starts_with("optimizer");
    CHECK(named);
}

TEST_CASE("200 ranks are read with 64 descriptors") {
    for (const int stage : {2, 3}) {
        if (stage == 2 && !soak::whole()) continue;
        CAPTURE(stage);
        const Spec spec = zero_forge::small(stage, 200);
        const TempDir dir = TempDir::in_memory();
        Forge::run(spec).write(dir.path());
        const auto wanted = Forge::weights(spec);
        CHECK(true_in_child([&] {
            const rlimit both = {64, 64};
            if (::setrlimit(RLIMIT_NOFILE, &both) != 0) return false;
            const Checkpoint checkpoint = Checkpoint::open(dir.path());
            for (const LazyTensor& tensor : checkpoint)
                if (bytes_of(tensor) != wanted.at(tensor.name()).bytes) return false;
            return true;
        }));
    }
}

}  // namespace zero_random_test
