// Tests of descriptor_cache.hpp: how many files are open at a time, and how closed files are reopened.
#include "io/descriptor_cache.hpp"

#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "io/file_folder.hpp"
#include "io/scripted_calls.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

namespace descriptor_cache_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

using Sources = std::vector<std::shared_ptr<const Source>>;

std::size_t open_descriptors() {
    const fs::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::string name_of(std::size_t i) { return "file " + std::to_string(i); }

std::string text_of(const Source& source) {
    std::string text(source.size(), '?');
    source.read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// Opens new files that contain their names.
Sources open_files(const TempDir& dir, std::size_t count, Mapping mapping = Mapping::automatic) {
    const auto folder = open_folder(dir.path(), mapping);
    Sources sources;
    for (std::size_t i = 0; i < count; ++i) {
        dir.write(name_of(i), name_of(i));
        sources.push_back(folder->open(name_of(i)));
    }
    return sources;
}

/// Runs in a child process with at most `limit` descriptors, which it cannot raise.
template <class Run> bool well_in_child(rlim_t limit, Run&& run) {
    return true_in_child([&] {
        const rlimit both = {limit, limit};
        return ::setrlimit(RLIMIT_NOFILE, &both) == 0 && run();
    });
}

}  // namespace

TEST_CASE("at most half of the descriptors are kept, those used most recently") {
    const TempDir dir;
    const FewDescriptors few(20);
    const std::size_t before = open_descriptors();
    const Sources sources = open_files(dir, 30);
    CHECK(open_descriptors() == before + 11);  // ten files and their folder
    for (std::size_t i = 0; i < sources.size(); ++i) CHECK(text_of(*sources[i]) == name_of(i));
    for (std::size_t i = sources.size(); i-- > 0;) CHECK(text_of(*sources[i]) == name_of(i));
    CHECK(open_descriptors() == before + 11);

    // File 10 has been closed, and 9 would be the next one if it were not read here.
    CHECK(text_of(*sources[9]) == name_of(9));
    CHECK(text_of(*sources[10]) == name_of(10));
    ScriptedCalls calls;
    calls.fail_all("openat", EIO);
    CHECK(text_of(*sources[9]) == name_of(9));
    CHECK(text_of(*sources[10]) == name_of(10));
    CHECK(text_of(*sources[0]) == name_of(0));
    CHECK_FAULT(text_of(*sources[8]), Errc::io_error);
}

TEST_CASE("a destroyed source closes its descriptor, whether that is kept or not") {
    const TempDir dir;
    const FewDescriptors few(8);
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 3; ++i) {
        Sources sources = open_files(dir, 12);
        std::shuffle(sources.begin(), sources.end(), std::minstd_rand(static_cast<unsigned>(i)));
        while (!sources.empty()) sources.pop_back();
        CHECK(open_descriptors() == before);
    }
}

TEST_CASE("a descriptor in use stays open after it is dropped from the list") {
    const TempDir dir;
    dir.write("a", "abc");
    io::CachedDescriptor kept;
    kept.keep(std::make_shared<const io::Descriptor>(io::open_at(AT_FDCWD, (dir / "a").c_str(), O_RDONLY)));
    io::Handle used = kept.get();
    REQUIRE(used);
    while (io::close_one_kept()) continue;
    CHECK(kept.get() == nullptr);
    char byte = 0;
    CHECK(::pread(used->number(), &byte, 1, 0) == 1);
    const int number = used->number();
    used.reset();
    CHECK(::fcntl(number, F_GETFD) == -1);
}

TEST_CASE(
    "closed files are found again after the folder or the working directory moved; otherwise they are reported as "
    "changed") {
    const TempDir dir;
    fs::create_directory(dir / "in");
    const FewDescriptors none(0);
    const fs::path home = fs::current_path();
    fs::current_path(dir / "in");
    for (const auto* name : {"same", "replaced", "removed", "written", "shorter"})
        dir.write(std::string("in/") + name, "text");
    const auto same = open_file("same");
    const auto replaced = open_file("replaced");
    const auto removed = open_file("removed");
    const auto written = open_file("written");
    const auto shorter = open_file("shorter");
    const auto in_folder = open_folder(".")->open("same");
    fs::current_path(home);

    CHECK(text_of(*same) == "text");
    fs::rename(dir / "in/same", dir / "in/replaced");
    fs::remove(dir / "in/removed");
    dir.write("in/written", "more");
    fs::last_write_time(dir / "in/written", fs::last_write_time(dir / "in/written") + std::chrono::seconds(1));
    fs::resize_file(dir / "in/shorter", 2);
    for (const auto& source : {replaced, removed, written, shorter}) {
        CHECK_FAULT(text_of(*source), Errc::file_changed);
        CHECK_FAULT(source->require_unchanged(), Errc::file_changed);
        CHECK_FAULT(source->map({0, 1}), Errc::file_changed);
    }
    fs::rename(dir / "in/replaced", dir / "in/same");
    fs::rename(dir / "in", dir / "moved");
    CHECK(text_of(*in_folder) == "text");
    CHECK_FAULT(text_of(*same), Errc::file_changed);  // reopened by its path, where nothing is any more
}

TEST_CASE("mappings and views need no descriptor") {
    const TempDir dir;
    const FewDescriptors none(0);
    const Sources sources = open_files(dir, 3);
    const auto view = sources[0]->map({0, 4});
    REQUIRE(view);
    ScriptedCalls calls;
    calls.fail_all("openat", EMFILE);
    CHECK(view->bytes[0] == std::byte{'f'});
    CHECK(sources[0]->map({1, 2})->bytes.data() == view->bytes.data() + 1);
    CHECK_FAULT(text_of(*sources[0]), Errc::too_many_open_files);
}

TEST_CASE("more files than descriptors are opened and read") {
    const TempDir dir;
    CHECK(well_in_child(32, [&] {
        const Sources sources = open_files(dir, 100);
        bool well = true;
        for (int round = 0; round < 2; ++round)
            for (std::size_t i = 0; i < sources.size(); ++i) well = well && text_of(*sources[i]) == name_of(i);
        return well;
    }));
}

TEST_CASE("a program that uses up all descriptors leaves open files readable") {
    const TempDir dir;
    CHECK(well_in_child(32, [&] {
        const Sources sources = open_files(dir, 100);
        while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
        bool well = true;
        for (std::size_t i = 0; i < sources.size(); ++i) well = well && text_of(*sources[i]) == name_of(i);
        return well;
    }));
    CHECK(well_in_child(32, [&] {
        while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
        const auto error = error_of([&] { return open_file(dir / name_of(0)); });
        return error && error->code() == Errc::too_many_open_files;
    }));
}

TEST_CASE("several threads read more files than can be open") {
    const TempDir dir;
    const FewDescriptors few(8);
    const Sources sources = open_files(dir, 12);
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> threads;
        for (unsigned seed = 0; seed < 4; ++seed)
            threads.emplace_back([&, seed] {
                std::minstd_rand random(seed);
                for (int round = 0; round < 300; ++round) {
                    const std::size_t i = random() % sources.size();
                    if (text_of(*sources[i]) != name_of(i)) ++wrong;
                    if (round % 7 == 0) sources[i]->evict({0, 3});
                    if (round % 5 == 0) sources[i]->prefetch({0, 3});
                    if (round % 3 == 0 && sources[i]->map({0, 1})->bytes[0] != std::byte{'f'}) ++wrong;
                }
            });
    }
    CHECK(wrong == 0);
}

}  // namespace descriptor_cache_test
