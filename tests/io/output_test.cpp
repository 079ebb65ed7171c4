// Tests files that are written in any order, through the page cache and bypassing it.
#include "io/output.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>

#include <algorithm>
#include <new>
#include <random>
#include <vector>

namespace output_test {

using namespace safemap;

namespace {

constexpr std::size_t file_size = 300'000;

// Random bytes at a page boundary, so that the offset of each part in its page is the same in memory and in the file.
struct Content {
    Content() : bytes(static_cast<char*>(::operator new (file_size, std::align_val_t{io::direct_alignment}))) {
        std::mt19937 random(7);
        std::generate_n(bytes, file_size, [&] { return static_cast<char>(random()); });
    }
    ~Content() { ::operator delete (bytes, std::align_val_t{io::direct_alignment}); }
    Content(const Content&) = delete;
    Content& operator=(const Content&) = delete;

    std::span<const std::byte> part(std::size_t begin, std::size_t end) const {
        return std::as_bytes(std::span(bytes + begin, end - begin));
    }
    char* bytes;
};

// Writes `content` in random parts, in random order.
void write_in_parts(const std::filesystem::path& folder, const char* name, const Content& content, bool around,
                    unsigned seed) {
    const int parent = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    REQUIRE(parent >= 0);
    const io::Descriptor held(parent);
    io::OutputFile file = io::OutputFile::create(parent, name);
    file.allocate(file_size);
    if (around) file.bypass_cache();
    std::mt19937 random(seed);
    std::vector<std::size_t> cuts{0, file_size};
    for (int i = 0; i < 20; ++i) cuts.push_back(random() % 2 == 0 ? random() % file_size : random() % 70 * 4096);
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<char> elsewhere(content.bytes,
                                      content.bytes + file_size);  // not page-aligned
    for (const std::size_t i : order) {
        const auto out_of_step = std::as_bytes(std::span(elsewhere)).subspan(cuts[i], cuts[i + 1] - cuts[i]);
        file.write_at(cuts[i], random() % 4 == 0 ? out_of_step : content.part(cuts[i], cuts[i + 1]));
    }
    file.finish();
}

}  // namespace

TEST_CASE("parts written in any order give the same file, through the page cache and bypassing it") {
    const TempDir dir;
    const Content content;
    const std::string wanted(content.bytes, file_size);
    for (unsigned seed = 0; seed < 30; ++seed) {
        CAPTURE(seed);
        write_in_parts(dir.path(), "file", content, seed % 2 == 0, seed);
        CHECK(TempDir::read(dir / "file") == wanted);
        std::filesystem::remove(dir / "file");
    }
}

TEST_CASE("a file system without direct I/O gets writes through the cache") {
    if (!std::filesystem::is_directory("/dev/shm")) return;
    const auto folder = std::filesystem::path("/dev/shm") / ("safemap-test-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    const Content content;
    write_in_parts(folder, "file", content, true, 1);
    CHECK(TempDir::read(folder / "file") == std::string(content.bytes, file_size));
    std::filesystem::remove_all(folder);
}

TEST_CASE("a short direct write is continued through the cache, and a disk error is reported") {
    const TempDir dir;
    const Content content;
    {
        ScriptedCalls calls;
        calls.stutter(5000);
        write_in_parts(dir.path(), "short", content, true, 2);
    }
    CHECK(TempDir::read(dir / "short") == std::string(content.bytes, file_size));
    ScriptedCalls calls;
    calls.fail_all("pwrite", EIO);
    CHECK_FAULT(write_in_parts(dir.path(), "broken", content, true, 3), Errc::io_error);
}

TEST_CASE("a size that no file can have is no_space") {
    const TempDir dir;
    const io::Descriptor parent(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY));
    const io::OutputFile file = io::OutputFile::create(parent.number(), "file");
    for (const std::uint64_t size : {std::uint64_t{1} << 63, UINT64_MAX})
        CHECK_FAULT(file.allocate(size), Errc::no_space);
    CHECK(TempDir::read(dir / "file").empty());
}

TEST_CASE("a file is large if it has more than 512 MiB, or more than a sixteenth of the memory") {
    CHECK_FALSE(io::prefers_direct_io(0));
    CHECK(io::prefers_direct_io(io::calls.physical_memory() / 16 + 1));
    CHECK(io::prefers_direct_io((std::uint64_t{512} << 20) + 1));
    if (io::calls.physical_memory() >= std::uint64_t{8} << 30)
        CHECK_FALSE(io::prefers_direct_io(std::uint64_t{512} << 20));
    const ShrunkMemory small;
    CHECK(io::prefers_direct_io(1));
}

}  // namespace output_test
