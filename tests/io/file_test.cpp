// Tests of file.hpp. From top to bottom: opening and reading, mapping, descriptors of the caller, private copies,
// changed files and failing calls, folders.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/file_folder.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace file_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

std::string text_of(const Source& source, Extent extent) {
    std::string text(extent.size, '?');
    source.read_at(extent.offset, std::as_writable_bytes(std::span(text)));
    return text;
}

std::string text_of(const SharedBytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size()};
}

/// Returns the open descriptors of this process. The shell that started it may have left some of them open.
std::set<int> open_descriptors() {
    std::set<int> numbers;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
        numbers.insert(std::stoi(entry.path().filename().string()));
    std::erase_if(numbers, [](int number) { return ::fcntl(number, F_GETFD) < 0; });  // the iterator's own
    return numbers;
}

/// Returns true if every descriptor that was opened after `before` closes when another program starts.
bool newer_close_on_exec(const std::set<int>& before) {
    const std::set<int> now = open_descriptors();
    return std::all_of(now.begin(), now.end(), [&before](int number) {
        return before.contains(number) || (::fcntl(number, F_GETFD) & FD_CLOEXEC) != 0;
    });
}

/// Sets a modification time later than the open, even on a file system with a coarse clock.
void touch(const fs::path& file) { fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1)); }

std::size_t mappings_of(const fs::path& file) {
    const std::string maps = TempDir::read("/proc/self/maps");
    std::size_t count = 0;
    for (std::size_t at = maps.find(file.native()); at != std::string::npos; at = maps.find(file.native(), at + 1))
        ++count;
    return count;
}

/// Cuts `into` into `count` spans of random sizes, which are in random order and empty in places.
std::vector<std::span<std::byte>> random_spans(std::mt19937& random, std::span<std::byte> into, std::size_t count) {
    std::vector<std::size_t> ends = {0, into.size()};
    while (ends.size() <= count) ends.push_back(random() % (into.size() + 1));
    std::sort(ends.begin(), ends.end());
    std::vector<std::span<std::byte>> spans;
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) spans.push_back(into.subspan(ends[i], ends[i + 1] - ends[i]));
    std::shuffle(spans.begin(), spans.end(), random);
    return spans;
}

std::string joined(const std::vector<std::span<std::byte>>& spans) {
    std::string text;
    for (const auto span : spans) text.append(reinterpret_cast<const char*>(span.data()), span.size());
    return text;
}

std::string mixed_bytes(std::size_t size) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 7 + i / 251);
    return content;
}

}  // namespace

TEST_CASE("a file can be read at any offset, but not beyond its end") {
    const TempDir dir;
    const auto source = open_file(dir.write("a", "0123456789"));
    CHECK(source->size() == 10);
    CHECK(source->name() == (dir / "a").native());
    CHECK(text_of(*source, {0, 10}) == "0123456789");
    CHECK(text_of(*source, {3, 4}) == "3456");
    CHECK(text_of(*source, {10, 0}).empty());
    CHECK_FAULT(text_of(*source, {3, 8}), Errc::file_truncated);
    CHECK_FAULT(text_of(*source, {11, 0}), Errc::file_truncated);
    CHECK_FAULT(source->map({UINT64_MAX, 2}), Errc::file_truncated);
    CHECK_FAULT(source->map({2, UINT64_MAX}), Errc::file_truncated);
}

TEST_CASE("a file's descriptor is closed with it, and is not inherited") {
    const TempDir dir;
    const std::set<int> before = open_descriptors();
    {
        const auto source = open_file(dir.write("a", "abc"));
        CHECK(source->is_file());
        CHECK(open_descriptors().size() == before.size() + 1);
        CHECK(newer_close_on_exec(before));
    }
    CHECK(open_descriptors() == before);
}

TEST_CASE("a file that cannot be opened gives the reason") {
    const TempDir dir;
    dir.write("a", "abc");
    CHECK_FAULT(open_file(dir / "none"), Errc::path_not_found);
    CHECK_FAULT(open_file(dir / "a/b"), Errc::path_not_found);
    CHECK_FAULT(open_file(dir.path() / std::string(300, 'x')), Errc::path_not_found);
    CHECK_FAULT(open_file(dir / std::string("a\0b", 3)), Errc::path_not_found);
    CHECK_FAULT(open_file(""), Errc::path_not_found);
    fs::create_symlink("loop", dir / "loop");
    CHECK_FAULT(open_file(dir / "loop"), Errc::path_not_found);
    CHECK_FAULT(open_folder(dir / "none"), Errc::path_not_found);
    CHECK_FAULT(open_folder(dir / "a"), Errc::path_not_found);
    const auto error = error_of([&] { return open_file(dir / "none"); });
    REQUIRE(error);
    CHECK(error->path() == (dir / "none").native());
    CHECK(error->message() == "cannot open it: No such file or directory");
}

TEST_CASE("a file without read permission is refused as such") {
    if (::geteuid() == 0) {
        MESSAGE("skipped: root may read everything");
        return;
    }
    const TempDir dir;
    fs::permissions(dir.write("secret", "x"), fs::perms::none);
    CHECK_FAULT(open_file(dir / "secret"), Errc::permission_denied);
}

TEST_CASE("folders, pipes and devices are refused without blocking") {
    const TempDir dir;
    CHECK_FAULT(open_file(dir.path()), Errc::invalid_argument);
    CHECK_FAULT(open_file("/dev/null"), Errc::invalid_argument);
    REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
    check_error(error_of([&] { return open_file(dir / "pipe"); }), {Errc::invalid_argument}, {},
                {.message = "expected a regular file, found a pipe"});
}

TEST_CASE("a file is mapped once, as a whole, and unmapped by its last user") {
    const TempDir dir;
    const auto path = dir.write("a", "0123456789");
    auto source = open_file(path);
    CHECK(mappings_of(path) == 0);
    auto first = source->map({2, 3});
    auto second = source->map({5, 5});
    REQUIRE(first);
    REQUIRE(second);
    CHECK(mappings_of(path) == 1);
    CHECK(text_of(*first) == "234");
    CHECK(text_of(*second) == "56789");
    CHECK(second->bytes.data() - first->bytes.data() == 3);
    source.reset();
    first.reset();
    CHECK(mappings_of(path) == 1);
    CHECK(text_of(*second) == "56789");
    second.reset();
    CHECK(mappings_of(path) == 0);
}

TEST_CASE("views may be taken from several threads at once") {
    const TempDir dir;
    const auto source = open_file(dir.write("a", std::string(100'000, 'x')));
    std::vector<const std::byte*> starts(8);
    {
        std::vector<std::jthread> threads;
        for (auto& start : starts) threads.emplace_back([&] { start = source->map({0, 1})->bytes.data(); });
    }
    for (const auto* start : starts) CHECK(start == starts.front());
}

TEST_CASE("an empty file maps to nothing") {
    const TempDir dir;
    const auto source = open_file(dir.write("empty", ""));
    CHECK(source->size() == 0);
    const auto bytes = source->map({0, 0});
    REQUIRE(bytes);
    CHECK(bytes->bytes.empty());
    CHECK_FAULT(source->map({0, 1}), Errc::file_truncated);
    CHECK_OK(source->read_at(0, {}));
}

TEST_CASE("files on network file systems are mapped only on request") {
    const TempDir dir;
    dir.write("a", "abc");
    const EverythingOn nfs(0x6969);
    for (const auto& source : {open_file(dir / "a"), open_folder(dir.path())->open("a")}) {
        CHECK_FALSE(source->map({0, 3}));
        CHECK(text_of(*source, {0, 3}) == "abc");
        CHECK_OK(source->prefetch({0, 3}));
        CHECK_FALSE(source->map({0, 3}));
    }
    CHECK(mappings_of(dir / "a") == 0);
    const auto asked = open_file(dir / "a", Mapping::allowed);
    CHECK(text_of(asked->map({0, 3}).value()) == "abc");
}

TEST_CASE("a file with Mapping::never is only read") {
    const TempDir dir;
    const auto source = open_file(dir.write("a", "abc"), Mapping::never);
    CHECK(!source->map({0, 3}));
    CHECK(text_of(*source, {0, 3}) == "abc");
    const auto in_folder = open_folder(dir.path(), Mapping::never)->open("a");
    CHECK(!in_folder->map({0, 3}));
}

TEST_CASE("a descriptor of the caller can be a source, and stays the caller's") {
    const TempDir dir;
    const auto path = dir.write("weights", "0123456789");
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(descriptor >= 0);
    REQUIRE(::lseek(descriptor, 4, SEEK_SET) == 4);
    const std::set<int> before = open_descriptors();
    {
        const auto file = open_descriptor(descriptor, "the server's weights");
        fs::remove(path);
        CHECK(file->name() == "the server's weights");
        CHECK(file->size() == 10);
        CHECK(text_of(*file, {2, 3}) == "234");
        CHECK(text_of(file->map({7, 3}).value()) == "789");
        CHECK(::lseek(descriptor, 0, SEEK_CUR) == 4);
        CHECK(open_descriptors().size() == before.size() + 1);
        CHECK(newer_close_on_exec(before));
    }
    CHECK(open_descriptors() == before);
    CHECK(::close(descriptor) == 0);
    CHECK_FAULT(open_descriptor(descriptor, "closed"), Errc::invalid_argument);
}

TEST_CASE("memory with a descriptor is read and mapped, and truncation is detected") {
    const int descriptor = ::memfd_create("weights", MFD_CLOEXEC);
    REQUIRE(descriptor >= 0);
    REQUIRE(::write(descriptor, "weights", 7) == 7);
    const auto file = open_descriptor(descriptor, "memfd");
    CHECK(text_of(file->map({0, 7}).value()) == "weights");
    REQUIRE(::ftruncate(descriptor, 3) == 0);
    CHECK_FAULT(file->require_unchanged(), Errc::file_changed);
    CHECK_FAULT(text_of(*file, {0, 7}), Errc::file_changed);
    ::close(descriptor);
}

TEST_CASE("descriptors that are not readable regular files are refused") {
    const TempDir dir;
    const auto path = dir.write("weights", "0123456789");
    for (const int flags : {O_WRONLY, O_PATH, O_RDONLY | O_DIRECTORY}) {
        const int descriptor =
            ::open((flags & O_DIRECTORY) != 0 ? dir.path().c_str() : path.c_str(), flags | O_CLOEXEC);
        REQUIRE(descriptor >= 0);
        CHECK_FAULT(open_descriptor(descriptor, "no file"), Errc::invalid_argument);
        ::close(descriptor);
    }
    CHECK_FAULT(open_descriptor(-1, "none"), Errc::invalid_argument);
}

TEST_CASE("a private copy can be written to, and the change is visible nowhere else") {
    const TempDir dir;
    const auto path = dir.write("a", "0123456789");
    fs::permissions(path, fs::perms::owner_read);  // writing to a private copy needs no write permission for the file
    auto source = open_file(path, Mapping::private_copy);
    const auto other = open_file(path, Mapping::private_copy);
    auto bytes = source->map({2, 3});
    REQUIRE(bytes);
    CHECK(bytes->writable);
    const_cast<std::byte&>(bytes->bytes[0]) = std::byte{'x'};
    CHECK(text_of(*source->map({0, 10})) == "01x3456789");  // one copy for all users of this source
    CHECK(text_of(*other->map({0, 10})) == "0123456789");
    CHECK(text_of(*source, {0, 10}) == "0123456789");  // reading reads the file
    source.reset();
    CHECK(text_of(*bytes) == "x34");
    bytes.reset();
    CHECK(TempDir::read(path) == "0123456789");
    CHECK(mappings_of(path) == 1);  // the mapping of `other`

    const auto in_folder = open_folder(dir.path(), Mapping::private_copy)->open("a");
    CHECK(in_folder->map({0, 1})->writable);
    CHECK_FALSE(open_file(path)->map({0, 1})->writable);
    CHECK(open_file(dir.write("empty", ""), Mapping::private_copy)->map({0, 0})->bytes.empty());
}

TEST_CASE("a private copy of a file on a network file system is memory that was read once") {
    const TempDir dir;
    const auto path = dir.write("a", "0123456789");
    fs::permissions(path, fs::perms::owner_read);
    const EverythingOn nfs(0x6969);
    auto source = open_file(path, Mapping::private_copy);
    const auto other = open_file(path, Mapping::private_copy);
    const auto later = open_folder(dir.path(), Mapping::private_copy)->open("a");
    auto bytes = source->map({2, 3});
    REQUIRE(bytes);
    CHECK(bytes->writable);
    const_cast<std::byte&>(bytes->bytes[0]) = std::byte{'x'};
    CHECK(text_of(*source->map({0, 10})) == "01x3456789");  // one copy for all users of this source
    CHECK(text_of(*other->map({0, 10})) == "0123456789");
    CHECK(text_of(*source, {0, 10}) == "0123456789");  // reading reads the file
    source->prefetch({0, 10});
    source->evict({0, 10});
    CHECK(text_of(*source->map({1, 3})) == "1x3");
    CHECK(mappings_of(path) == 0);

    // Bytes that were read stay, whatever happens to the file, and no other bytes are used in their place.
    fs::permissions(path, fs::perms::owner_all);
    fs::resize_file(path, 1);
    CHECK(text_of(*source->map({0, 10})) == "01x3456789");
    CHECK_FAULT(later->map({0, 2}), Errc::file_changed);
    CHECK_FAULT(later->map({0, 1}), Errc::file_changed);
    source.reset();
    CHECK(text_of(*bytes) == "x34");
    CHECK(TempDir::read(path) == "0");
    CHECK(open_file(dir.write("empty", ""), Mapping::private_copy)->map({0, 0})->bytes.empty());
}

TEST_CASE("a private copy that is not mapped reads each requested byte once") {
    const TempDir dir;
    std::string content(5'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 256);
    const auto path = dir.write("a", content);
    const EverythingOn fuse(0x65735546);
    const unsigned seed = soak::seed(4);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
    for (int round = 0; round < 20; ++round) {
        const auto source = open_file(path, Mapping::private_copy);
        std::string twin = content;
        std::vector<bool> is_read(content.size(), false);
        std::size_t bytes = 0;
        const CountedReads counted;
        for (int step = 0; step < 60; ++step) {
            const std::size_t begin = below(content.size() + 1);
            const Extent extent{begin, below(std::min<std::size_t>(content.size() - begin, 400) + 1)};
            const auto part = source->map(extent);
            REQUIRE(part);
            CHECK(text_of(*part) == twin.substr(extent.offset, extent.size));
            for (std::size_t i = extent.offset; i < extent.end(); ++i) {
                bytes += is_read[i] ? 0 : 1;
                is_read[i] = true;
            }
            CHECK(counted.bytes() == bytes);
            if (extent.size == 0) continue;
            const std::size_t at = below(extent.size);
            const_cast<std::byte&>(part->bytes[at]) = std::byte{'!'};
            twin[begin + at] = '!';
        }
        CHECK(text_of(*source->map({0, content.size()})) == twin);
    }
    CHECK_FAULT(open_file(path, Mapping::private_copy)->map({1, content.size()}), Errc::file_truncated);
}

TEST_CASE("a private copy repeats a failed read at the next request, and loses none of its changes") {
    const TempDir dir;
    const auto path = dir.write("a", "0123456789");
    const EverythingOn nfs(0x6969);
    const auto source = open_file(path, Mapping::private_copy);
    const auto part = source->map({4, 2});
    REQUIRE(part);
    const_cast<std::byte&>(part->bytes[0]) = std::byte{'x'};
    {
        ScriptedCalls calls;
        for (int nth = 1; nth <= 2; ++nth) {
            calls.fail_all("pread", EIO);
            CHECK_FAULT(source->map({0, 10}), Errc::io_error);
            CHECK(text_of(*source->map({4, 2})) == "x5");
        }
    }
    CHECK(text_of(*source->map({0, 10})) == "0123x56789");
}

TEST_CASE("threads share a private copy that is not mapped") {
    const TempDir dir;
    const std::string content(200'000, 'w');
    const auto path = dir.write("a", content);
    const EverythingOn nfs(0x6969);
    const auto source = open_file(path, Mapping::private_copy);
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> threads;
        for (unsigned t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                for (std::uint64_t i = 0; i < 200; ++i) {
                    const std::uint64_t begin = (i * 7'919 + t * 131) % 190'000;
                    const auto part = source->map({begin, 10'000});
                    // Each thread writes to bytes of its own, and reads only those.
                    const std::uint64_t mine = (begin / 4 + 1) * 4 + t;
                    std::byte& byte = const_cast<std::byte&>(part->bytes[mine - begin]);
                    if (byte != std::byte{'w'} && byte != std::byte{'x'}) ++wrong;
                    byte = std::byte{'x'};
                }
            });
    }
    CHECK(wrong == 0);
    CHECK(text_of(*source, {0, content.size()}) == content);
}

TEST_CASE("a private copy of a huge file that is not mapped takes memory only for requested bytes") {
    const TempDir dir;
    const auto path = dir.write("huge", "");
    fs::resize_file(path, std::uintmax_t{1} << 38);
    const EverythingOn nfs(0x6969);
    const auto source = open_file(path, Mapping::private_copy);
    const auto end = source->map({(std::uint64_t{1} << 38) - 1, 1});
    REQUIRE(end);
    CHECK(end->bytes[0] == std::byte{0});
    const_cast<std::byte&>(end->bytes[0]) = std::byte{1};
}

// SAFEMAP_FUSE=FOLDER names a folder on a FUSE mount, if there is one.
TEST_CASE("a private copy on a FUSE mount is not mapped") {
    const char* const folder = std::getenv("SAFEMAP_FUSE");
    if (folder == nullptr) return;
    const fs::path path = fs::path(folder) / ("safemap-test-" + std::to_string(::getpid()));
    std::ofstream(path) << "0123456789";
    {
        const auto source = open_file(path, Mapping::private_copy);
        const auto bytes = source->map({2, 3});
        CHECK(mappings_of(path) == 0);
        const_cast<std::byte&>(bytes->bytes[0]) = std::byte{'x'};
        CHECK(text_of(*source->map({0, 10})) == "01x3456789");
        CHECK_FALSE(open_file(path)->map({0, 1}));
    }
    CHECK(TempDir::read(path) == "0123456789");
    fs::remove(path);
}

TEST_CASE("a private copy of a file of 256 GiB takes no memory until it is written to") {
    const TempDir dir;
    const auto path = dir.write("huge", "");
    fs::resize_file(path, std::uintmax_t{1} << 38);
    const auto source = open_file(path, Mapping::private_copy);
    const auto end = source->map({(std::uint64_t{1} << 38) - 1, 1});
    REQUIRE(end);
    const_cast<std::byte&>(end->bytes[0]) = std::byte{1};
    CHECK(text_of(*source, {(std::uint64_t{1} << 38) - 1, 1}) == std::string(1, '\0'));
}

TEST_CASE("a file that shrinks after open is an error that states both sizes") {
    const TempDir dir;
    const auto path = dir.write("a", std::string(10'000, 'x'));
    const auto source = open_file(path);
    fs::resize_file(path, 4'000);
    CHECK(text_of(*source, {0, 4'000}) == std::string(4'000, 'x'));
    const auto error = error_of([&] { text_of(*source, {3'000, 2'000}); });
    check_error(error, {Errc::file_changed}, {});
    CHECK(error->message() == "it has 4000 bytes, but had 10000 bytes when it was opened");
    CHECK(error->path() == path.native());
    const auto far = error_of([&] { text_of(*source, {9'000, 1'000}); });
    REQUIRE(far);
    CHECK(far->message() == error->message());
    CHECK_FAULT(source->map({0, 1}), Errc::file_changed);
}

TEST_CASE("interrupted and short reads are continued") {
    const TempDir dir;
    std::string content(1'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
    const auto source = open_file(dir.write("a", content));
    ScriptedCalls calls;
    calls.stutter(7);
    CHECK(text_of(*source, {1, 999}) == content.substr(1));
}

TEST_CASE("a file fills any number of spans with consecutive bytes, with few calls") {
    const TempDir dir;
    const std::string content = mixed_bytes(20'000);
    const auto source = open_file(dir.write("a", content));
    std::mt19937 random(1);
    for (const std::size_t count : {1U, 2U, 100U, 1'024U, 1'025U, 5'000U}) {
        CAPTURE(count);
        std::vector<std::byte> out(15'000);
        const auto spans = random_spans(random, out, count);
        const auto empty = std::count_if(spans.begin(), spans.end(), [](const auto& span) { return span.empty(); });
        ScriptedCalls calls;
        source->read_scattered(3'000, spans);
        CHECK(joined(spans) == content.substr(3'000, 15'000));
        CHECK(calls.count() == (static_cast<int>(count) - static_cast<int>(empty) + 1'023) / 1'024);
    }
    const std::vector<std::span<std::byte>> nothing(3'000);
    ScriptedCalls calls;
    source->read_scattered(20'000, nothing);
    source->read_scattered(20'000, {});
    CHECK(calls.count() == 0);
}

TEST_CASE("spans that reach past the end of a file are refused before a read") {
    const TempDir dir;
    const auto source = open_file(dir.write("a", "0123456789"));
    std::string out = "......";
    const auto bytes = std::as_writable_bytes(std::span(out));
    const std::span<std::byte> spans[] = {bytes.first(2), bytes.first(0), bytes.subspan(2, 4)};
    source->read_scattered(4, spans);
    CHECK(out == "456789");
    out = "......";
    CHECK_FAULT(source->read_scattered(5, spans), Errc::file_truncated);
    CHECK_FAULT(source->read_scattered(UINT64_MAX, spans), Errc::file_truncated);
    CHECK_FAULT(source->read_scattered(UINT64_MAX - 5, spans), Errc::file_truncated);
    CHECK_FAULT(source->read_scattered(11, {}), Errc::file_truncated);
    CHECK_FAULT(source->read_scattered(11, std::span(spans).subspan(1, 1)), Errc::file_truncated);
    CHECK(out == "......");
}

TEST_CASE("interrupted and short reads of spans are continued") {
    const TempDir dir;
    const std::string content = mixed_bytes(9'000);
    const auto source = open_file(dir.write("a", content));
    std::mt19937 random(2);
    for (const std::size_t most : {1U, 7U, 500U}) {
        CAPTURE(most);
        std::vector<std::byte> out(8'000);
        const auto spans = random_spans(random, out, 2'000);
        ScriptedCalls calls;
        calls.stutter(most);
        source->read_scattered(1'000, spans);
        CHECK(joined(spans) == content.substr(1'000));
    }
}

TEST_CASE("any failing read of spans is an error that names the file") {
    const TempDir dir;
    const auto path = dir.write("a", mixed_bytes(9'000));
    const auto source = open_file(path);
    std::mt19937 random(3);
    std::vector<std::byte> out(9'000);
    const auto spans = random_spans(random, out, 50);
    int nth = 1;
    for (bool survived = false; !survived; ++nth) {
        CAPTURE(nth);
        ScriptedCalls calls;
        calls.stutter(1'000);
        calls.fail_nth(nth, EIO);
        const auto error = error_of([&] { source->read_scattered(0, spans); });
        survived = !calls.failed();
        CHECK(error.has_value() == !survived);
        if (error) {
            CHECK(error->code() == Errc::io_error);
            CHECK(error->path() == path.native());
        }
    }
    CHECK(nth > 10);
}

TEST_CASE("a file that shrinks is an error when its bytes are read into spans") {
    const TempDir dir;
    const auto path = dir.write("a", mixed_bytes(9'000));
    const auto source = open_file(path);
    fs::resize_file(path, 4'000);
    std::mt19937 random(4);
    std::vector<std::byte> out(4'000);
    const auto spans = random_spans(random, out, 50);
    CHECK_OK(source->read_scattered(0, spans));
    for (const std::uint64_t offset : {1ULL, 4'000ULL, 5'000ULL}) {
        check_error(error_of([&] { source->read_scattered(offset, spans); }), {Errc::file_changed}, {},
                    {.path = path.native(), .message = "it has 4000 bytes, but had 9000 bytes when it was opened"});
    }
}

TEST_CASE("error numbers become codes that a caller can act on") {
    const TempDir dir;
    dir.write("a", "abc");
    struct Row {
        int number;
        Errc code;
    };
    ScriptedCalls calls;
    for (const Row row :
         {Row{ENOENT, Errc::path_not_found}, Row{EACCES, Errc::permission_denied}, Row{EPERM, Errc::permission_denied},
          Row{EROFS, Errc::permission_denied}, Row{ENOSPC, Errc::no_space}, Row{EDQUOT, Errc::no_space},
          Row{EFBIG, Errc::no_space}, Row{EMFILE, Errc::too_many_open_files}, Row{ENFILE, Errc::too_many_open_files},
          Row{ENOMEM, Errc::out_of_memory}, Row{EIO, Errc::io_error}, Row{ESTALE, Errc::file_changed}}) {
        CAPTURE(row.number);
        calls.fail_all("openat", row.number);
        CHECK_FAULT(open_file(dir / "a"), row.code);
    }
}

TEST_CASE("a file that is written in place has changed; a file that is replaced has not") {
    const TempDir dir;
    const auto path = dir.write("a", "first");
    const auto source = open_file(path);
    const auto view = source->map({0, 5});
    CHECK_OK(source->require_unchanged());

    dir.write("b", "other");
    fs::rename(dir / "b", path);
    CHECK_OK(source->require_unchanged());
    CHECK(text_of(*source, {0, 5}) == "first");
    CHECK(text_of(*view) == "first");
    CHECK(text_of(*open_file(path), {0, 5}) == "other");
    fs::remove(path);
    CHECK_OK(source->require_unchanged());

    const auto second = open_file(dir.write("c", "first"));
    std::fstream(dir / "c", std::ios::in | std::ios::out) << "other";
    touch(dir / "c");
    CHECK_FAULT(second->require_unchanged(), Errc::file_changed);
    CHECK_FAULT(second->map({0, 5}), Errc::file_changed);
    const auto third = open_file(dir / "c");
    fs::resize_file(dir / "c", 9);
    check_error(error_of([&] { third->require_unchanged(); }), {Errc::file_changed}, {},
                {.message = "it has 9 bytes, but had 5 bytes when it was opened"});
}

TEST_CASE("every system call of opening, reading and caching may fail") {
    const TempDir dir;
    dir.write("a", "abc");
    const std::set<int> before = open_descriptors();
    bool survived = false;
    std::vector<std::string> forgiven;
    for (int nth = 1; !survived; ++nth) {
        CAPTURE(nth);
        REQUIRE(nth < 50);
        ScriptedCalls calls;
        calls.fail_nth(nth, EIO);
        std::string text;
        const auto error = error_of([&] {
            const auto folder = open_folder(dir.path());
            folder->list();
            const auto source = folder->open("a");
            static_cast<void>(source->residency({0, 3}));
            source->prefetch({0, 3});
            source->evict({0, 3});
            text = text_of(*source, {0, 3});
            static_cast<void>(source->map({0, 3}));
            source->require_unchanged();
        });
        survived = !calls.failed();
        if (error) CHECK(error->code() == Errc::io_error);
        else {
            CHECK(text == "abc");
            if (!survived) forgiven.push_back(calls.which());
        }
        CHECK(open_descriptors() == before);
        // Failed advice does no harm: residency is unknown, prefetch reads instead, evict does nothing.
        const auto& which = calls.which();
        const bool advice = which == "madvise" || which == "mincore" || which == "cachestat" || which == "fadvise" ||
                            which == "faccessat";
        if (!survived && !advice && !error) {
            // fstat is the only other call that is made for advice: it determines the owner of the file.
            CHECK(which == "fstat");
        }
        if (advice) CHECK_FALSE(error);
    }
    CHECK(std::count(forgiven.begin(), forgiven.end(), "madvise") == 2);  // for prefetch and for evict
    CHECK(std::count(forgiven.begin(), forgiven.end(), "fadvise") == 1);
    CHECK(std::count(forgiven.begin(), forgiven.end(), "fstat") == 1);
}

TEST_CASE("a folder lists its files in order, including links to files") {
    const TempDir dir;
    for (const auto* name : {"b", "a", ".hidden", "c.safetensors"}) dir.write(name, name);
    fs::create_directory(dir / "sub");
    dir.write("sub/inner", "inner");
    fs::create_symlink("a", dir / "link");
    fs::create_symlink("sub", dir / "link to folder");
    fs::create_symlink("nowhere", dir / "dangling");
    const auto folder = open_folder(dir.path());
    CHECK(folder->name() == dir.path().native());
    CHECK(folder->list() == std::vector<std::string>{".hidden", "a", "b", "c.safetensors", "link"});
    CHECK(folder->folders() == std::vector<std::string>{"link to folder", "sub"});
}

TEST_CASE("a folder opens its direct subfolders, and no others") {
    const TempDir dir;
    fs::create_directories(dir / "a/b");
    dir.write("a/b/file", "inner");
    fs::create_symlink("a/b", dir / "link");
    const auto folder = open_folder(dir.path());
    const auto a = folder->folder("a");
    REQUIRE(a);
    CHECK(a->name() == (dir / "a").native());
    CHECK(a->folders() == std::vector<std::string>{"b"});
    const auto link = folder->folder("link");
    REQUIRE(link);
    CHECK(link->list() == std::vector<std::string>{"file"});
    for (const std::string& name : {std::string(), std::string("none"), std::string("a\0b", 3)})
        CHECK(folder->folder(name) == nullptr);
    CHECK(link->folder("file") == nullptr);
    for (const char* name : {".", "..", "/", "a/b", "a/../a", "/tmp"})
        CHECK_FAULT(folder->folder(name), Errc::shard_outside_folder);

    CHECK_FALSE(a->changed());
    fs::rename(dir / "a", dir / "c");
    CHECK(a->changed());
}

TEST_CASE("a folder opens paths below it, and no others") {
    const TempDir dir;
    dir.write("a", "outer");
    fs::create_directories(dir / "models/sub");
    dir.write("models/sub/b", "inner");
    fs::create_symlink("../a", dir / "models/link");
    fs::create_symlink("nowhere", dir / "models/dangling");
    const auto folder = open_folder(dir / "models");

    const auto inner = folder->open("sub/b");
    REQUIRE(inner);
    CHECK(text_of(*inner, {0, 5}) == "inner");
    CHECK(inner->name() == (dir / "models/sub/b").native());
    const auto link = folder->open("link");
    REQUIRE(link);
    CHECK(text_of(*link, {0, 5}) == "outer");

    for (const auto* name : {"none", "dangling", "", "sub/b/c"}) {
        CAPTURE(name);
        CHECK(folder->open(name) == nullptr);
    }
    REQUIRE(::mkfifo((dir / "models/pipe").c_str(), 0600) == 0);
    REQUIRE(::mknod((dir / "models/socket").c_str(), S_IFSOCK | 0600, 0) == 0);
    for (const auto& [name, kind] :
         {std::pair("sub", "a folder"), std::pair("pipe", "a pipe"), std::pair("socket", "a socket")}) {
        const auto error = error_of([&, wanted = name] { static_cast<void>(folder->open(wanted)); });
        check_error(error, {Errc::shard_missing}, {});
        CHECK(error->message().ends_with(kind));
        CHECK(error->path() == (dir / "models" / name).native());
    }
    CHECK(folder->open(std::string_view("sub/b\0", 6)) == nullptr);
    for (const auto* name : {"../a", "..", "sub/../sub/b", "sub/..", "/etc/passwd"}) {
        CAPTURE(name);
        CHECK_FAULT(folder->open(name), Errc::shard_outside_folder);
    }
    CHECK(folder->open("..a") == nullptr);
}

}  // namespace file_test
