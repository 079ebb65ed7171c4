// Tests which classes and functions are listed of the pickles of many ranks: a rank that names others than the first
// rank does not escape.
#include "distributed/zero/read_zero.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/zero.hpp"
#include "pickle/memory_share.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace globals_test {

using namespace safemap;
namespace fs = std::filesystem;
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

/// A folder whose files all need more memory than the share of a thread, so that each is read twice.
class TightFolder final : public Folder {
public:
    explicit TightFolder(std::map<std::string, std::string> files) : folder_(std::move(files)) {}

    const std::string& name() const noexcept override { return folder_.name(); }
    std::vector<std::string> list() const override { return folder_.list(); }
    std::vector<std::string> folders() const override { return folder_.folders(); }
    std::shared_ptr<const Folder> folder(std::string_view name) const override { return folder_.folder(name); }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        MemoryShare::exceed();
        return folder_.open(file);
    }

private:
    forge::Folder folder_;
};

/// Returns the globals of a folder, each as a text, however often its files are read.
std::vector<std::string> same_globals(state::Contents (*read)(const distributed::ZeroTag&, const OpenOptions&),
                                      const std::map<std::string, std::string>& files) {
    const auto globals_in = [&](std::shared_ptr<const Folder> folder) {
        std::vector<std::string> found;
        for (const NamedGlobal& each : read({std::move(folder)}, {.work = {.threads = 4}}).globals)
            found.push_back(each.record + " " + each.module + "." + each.name);
        return found;
    };
    const auto once = globals_in(std::make_shared<forge::Folder>(files));
    CHECK(globals_in(std::make_shared<TightFolder>(files)) == once);
    return once;
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

TEST_CASE("globals of files that are read twice for their memory are listed once") {
    const pt::Value call = pt::raw(forge::call("other", "function", {}));
    const auto is_other = [](const std::string& text) { return text.ends_with("other.function"); };
    Run run = Forge::run(zero_forge::small(2, 3));
    for (const std::uint64_t rank : {1U, 2U}) run.state(rank)["overflow"] = call;
    std::map<std::string, std::string> files;
    for (const auto& [name, value] : run.files) files[name] = pt::Writer::file(value, {}, fs::path(name).stem());
    CHECK(std::ranges::count_if(same_globals(distributed::read_zero, files), is_other) == 2);

    files.clear();
    for (const char* name : {"a", "b", "c"}) {
        pt::Value value = pt::dict({{"param", pt::tensor(Dtype::f32, {1}, "1234")}});
        if (*name != 'a') value.set("other", call);
        files["zero/" + std::string(name) + "/fp32.pt"] = pt::Writer::file(value);
    }
    CHECK(std::ranges::count_if(same_globals(distributed::read_universal_tag, files), is_other) == 1);
}

}  // namespace globals_test
