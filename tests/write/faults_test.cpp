// Tests saves when something fails: the nth system call, the disk, the source, another writer. From top to bottom:
// failing and short system calls, messages, changed sources, full and read-only disks, concurrent and killed saves, few
// descriptors.
#include <safemap/advanced/stored_tensor.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/samples.hpp"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace faults_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

/// Returns tensors in files below `dir`, so that reading them takes system calls too.
std::vector<LazyTensor> tensors_in_files(const TempDir& dir) {
    fs::create_directory(dir / "in");
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 3; ++i) {
        const std::string name = "t" + std::to_string(i);
        const auto bytes = random_bytes(3'000, i);
        const auto path = dir.write("in/" + name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        tensors.emplace_back(name, stored_run(Dtype::f32, {750}, open_file(path), 0));
    }
    return tensors;
}

/// A tmpfs of `bytes` at `path`; `path` is empty if mounting is not permitted.
class SmallDisk {
public:
    SmallDisk(const fs::path& path, const char* options) : path_(path) {
        fs::create_directory(path_);
        mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
    }
    ~SmallDisk() {
        if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;
    explicit operator bool() const { return mounted_; }

private:
    fs::path path_;
    bool mounted_ = false;
};

}  // namespace

TEST_CASE("every system call of a save may fail: exit code 3, no leftovers, no change at the target or the sources") {
    const TempDir dir;
    const auto tensors = tensors_in_files(dir);
    const auto sources = contents_of(dir / "in");
    dir.write("neighbour", "mine");
    struct Row {
        const char* out;
        std::uint64_t max_shard_size;
        int at_least;  // number of calls that a save makes at least
    };
    for (const Row row : {Row{"out", 3'000, 25}, Row{"out.safetensors", 9'000, 15}}) {
        for (const int number : {EIO, ENOSPC, EACCES, ENOMEM}) {
            bool survived = false;
            for (int nth = soak::step(3); !survived; nth += soak::step(3)) {
                CAPTURE(nth);
                REQUIRE(nth < 200);
                const auto failure = fail_at(nth, number, [&] {
                    save(dir / row.out, tensors, {.max_shard_size = row.max_shard_size, .work = {.threads = 1}});
                });
                const auto& error = failure.error;
                const auto& which = failure.which;
                CAPTURE(which);
                REQUIRE(error.has_value() == !which.empty());
                if (error) {
                    CHECK(exit_code(error->code()) == 3);
                    CHECK(std::string(error->what()).starts_with("save "));
                    CHECK(names_in(dir.path()) == Names{"in", "neighbour"});
                    continue;
                }
                survived = true;
                CHECK(nth > row.at_least);
                CHECK(names_in(dir.path()) == Names{"in", "neighbour", row.out});
                fs::remove_all(dir / row.out);
            }
        }
    }
    CHECK(contents_of(dir / "in") == sources);
    CHECK(TempDir::read(dir / "neighbour") == "mine");
}

TEST_CASE("interrupted and short system calls make no difference") {
    const TempDir dir;
    const auto tensors = tensors_in_files(dir);
    save(dir / "plain", tensors, {.max_shard_size = 6'000});
    {
        ScriptedCalls calls;
        calls.stutter(101);
        save(dir / "stuttered", tensors, {.max_shard_size = 6'000});
    }
    CHECK(contents_of(dir / "plain") == contents_of(dir / "stuttered"));
}

TEST_CASE("errors name the file and the tensor") {
    const TempDir dir;
    const auto tensors = tensors_in_files(dir);
    fs::resize_file(dir / "in/t1", 100);
    check_error(error_of([&] { save(dir / "out", tensors, {.max_shard_size = 3'000}); }), {Errc::file_changed}, {},
                {.tensor = "t1", .path = (dir / "in/t1").native()});

    ScriptedCalls calls;
    calls.fail_all("fallocate", ENOSPC);
    const auto full = error_of([&] { save(dir / "out", tensors, {.max_shard_size = 3'000}); });
    check_error(full, {Errc::no_space}, {});
    CHECK(full->path() == (dir / "out/model-00001-of-00003.safetensors").native());
    CHECK(full->message().find("cannot allocate 3") != std::string::npos);
    CHECK(full->message().find("; free: ") != std::string::npos);
    CHECK(full->hint().starts_with("all files together take 9"));
    const auto full_file = error_of([&] { save(dir / "out.safetensors", std::span(tensors).first(1)); });
    REQUIRE(full_file);
    CHECK(full_file->path() == (dir / "out.safetensors").native());

    calls.fail_all("pwrite", ENOSPC);
    // A tensor in memory: a save of files would write its journal first.
    check_error(error_of([&] { save(dir / "out", std::vector{tensor("t", Dtype::f32, {750})}); }), {Errc::no_space},
                {" at offset ", "; free: "}, {.path = (dir / "out/model.safetensors").native()});
    CHECK(std::string(full->what()).starts_with("save " + (dir / "out").native() + "/: "));
}

TEST_CASE("a source that was written to since open is an error, and nothing is saved") {
    const TempDir dir;
    const auto tensors = tensors_in_files(dir);
    fs::last_write_time(dir / "in/t1", fs::last_write_time(dir / "in/t1") + std::chrono::seconds(1));
    check_error(error_of([&] { save(dir / "out", tensors); }), {Errc::file_changed}, {},
                {.tensor = "t1", .path = (dir / "in/t1").native()});
    CHECK(names_in(dir.path()) == Names{"in"});
}

TEST_CASE("a source that is replaced during the save is saved with its old content") {
    const TempDir dir;
    const auto tensors = tensors_in_files(dir);
    save(dir / "before", tensors);
    for (const auto* name : {"in/t0", "in/t1", "in/t2"}) {
        dir.write("new", std::string(3'000, 'x'));
        fs::rename(dir / "new", dir / name);
    }
    save(dir / "after", tensors);
    CHECK(contents_of(dir / "before") == contents_of(dir / "after"));
}

TEST_CASE("a source that is truncated during the save is an error, never a signal") {
    const TempDir dir;
    constexpr std::uint64_t size = 32U << 20;
    const fs::path path = dir / "big";
    dir.write("big", "");
    fs::resize_file(path, size);
    const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::u8, {size}, open_file(path), 0)}};
    SaveOptions options{.work = {.threads = 1}};
    options.work.monitor.on_progress = [&](const Progress&) {
        fs::resize_file(path, size / 2 + 5);
        return true;
    };
    CHECK_FAULT(save(dir / "out", tensors, options), Errc::file_changed);
    CHECK(names_in(dir.path()) == Names{"big"});
}

TEST_CASE("a disk that is too small is detected before a byte is written, and left as it was") {
    const TempDir dir;
    const SmallDisk disk(dir / "disk", "size=1m");
    if (!disk) {
        MESSAGE("skipped: mounting is not permitted");
        return;
    }
    const std::vector<LazyTensor> tensors = {tensor("a", Dtype::u8, {400'000}), tensor("b", Dtype::u8, {400'000}),
                                             tensor("c", Dtype::u8, {400'000})};
    std::uint64_t written = 0;
    SaveOptions options{.max_shard_size = 400'000};
    options.work.monitor.on_progress = [&](const Progress& progress) {
        written = std::max(written, progress.bytes_done);
        return true;
    };
    for (const auto* out : {"out", "out.safetensors"}) {
        const auto full = error_of([&] { save(dir / "disk" / out, tensors, options); });
        check_error(full, {Errc::no_space}, {});
        CHECK(full->path().starts_with((dir / "disk" / out).native()));
        // One mebibyte, less the two earlier files and the folders.
        const std::string& said = full->message();
        const std::size_t free = said.find("; free: ");
        REQUIRE(free != std::string::npos);
        CHECK(std::stoull(said.substr(free + 8)) <= 1 << 20);
        CHECK(written == 0);
        CHECK(names_in(dir / "disk").empty());
    }
    CHECK_OK(save(dir / "disk/two", std::span(tensors).first(2), options));
}

TEST_CASE("a read-only file system is reported as such") {
    const TempDir dir;
    const SmallDisk disk(dir / "disk", "size=1m");
    if (!disk || ::mount("tmpfs", (dir / "disk").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") != 0) {
        MESSAGE("skipped: mounting is not permitted");
        return;
    }
    CHECK_FAULT(save(dir / "disk/out", std::vector{tensor("a", Dtype::u8, {4})}), Errc::permission_denied);
}

TEST_CASE("one of two saves to one target is refused as busy, and the other is complete") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {1'000})};
    int status = -1;
    SaveOptions options;
    options.work.monitor.on_progress = [&](const Progress& progress) {
        if (progress.bytes_done == 0) return true;
        // In the middle of the first save, another process begins a second.
        const pid_t child = ::fork();
        if (child == 0) {
            const auto error = error_of([&] { save(dir / "out", tensors); });
            ::_exit(error && error->code() == Errc::busy ? 0 : 1);
        }
        ::waitpid(child, &status, 0);
        return true;
    };
    CHECK_OK(save(dir / "out", tensors, options));
    CHECK(status == 0);
    CHECK(names_in(dir.path()) == Names{"out"});
    CHECK(read_file(dir / "out/model.safetensors").at("w").bytes == random_bytes(4'000, 1));
}

TEST_CASE("leftovers of a killed save are gone after the next save") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {1'000}), tensor("v", Dtype::f32, {1'000})};
    const SaveOptions options{.max_shard_size = 4'000};
    for (const auto* out : {"out", "out.safetensors"}) {
        CAPTURE(out);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            SaveOptions killing = options;
            killing.work.monitor.on_progress = [](const Progress& progress) {
                if (progress.bytes_done != 0) ::raise(SIGKILL);
                return true;
            };
            save(dir / out, tensors, killing);
            ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        CHECK(names_in(dir.path()) == Names{std::string(".") + out + ".safemap-tmp"});
        CHECK_OK(save(dir / out, tensors, options));
        CHECK(names_in(dir.path()) == Names{out});
        fs::remove_all(dir / out);
    }
}

TEST_CASE("three hundred shards and their sources are saved with the available descriptors") {
    const TempDir dir;
    const auto bytes = random_bytes(100, 1);
    dir.write("in", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::vector<LazyTensor> tensors;
    for (int i = 0; i < 300; ++i)
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {100}, open_file(dir / "in"), 0));
    const SaveReport report = save(dir / "out", tensors, {.max_shard_size = 100});
    CHECK(report.files.size() == 301);
    CHECK(read_file(dir / "out/model-00300-of-00300.safetensors").at("t299").bytes == bytes);
}

TEST_CASE("two hundred shards are written with sixty-four descriptors") {
    const TempDir dir;
    std::vector<LazyTensor> tensors;
    for (int i = 0; i < 200; ++i) tensors.push_back(tensor("t" + std::to_string(i), Dtype::u8, {100}));
    for (const bool direct_io : {false, true}) {
        const fs::path out = dir / (direct_io ? "around" : "through");
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            const rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
            if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
            std::optional<ShrunkMemory> small;
            if (direct_io) small.emplace();
            ::_exit(error_of([&] { save(out, tensors, {.max_shard_size = 100}); }) ? 1 : 0);
        }
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK(names_in(out).size() == 201);
        CHECK(read_file(out / "model-00200-of-00200.safetensors").at("t199").bytes == random_bytes(100, 1));
    }
}

}  // namespace faults_test
