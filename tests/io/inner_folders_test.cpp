// Tests saves over folders with subfolders: the subfolders are rebuilt from hard links, or the folder is not exchanged.
#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "io/staging.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace inner_folders_test {

using namespace safemap;
using io::Staging;
namespace fs = std::filesystem;

namespace {

ino_t inode_of(const fs::path& path) {
    struct stat status = {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    return status.st_ino;
}

/// Replaces `old` in the folder by `new`. Returns whether the folder was exchanged.
bool is_exchanged(const fs::path& target) {
    const ino_t before = inode_of(target);
    std::ofstream(target / "old") << "old";
    Staging staging(target, Staging::Kind::folder, io::Existing::replace);
    io::OutputFile file = staging.add("new");
    file.write_at(0, std::as_bytes(std::span("new", 3)));
    file.finish();
    const std::vector<std::string> goes = {"old"};
    staging.commit(goes);
    CHECK(staging.notes().empty());
    CHECK(TempDir::read(target / "new") == "new");
    CHECK(!fs::exists(target / "old"));
    CHECK(fs::remove(target / "new"));
    CHECK(!fs::exists(target / ".safemap-tmp"));
    CHECK(!fs::exists(target.parent_path() / ('.' + target.filename().native() + ".safemap-tmp")));
    return inode_of(target) != before;
}

/// Returns all attributes of each entry below a folder; for files including the inode.
std::map<std::string, std::string> tree_of(const fs::path& folder) {
    std::map<std::string, std::string> tree;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        struct stat status = {};
        REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
        std::ostringstream says;
        says << std::oct << status.st_mode << std::dec << ' ' << status.st_uid << ' ' << status.st_gid << ' '
             << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec;
        if (!entry.is_directory() || entry.is_symlink()) says << ' ' << status.st_ino << ' ' << status.st_nlink;
        if (entry.is_symlink()) says << " -> " << fs::read_symlink(entry.path()).native();
        tree.emplace(entry.path().lexically_relative(folder).native(), says.str());
    }
    return tree;
}

void set_time(const fs::path& path, time_t seconds) {
    const timespec times[] = {{.tv_sec = seconds, .tv_nsec = 1}, {.tv_sec = seconds, .tv_nsec = 123'456'789}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

/// Returns a path of `folders` nested folders, which it creates.
fs::path nested(fs::path path, int folders) {
    for (int i = 0; i < folders; ++i) path /= "d";
    fs::create_directories(path);
    return path;
}

}  // namespace

TEST_CASE("subfolders of an exchanged folder keep their attributes and the same files") {
    const TempDir dir;
    const fs::path out = dir / "out";
    fs::create_directories(out / ".cache/huggingface/download/onnx");
    fs::create_directories(out / "empty/too");
    fs::create_directory(out / "new\nline");
    dir.write("out/config.json", "config");
    dir.write("out/.cache/CACHEDIR.TAG", "tag");
    dir.write("out/.cache/huggingface/download/onnx/a.metadata", "a");
    dir.write("out/.cache/huggingface/download/b.lock", "");
    dir.write("out/new\nline/name \xff", "odd");
    fs::create_hard_link(out / "config.json", out / ".cache/huggingface/config.json");
    fs::create_symlink("../config.json", out / ".cache/link");
    fs::create_symlink("nowhere", out / ".cache/dangling");
    fs::create_directory_symlink("huggingface", out / ".cache/to-folder");
    fs::create_directory_symlink("/", out / ".cache/to-root");
    REQUIRE(::mkfifo((out / ".cache/pipe").c_str(), 0600) == 0);
    REQUIRE(::chmod((out / "empty").c_str(), 03775) == 0);
    REQUIRE(::chmod((out / ".cache").c_str(), 0700) == 0);
    if (::geteuid() == 0) REQUIRE(::chown((out / "empty/too").c_str(), 1234, 4321) == 0);
    set_time(out / ".cache/link", 1'000);
    set_time(out / ".cache/huggingface/download", 2'000);
    set_time(out / ".cache/huggingface", 3'000);
    set_time(out / "empty", 4'000);
    const auto before = tree_of(out);
    const ino_t cache = inode_of(out / ".cache");
    CHECK(is_exchanged(out));
    CHECK(tree_of(out) == before);
    CHECK(inode_of(out / ".cache") != cache);
    CHECK(TempDir::read(out / ".cache/link") == "config");
    CHECK(is_exchanged(out));
    CHECK(tree_of(out) == before);
    // A save in place does not touch subfolders.
    const ino_t rebuilt = inode_of(out / ".cache");
    const NoExchange none;
    CHECK_FALSE(is_exchanged(out));
    CHECK(tree_of(out) == before);
    CHECK(inode_of(out / ".cache") == rebuilt);
}

TEST_CASE("a umask that denies the owner does not prevent rebuilding subfolders") {
    const TempDir dir;
    fs::create_directories(dir / "out/logs/today");
    dir.write("out/logs/today/a", "mine");
    const auto before = tree_of(dir / "out");
    const mode_t mask = ::umask(0777);
    const auto error = error_of([&] { Staging(dir / "out", Staging::Kind::folder, io::Existing::replace).commit(); });
    ::umask(mask);
    CHECK(!error);
    CHECK(tree_of(dir / "out") == before);
}

TEST_CASE("a folder with more than ten thousand entries below it, or nesting deeper than 32, is not exchanged") {
    const TempDir dir = TempDir::in_memory();
    const fs::path out = dir / "out";
    SUBCASE("many") {
        fs::create_directories(out / "logs/today");
        for (int i = 0; i < 9'999; ++i) dir.write("out/logs/today/" + std::to_string(i), "");
        CHECK(is_exchanged(out));
        dir.write("out/logs/one", "");
        CHECK_FALSE(is_exchanged(out));
    }
    SUBCASE("many files in the folder itself do not count") {
        fs::create_directories(out / "logs");
        for (int i = 0; i < 10'001; ++i) dir.write("out/" + std::to_string(i), "");
        CHECK(is_exchanged(out));
    }
    SUBCASE("deep") {
        nested(out, 32);
        CHECK(is_exchanged(out));
        nested(out, 33);
        CHECK_FALSE(is_exchanged(out));
    }
}

TEST_CASE("a folder with a mount in it is not exchanged") {
    const TempDir dir;
    const fs::path out = dir / "out";
    for (const char* kind : {"another file system", "a folder of the same one", "a file"}) {
        CAPTURE(kind);
        fs::create_directories(out / "logs/mnt");
        fs::create_directories(dir / "elsewhere/inner");
        dir.write("elsewhere/file", "mine");
        dir.write("out/logs/file", "hidden");
        const bool file = kind == std::string("a file");
        const fs::path place = out / (file ? "logs/file" : "logs/mnt");
        const int mounted = kind == std::string("another file system")
                                ? ::mount("tmpfs", place.c_str(), "tmpfs", 0, "size=1m")
                                : ::mount((dir / (file ? "elsewhere/file" : "elsewhere")).c_str(), place.c_str(),
                                          nullptr, MS_BIND, nullptr);
        if (mounted != 0) {
            MESSAGE("skipped: no permission to mount");
            return;
        }
        CHECK_FALSE(is_exchanged(out));
        ::umount2(place.c_str(), MNT_DETACH);
        CHECK(is_exchanged(out));
        CHECK(TempDir::read(out / "logs/file") == "hidden");
        CHECK(TempDir::read(dir / "elsewhere/file") == "mine");
        CHECK(fs::exists(dir / "elsewhere/inner"));
    }
}

TEST_CASE("a process whose working directory is a subfolder is still in it afterwards") {
    const TempDir dir;
    fs::create_directories(dir / "out/logs/today");
    CHECK(true_in_child([&] {
        if (::chdir((dir / "out/logs/today").c_str()) != 0) return false;
        if (is_exchanged(dir / "out")) return false;
        std::ofstream("a.txt") << "mine";
        return TempDir::read(dir / "out/logs/today/a.txt") == "mine";
    }));
}

TEST_CASE("a folder that this user could not empty or give to its owner is not exchanged") {
    if (::geteuid() != 0) {
        MESSAGE("skipped: only root can make such a folder");
        return;
    }
    const TempDir dir = TempDir::in_memory();
    REQUIRE(::chmod(dir.path().c_str(), 0777) == 0);
    struct Row {
        const char* what;
        uid_t owner;
        gid_t group;
        mode_t mode;
        bool exchanged;
    };
    constexpr uid_t user = 1234;
    const Row rows[] = {{"ours", user, user, 0755, true},
                        {"of somebody else, who lets us write", 4321, user, 0777, false},
                        {"of another group", user, 4321, 0755, false},
                        {"not to be written", user, user, 0555, false},
                        {"not to be read", user, user, 0333, false}};
    for (const Row& row : rows) {
        CAPTURE(row.what);
        const fs::path out = dir / "out";
        fs::create_directories(out / "logs/inner");
        REQUIRE(::chown(out.c_str(), user, user) == 0);
        REQUIRE(::chown((out / "logs/inner").c_str(), row.owner, row.group) == 0);
        REQUIRE(::chmod((out / "logs/inner").c_str(), row.mode) == 0);
        REQUIRE(::chown((out / "logs").c_str(), user, user) == 0);
        const auto before = tree_of(out);
        CHECK(true_in_child([&] {
            if (::setgid(user) != 0 || ::setuid(user) != 0) return false;
            return is_exchanged(out) == row.exchanged;
        }));
        CHECK(tree_of(out) == before);
        fs::remove_all(out);
    }
}

TEST_CASE("a folder that contains another save's hidden folder, at any depth, is not exchanged") {
    for (const char* const name : {"sub/.safemap-tmp", ".sub.safemap-tmp", "a/b/.x.safemap-tmp"}) {
        CAPTURE(name);
        const TempDir dir;
        fs::create_directories(dir / "out" / name);
        const ino_t inside = inode_of(dir / "out" / name);
        std::ofstream(dir / "out" / name / "lock") << "x";
        CHECK_FALSE(is_exchanged(dir / "out"));
        CHECK(inode_of(dir / "out" / name) == inside);
    }
}

TEST_CASE("a subfolder with an access list, its own or one that it would inherit, is left as it is") {
    // Version 2: the owner rwx, user 1234 rwx, the group none, the mask rwx, others none.
    constexpr unsigned char list[] = {2, 0,    0,    0,    1,    0,    7,    0, 0xff, 0xff, 0xff, 0xff, 2,    0,    7,
                                      0, 0xd2, 4,    0,    0,    4,    0,    0, 0,    0xff, 0xff, 0xff, 0xff, 0x10, 0,
                                      7, 0,    0xff, 0xff, 0xff, 0xff, 0x20, 0, 0,    0,    0xff, 0xff, 0xff, 0xff};
    const auto give = [&](const fs::path& path, const char* kind) {
        return ::setxattr(path.c_str(), kind, list, sizeof list, 0) == 0;
    };
    {
        const TempDir dir;
        fs::create_directories(dir / "out/private");
        if (!give(dir / "out/private", "system.posix_acl_access")) return;  // not supported by the file system
        CHECK_FALSE(is_exchanged(dir / "out"));
    }
    const TempDir dir;
    fs::create_directories(dir / "out/private");
    REQUIRE(give(dir.path(), "system.posix_acl_default"));
    const auto before = tree_of(dir / "out");
    static_cast<void>(is_exchanged(dir / "out"));
    CHECK(::getxattr((dir / "out/private").c_str(), "system.posix_acl_access", nullptr, 0) < 0);
    CHECK(tree_of(dir / "out").at("private") == before.at("private"));
}

TEST_CASE("a folder whose subfolders have paths too long for one call is not exchanged") {
    const TempDir dir;
    fs::create_directories(dir / "out");
    const int began = ::open((dir / "out").c_str(), O_RDONLY | O_DIRECTORY);
    REQUIRE(began >= 0);
    const std::string name(250, 'n');
    int at = began;
    for (int i = 0; i < 20; ++i) {
        REQUIRE(::mkdirat(at, name.c_str(), 0755) == 0);
        const int next = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY);
        REQUIRE(next >= 0);
        if (at != began) ::close(at);
        at = next;
    }
    ::close(at);
    CHECK_FALSE(is_exchanged(dir / "out"));
    ::close(began);
    REQUIRE(std::system(("rm -rf '" + (dir / "out").native() + "'").c_str()) == 0);
}

}  // namespace inner_folders_test
