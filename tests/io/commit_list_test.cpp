// Tests of in_place.hpp: the view of readers between the commit of a save and its end, and damaged lists.
#include "base/folder.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/calls.hpp"
#include "io/file_folder.hpp"
#include "io/in_place.hpp"
#include "io/note.hpp"
#include "io/system.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace commit_list_test {

using namespace safemap;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

namespace {

io::Descriptor opened(const fs::path& folder) { return io::open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY); }

std::string text_of(const Folder& folder, const char* name) {
    const auto source = folder.open(name);
    REQUIRE(source != nullptr);
    std::string text(static_cast<std::size_t>(source->size()), '\0');
    source->read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// Prepares a folder with old files a and b, and a commit that replaces b, adds c and removes a.
void prepare(const TempDir& dir) {
    dir.write("a", "old a");
    dir.write("b", "old b");
    dir.write("other", "mine");
    fs::create_directories(dir / ".safemap-tmp/content");
    dir.write(".safemap-tmp/content/b", "new b");
    dir.write(".safemap-tmp/content/c", "new c");
    io::write_commit_list(opened(dir / ".safemap-tmp").number(), opened(dir.path()).number(), Names{"b", "c"},
                          Names{"a"});
}

}  // namespace

TEST_CASE("a folder shows the result of a commit, from the list to the last step") {
    const TempDir dir;
    prepare(dir);
    const auto check = [&] {
        const auto folder = open_folder(dir.path());
        CHECK(folder->list() == Names{"b", "c", "other"});
        CHECK(text_of(*folder, "b") == "new b");
        CHECK(text_of(*folder, "c") == "new c");
        CHECK(text_of(*folder, "other") == "mine");
    };
    check();
    fs::rename(dir / ".safemap-tmp/content/b", dir / "b");
    check();
    fs::rename(dir / ".safemap-tmp/content/c", dir / "c");
    check();
    fs::remove(dir / "a");
    check();
    fs::remove(dir / ".safemap-tmp/content");
    check();
    io::finish_commit(opened(dir.path()).number());
    check();
    CHECK(!fs::exists(dir / ".safemap-tmp/commit"));
}

TEST_CASE("a commit can be finished, and finished again") {
    const TempDir dir;
    prepare(dir);
    const auto folder = opened(dir.path());
    CHECK_OK(io::finish_commit(folder.number()));
    CHECK(TempDir::read(dir / "b") == "new b");
    CHECK(TempDir::read(dir / "c") == "new c");
    CHECK(!fs::exists(dir / "a"));
    CHECK_OK(io::finish_commit(folder.number()));
    CHECK(TempDir::read(dir / "b") == "new b");
}

TEST_CASE("a list that is damaged, or names paths outside the folder, is refused by readers and writers") {
    const TempDir dir;
    fs::create_directories(dir / ".safemap-tmp");
    using namespace std::string_literals;
    dir.write("a", "moved already");
    const std::string good = "safemap commit 1\0+a\0\0-b\0\0end\0"s;
    const std::vector<std::string> damaged = {
        "",
        "safemap commit 1",
        "safemap commit 2\0end\0"s,
        "safemap commit 3\0end\0"s,
        "safemap commit 1\0+a\0\0"s,
        "safemap commit 1\0+a\0\0end"s,
        "safemap commit 1\0+../a\0\0end\0"s,
        "safemap commit 1\0-/etc/hostname\0\0end\0"s,
        "safemap commit 1\0+\0\0end\0"s,
        "safemap commit 1\0\0\0end\0"s,
        "safemap commit 1\0*a\0\0end\0"s,
        "safemap commit 1\0+neither prepared nor there\0\0end\0"s,
        good + "more",
    };
    dir.write(".safemap-tmp/commit", good);
    CHECK_OK(open_folder(dir.path()));
    for (const std::string& text : damaged) {
        CAPTURE(text);
        dir.write(".safemap-tmp/commit", text);
        CHECK_FAULT(open_folder(dir.path()), Errc::commit_list_damaged);
        CHECK_FAULT(io::finish_commit(opened(dir.path()).number()), Errc::commit_list_damaged);
    }
    for (std::size_t cut = 0; cut < good.size(); ++cut) {
        dir.write(".safemap-tmp/commit", good.substr(0, cut));
        CHECK_FAULT(open_folder(dir.path()), Errc::commit_list_damaged);
    }
    fs::remove(dir / ".safemap-tmp/commit");
    fs::create_directory(dir / ".safemap-tmp/commit");
    CHECK_FAULT(open_folder(dir.path()), Errc::commit_list_damaged);
}

TEST_CASE("a file that was written after a save was interrupted is neither replaced nor hidden by that save") {
    for (const char* name : {"a", "b"}) {  // one would be removed, the other replaced
        CAPTURE(name);
        const TempDir dir;
        prepare(dir);
        fs::remove(dir / name);
        dir.write(name, "newer");
        const auto error = error_of([&] { open_folder(dir.path()); });
        check_error(error, {Errc::commit_list_damaged}, {"has changed since"});
        CHECK(!error->hint().empty());
        CHECK_FAULT(io::finish_commit(opened(dir.path()).number()), Errc::commit_list_damaged);
        CHECK(TempDir::read(dir / name) == "newer");
        fs::remove_all(dir / ".safemap-tmp");
        CHECK(text_of(*open_folder(dir.path()), name) == "newer");
    }
}

namespace {

/// Rewrites the list with `change` applied to its entries.
void change_list(const TempDir& dir, const std::function<std::string(std::vector<std::string>)>& change) {
    std::vector<std::string> lines;
    std::string line;
    for (const char c : TempDir::read(dir / ".safemap-tmp/commit")) {
        if (c != '\0') line += c;
        else lines.push_back(std::exchange(line, {}));
    }
    // In place, because the list records its own inode.
    std::ofstream(dir / ".safemap-tmp/commit", std::ios::binary) << change(std::move(lines));
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text.append(line) += '\0';
    return text;
}

}  // namespace

TEST_CASE("no list has a device number, which a reboot changes") {
    const TempDir dir;
    prepare(dir);
    struct stat status = {};
    REQUIRE(::stat((dir / "a").c_str(), &status) == 0);
    change_list(dir, [&](const std::vector<std::string>& lines) {
        REQUIRE(lines.size() == 9);
        CHECK(lines[0] == "safemap commit 2");
        CHECK(lines[6] == "-a");
        CHECK(lines[7] == io::stamp_of(status));
        CHECK(lines[7].starts_with(std::to_string(status.st_ino) + " 5 "));
        return joined(lines);
    });
    CHECK_OK(io::finish_commit(opened(dir.path()).number()));
}

TEST_CASE("an old list with a device number that has changed since is carried out") {
    const TempDir dir;
    prepare(dir);
    change_list(dir, [&](std::vector<std::string> lines) {
        lines[0] = "safemap commit 1";
        lines.erase(lines.begin() + 1);
        for (std::string& line : lines)
            if (line.find(' ') != line.npos && line != lines[0]) line = "987654 " + line;
        return joined(lines);
    });
    CHECK(text_of(*open_folder(dir.path()), "b") == "new b");
    CHECK_OK(io::finish_commit(opened(dir.path()).number()));
    CHECK(TempDir::read(dir / "b") == "new b");
    CHECK(!fs::exists(dir / "a"));
}

TEST_CASE("a list is carried out if all files have new inodes, and still detects changed files") {
    const TempDir dir;
    prepare(dir);
    // Simulates a copy, or a file system that renumbers files: the list's own inode differs too.
    change_list(dir, [&](std::vector<std::string> lines) {
        for (std::string& line : lines)
            if (line.find(' ') != line.npos && line != lines[0]) line = "1" + line;
        lines[1] = "1" + lines[1];
        return joined(lines);
    });
    const auto touched = fs::last_write_time(dir / "b");
    fs::last_write_time(dir / "b", touched + std::chrono::seconds(1));
    CHECK_FAULT(open_folder(dir.path()), Errc::commit_list_damaged);
    fs::last_write_time(dir / "b", touched);
    CHECK(text_of(*open_folder(dir.path()), "b") == "new b");
    CHECK_OK(io::finish_commit(opened(dir.path()).number()));
    CHECK(!fs::exists(dir / "a"));
}

TEST_CASE("no hint advises to delete what may be the only copy") {
    const TempDir dir;
    prepare(dir);
    dir.write("b", "newer, and longer");
    const auto error = error_of([&] { open_folder(dir.path()); });
    REQUIRE(error);
    CHECK(error->hint().find("do not delete .safemap-tmp") != std::string::npos);
    CHECK(error->hint().find("remove") == std::string::npos);
}

TEST_CASE("a file that appears in the folder during a commit is neither replaced nor removed") {
    for (const char* name : {"a", "b", "c"}) {  // removed, replaced, added
        CAPTURE(name);
        const TempDir dir;
        prepare(dir);
        static const TempDir* place;
        static const char* written;
        place = &dir;
        written = name;
        const auto before = io::calls;
        // After the list was read, and before anything is moved.
        io::calls.openat = [](int folder, const char* opened, int flags, mode_t mode) {
            if (std::string(opened) == io::staged_content) {
                fs::remove(*place / written);
                place->write(written, "precious");
            }
            return ::openat(folder, opened, flags, mode);
        };
        CHECK_FAULT(io::finish_commit(opened(dir.path()).number()), Errc::commit_list_damaged);
        io::calls = before;
        CHECK(TempDir::read(dir / name) == "precious");
        CHECK(fs::exists(dir / ".safemap-tmp/commit"));
    }
}

TEST_CASE("nothing is removed if the new files are gone") {
    const TempDir dir;
    prepare(dir);
    fs::remove_all(dir / ".safemap-tmp/content");
    CHECK_FAULT(io::finish_commit(opened(dir.path()).number()), Errc::commit_list_damaged);
    CHECK(TempDir::read(dir / "a") == "old a");
}

TEST_CASE("a folder reports that its content was replaced") {
    const TempDir dir;
    fs::create_directory(dir / "f");
    dir.write("f/a", "old");
    const auto folder = open_folder(dir / "f");
    const auto file = folder->open("a");
    dir.write("f/other", "mine");
    CHECK(!folder->changed());
    dir.write("f/new", "new");
    fs::rename(dir / "f/new", dir / "f/a");
    CHECK(folder->changed());

    const auto exchanged = open_folder(dir / "f");
    CHECK(!exchanged->changed());
    fs::rename(dir / "f", dir / "g");
    fs::create_directory(dir / "f");
    CHECK(exchanged->changed());

    const TempDir listed;
    listed.write("b", "old");
    const auto before = open_folder(listed.path());
    prepare(listed);
    CHECK(before->changed());
}

}  // namespace commit_list_test
