// Tests of Source::read_direct() of files: on the disk, and with an O_DIRECT that is as strict as a disk can be.
#include "io/direct_file.hpp"

#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "io/strict_direct.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace direct_file_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

using Spans = std::vector<std::span<std::byte>>;

std::string pattern(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + (i >> 9) + (i >> 17));
    return text;
}

/// Memory that begins `shift` bytes behind a page. Nothing is written to the page behind it.
class Memory {
public:
    explicit Memory(std::size_t size, std::size_t shift = 0)
        : all_(new (std::align_val_t{4096}) std::byte[size + shift + 4096]), size_(size), shift_(shift) {
        std::memset(all_.get(), 0xA5, size + shift + 4096);
    }
    std::span<std::byte> bytes() { return {all_.get() + shift_, size_}; }
    bool overrun() const {
        const auto written = [](std::byte byte) { return byte != std::byte{0xA5}; };
        const std::byte* const end = all_.get() + shift_ + size_;
        return std::any_of(all_.get(), all_.get() + shift_, written) || std::any_of(end, end + 4096, written);
    }

private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{4096}); }
    };
    std::unique_ptr<std::byte[], Free> all_;
    std::size_t size_;
    std::size_t shift_;
};

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string usual(const Source& source, Extent extent) {
    std::string text(extent.size, '?');
    source.read_at(extent.offset, std::as_writable_bytes(std::span(text)));
    return text;
}

/// Reads into one place.
bool read_direct(const Source& source, std::uint64_t offset, std::span<std::byte> into) {
    static thread_local Memory scratch(64 << 10);
    const std::span<std::byte> places[] = {into};
    return source.read_direct(offset, places, scratch.bytes());
}

/// Cuts `bytes` into spans that follow each other, some of them empty.
Spans random_cuts(std::mt19937& random, std::span<std::byte> bytes) {
    Spans spans;
    const std::size_t longest = random() % 2 == 0 ? 3'000 : 200'000;
    while (!bytes.empty()) {
        const std::size_t size = random() % 5 == 0 ? 0 : std::min<std::size_t>(bytes.size(), random() % longest);
        spans.push_back(bytes.first(size));
        bytes = bytes.subspan(size);
    }
    return spans;
}

/// Reads at random offsets into random places, and compares with what read_at() gives.
void compare(const Source& source, unsigned seed, int rounds) {
    std::mt19937 random(seed);
    for (int round = 0; round < rounds; ++round) {
        CAPTURE(round);
        const std::uint64_t most = round % 4 == 0 ? 2'000 : source.size();
        const std::uint64_t size = random() % (std::min(most, source.size()) + 1);
        const bool at_end = random() % 4 == 0;
        const std::uint64_t offset = at_end ? source.size() - size : random() % (source.size() - size + 1);
        CAPTURE(offset);
        CAPTURE(size);
        // Now and then a place whose address is aligned where the offset is.
        Memory memory(size, random() % 2 == 0 ? offset % 4096 : random() % 4096);
        Memory scratch((64 << 10) + random() % 300'000);
        const Spans spans = random() % 3 == 0 ? Spans{memory.bytes()} : random_cuts(random, memory.bytes());
        REQUIRE(source.read_direct(offset, spans, scratch.bytes()));
        CHECK(text_of(memory.bytes()) == usual(source, {offset, size}));
        CHECK_FALSE(memory.overrun());
        CHECK_FALSE(scratch.overrun());
    }
}

/// A file with an end that is not aligned.
struct TestFile {
    TempDir dir;
    std::string content = pattern(1'300'777);
    fs::path path = dir.write("a", content);
    std::shared_ptr<const Source> source = open_file(path);
};

}  // namespace

TEST_CASE("direct reads give what usual reads give, whatever has to be aligned") {
    const unsigned seed = soak::seed(20261125);
    CAPTURE(seed);
    for (const io::DirectAlignment alignment :
         {io::DirectAlignment{512, 512}, {4, 512}, {4096, 4096}, {1, 4096}, {512, 65536}}) {
        CAPTURE(alignment.memory);
        CAPTURE(alignment.offset);
        const TestFile file;
        const StrictDirect disk(alignment.memory, alignment.offset);
        compare(*file.source, seed, soak::rounds_of_one_thread(100));
        CHECK(disk.opened() == 1);
        CHECK(disk.reads() > 0);
    }
}

TEST_CASE("short and interrupted direct reads go on where they stopped") {
    for (const std::size_t blocks : {1U, 3U, 50U}) {
        const TestFile file;
        StrictDirect disk(512, 512);
        disk.stutter(blocks);
        compare(*file.source, static_cast<unsigned>(blocks), 10);
    }
}

TEST_CASE("the disk of the temporary folder gives what usual reads give, also to several threads at once") {
    const TestFile file;
    Memory probe(100);
    if (!read_direct(*file.source, 0, probe.bytes())) {
        MESSAGE("skipped: temporary files are on a file system without O_DIRECT");
        return;
    }
    const unsigned seed = soak::seed(20261126);
    CAPTURE(seed);
    compare(*file.source, seed, soak::rounds_of_one_thread(100));

    const auto fresh = open_file(file.path);
    std::atomic<int> equal = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            Memory memory(300'000 + t, t);
            if (read_direct(*fresh, t * 200'000, memory.bytes()) &&
                text_of(memory.bytes()) == file.content.substr(t * 200'000, 300'000 + t))
                ++equal;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(equal.load() == 4);
}

TEST_CASE("a place that is aligned is read without a copy, another one in few reads") {
    const TestFile file;
    const StrictDirect disk(512, 512);
    Memory memory(1 << 20);
    CHECK(read_direct(*file.source, 8'192, memory.bytes()));
    CHECK(disk.reads() == 1);
    CHECK(disk.bytes() == 1 << 20);

    // A block at each end through the scratch, and the middle straight.
    Memory shifted(1 << 20, 100);
    CHECK(read_direct(*file.source, 8'292, shifted.bytes()));
    CHECK(disk.reads() == 4);
    CHECK(disk.bytes() == (2 << 20) + 512);

    // Nothing fits: all of it through the scratch of 64 KiB.
    Memory odd(1 << 20, 1);
    CHECK(read_direct(*file.source, 8'192, odd.bytes()));
    CHECK(disk.reads() == 4 + 16);
    CHECK(disk.bytes() == (3 << 20) + 512);
    CHECK(disk.usual_reads() == 0);
}

TEST_CASE("without O_DIRECT, direct reads are not available, which is asked once") {
    const auto unavailable = [](const auto& prepare) {
        const TestFile file;
        ScriptedCalls calls;
        prepare(calls);
        Memory memory(10'000);
        CHECK_FALSE(read_direct(*file.source, 5, memory.bytes()));
        calls.remember();
        CHECK_FALSE(read_direct(*file.source, 5, memory.bytes()));
        CHECK(calls.names().empty());
        CHECK(usual(*file.source, {5, 10'000}) == file.content.substr(5, 10'000));
    };
    for (const int number : {EINVAL, EOPNOTSUPP, EACCES, ENOENT, EIO, EPERM}) {
        CAPTURE(number);
        unavailable([&](ScriptedCalls& calls) { calls.fail_all("openat", number); });
        unavailable([&](ScriptedCalls& calls) { calls.fail_all("fstatfs", number); });
    }
    unavailable([](ScriptedCalls&) {
        io::calls.direct_alignment = [](int, io::DirectAlignment* alignment) {
            *alignment = {0, 0};
            return 0;
        };
    });
    for (const auto magic : {NFS_SUPER_MAGIC, FUSE_SUPER_MAGIC, V9FS_MAGIC}) {
        const EverythingOn network(static_cast<std::uint32_t>(magic));
        unavailable([](ScriptedCalls&) {});
    }
    // Not by the disk's fault: the next read may have memory that is aligned.
    const TestFile file;
    const StrictDirect disk(512, 512);
    Memory memory(10'000);
    const std::span<std::byte> places[] = {memory.bytes()};
    CHECK_FALSE(file.source->read_direct(5, places, memory.bytes().subspan(1)));
    CHECK_FALSE(file.source->read_direct(5, places, memory.bytes().first(511)));
    CHECK(file.source->read_direct(5, places, Memory(512).bytes()));
}

TEST_CASE("if the system does not say what has to be aligned, everything is aligned to pages") {
    const TestFile file;
    const StrictDirect disk(4096, 4096);
    io::calls.direct_alignment = [](int, io::DirectAlignment*) {
        errno = EOPNOTSUPP;
        return -1;
    };
    compare(*file.source, 3, 20);
}

TEST_CASE("a direct read that the system refuses is not tried again, and one that fails is left to the usual read") {
    for (const int number : {EINVAL, EOPNOTSUPP, EFAULT}) {
        for (const int nth : {1, 2, 3}) {
            const TestFile file;
            StrictDirect disk(512, 512);
            disk.fail_nth(nth, number);
            Memory memory(500'000, 1);
            CHECK_FALSE(read_direct(*file.source, 5, memory.bytes()));
            CHECK(disk.reads() == nth);
            CHECK_FALSE(read_direct(*file.source, 5, memory.bytes()));
            CHECK(disk.reads() == nth);
        }
    }
    const TestFile file;
    StrictDirect disk(512, 512);
    Memory memory(500'000, 1);
    for (const int nth : {1, 2, 3}) {
        disk.fail_nth(nth, EIO);
        CHECK_FALSE(read_direct(*file.source, 5, memory.bytes()));
    }
    CHECK(read_direct(*file.source, 5, memory.bytes()));
    CHECK(text_of(memory.bytes()) == file.content.substr(5, 500'000));
}

TEST_CASE("whichever call fails, a direct read is right, or left to the usual read") {
    int tried = 0;
    for (int nth = 1;; ++nth) {
        CAPTURE(nth);
        const TestFile file;
        const StrictDirect disk(512, 512);
        ScriptedCalls calls;
        calls.fail_nth(nth, EIO);
        Memory memory(100'000);
        bool done = false;
        const auto error = error_of([&] { done = read_direct(*file.source, 7, memory.bytes()); });
        CHECK_FALSE(error);
        CHECK(done == (!calls.failed() || calls.which() == "direct_alignment"));
        if (done) CHECK(text_of(memory.bytes()) == file.content.substr(7, 100'000));
        if (!calls.failed()) break;
        ++tried;
    }
    CHECK(tried == 5);
}

TEST_CASE("ranges outside a file, and files that were cut, give the errors of usual reads") {
    const TestFile file;
    const StrictDirect disk(512, 512);
    Memory memory(100'000);
    const auto size = file.source->size();
    CHECK_FAULT(read_direct(*file.source, size - 99'999, memory.bytes()), Errc::file_truncated);
    CHECK_FAULT(read_direct(*file.source, UINT64_MAX, memory.bytes()), Errc::file_truncated);
    CHECK(read_direct(*file.source, size - 100'000, memory.bytes()));
    CHECK(read_direct(*file.source, size, {}));

    for (const std::uint64_t cut : {900'000U, 819'200U, 100U, 0U}) {
        CAPTURE(cut);
        fs::resize_file(file.path, cut);
        // The usual read, which comes next, says what is wrong.
        CHECK_FALSE(read_direct(*file.source, 850'000, memory.bytes()));
        CHECK_FAULT(usual(*file.source, {850'000, 100'000}), Errc::file_changed);
        if (cut < 100'000) continue;
        CHECK(read_direct(*file.source, cut - 100'000, memory.bytes()));
        CHECK(text_of(memory.bytes()) == file.content.substr(cut - 100'000, 100'000));
    }
}

TEST_CASE("another file with the same name is not read, and a file without a name is") {
    const TestFile file;
    const StrictDirect disk(512, 512);
    const int descriptor = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    const auto taken = open_descriptor(descriptor, "taken");
    ::close(descriptor);
    file.dir.write("b", std::string(file.content.size(), 'b'));
    fs::rename(file.dir / "b", file.path);
    Memory memory(100'000);
    for (const auto& source : {file.source, taken}) {
        CHECK(read_direct(*source, 7, memory.bytes()));
        CHECK(text_of(memory.bytes()) == file.content.substr(7, 100'000));
    }
    // Without a descriptor of its own left, it would have to be opened by its name.
    const FewDescriptors few(2);
    const auto gone = open_file(file.path);
    for (const char name : {'c', 'd', 'e'}) static_cast<void>(open_file(file.dir.write(std::string(1, name), "x")));
    const std::vector<std::shared_ptr<const Source>> others = {open_file(file.dir / "c"), open_file(file.dir / "d")};
    fs::remove(file.path);
    CHECK_FAULT(read_direct(*gone, 7, memory.bytes()), Errc::file_changed);
}

TEST_CASE("sources that are no files have no direct reads") {
    const auto memory = memory_source("memory", std::vector<std::byte>(10'000));
    Memory into(100);
    CHECK_FALSE(read_direct(*memory, 0, into.bytes()));
}

}  // namespace direct_file_test
