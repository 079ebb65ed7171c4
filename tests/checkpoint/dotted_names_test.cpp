// Tests parts of checkpoints whose names are keys joined by dots, as torch.distributed.checkpoint has them: parts() and
// below() go by the tree, and names lose the prefix that the part had.
#include <safemap/checkpoint.hpp>

#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/structure.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace dotted_names_test {

using namespace safemap;
using namespace dcp_forge;

namespace {

std::vector<std::string> names(const Checkpoint& checkpoint) {
    auto out = names_of(checkpoint);
    std::sort(out.begin(), out.end());
    return out;
}

struct Opened {
    TempDir folder = TempDir::in_memory();
    Checkpoint checkpoint;

    explicit Opened(const Save& save) : checkpoint(open(folder, save)) {}

    static Checkpoint open(const TempDir& folder, const Save& save) {
        for (const auto& [name, bytes] : save.all()) folder.write(name, bytes);
        return Checkpoint::open(folder.path());
    }
};

void add(Save& save, const std::string& name, std::optional<std::vector<Step>> path = {}) {
    std::mt19937 random(1);
    add_tensor(save, random, name, Dtype::u8, {2}, name.substr(name.size() - 2), {{{0}, {2}}}, 1);
    save.metadata.entries.back().path = std::move(path);
}

Save training() {
    Save save;
    add(save, "model.a.w", std::vector<Step>{"model", "a", "w"});
    add(save, "model.b.0.w", std::vector<Step>{"model", "b", 0, "w"});
    add(save, "opt.state.a.w.m1", std::vector<Step>{"opt", "state", "a.w", "m1"});
    save.add_object("step", forge::integer(3), std::vector<Step>{"step"});
    return save;
}

}  // namespace

TEST_CASE("parts are those of the tree, and names in them lose the prefix") {
    const Opened opened(training());
    const Checkpoint& whole = opened.checkpoint;
    CHECK(names(whole) == std::vector<std::string>{"model.a.w", "model.b.0.w", "opt.state.a.w.m1"});
    CHECK(whole.parts() == std::vector<std::string>{"model", "opt"});
    CHECK(names(whole.below("model")) == std::vector<std::string>{"a.w", "b.0.w"});
    CHECK(names(whole.below("model/b/0")) == std::vector<std::string>{"w"});
    CHECK(names(whole.below("opt/state")) == std::vector<std::string>{"a.w.m1"});
    CHECK(whole.below("model").parts() == std::vector<std::string>{"a", "b"});
    CHECK(names(whole.below("model").below("a")) == std::vector<std::string>{"w"});
    CHECK(names(whole.select(Selection::glob("*w"))).size() == 2);
    CHECK(names(whole.select(Selection::glob("*w")).below("model")) == std::vector<std::string>{"a.w", "b.0.w"});
    const auto error = error_of([&] { return whole.below("modle"); });
    REQUIRE(error.has_value());
    CHECK(error->hint().find("'model', 'opt'") != std::string::npos);
}

TEST_CASE("names that do not join the keys of the part are kept") {
    Save save;
    add(save, "weights", std::vector<Step>{"model", "w"});
    add(save, "model.v", std::vector<Step>{"model", "v"});
    const Opened opened(save);
    const Checkpoint part = opened.checkpoint.below("model");
    CHECK(part.size() == 2);
    CHECK(part.tree()->find("w").has_value());
}

TEST_CASE("a converted checkpoint has the same names, tree and parts") {
    const Opened opened(training());
    const TempDir folder = TempDir::in_memory();
    save(folder / "out.safetensors", opened.checkpoint);
    const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
    CHECK(names(again) == names(opened.checkpoint));
    CHECK(again.parts() == opened.checkpoint.parts());
    CHECK(structure_of(again) == structure_of(opened.checkpoint));
    CHECK(names(again.below("opt")) == names(opened.checkpoint.below("opt")));
}

TEST_CASE("a flat checkpoint is a flat state dict") {
    Save save;
    add(save, "a.w", std::vector<Step>{"a.w"});
    add(save, "b.w");
    const Opened opened(save);
    CHECK(opened.checkpoint.parts().empty());
    const TempDir folder = TempDir::in_memory();
    safemap::save(folder / "out.safetensors", opened.checkpoint);
    const Checkpoint again = Checkpoint::open(folder / "out.safetensors");
    CHECK(names(again) == std::vector<std::string>{"a.w", "b.w"});
    CHECK(again.tree() == nullptr);
}

}  // namespace dotted_names_test
