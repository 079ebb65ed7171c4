// Tests of page_cache.hpp and of files that use it: residency, prefetch and evict.
#include "io/cached_pages.hpp"

#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "io/file_folder.hpp"
#include "io/scripted_calls.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

namespace page_cache_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

std::string pattern(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + (i >> 12));
    return text;
}

/// Writes a file and flushes it: dirty pages cannot be evicted.
fs::path write_through(const TempDir& dir, std::string_view name, std::string_view content) {
    const auto path = dir.write(name, content);
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::fsync(descriptor) == 0);
    ::close(descriptor);
    return path;
}

std::string text_of(const Source& source, Extent extent) {
    std::string text(extent.size, '?');
    source.read_at(extent.offset, std::as_writable_bytes(std::span(text)));
    return text;
}

std::string text_of(const SharedBytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size()};
}

/// Returns true if files in temporary folders can be evicted from memory.
bool on_a_disk(const TempDir& dir) {
    struct statfs status = {};
    REQUIRE(::statfs(dir.path().c_str(), &status) == 0);
    if (status.f_type != TMPFS_MAGIC && status.f_type != RAMFS_MAGIC) return true;
    MESSAGE("skipped: temporary files are in memory");
    return false;
}

/// Evicts repeatedly, because the kernel keeps pages that it is working on.
void evict_all(const Source& source) {
    for (int i = 0; i < 100; ++i) {
        source.evict({0, source.size()});
        if (source.residency({0, source.size()}).resident == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

}  // namespace

TEST_CASE("residency is reported, pages can be dropped and read again, and views stay valid") {
    const TempDir dir;
    if (!on_a_disk(dir)) return;
    const std::string content = pattern(6 << 20 | 1234);
    const auto path = write_through(dir, "a", content);
    for (const auto mapping : {Mapping::allowed, Mapping::never}) {
        CAPTURE(int(mapping));
        const auto source = open_file(path, mapping);
        const Extent whole{0, source->size()};
        if (source->residency(whole).total == 0) {
            MESSAGE("skipped: this kernel does not tell without a mapping");
            continue;
        }
        const auto view = source->map(whole);
        CHECK(view.has_value() == (mapping == Mapping::allowed));
        if (view) CHECK(text_of(*view) == content);

        evict_all(*source);
        CHECK(source->residency(whole).resident == 0);
        CHECK(source->residency(whole).total == whole.size);
        const Extent part{(2 << 20) - 5, (1 << 20) + 77};
        source->prefetch(part);
        CHECK(source->residency(part).resident == part.size);
        CHECK(source->residency(part).total == part.size);
        source->prefetch(whole);
        CHECK(source->residency(whole).resident == whole.size);

        evict_all(*source);
        if (view) CHECK(text_of(*view) == content);
        else CHECK(text_of(*source, whole) == content);
        CHECK(source->residency(whole).resident == whole.size);
    }
}

TEST_CASE("parts of a view can be evicted while it is read") {
    const TempDir dir;
    const std::string content = pattern(1 << 20);
    const auto source = open_file(write_through(dir, "a", content));
    const auto view = source->map({0, source->size()});
    REQUIRE(view);
    const auto sum = [&] {
        return std::accumulate(view->bytes.begin(), view->bytes.end(), std::uint64_t{0},
                               [](std::uint64_t a, std::byte b) { return a * 31 + std::to_integer<unsigned>(b); });
    };
    const std::uint64_t expected = sum();
    std::jthread evicting([&](const std::stop_token& stop) {
        for (std::uint64_t i = 0; !stop.stop_requested(); ++i) source->evict({i * 12'345 % 900'000, 100'000});
    });
    for (int i = 0; i < 20; ++i) CHECK(sum() == expected);
}

TEST_CASE("modified pages of a private copy are not evicted") {
    const TempDir dir;
    const auto source = open_file(write_through(dir, "a", pattern(100'000)), Mapping::private_copy);
    const auto view = source->map({0, 100'000});
    const_cast<std::byte&>(view->bytes[50'000]) = std::byte{'!'};
    source->prefetch({0, 100'000});
    source->evict({0, 100'000});
    CHECK(view->bytes[50'000] == std::byte{'!'});
    CHECK(text_of(*view).substr(0, 50'000) == pattern(50'000));
}

TEST_CASE("without MADV_POPULATE_READ, prefetch reads the bytes") {
    const TempDir dir;
    const std::string content = pattern(3 << 20);
    const auto path = write_through(dir, "a", content);
    for (const int number : {EINVAL, ENOSYS, EFAULT, ENOMEM, EPERM}) {
        CAPTURE(number);
        const auto source = open_file(path, Mapping::allowed);
        ScriptedCalls calls;
        const CountedReads counted;
        calls.fail_all("madvise", number);
        source->prefetch({100, (2 << 20) + 1});
        CHECK(counted.bytes() == (2 << 20) + 1);
        CHECK_OK(source->evict({0, source->size()}));
    }
    const auto source = open_file(path, Mapping::allowed);
    const CountedReads counted;
    source->prefetch({0, source->size()});
    CHECK(counted.bytes() == 0);
}

TEST_CASE("residency is unknown if the kernel does not report it") {
    const TempDir dir;
    const auto path = write_through(dir, "a", pattern(100'000));
    const Extent whole{0, 100'000};
    for (const auto mapping : {Mapping::allowed, Mapping::never}) {
        const auto source = open_file(path, mapping);
        source->prefetch(whole);
        ScriptedCalls calls;
        calls.fail_all("cachestat", ENOSYS);
        const Residency residency = source->residency(whole);
        CHECK(residency.total == (mapping == Mapping::allowed ? whole.size : 0));
        CHECK(residency.resident == residency.total);
        CHECK(source->residency({7, 0}).total == 0);
    }
    // An overlay's files have no pages of their own, so that cachestat finds none.
    const EverythingOn overlay(OVERLAYFS_SUPER_MAGIC);
    CHECK(open_file(path, Mapping::never)->residency(whole).total == 0);
    CHECK(open_file(path)->residency(whole).resident == whole.size);
}

TEST_CASE("residency counts whole pages, and all bytes only if no page is missing") {
    const TempDir dir;
    // Larger than one request for page flags.
    const auto path = dir.write("a", "");
    fs::resize_file(path, 9'000 * page);
    const auto source = open_file(path, Mapping::allowed);
    const auto mapped = source->map({0, source->size()});
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    static const std::byte* first = nullptr;
    static std::vector<bool> there;
    first = mapped->bytes.data();
    there.assign(9'000, true);
    const auto real = io::calls.mincore;
    io::calls.mincore = [](void* address, std::size_t size, unsigned char* flags) {
        const auto from = static_cast<std::size_t>(static_cast<const std::byte*>(address) - first) / page;
        // All bits but the lowest are reserved.
        for (std::size_t i = 0; i < (size + page - 1) / page; ++i) flags[i] = there.at(from + i) ? 0x7f : 0x7e;
        return 0;
    };
    const auto resident = [&](std::uint64_t offset, std::uint64_t size) {
        return io::resident_in(mapped->bytes.subspan(offset, size), descriptor).value_or(UINT64_MAX);
    };
    CHECK(resident(0, 9'000 * page) == 9'000 * page);
    there[1] = false;
    there[8'999] = false;
    CHECK(resident(0, 9'000 * page) == 8'998 * page);
    CHECK(resident(0, page) == page);
    CHECK(resident(0, page + 1) == 1);
    CHECK(resident(10, 2 * page) == page);
    CHECK(resident(page + 3, 5) == 0);
    CHECK(resident(2 * page, 5) == 5);
    CHECK(resident(4'000 * page + 1, 4'999 * page) == 4'999 * page - page);
    io::calls.mincore = real;
    ::close(descriptor);
}

TEST_CASE("residency of other users' files is not trusted, because the kernel claims all of it") {
    if (::geteuid() != 0) {
        MESSAGE("skipped: only root can become somebody else");
        return;
    }
    const TempDir dir;
    if (!on_a_disk(dir)) return;
    fs::permissions(dir.path(), fs::perms(0755));
    const auto path = write_through(dir, "a", pattern(1 << 20));
    fs::permissions(path, fs::perms(0644));
    evict_all(*open_file(path));
    CHECK(true_in_child([&] {
        constexpr uid_t nobody = 65534;
        if (::setresgid(nobody, nobody, nobody) != 0 || ::setresuid(nobody, nobody, nobody) != 0) return false;
        if (open_file(path)->residency({0, 1 << 20}).resident != 0) return false;
        ScriptedCalls calls;
        calls.fail_all("cachestat", ENOSYS);
        return open_file(path)->residency({0, 1 << 20}).total == 0;
    }));
}

TEST_CASE("a file truncated under its mapping makes prefetch throw, and does not end the process") {
    const TempDir dir;
    const auto path = dir.write("a", pattern(1 << 20));
    const auto source = open_file(path, Mapping::allowed);
    const auto view = source->map({0, 1 << 20});
    fs::resize_file(path, 300'000);
    CHECK_FAULT(source->prefetch({0, 1 << 20}), Errc::file_changed);
    CHECK_FAULT(source->prefetch({500'000, 100}), Errc::file_changed);
    CHECK_OK(source->prefetch({0, 300'000}));
    CHECK_OK(source->evict({0, 1 << 20}));
    CHECK_OK(source->residency({0, 1 << 20}));
    CHECK_FAULT(source->prefetch({(1 << 20) - 1, 2}), Errc::file_truncated);
    CHECK_FAULT(source->evict({(1 << 20) - 1, 2}), Errc::file_truncated);
    CHECK_FAULT(source->residency({(1 << 20) - 1, 2}), Errc::file_truncated);
}

TEST_CASE("files of more than four gigabytes can be read, mapped and cached at their end") {
    const TempDir dir;
    const auto path = dir.write("a", "");
    const std::uint64_t offset = (std::uint64_t{9} << 29) + 77;  // 4.5 GiB
    fs::resize_file(path, std::uint64_t{5} << 30);
    {
        const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
        REQUIRE(::pwrite(descriptor, "far away", 8, static_cast<off_t>(offset)) == 8);
        REQUIRE(::fsync(descriptor) == 0);
        ::close(descriptor);
    }
    const auto source = open_file(path, Mapping::allowed);
    CHECK(text_of(*source, {offset, 9}) == std::string("far away\0", 9));
    CHECK(text_of(source->map({offset, 9}).value()) == std::string("far away\0", 9));
    const Extent part{offset - 100, 1 << 20};
    source->evict(part);
    source->prefetch(part);
    CHECK(source->residency(part).resident == part.size);
    CHECK(source->residency({0, source->size()}).resident < std::uint64_t{64} << 20);
}

TEST_CASE("a read-only folder on a read-only disk is enough") {
    const TempDir dir;
    const auto path = dir.write("a", pattern(50'000));
    fs::permissions(path, fs::perms::owner_read);
    fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
    const auto before = fs::last_write_time(dir.path());
    const auto source = open_folder(dir.path())->open("a");
    CHECK_OK(source->prefetch({0, 50'000}));
    CHECK_OK(source->residency({0, 50'000}));
    CHECK(text_of(source->map({0, 50'000}).value()) == pattern(50'000));
    CHECK_OK(source->evict({0, 50'000}));
    CHECK(text_of(*source, {0, 50'000}) == pattern(50'000));
    CHECK(fs::last_write_time(dir.path()) == before);
    fs::permissions(dir.path(), fs::perms::owner_all);
}

TEST_CASE("interrupted advice is repeated") {
    const TempDir dir;
    const auto source = open_file(dir.write("a", pattern(50'000)));
    ScriptedCalls calls;
    const CountedReads counted;
    calls.stutter(1'000);
    CHECK_OK(source->prefetch({0, 50'000}));
    CHECK(counted.bytes() == 0);
}

}  // namespace page_cache_test
