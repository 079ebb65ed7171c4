// Tests of replace.hpp and output.hpp: files and folders that appear complete or not at all. From top to bottom:
// commits and targets, the umask, several writers, leftovers of killed writers, failing system calls, file systems
// without some of them.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "io/staging.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace replace_test {

using namespace safemap;
using io::Staging;
namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().native());
    std::sort(names.begin(), names.end());
    return names;
}

void add(Staging& staging, const std::string& name, const std::string& text) {
    io::OutputFile file = staging.add(name);
    file.allocate(text.size());
    file.write_at(0, bytes_of(text));
    file.finish();
}

void save_file(const fs::path& target, const std::string& text) {
    Staging staging(target, Staging::Kind::file);
    add(staging, "", text);
    staging.commit();
}

void save_folder(const fs::path& target) {
    Staging staging(target, Staging::Kind::folder);
    add(staging, "a", "first");
    add(staging, "b", "second");
    staging.commit();
}

void save(const fs::path& target, Staging::Kind kind) {
    if (kind == Staging::Kind::file) save_file(target, "text");
    else save_folder(target);
}

/// Creates what a writer to `out` leaves if it dies before the rename.
void leave_litter(const TempDir& dir, Staging::Kind kind) {
    const fs::path left = dir / ".out.safemap-tmp";
    fs::create_directory(left);
    dir.write(".out.safemap-tmp/safemap.lock", "");
    if (kind == Staging::Kind::file) {
        dir.write(".out.safemap-tmp/content", "dead");
        return;
    }
    fs::create_directory(left / "content");
    dir.write(".out.safemap-tmp/content/a", "dead");
}

mode_t mode_of(const fs::path& path) {
    struct stat status = {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

struct Umask {
    explicit Umask(mode_t mask) : before(::umask(mask)) {}
    ~Umask() { ::umask(before); }
    mode_t before;
};

/// Runs `work` in a child and returns how the child ended.
template <class Work> int status_of_child(Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
        // No exception may leave the child: it would run the remaining tests.
        const auto error = error_of(work);
        ::_exit(error ? 99 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
}

}  // namespace

TEST_CASE("after a commit, only the target exists") {
    const TempDir dir;
    save_file(dir / "one", "content");
    CHECK(names_in(dir.path()) == std::vector<std::string>{"one"});
    CHECK(TempDir::read(dir / "one") == "content");
    save_folder(dir / "many");
    CHECK(names_in(dir.path()) == std::vector<std::string>{"many", "one"});
    CHECK(names_in(dir / "many") == std::vector<std::string>{"a", "b"});
    CHECK(TempDir::read(dir / "many/b") == "second");
}

TEST_CASE("a file can be filled after it was closed") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        Staging staging(dir / "out", kind);
        staging.add("a").allocate(5);
        io::OutputFile file = staging.reopen("a");
        file.write_at(0, bytes_of("later"));
        file.finish();
        staging.commit();
        CHECK(TempDir::read(kind == Staging::Kind::file ? dir / "out" : dir / "out/a") == "later");
        fs::remove_all(dir / "out");
    }
}

TEST_CASE("nothing exists before a commit, nor without one") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        {
            Staging staging(dir / "out", kind);
            add(staging, "a", "text");
            CHECK(names_in(dir.path()) == std::vector<std::string>{".out.safemap-tmp"});
        }
        CHECK(names_in(dir.path()).empty());
    }
}

TEST_CASE("relative targets and trailing slashes are resolved as usual") {
    const TempDir dir;
    const fs::path before = fs::current_path();
    fs::current_path(dir.path());
    save_folder("out/");
    save_file("file", "x");
    save_folder("./other//");
    fs::current_path(before);
    CHECK(names_in(dir.path()) == std::vector<std::string>{"file", "other", "out"});
}

TEST_CASE("an existing target is not changed") {
    const TempDir dir;
    dir.write("file", "old");
    fs::create_directory(dir / "folder");
    fs::create_symlink("nowhere", dir / "dangling");
    REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
    const auto before = names_in(dir.path());
    for (const auto* name : {"file", "file/", "folder", "folder/", "dangling", "dangling/", "pipe", ".", "folder/.."}) {
        CAPTURE(name);
        for (const auto kind : {Staging::Kind::file, Staging::Kind::folder})
            CHECK_FAULT(Staging(dir / name, kind), Errc::already_exists);
        CHECK_FAULT(io::require_absent(dir / name), Errc::already_exists);
    }
    CHECK_FAULT(Staging("/", Staging::Kind::folder), Errc::already_exists);
    CHECK(names_in(dir.path()) == before);
    CHECK(TempDir::read(dir / "file") == "old");
}

TEST_CASE("a target that appears during the save is not changed") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        Staging staging(dir / "out", kind);
        add(staging, "a", "new");
        dir.write("out", "old");
        CHECK_FAULT(staging.commit(), Errc::already_exists);
        CHECK(TempDir::read(dir / "out") == "old");
        fs::remove(dir / "out");
    }
    {
        // rename(2) without flags would replace an empty folder.
        Staging staging(dir / "out", Staging::Kind::folder);
        fs::create_directory(dir / "out");
        CHECK_FAULT(staging.commit(), Errc::already_exists);
    }
    CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
}

TEST_CASE("an impossible target is refused with the reason") {
    const TempDir dir;
    check_error(error_of([&] { Staging(dir / "no/such/out", Staging::Kind::folder); }), {Errc::path_not_found}, {},
                {.path = (dir / "no/such").native()});
    const auto hint_of = [](const std::filesystem::path& out) {
        const auto error = error_of([&] { Staging(out, Staging::Kind::folder); });
        return error ? error->hint() : std::string();
    };
    CHECK(hint_of(dir / "no/such/out") == "mkdir -p " + (dir / "no/such").native());
    dir.write("file", "x");
    CHECK_FAULT(Staging(dir / "file/out", Staging::Kind::file), Errc::path_not_found);
    CHECK(hint_of(dir / "file/out").find("it is a file") != std::string::npos);
    {
        ScriptedCalls calls;
        calls.fail_all("mkdirat", EROFS);
        CHECK(hint_of(dir / "out").find("read-only") != std::string::npos);
        calls.fail_all("mkdirat", EACCES);
        CHECK(hint_of(dir / "out").find("not writable") != std::string::npos);
    }
    CHECK_FAULT(Staging("", Staging::Kind::file), Errc::invalid_argument);
    CHECK_FAULT(Staging(dir / std::string(250, 'x'), Staging::Kind::file), Errc::invalid_argument);
    CHECK_FAULT(Staging(dir / std::string("a\0b", 3), Staging::Kind::file), Errc::path_not_found);
    CHECK(names_in(dir.path()) == std::vector<std::string>{"file"});
    CHECK_OK(save_file(dir / std::string(242, 'x'), "x"));
}

TEST_CASE("the umask decides who may read") {
    const TempDir dir;
    for (const mode_t mask : {0022U, 0077U, 0002U}) {
        CAPTURE(mask);
        const Umask umask(mask);
        save_file(dir / "file", "x");
        save_folder(dir / "folder");
        CHECK(mode_of(dir / "file") == (0666 & ~mask));
        CHECK(mode_of(dir / "folder") == (0777 & ~mask));
        CHECK(mode_of(dir / "folder/a") == (0666 & ~mask));
        fs::remove(dir / "file");
        fs::remove_all(dir / "folder");
    }
}

TEST_CASE("a umask that denies the owner is applied at the end, and does not prevent the save") {
    const TempDir dir;
    fs::permissions(dir.path(), fs::perms::all);
    for (const mode_t mask : {0277U, 0377U, 0777U}) {
        for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
            CAPTURE(mask);
            const fs::path out = dir / "out";
            const int status = status_of_child([&] {
                // Root is exempt from permissions.
                if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
                if (::access(dir.path().c_str(), W_OK | X_OK) != 0) ::_exit(3);
                ::umask(mask);
                const auto fill = [](Staging& staging, const char* name) {
                    staging.add(name).allocate(4);
                    io::OutputFile file = staging.reopen(name);
                    file.write_at(0, bytes_of("text"));
                    file.finish();
                };
                const int killed = status_of_child([&] {
                    Staging staging(out, kind);
                    fill(staging, "a");
                    ::raise(SIGKILL);
                });
                {
                    Staging staging(out, kind);
                    fill(staging, "a");
                }
                const bool gone = WIFSIGNALED(killed) && names_in(dir.path()).empty();
                const auto error = error_of([&] {
                    Staging staging(out, kind);
                    fill(staging, "a");
                    if (kind == Staging::Kind::folder) fill(staging, "b");
                    staging.commit();
                });
                ::_exit(gone && !error ? 0 : 1);
            });
            if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
                MESSAGE("skipped: the folder for temporary files is root's alone");
                return;
            }
            CHECK(status == 0);
            CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
            if (kind == Staging::Kind::file) {
                CHECK(mode_of(out) == (0666 & ~mask));
            } else {
                CHECK(mode_of(out) == (0777 & ~mask));
                fs::permissions(out, fs::perms::all);
                CHECK(mode_of(out / "a") == (0666 & ~mask));
                CHECK(mode_of(out / "b") == (0666 & ~mask));
            }
            fs::remove_all(out);
        }
    }
}

TEST_CASE("a second writer gets a 'busy' error, and damages nothing") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        Staging staging(dir / "out", kind);
        add(staging, "a", "first");
        CHECK_FAULT(Staging(dir / "out", kind), Errc::busy);
        const int status = status_of_child([&] {
            const auto error = error_of([&] { Staging(dir / "out", kind); });
            ::_exit(error && error->code() == Errc::busy ? 0 : 1);
        });
        CHECK(status == 0);
        CHECK_OK(staging.commit());
        fs::remove_all(dir / "out");
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("leftovers of a killed writer are removed by the next one") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        const int status = status_of_child([&] {
            Staging staging(dir / "out", kind);
            add(staging, "a", "left");
            ::raise(SIGKILL);
        });
        CHECK(WIFSIGNALED(status));
        CHECK(names_in(dir.path()) == std::vector<std::string>{".out.safemap-tmp"});
        if (kind == Staging::Kind::file) save_file(dir / "out", "new");
        else save_folder(dir / "out");
        CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
        fs::remove_all(dir / "out");
    }
}

TEST_CASE("a writer that dies at any system call leaves a leftover that the next one removes, or a complete target") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        for (const bool after_litter : {false, true}) {
            bool died = true;
            int appeared = 0;
            for (int nth = soak::step(3); died; nth += soak::step(3)) {
                CAPTURE(nth);
                REQUIRE(nth < 70);
                if (after_litter) leave_litter(dir, Staging::Kind::folder);
                const int status = status_of_child([&] {
                    ScriptedCalls calls;
                    calls.die_at(nth);
                    save(dir / "out", kind);
                });
                died = WIFSIGNALED(status);
                CHECK((died || status == 0));
                if (fs::exists(dir / "out")) {
                    ++appeared;
                    if (kind == Staging::Kind::file) CHECK(TempDir::read(dir / "out") == "text");
                    else CHECK(TempDir::read(dir / "out/b") == "second");
                    fs::remove_all(dir / "out");
                }
                CHECK_OK(save(dir / "out", kind));
                CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
                fs::remove_all(dir / "out");
            }
            if (soak::whole()) CHECK(appeared > 3);
        }
    }
}

TEST_CASE("a leftover of the other kind is removed too") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        for (const auto left : {Staging::Kind::file, Staging::Kind::folder}) {
            leave_litter(dir, left);
            CHECK_OK(save(dir / "out", kind));
            CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
            fs::remove_all(dir / "out");
        }
        fs::create_directory(dir / ".out.safemap-tmp");
        CHECK_OK(save(dir / "out", kind));
        CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
        fs::remove_all(dir / "out");
    }
}

TEST_CASE("a foreign entry with the hidden folder's name stays") {
    const TempDir dir;
    const fs::path place = dir / ".out.safemap-tmp";
    dir.write("precious", "mine");
    const std::vector<std::function<void()>> makers = {
        [&] { dir.write(".out.safemap-tmp", "mine"); },
        [&] { fs::create_symlink("precious", place); },
        [&] { fs::create_symlink("nowhere", place); },
        [&] { REQUIRE(::mkfifo(place.c_str(), 0600) == 0); },
        [&] { fs::create_directories(place / "deep"); },
        [&] { fs::create_directories(place / "content"); },
        [&] { fs::create_directories(place / "safemap.lock"); },
        [&] {
            leave_litter(dir, Staging::Kind::folder);
            dir.write(".out.safemap-tmp/mine", "mine");
        },
        [&] {
            leave_litter(dir, Staging::Kind::file);
            dir.write(".out.safemap-tmp/safemap.lock", "mine");
        },
        [&] {
            leave_litter(dir, Staging::Kind::file);
            fs::remove(place / "safemap.lock");
            fs::create_symlink("../precious", place / "safemap.lock");
        },
    };
    const auto everything = [&] {
        std::vector<std::string> found;
        for (const auto& entry : fs::recursive_directory_iterator(dir.path())) found.push_back(entry.path().native());
        std::sort(found.begin(), found.end());
        return found;
    };
    for (std::size_t i = 0; i < makers.size(); ++i) {
        CAPTURE(i);
        makers[i]();
        const auto before = everything();
        for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
            const auto error = error_of([&] { Staging(dir / "out", kind); });
            check_error(error, {Errc::already_exists}, {});
            CHECK(error->path() == (dir / "out").native());
            CHECK(error->message().find("'.out.safemap-tmp'") != std::string::npos);
            CHECK(!error->hint().empty());
        }
        CHECK(everything() == before);
        fs::remove_all(place);
    }
    CHECK(TempDir::read(dir / "precious") == "mine");
}

TEST_CASE("one of many writers to one target wins, and files are never mixed") {
    const TempDir dir;
    constexpr int writers = 8;
    for (int round = 0; round < 10; ++round) {
        CAPTURE(round);
        leave_litter(dir, round % 2 == 0 ? Staging::Kind::file : Staging::Kind::folder);
        std::vector<pid_t> children;
        for (int i = 0; i < writers; ++i) {
            const pid_t child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                const std::string content(1'000, static_cast<char>('a' + i));
                const auto error = error_of([&] { save_file(dir / "out", content); });
                const bool lost = error && (error->code() == Errc::busy || error->code() == Errc::already_exists);
                ::_exit(!error ? 0 : lost ? 1 : 2);
            }
            children.push_back(child);
        }
        int won = 0;
        for (const pid_t child : children) {
            int status = 0;
            ::waitpid(child, &status, 0);
            REQUIRE(WIFEXITED(status));
            CHECK(WEXITSTATUS(status) != 2);
            won += WEXITSTATUS(status) == 0 ? 1 : 0;
        }
        // All may find the target busy at the same moment, but two must not win.
        CHECK(won <= 1);
        if (won == 1) {
            const std::string content = TempDir::read(dir / "out");
            CHECK(content == std::string(1'000, content[0]));
        }
        fs::remove(dir / "out");
        fs::remove_all(dir / ".out.safemap-tmp");
        CHECK(names_in(dir.path()).empty());
    }
}

TEST_CASE("every system call of a save may fail: an error, and nothing left") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        for (const int number : {EIO, ENOSPC}) {
            int survived = 0;
            for (int nth = soak::step(3); survived == 0; nth += soak::step(3)) {
                CAPTURE(nth);
                REQUIRE(nth < 70);
                leave_litter(dir, nth % 2 == 0 ? Staging::Kind::file : Staging::Kind::folder);
                const auto failure = fail_at(nth, number, [&] { save(dir / "out", kind); });
                const auto& error = failure.error;
                const auto& which = failure.which;
                CAPTURE(which);
                CHECK(error.has_value() == !which.empty());
                if (error) {
                    CHECK(exit_code(error->code()) == 3);
                    CHECK(!fs::exists(fs::symlink_status(dir / "out")));
                    // A leftover that could not be removed stays; the files of this save are gone.
                    for (const auto& entry : fs::recursive_directory_iterator(dir.path()))
                        CHECK((entry.is_directory() || entry.path().filename() == "safemap.lock" ||
                               TempDir::read(entry.path()) == "dead"));
                    CHECK_OK(save(dir / "out", kind));
                    CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
                } else {
                    survived = nth;
                    CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
                }
                fs::remove_all(dir / "out");
                fs::remove_all(dir / ".out.safemap-tmp");
            }
            CHECK(survived > 15);
        }
    }
}

TEST_CASE("if every later call fails too, there is an error and nothing at the target") {
    const TempDir dir;
    for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
        bool survived = false;
        for (int nth = 1; !survived; ++nth) {
            CAPTURE(nth);
            REQUIRE(nth < 60);
            bool undone_in_vain = false;
            {
                ScriptedCalls calls;
                calls.fail_nth(nth, EIO, true);
                const auto error = error_of([&] { save(dir / "out", kind); });
                survived = !calls.failed();
                CHECK(error.has_value() != survived);
                // The rename has happened, and both the next step and the undo fail: no program could do better.
                const std::string& which = calls.which();
                undone_in_vain = fs::exists(dir / "out") && (which == "fsync" || which == "unlinkat");
            }
            CHECK((fs::exists(dir / "out") == (survived || undone_in_vain)));
            fs::remove_all(dir / "out");
            fs::remove_all(dir / ".out.safemap-tmp");
        }
    }
}

TEST_CASE("without rename flags, a file system is served by hard links, or by a second check") {
    const TempDir dir;
    // Fails only if there are flags, as on NFS.
    static int (*plain)(int, const char*, int, const char*, unsigned) = nullptr;
    for (const bool links : {true, false}) {
        CAPTURE(links);
        ScriptedCalls calls;
        if (!links) calls.fail_all("linkat", EPERM);
        plain = io::calls.renameat2;
        io::calls.renameat2 = [](int from, const char* a, int to, const char* b, unsigned flags) {
            if (flags == 0) return plain(from, a, to, b, flags);
            errno = EINVAL;
            return -1;
        };
        CHECK_OK(save_file(dir / "file", "text"));
        CHECK_OK(save_folder(dir / "folder"));
        CHECK(names_in(dir.path()) == std::vector<std::string>{"file", "folder"});
        for (const auto kind : {Staging::Kind::file, Staging::Kind::folder}) {
            Staging staging(dir / "late", kind);
            add(staging, "a", "new");
            dir.write("late", "old");
            CHECK_FAULT(staging.commit(), Errc::already_exists);
            CHECK(TempDir::read(dir / "late") == "old");
            fs::remove(dir / "late");
        }
        fs::remove(dir / "file");
        fs::remove_all(dir / "folder");
        CHECK(names_in(dir.path()).empty());
    }
}

TEST_CASE("a file system without locks still saves, but cannot recognise stale leftovers") {
    const TempDir dir;
    ScriptedCalls calls;
    calls.fail_all("flock", ENOLCK);
    CHECK_OK(save_folder(dir / "out"));
    fs::remove_all(dir / "out");
    leave_litter(dir, Staging::Kind::file);
    const auto error = error_of([&] { save_file(dir / "out", "x"); });
    check_error(error, {Errc::busy}, {});
    CHECK(!error->hint().empty());
    CHECK(TempDir::read(dir / ".out.safemap-tmp/content") == "dead");
}

TEST_CASE("a file system without fallocate gets the file size set instead") {
    const TempDir dir;
    for (const int number : {EOPNOTSUPP, ENOSYS, EINVAL}) {
        ScriptedCalls calls;
        calls.fail_all("fallocate", number);
        Staging staging(dir / "out", Staging::Kind::file);
        io::OutputFile file = staging.add("");
        file.allocate(10'000);
        file.write_at(9'999, bytes_of("x"));
        file.finish();
        staging.commit();
        CHECK(fs::file_size(dir / "out") == 10'000);
        fs::remove(dir / "out");
    }
}

TEST_CASE("a file system without fsync of folders is accepted") {
    const TempDir dir;
    static int (*plain)(int) = nullptr;
    ScriptedCalls calls;
    plain = io::calls.fsync;
    io::calls.fsync = [](int descriptor) {
        struct stat status = {};
        if (::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
            errno = EINVAL;
            return -1;
        }
        return plain(descriptor);
    };
    CHECK_OK(save_folder(dir / "out"));
}

TEST_CASE("interrupted and short writes are continued") {
    const TempDir dir;
    std::string content(5'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 13);
    ScriptedCalls calls;
    calls.stutter(11);
    CHECK_OK(save_file(dir / "out", content));
    CHECK(TempDir::read(dir / "out") == content);
}

}  // namespace replace_test
