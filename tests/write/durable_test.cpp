// Tests SaveOptions::durable: without it nothing is flushed to disk, and everything else is the same.
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/shard_writer.hpp>
#include <safemap/checkpoint.hpp>

#include <algorithm>

namespace durable_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

constexpr std::uint64_t count = 4;  // number of tensors, each in a shard of its own

fs::path source_in(const TempDir& dir) {
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < count; ++i)
        tensors.push_back(tensor("t" + std::to_string(i), Dtype::f32, {1'000}, 10 + i));
    save(dir / "in.safetensors", tensors, {.overwrite = true});
    return dir / "in.safetensors";
}

SaveOptions options_for(bool durable, bool overwrite) {
    return {.max_shard_size = 4'000, .overwrite = overwrite, .durable = durable, .work = {.threads = 1}};
}

/// The state before the save, and its target.
struct World {
    const char* what;
    const char* out;
    bool overwrite;
    bool in_place;
    bool folders = false;
};
constexpr World worlds[] = {
    {"a new file", "out.safetensors", false, false},     {"a new folder", "out", false, false},
    {"a folder of other files", "out", false, true},     {"a file that is replaced", "out.safetensors", true, false},
    {"a folder that is exchanged", "out", true, false},  {"a folder that is replaced in place", "out", true, true},
    {"a folder with folders", "out", true, false, true},
};

void prepare(const TempDir& dir, const World& world) {
    fs::remove_all(dir / world.out);
    if (world.overwrite) save(dir / world.out, std::vector<LazyTensor>{tensor("old", Dtype::f32, {3})});
    if (world.folders) fs::create_directories(dir / world.out / "logs");
    if (world.folders) dir.write(std::string(world.out) + "/logs/a.txt", "mine");
    if (!world.in_place) return;
    fs::create_directories(dir / world.out);
    dir.write(std::string(world.out) + "/mine.txt", "mine");
}

/// Returns the files at the target, which is a file or a folder.
std::map<std::string, std::string> result(const fs::path& out) {
    if (fs::is_regular_file(out)) return {{"", TempDir::read(out)}};
    auto contents = contents_of(out);
    if (fs::exists(out / "logs")) contents.emplace("logs/a.txt", TempDir::read(out / "logs/a.txt"));
    return contents;
}

/// Returns the names of the system calls that `work` makes.
template <class Work> Names calls_of(Work&& work) {
    ScriptedCalls calls;
    calls.remember();
    work();
    return calls.names();
}

std::size_t syncs_in(const Names& names) {
    return static_cast<std::size_t>(std::count(names.begin(), names.end(), "fsync"));
}

std::string boot = "one";

/// A machine whose boot id is `boot`.
struct InBoot {
    InBoot() {
        boot = "one";
        io::calls.boot_id = [] { return boot; };
    }
    ~InBoot() { io::calls.boot_id = before; }
    std::string (*before)() = io::calls.boot_id;
};

}  // namespace

TEST_CASE("a save that is not durable flushes nothing, and does everything else") {
    const TempDir dir;
    const InBoot one;
    const Checkpoint model = Checkpoint::open(source_in(dir));
    const Extras extras{.files = {{"config.json", memory_source("config.json", random_bytes(100, 1))}}};
    for (const World& world : worlds) {
        const NoExchange none(world.in_place);
        for (const bool checksums : {false, true}) {
            CAPTURE(world.what);
            CAPTURE(checksums);
            Names names[2];
            std::map<std::string, std::string> results[2];
            SaveReport reports[2];
            for (const bool durable : {false, true}) {
                prepare(dir, world);
                SaveOptions options = options_for(durable, world.overwrite);
                options.checksums = checksums;
                options.extras = extras;
                names[durable] = calls_of([&] { reports[durable] = save(dir / world.out, model, options); });
                results[durable] = result(dir / world.out);
            }
            CHECK(syncs_in(names[false]) == 0);
            CHECK(syncs_in(names[true]) > 0);
            std::erase(names[true], "fsync");
            std::erase(names[false], "close");
            CHECK(names[false] == names[true]);
            CHECK(results[false] == results[true]);
            CHECK(reports[false].notes == reports[true].notes);
            CHECK(reports[false].bytes_written == reports[true].bytes_written);
            fs::remove_all(dir / world.out);
            CHECK(names_in(dir.path()) == Names{"in.safetensors"});
        }
    }
}

TEST_CASE("an error that a server reports at close of an unsynced file is thrown, and nothing is left") {
    const TempDir dir;
    const Checkpoint model = Checkpoint::open(source_in(dir));
    for (const char* out : {"out", "out.safetensors"}) {
        ScriptedCalls calls;
        calls.fail_all("close", EDQUOT);
        CHECK_FAULT(save(dir / out, model, options_for(false, false)), Errc::no_space);
        CHECK_OK(save(dir / "durable.safetensors", model, options_for(true, true)));
        CHECK(names_in(dir.path()) == Names{"durable.safetensors", "in.safetensors"});
    }
}

TEST_CASE("a writer that is not durable flushes nothing") {
    const TempDir dir;
    const LazyTensor w = tensor("w", Dtype::f32, {100});
    const std::vector<Declaration> declarations = {{"w", Dtype::f32, {100}}};
    for (const char* out : {"out", "out.safetensors"}) {
        const Names names = calls_of([&] {
            ShardWriter writer(dir / out, declarations, {.checksums = true, .durable = false});
            writer.write("w", w);
            writer.commit();
        });
        CHECK(syncs_in(names) == 0);
        CHECK(Checkpoint::open(dir / out).size() == 1);
    }
}

TEST_CASE("a save that is not durable, killed at any system call, leaves the old or the new") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    const Checkpoint model = Checkpoint::open(in);
    for (const World& world : worlds) {
        CAPTURE(world.what);
        const NoExchange none(world.in_place);
        const fs::path out = dir / world.out;
        const SaveOptions options = options_for(false, world.overwrite);
        prepare(dir, world);
        save(out, model, options);
        const auto expected = result(out);
        bool died = true;
        for (int nth = soak::step(6); died; nth += soak::step(6)) {
            CAPTURE(nth);
            REQUIRE(nth < 400);
            prepare(dir, world);
            died = killed_at(nth, in, out, options);
            bool is_new = false;
            if (fs::exists(out)) {
                // A folder of other files has no checkpoint before the save.
                const auto error = error_of([&] {
                    const Checkpoint there = Checkpoint::open(out);
                    is_new = there.find("t0") != nullptr;
                    CHECK(there.size() == (is_new ? count : 1));
                    for (const LazyTensor& each : there) CHECK_OK(each.load());
                });
                if (error) CHECK_FALSE(world.overwrite);
            }
            SaveOptions again = options;
            again.overwrite = again.overwrite || is_new;
            CHECK_OK(save(out, model, again));
            CHECK(result(out) == expected);
            fs::remove_all(out);
            CHECK(names_in(dir.path()) == Names{"in.safetensors"});
        }
    }
}

TEST_CASE("a save that was not durable is resumed until the next boot, and only by a save that is not durable either") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    const Checkpoint model = Checkpoint::open(in);
    SaveOptions options = options_for(false, false);
    options.resume = true;
    const InBoot one;
    std::map<std::string, std::string> expected;
    /// Returns the number of the call before which all files but the last are finished, and none has appeared.
    const auto last_write = [&](const SaveOptions& how) {
        const Names names = calls_of([&] { save(dir / "out", model, how); });
        expected = contents_of(dir / "out");
        fs::remove_all(dir / "out");
        const auto last = std::find(names.rbegin(), names.rend(), "pwrite");
        return static_cast<int>(names.rend() - last);
    };
    const auto resumed = [&](bool was_durable, bool durable, const char* now) {
        SaveOptions how = options;
        how.durable = was_durable;
        boot = "one";
        const int last = last_write(how);
        REQUIRE(killed_at(last, in, dir / "out", how));
        boot = now;
        how.durable = durable;
        const SaveReport report = save(dir / "out", model, how);
        CHECK(contents_of(dir / "out") == expected);
        fs::remove_all(dir / "out");
        CHECK(names_in(dir.path()) == Names{"in.safetensors"});
        return report.resumed.size();
    };
    CHECK(resumed(false, false, "one") >= count);
    CHECK(resumed(false, false, "another") == 0);
    CHECK(resumed(false, false, "") == 0);
    CHECK(resumed(false, true, "one") == 0);
    CHECK(resumed(false, true, "another") == 0);
    CHECK(resumed(true, true, "another") >= count);
    CHECK(resumed(true, false, "one") == 0);  // a different job, which starts over
}

}  // namespace durable_test
