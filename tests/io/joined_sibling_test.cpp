// Tests of JoinedSibling (pending_save.hpp): another process finds the files of a save by their token, and writes into
// them. Here, the other process is the same one: it knows the target and the key only.
#include "doctest_safemap.hpp"
#include "io/pending_save.hpp"
#include "io/scripted_calls.hpp"
#include "io/staging.hpp"
#include "temp_dir.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace joined_sibling_test {

using namespace safemap;
using io::JoinedSibling;
using io::Staging;
namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// The other process writes the second half of a file that this one has created.
void write_half(const fs::path& target, Staging::Kind kind, io::Existing existing, const std::string& key,
                const std::string& name) {
    const JoinedSibling joined(target, kind, existing, key, false);
    CHECK(joined.path_of(name) == (kind == Staging::Kind::folder ? (target / name).native() : target.native()));
    io::OutputFile file = joined.reopen(name);
    file.write_at(5, bytes_of("other"));
    file.finish();
}

void begin_file(Staging& staging, const std::string& name) {
    io::OutputFile file = staging.add(name);
    file.allocate(10);
    file.write_at(0, bytes_of("first"));
    file.finish();
}

Error refused(const fs::path& target, const std::string& key) {
    const auto error =
        error_of([&] { const JoinedSibling joined(target, Staging::Kind::folder, io::Existing::refuse, key, false); });
    REQUIRE(error);
    return *error;
}

}  // namespace

TEST_CASE("another process writes into files of a new folder and of a new file, in place or beside") {
    const TempDir dir = TempDir::in_memory();
    {
        Staging staging(dir / "new", Staging::Kind::folder);
        const std::string key = staging.open_to_others();
        begin_file(staging, "a");
        staging.add_folder("inner");
        begin_file(staging, "inner/b");
        write_half(dir / "new", Staging::Kind::folder, io::Existing::refuse, key, "a");
        write_half(dir / "new", Staging::Kind::folder, io::Existing::refuse, key, "inner/b");
        staging.commit();
    }
    CHECK(TempDir::read(dir / "new/a") == "firstother");
    CHECK(TempDir::read(dir / "new/inner/b") == "firstother");
    {
        Staging staging(dir / "file", Staging::Kind::file);
        const std::string key = staging.open_to_others();
        begin_file(staging, "");
        write_half(dir / "file", Staging::Kind::file, io::Existing::refuse, key, "");
        staging.commit();
    }
    CHECK(TempDir::read(dir / "file") == "firstother");
    {
        const fs::path before = fs::current_path();
        fs::current_path(dir / "new");  // a working directory is replaced in place
        Staging staging(dir / "new", Staging::Kind::folder, io::Existing::replace);
        const std::string key = staging.open_to_others();
        CHECK(key.starts_with("inside "));
        begin_file(staging, "c");
        write_half(dir / "new", Staging::Kind::folder, io::Existing::replace, key, "c");
        staging.commit();
        fs::current_path(before);
    }
    CHECK(TempDir::read(dir / "new/c") == "firstother");
    for (const auto& entry : fs::recursive_directory_iterator(dir.path()))
        CHECK_FALSE(entry.path().filename().native().starts_with("."));
}

TEST_CASE("a target without the token, or with that of another save, is not the same place") {
    const TempDir dir = TempDir::in_memory();
    Staging first(dir / "first", Staging::Kind::folder);
    const std::string key = first.open_to_others();
    Staging second(dir / "second", Staging::Kind::folder);
    const Staging third(dir / "third", Staging::Kind::folder);
    CHECK(second.open_to_others() != key);
    const SkippedSleeps sleeps;
    std::vector<std::thread> waiting;  // each looks for some seconds
    std::vector<Error> errors(3, Error(Errc::io_error, ""));
    for (int i = 0; i < 3; ++i)
        waiting.emplace_back([&, i] {
            const char* const targets[] = {"second", "third", "nothing"};
            errors[static_cast<std::size_t>(i)] = refused(dir / targets[i], key);
        });
    for (std::thread& thread : waiting) thread.join();
    for (const Error& error : errors) {
        CHECK(error.code() == Errc::invalid_argument);
        CHECK(error.hint() == "save to a file system that all processes share, under the same path");
    }
    CHECK(sleeps.total() >= 3 * std::chrono::seconds(2));
}

TEST_CASE("a token that appears late is found") {
    const TempDir dir = TempDir::in_memory();
    Staging staging(dir / "out", Staging::Kind::folder);
    const std::string key = staging.open_to_others();
    const fs::path token = dir / ".out.safemap-tmp/token";
    fs::rename(token, dir / "token");
    std::thread late([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(120));
        fs::rename(dir / "token", token);
    });
    const auto error = error_of(
        [&] { const JoinedSibling joined(dir / "out", Staging::Kind::folder, io::Existing::refuse, key, false); });
    late.join();
    CHECK_FALSE(error);
}

TEST_CASE("what is committed or removed cannot be written to") {
    const TempDir dir = TempDir::in_memory();
    auto staging = std::make_unique<Staging>(dir / "out", Staging::Kind::folder);
    const std::string key = staging->open_to_others();
    begin_file(*staging, "a");
    const JoinedSibling joined(dir / "out", Staging::Kind::folder, io::Existing::refuse, key, false);
    staging.reset();
    Staging next(dir / "out", Staging::Kind::folder);
    begin_file(next, "a");
    CHECK(error_of([&] { joined.reopen("a"); })->code() == Errc::path_not_found);
}

TEST_CASE("a process that continues the save of several removes their token, also if all is in place already") {
    const TempDir dir = TempDir::in_memory();
    const io::StagingOptions job{.id = std::string(32, 'a'), .resume = true};
    const fs::path sibling = dir / ".out.safemap-tmp";
    for (const bool published : {false, true}) {
        CAPTURE(published);
        fs::remove_all(dir / "out");
        const pid_t child = ::fork();
        if (child == 0) {
            Staging staging(dir / "out", Staging::Kind::folder, io::Existing::refuse, job);
            staging.open_to_others();
            begin_file(staging, "a");
            staging.finished("a");
            ::_exit(0);  // as if it had been killed: nothing is removed
        }
        int status = 1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(status == 0);
        if (published) fs::rename(sibling / "content", dir / "out");
        CHECK(fs::exists(sibling / "token"));
        Staging staging(dir / "out", Staging::Kind::folder, io::Existing::refuse, job);
        CHECK(staging.adopt("a"));
        staging.commit();
        CHECK(TempDir::read(dir / "out/a").starts_with("first"));
        CHECK_FALSE(fs::exists(sibling));
    }
}

}  // namespace joined_sibling_test
