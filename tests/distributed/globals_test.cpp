// Tests which classes and functions are listed of the pickles of many ranks: a rank that names others than the first
// rank does not escape.
#include "doctest_safemap.hpp"
#include "forge/zero.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace globals_test {

using namespace safemap;
using zero_forge::Forge;
using zero_forge::Run;

namespace {

std::vector<NamedGlobal> globals_of(const Run& run) {
    const TempDir dir = TempDir::in_memory();
    for (const auto& [name, bytes] : run.packed()) {
        std::filesystem::create_directories((dir / name).parent_path());
        dir.write(name, bytes);
    }
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    return checkpoint.globals();
}

bool same(const NamedGlobal& a, const NamedGlobal& b) {
    return a.module == b.module && a.name == b.name && a.record == b.record && a.called == b.called;
}

}  // namespace

TEST_CASE("globals that only one rank names, or calls, are listed with its file") {
    for (const int stage : {1, 2, 3}) {
        CAPTURE(stage);
        Run run = Forge::run(zero_forge::small(stage, 3));
        const std::vector<NamedGlobal> usual = globals_of(run);
        // All ranks name the same: those of the others are not listed again.
        CHECK(std::none_of(usual.begin(), usual.end(), [&](const NamedGlobal& named) {
            return named.record.find(run.optimizer_name(1)) != std::string::npos;
        }));

        run.state(1)["overflow"] = pt::raw(forge::call("other", "function", {}));
        std::vector<NamedGlobal> more = globals_of(run);
        REQUIRE(more.size() == usual.size() + 1);
        const auto found = std::find_if(more.begin(), more.end(), [](const auto& g) { return g.module == "other"; });
        REQUIRE(found != more.end());
        CHECK(found->name == "function");
        CHECK(found->called);
        CHECK(!found->known);
        CHECK(found->record.find(run.optimizer_name(1)) != std::string::npos);
        more.erase(found);
        CHECK(std::equal(more.begin(), more.end(), usual.begin(), usual.end(), same));
    }
}

}  // namespace globals_test
