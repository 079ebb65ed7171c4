// Tests memory limits of cgroups against folders that look like /proc and /sys, also hostile ones.
#include "drivers/memory_limit.hpp"

#include "temp_dir.hpp"

#include <safemap/device.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace memory_limit_test {

/// A folder in the place of "/".
class Root {
public:
    Root(const std::string& cgroup, const std::string& mountinfo) {
        put("proc/self/cgroup", cgroup);
        put("proc/self/mountinfo", mountinfo);
    }
    void put(const std::string& name, const std::string& content) const {
        std::filesystem::create_directories((folder_ / name).parent_path());
        folder_.write(name, content);
    }
    void limit_second(const std::string& name, const std::string& limit, const std::string& usage) const {
        put("sys/fs/cgroup/" + name + "/memory.max", limit + "\n");
        put("sys/fs/cgroup/" + name + "/memory.current", usage + "\n");
    }
    void limit_first(const std::string& name, const std::string& limit, const std::string& usage) const {
        put("sys/fs/cgroup/memory/" + name + "/memory.limit_in_bytes", limit + "\n");
        put("sys/fs/cgroup/memory/" + name + "/memory.usage_in_bytes", usage + "\n");
    }
    std::optional<std::uint64_t> room() const { return safemap::drivers::room_in_cgroups(folder_.path()); }

private:
    TempDir folder_;
};

const std::string second = "26 24 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string first =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:1 - cgroup cgroup rw,memory\n";

TEST_CASE("the smallest room of the cgroup and of all above it counts, in both versions") {
    Root root("0::/a/b/c\n", second);
    CHECK(root.room() == std::nullopt);
    root.limit_second("a/b/c", "max", "10");
    CHECK(root.room() == std::nullopt);
    root.limit_second("a/b", "1000", "900");
    CHECK(root.room() == 100);
    root.limit_second("a", "2000", "1990");
    CHECK(root.room() == 10);
    root.limit_second(".", "5", "5");
    CHECK(root.room() == 0);
    root.limit_second("a/other", "1", "1");
    root.limit_second(".", "max", "7");
    CHECK(root.room() == 10);

    Root old("4:memory:/a/b\n1:cpu:/\n0::/\n", first);
    old.limit_first("a/b", "9223372036854771712", "4096");
    CHECK(old.room() == 9223372036854771712ULL - 4096);  // more than any machine has
    old.limit_first("a", "8192", "4096");
    CHECK(old.room() == 4096);
    old.limit_first("a/b", "5000", "1000");
    CHECK(old.room() == 4000);
}

TEST_CASE("more used than allowed leaves no room") {
    Root root("0::/\n", second);
    root.limit_second(".", "1000", "2000");
    CHECK(root.room() == 0);
}

TEST_CASE("pages of files do not count as used") {
    Root root("0::/job\n", second);
    root.limit_second("job", "1000", "900");
    root.put("sys/fs/cgroup/job/memory.stat", "anon 100\nactive_file 300\ninactive_file 400\ntotal_active_file 5\n");
    CHECK(root.room() == 800);
    root.put("sys/fs/cgroup/job/memory.stat", "active_file 18446744073709551615\ninactive_file 9\n");
    CHECK(root.room() == 1000);

    Root old("4:cpu,memory:/job\n", first);
    old.limit_first("job", "1000", "900");
    old.put("sys/fs/cgroup/memory/job/memory.stat", "active_file 1\ntotal_active_file 200\ntotal_inactive_file 100\n");
    CHECK(old.room() == 400);
}

TEST_CASE("both versions on one machine: each with a limit counts") {
    Root root("4:memory:/a\n0::/s\n", first + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    root.limit_first("a", "1000", "0");
    CHECK(root.room() == 1000);
    root.limit_second("unified/s", "600", "0");
    CHECK(root.room() == 600);
}

TEST_CASE("a container sees its own cgroup at the mount point") {
    const std::string mounted = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    Root own("4:memory:/docker/abc\n", mounted);
    own.limit_first(".", "1000", "0");
    CHECK(own.room() == 1000);
    Root inner("4:memory:/docker/abc/job\n", mounted);
    inner.limit_first("job", "400", "0");
    inner.limit_first(".", "1000", "0");
    CHECK(inner.room() == 400);
    for (const char* const other : {"/", "/docker/abcd", "/docker", "/docker/abc/../x"}) {
        CAPTURE(other);
        Root root("4:memory:" + std::string(other) + "\n", mounted);
        root.limit_first(".", "1000", "0");
        CHECK(root.room() == std::nullopt);
    }
    // Moved into the namespace from outside, and a mount from above it.
    Root outside("0::/../../job\n", second);
    outside.limit_second(".", "300", "0");
    CHECK(outside.room() == 300);
    Root above("0::/job\n", "26 24 0:23 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    above.limit_second(".", "200", "0");
    above.limit_second("job", "100", "0");
    CHECK(above.room() == 200);
}

TEST_CASE("a path may have spaces, colons and backslashes") {
    Root root("0::/a b:c\\d\n", "26 24 0:23 / /sys/fs/cgroup/my\\040mount\\134 rw - cgroup2 cgroup2 rw\n");
    root.limit_second("my mount\\/a b:c\\d", "70", "7");
    CHECK(root.room() == 63);
}

TEST_CASE("what cannot be read or makes no sense is ignored") {
    CHECK(safemap::drivers::room_in_cgroups("/no/such/folder") == std::nullopt);
    const std::string longer = "/" + std::string(5000, 'x');
    for (const std::string& cgroup :
         {std::string(), std::string("\n\n"), std::string("0\n"), std::string("0:\n"), std::string("0::"),
          std::string("0::a"), "0::" + longer + "\n", std::string(":::::\n"), std::string("4:memory\n"),
          std::string("\0\xff\n", 3), std::string("0::/\0/..\n", 9)}) {
        for (const std::string& mounts :
             {std::string(), std::string("\n"), std::string("-\n"), std::string(" - cgroup2\n"),
              std::string("1 2 3 4 5 6 -\n"), std::string("1 2 3 / - cgroup2 x y\n"),
              std::string("1 2 3 / /sys/\\04 rw - cgroup2 x y\n"), std::string("1 2 3 / \\777\\000 r - cgroup2 x y\n"),
              std::string("a b c " + longer + " " + longer + " r - cgroup2 x y\n"), std::string("\0 \0 \0", 5)}) {
            Root root(cgroup, mounts);
            CHECK(root.room() == std::nullopt);
        }
    }
    for (const char* const text : {"", "max", "-1", " 5", "5 ", "0x5", "18446744073709551616", "5\r", "\xff", "1e3"}) {
        CAPTURE(text);
        Root root("0::/a\n", second);
        root.limit_second("a", text, "1");
        CHECK(root.room() == std::nullopt);
        root.limit_second("a", "1000", text);
        CHECK(root.room() == std::nullopt);
        root.limit_second("a", "1000", "100");
        root.put("sys/fs/cgroup/a/memory.stat", "active_file " + std::string(text) + "\nactive_file\n\ninactive_file ");
        CHECK(root.room().value_or(0) >= 900);
    }
    Root folders("0::/a\n", second);
    folders.put("sys/fs/cgroup/a/memory.max/file", "");
    folders.put("sys/fs/cgroup/a/memory.current/file", "");
    CHECK(folders.room() == std::nullopt);
}

TEST_CASE("the host has no more memory than its cgroups leave") {
    const auto room = safemap::drivers::room_in_cgroups();
    const std::uint64_t free = safemap::Device::open("host")->free_memory();
    CHECK(free > 0);
    if (room) CHECK(free / 2 <= *room);  // others allocate meanwhile
}

}  // namespace memory_limit_test
