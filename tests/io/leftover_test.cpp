// Tests which hidden folders are taken for leftovers of a power failure, and which are not.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/calls.hpp"
#include "io/scripted_calls.hpp"
#include "io/staging.hpp"
#include "temp_dir.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace leftover_test {

using namespace safemap;
using io::Staging;
namespace fs = std::filesystem;

namespace {

void save_file(const fs::path& target) {
    Staging staging(target, Staging::Kind::file);
    io::OutputFile file = staging.add("");
    file.write_at(0, std::as_bytes(std::span("new", 3)));
    file.finish();
    staging.commit();
}

std::size_t entries_in(const fs::path& folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a leftover of a power failure without a lock is removed, and anything else with that name stays") {
    const std::string name = ".out.safemap-tmp";
    struct Row {
        const char* what;
        bool ours;
        mode_t mode;
        std::function<void(const TempDir&)> fill;
    };
    const auto in = [&](const char* file) { return name + "/" + file; };
    const auto content = [&](const TempDir& dir) {
        fs::create_directory(dir / in("content"));
        dir.write(in("content/model.safetensors"), "half");
    };
    const Row rows[] = {
        {"a folder of files", true, 0700, content},
        {"a file", true, 0700, [&](const TempDir& dir) { dir.write(in("content"), "half"); }},
        {"a folder and a journal", true, 0700,
         [&](const TempDir& dir) {
             content(dir);
             dir.write(in("journal"), "safemap journal 1 0123");
             dir.write(in("exchange.new"), "");
         }},
        {"nothing in the content", true, 0700, [&](const TempDir& dir) { fs::create_directory(dir / in("content")); }},
        {"a journal without content", true, 0700,
         [&](const TempDir& dir) { dir.write(in("journal"), "safemap journal 1 0123"); }},
        {"an empty journal", true, 0700,
         [&](const TempDir& dir) {
             content(dir);
             dir.write(in("journal"), "");
         }},
        {"a journal that is not finished", true, 0700, [&](const TempDir& dir) { dir.write(in("journal.new"), ""); }},
        {"others may look into it", false, 0755, content},
        {"a folder in the content", false, 0700,
         [&](const TempDir& dir) {
             content(dir);
             fs::create_directory(dir / in("content/logs"));
         }},
        {"a file that has another name, too", false, 0700,
         [&](const TempDir& dir) {
             dir.write("mine", "mine");
             fs::create_hard_link(dir / "mine", dir / in("content"));
         }},
        {"a link", false, 0700, [&](const TempDir& dir) { fs::create_symlink("/etc", dir / in("content")); }},
        {"an empty commit list", false, 0700,
         [&](const TempDir& dir) {
             content(dir);
             dir.write(in("commit"), "");
         }},
        {"a journal of somebody else", false, 0700,
         [&](const TempDir& dir) {
             content(dir);
             dir.write(in("journal"), "dear diary");
         }},
        {"another name", false, 0700,
         [&](const TempDir& dir) {
             content(dir);
             dir.write(in("mine"), "mine");
         }},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        const TempDir dir;
        fs::create_directory(dir / name);
        row.fill(dir);
        REQUIRE(::chmod((dir / name).c_str(), row.mode) == 0);
        const std::size_t before = entries_in(dir / name);
        if (row.ours) {
            CHECK_OK(save_file(dir / "out"));
            CHECK(!fs::exists(dir / name));
            continue;
        }
        const auto error = error_of([&] { save_file(dir / "out"); });
        check_error(error, {Errc::already_exists}, {});
        CHECK(error->hint().find("remove") == std::string::npos);
        CHECK(entries_in(dir / name) == before);
        CHECK(!fs::exists(dir / "out"));
    }
}

TEST_CASE("a leftover beside a folder is removed, also when that folder can no longer be exchanged") {
    const TempDir dir;
    const fs::path left = dir / ".out.safemap-tmp";
    fs::create_directories(dir / "out");
    fs::create_directories(left / "content/logs");
    dir.write(".out.safemap-tmp/safemap.lock", "");
    dir.write(".out.safemap-tmp/content/model.safetensors", "half");
    dir.write(".out.safemap-tmp/content/logs/a", "half");
    const NoExchange none;
    Staging staging(dir / "out", Staging::Kind::folder, io::Existing::replace);
    CHECK(!fs::exists(left));
    CHECK(fs::exists(dir / "out/.safemap-tmp"));
}

TEST_CASE("a foreign entry with the hidden folder's name does not block a save in place") {
    const TempDir dir;
    fs::create_directories(dir / "out");
    fs::create_directories(dir / ".out.safemap-tmp");
    const NoExchange none;
    dir.write(".out.safemap-tmp/mine", "mine");
    CHECK_OK(Staging(dir / "out", Staging::Kind::folder, io::Existing::replace));
    CHECK(TempDir::read(dir / ".out.safemap-tmp/mine") == "mine");
}

TEST_CASE("the lock is flushed to disk before anything else is created in the hidden folder") {
    const TempDir dir;
    static fs::path place;
    static bool synced;
    place = dir / ".out.safemap-tmp";
    synced = false;
    const ScriptedCalls calls;  // restores the table at the end
    io::calls.fsync = [](int descriptor) {
        struct stat folder = {};
        struct stat open = {};
        if (::stat(place.c_str(), &folder) == 0 && ::fstat(descriptor, &open) == 0 && folder.st_ino == open.st_ino)
            synced = entries_in(place) == 1 && fs::exists(place / "safemap.lock");
        return ::fsync(descriptor);
    };
    const Staging staging(dir / "out", Staging::Kind::folder);
    CHECK(synced);
}

TEST_CASE("a file larger than the process may write is reported as such") {
    const TempDir dir;
    ScriptedCalls calls;
    calls.fail_all("fallocate", EFBIG);
    Staging staging(dir / "out", Staging::Kind::file);
    const auto error = error_of([&] { staging.add("").allocate(1'000); });
    check_error(error, {Errc::no_space}, {"large"});
    CHECK(!error->hint().empty());
}

}  // namespace leftover_test
