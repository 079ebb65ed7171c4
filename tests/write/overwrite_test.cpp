// Tests saves over an existing checkpoint: readers see the old or the new one at every moment, and nothing else. From
// top to bottom: killed and failing saves in every world (kind of folder and file system), saves during reads,
// permissions and links, foreign indexes and models, concurrent saves, files that appear during a save.
#include "check_error.hpp"
#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "io/file_folder.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/samples.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/digest.hpp>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

namespace overwrite_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

const std::vector<LazyTensor>& old_tensors() {
    static const std::vector<LazyTensor> tensors = {
        tensor("a", Dtype::f32, {100}, 1), tensor("b", Dtype::f32, {100}, 2), tensor("c", Dtype::f32, {100}, 3)};
    return tensors;
}
const std::vector<LazyTensor>& new_tensors() {
    static const std::vector<LazyTensor> tensors = {
        tensor("a", Dtype::f32, {100}, 4), tensor("b", Dtype::f32, {100}, 5), tensor("d", Dtype::f32, {100}, 6)};
    return tensors;
}

/// A kind of change from the old to the new checkpoint. Tensors have 400 bytes, so that `shard` sizes give many shards.
struct Change {
    const char* what;
    const char* out;
    std::uint64_t old_shard;
    std::uint64_t new_shard;
};
constexpr Change changes[] = {
    {"other shard names", "out", 400, 800},         {"the same shard names", "out", 400, 400},
    {"one file becomes shards", "out", 4'000, 400}, {"shards become one file", "out", 400, 4'000},
    {"one file in a folder", "out", 4'000, 4'000},  {"a file", "out.safetensors", 4'000, 4'000},
};

/// The file system around the target.
struct World {
    const char* what;
    bool in_place;
    std::function<void(const fs::path&)> make;  // before the save
    std::function<void()> calls;                // in the saving process
};
int (*real_rename)(int, const char*, int, const char*, unsigned) = io::calls.renameat2;

void no_rename_flags() {
    io::calls.renameat2 = [](int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
        if (flags == 0) return real_rename(from_folder, from, to_folder, to, flags);
        errno = EINVAL;
        return -1;
    };
}
fs::path path_of(int descriptor) { return fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor)); }

void make_folder(const fs::path& out) {
    if (!fs::is_directory(out)) return;
    fs::create_directories(out / "logs/today");
    std::ofstream(out / "logs/a.txt") << "mine";
    std::ofstream(out / "logs/today/b.txt") << "mine, too";
    fs::create_symlink("../config.json", out / "logs/link");
}

const std::vector<World>& worlds() {
    static const std::vector<World> all = {
        {"that knows everything", false, [](const fs::path&) {}, [] {}},
        {"with a folder in the target", false, make_folder, [] {}},
        {"with a folder in the target that is a mount", true, make_folder,
         [] { io::calls.is_mount_root = [](int folder) { return path_of(folder).filename() == "logs"; }; }},
        {"without exchange", true, [](const fs::path&) {}, no_rename_flags},
        {"without hard links", true, [](const fs::path&) {},
         [] {
             io::calls.linkat = [](int, const char*, int, const char*, int) {
                 errno = EPERM;
                 return -1;
             };
         }},
        {"whose target is a mount", true, [](const fs::path&) {},
         [] { io::calls.is_mount_root = [](int) { return true; }; }},
        {"whose parent cannot be written to", true, [](const fs::path&) {},
         [] {
             io::calls.mkdirat = [](int folder, const char* name, mode_t mode) {
                 if (std::string(name) != ".out.safemap-tmp") return ::mkdirat(folder, name, mode);
                 errno = EROFS;
                 return -1;
             };
         }},
    };
    return all;
}

/// Restores the table of system calls at the end.
struct KeepCalls {
    ~KeepCalls() { io::calls = before; }
    io::Calls before = io::calls;
};

void save_old(const fs::path& out, const Change& change) {
    fs::remove_all(out);
    save(out, old_tensors(), {.max_shard_size = change.old_shard});
    if (fs::is_directory(out)) std::ofstream(out / "config.json") << "mine";
}
void save_new(const fs::path& out, const Change& change) {
    save(out, new_tensors(), {.max_shard_size = change.new_shard, .overwrite = true, .work = {.threads = 1}});
}

std::string digest_of(const std::vector<LazyTensor>& tensors) {
    const TempDir dir;
    save(dir / "x.safetensors", tensors);
    return digests(Checkpoint::open(dir / "x.safetensors")).checkpoint;
}

/// Returns "old", "new", or the fault.
std::string state_of(const fs::path& out) {
    static const std::string old_digest = digest_of(old_tensors());
    static const std::string new_digest = digest_of(new_tensors());
    try {
        const std::string found = digests(Checkpoint::open(out)).checkpoint;
        return found == old_digest ? "old" : found == new_digest ? "new" : "mixed";
    } catch (const Error& error) {
        return error.what();
    }
}

/// Checks that the new checkpoint is complete, and that only its files and foreign files are there.
void check_finished(const TempDir& dir, const Change& change, const World& world) {
    const fs::path out = dir / change.out;
    CHECK(state_of(out) == "new");
    CHECK(names_in(dir.path()) == Names{change.out});
    if (!fs::is_directory(out)) return;
    Names expected = {"config.json"};
    if (change.new_shard == 4'000) expected.push_back("model.safetensors");
    if (change.new_shard == 800) {
        expected.push_back("model-00001-of-00002.safetensors");
        expected.push_back("model-00002-of-00002.safetensors");
    }
    if (change.new_shard == 400)
        for (const char* number : {"1", "2", "3"})
            expected.push_back("model-0000" + std::string(number) + "-of-00003.safetensors");
    if (change.new_shard < 4'000) expected.push_back("model.safetensors.index.json");
    const bool has_folder = fs::exists(out / "logs");
    CHECK(has_folder == std::string(world.what).starts_with("with a folder in the target"));
    if (has_folder) {
        expected.push_back("logs");
        CHECK(names_in(out / "logs") == Names{"a.txt", "link", "today"});
        CHECK(TempDir::read(out / "logs/a.txt") == "mine");
        CHECK(TempDir::read(out / "logs/link") == "mine");
        CHECK(TempDir::read(out / "logs/today/b.txt") == "mine, too");
    }
    std::sort(expected.begin(), expected.end());
    CHECK(names_in(out) == expected);
    CHECK(TempDir::read(out / "config.json") == "mine");
}

/// Runs `test` for every change in every world, each in a new folder.
template <class Test> void in_every_world(Test&& test) {
    for (const World& world : worlds()) {
        for (const Change& change : changes) {
            CAPTURE(world.what);
            CAPTURE(change.what);
            test(TempDir::in_memory(), world, change);
        }
    }
}

}  // namespace

TEST_CASE("a save over a checkpoint replaces it, and keeps all other files") {
    in_every_world([](const TempDir& dir, const World& world, const Change& change) {
        save_old(dir / change.out, change);
        world.make(dir / change.out);
        CHECK(state_of(dir / change.out) == "old");
        {
            const KeepCalls keep;
            world.calls();
            CHECK_OK(save_new(dir / change.out, change));
        }
        check_finished(dir, change, world);
    });
}

TEST_CASE(
    "a save over a checkpoint that is killed at any system call leaves the old or the new, and the next one finishes") {
    in_every_world([](const TempDir& dir, const World& world, const Change& change) {
        const fs::path out = dir / change.out;
        bool was_new = false;
        bool died = true;
        for (int nth = soak::step(16); died; nth += soak::step(16)) {
            CAPTURE(nth);
            REQUIRE(nth < 300);
            save_old(out, change);
            world.make(out);
            const pid_t child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                world.calls();
                ScriptedCalls calls;
                calls.die_at(nth);
                const auto error = error_of([&] { save_new(out, change); });
                ::_exit(error ? 99 : 0);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            died = WIFSIGNALED(status);
            REQUIRE((died || status == 0));
            const std::string state = state_of(out);
            CHECK((state == "old" || state == "new"));
            CHECK(!(was_new && state == "old"));  // a committed save stays committed
            was_new = state == "new";
            if (fs::is_directory(out)) CHECK(TempDir::read(out / "config.json") == "mine");
            CHECK_OK(save_new(out, change));
            check_finished(dir, change, world);
        }
        CHECK(was_new);
    });
}

TEST_CASE(
    "every system call of a save over a checkpoint may fail: the old is whole, or the new counts and the error says "
    "so") {
    in_every_world([](const TempDir& dir, const World& world, const Change& change) {
        const fs::path out = dir / change.out;
        bool failed = true;
        for (int nth = soak::step(8); failed; nth += soak::step(8)) {
            CAPTURE(nth);
            REQUIRE(nth < 300);
            save_old(out, change);
            world.make(out);
            std::optional<Error> error;
            std::string which;
            {
                const KeepCalls keep;
                world.calls();
                ScriptedCalls calls;
                calls.fail_nth(nth, nth % 2 == 0 ? EIO : ENOSPC);
                error = error_of([&] { save_new(out, change); });
                which = calls.which();
                failed = calls.failed();
            }
            CAPTURE(which);
            const std::string state = state_of(out);
            if (error) {
                CHECK(exit_code(error->code()) == 3);
                const bool counts = error->hint().find("the new checkpoint is committed") != std::string::npos;
                CHECK(state == (counts ? "new" : "old"));
                CHECK((!counts || world.in_place));
            } else {
                // Files that cannot be removed after the commit are left to the next save.
                CHECK(state == "new");
            }
            if (fs::is_directory(out)) CHECK(TempDir::read(out / "config.json") == "mine");
            CHECK_OK(save_new(out, change));
            check_finished(dir, change, world);
        }
    });
}

TEST_CASE("interrupted and short system calls make no difference to a save over a checkpoint") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        const Change change = changes[1];
        save_old(dir / change.out, change);
        world.make(dir / change.out);
        {
            const KeepCalls keep;
            world.calls();
            ScriptedCalls calls;
            calls.stutter(77);
            CHECK_OK(save_new(dir / change.out, change));
        }
        check_finished(dir, change, world);
    }
}

TEST_CASE("a checkpoint can be saved over while it is read, also by a save that reads it") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        const Change change = changes[1];
        save_old(dir / "out", change);
        world.make(dir / "out");
        const Checkpoint model = Checkpoint::open(dir / "out");
        const TensorView view = model["a"].view();
        const KeepCalls keep;
        world.calls();
        // The same tensors, in shards of a different size.
        CHECK_OK(save(dir / "out", model, {.max_shard_size = 800, .overwrite = true}));
        CHECK(state_of(dir / "out") == "old");
        CHECK(std::ranges::equal(view.bytes(), random_bytes(400, 1)));
        CHECK_OK(save_new(dir / "out", change));
        CHECK(std::ranges::equal(view.bytes(), random_bytes(400, 1)));
        const TensorView again = Checkpoint::open(dir / "out")["a"].view();
        CHECK(std::ranges::equal(again.bytes(), random_bytes(400, 4)));
    }
}

TEST_CASE("a folder that was opened before the exchange remains the old one") {
    const TempDir dir;
    save_old(dir / "out", changes[1]);
    const auto folder = open_folder(dir / "out");
    const auto shard = folder->open("model-00001-of-00003.safetensors");
    save_new(dir / "out", changes[1]);
    std::vector<std::byte> bytes(400);
    shard->read_at(shard->size() - 400, bytes);
    CHECK(bytes == random_bytes(400, 1));
    CHECK(folder->open("model-00002-of-00003.safetensors") == nullptr);  // removed, not replaced by the new file
}

TEST_CASE("a replacement has the permissions of the replaced file or folder") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        const auto mode_of = [&](const char* name) {
            struct stat status = {};
            REQUIRE(::stat((dir / name).c_str(), &status) == 0);
            return status.st_mode & 07777;
        };
        save_old(dir / "out", changes[0]);
        save_old(dir / "out.safetensors", changes[5]);
        world.make(dir / "out");
        ::chmod((dir / "out").c_str(), 0750);
        ::chmod((dir / "out/model.safetensors.index.json").c_str(), 0604);
        ::chmod((dir / "out/config.json").c_str(), 0400);
        ::chmod((dir / "out.safetensors").c_str(), 0640);
        const KeepCalls keep;
        world.calls();
        save_new(dir / "out", changes[0]);
        save_new(dir / "out.safetensors", changes[5]);
        CHECK(mode_of("out") == 0750);
        CHECK(mode_of("out/model.safetensors.index.json") == 0604);
        CHECK(mode_of("out/config.json") == 0400);
        CHECK(mode_of("out.safetensors") == 0640);
    }
}

TEST_CASE("a link to a folder leads to the replaced folder, and a link to a file is replaced") {
    const TempDir dir;
    save_old(dir / "real", changes[0]);
    fs::create_directory_symlink("real", dir / "out");
    CHECK_OK(save_new(dir / "out", changes[0]));
    CHECK(fs::is_symlink(dir / "out"));
    CHECK(state_of(dir / "real") == "new");
    save_old(dir / "real.safetensors", changes[5]);
    fs::create_symlink("real.safetensors", dir / "link.safetensors");
    CHECK_OK(save_new(dir / "link.safetensors", changes[5]));
    CHECK(!fs::is_symlink(dir / "link.safetensors"));
    CHECK(state_of(dir / "link.safetensors") == "new");
    CHECK(state_of(dir / "real.safetensors") == "old");
    CHECK(names_in(dir.path()) == Names{"link.safetensors", "out", "real", "real.safetensors"});
}

TEST_CASE("only a target that a save could have written is overwritten, and others are refused") {
    const TempDir dir;
    const auto refused = [&](const char* out, Errc code) {
        CAPTURE(out);
        const auto before = names_in(dir.path());
        CHECK_FAULT(save_new(dir / out, changes[0]), code);
        CHECK(names_in(dir.path()) == before);
    };
    dir.write("file", "mine");
    refused("file", Errc::already_exists);  // a folder would be written
    fs::create_directory(dir / "folder.safetensors");
    refused("folder.safetensors", Errc::already_exists);
    REQUIRE(::mkfifo((dir / "pipe.safetensors").c_str(), 0600) == 0);
    refused("pipe.safetensors", Errc::already_exists);
    fs::create_directory(dir / "two");
    dir.write("two/a.safetensors.index.json", "{}");
    dir.write("two/b.safetensors.index.json", "{}");
    refused("two", Errc::several_models);
    CHECK(names_in(dir / "two").size() == 2);
    save_old(dir / "out", changes[4]);
    fs::create_directory(dir / "out/model.safetensors.index.json");
    refused("out", Errc::already_exists);
    CHECK(TempDir::read(dir / "file") == "mine");
}

TEST_CASE("an old index with another name is removed with its shards, a damaged one alone, and a PyTorch index stays") {
    const TempDir dir;
    save_old(dir / "out", changes[0]);
    fs::rename(dir / "out/model.safetensors.index.json", dir / "out/diffusion.safetensors.index.json");
    dir.write("out/pytorch_model.bin.index.json", "{}");
    CHECK_OK(save_new(dir / "out", {"", "out", 400, 4'000}));
    CHECK(names_in(dir / "out") == Names{"config.json", "model.safetensors", "pytorch_model.bin.index.json"});

    save_old(dir / "out", changes[0]);
    dir.write("out/model.safetensors.index.json", "{not JSON");
    CHECK_OK(save_new(dir / "out", {"", "out", 400, 800}));
    CHECK(state_of(dir / "out") == "new");
    CHECK(names_in(dir / "out").size() == 3 + 3 + 1);  // the new files, the shards that no index names, and config.json
}

TEST_CASE("files outside the folder or behind links are kept, even if the old index names them") {
    const TempDir dir;
    fs::create_directories(dir / "out/inner");
    fs::create_directory(dir / "other");
    dir.write("precious", "mine");
    dir.write("other/precious", "mine");
    dir.write("out/inner/shard.safetensors", "goes");
    fs::create_directory_symlink("../other", dir / "out/link");
    dir.write(
        "out/model.safetensors.index.json",
        R"({"weight_map":{"a":"../precious","b":"link/precious","c":"inner/shard.safetensors","d":"/etc/hostname"}})");
    CHECK_OK(save_new(dir / "out", changes[4]));
    CHECK(TempDir::read(dir / "precious") == "mine");
    CHECK(TempDir::read(dir / "other/precious") == "mine");
    CHECK(!fs::exists(dir / "out/inner/shard.safetensors"));
    CHECK(names_in(dir / "out") == Names{"inner", "link", "model.safetensors"});
    CHECK(state_of(dir / "out") == "new");
}

TEST_CASE("one of two saves over one checkpoint is refused as busy, wherever each prepares its files") {
    for (const bool second_inside : {false, true}) {
        const TempDir dir;
        save_old(dir / "out", changes[1]);
        int status = -1;
        SaveOptions options{.max_shard_size = 400, .overwrite = true};
        options.work.monitor.on_progress = [&](const Progress& progress) {
            if (progress.bytes_done == 0) return true;
            if (second_inside) fs::create_directories(dir / "out/logs");
            status = true_in_child([&] {
                const NoExchange inside(second_inside);
                const auto error = error_of([&] { save_new(dir / "out", changes[1]); });
                return error && error->code() == Errc::busy;
            })
                         ? 0
                         : 1;
            return true;
        };
        CHECK_OK(save(dir / "out", new_tensors(), options));
        CHECK(status == 0);
        CHECK(state_of(dir / "out") == "new");
        CHECK(names_in(dir.path()) == Names{"out"});
        CHECK(fs::exists(dir / "out/logs") == second_inside);
        CHECK(!fs::exists(dir / "out/.safemap-tmp"));
    }
}

TEST_CASE("files that others add to the folder during the save are kept") {
    const TempDir dir;
    save_old(dir / "out", changes[1]);
    SaveOptions options{.max_shard_size = 400, .overwrite = true};
    options.work.monitor.on_progress = [&](const Progress&) {
        dir.write("out/late.txt", "late");
        return true;
    };
    CHECK_OK(save(dir / "out", new_tensors(), options));
    CHECK(TempDir::read(dir / "out/late.txt") == "late");
    // The same at the last moment, after the kept files have been linked.
    const KeepCalls keep;
    static fs::path folder;
    folder = dir / "out";
    io::calls.renameat2 = [](int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
        if ((flags & RENAME_EXCHANGE) != 0) {
            std::ofstream(folder / "latest.txt") << "latest";
            fs::remove(folder / "config.json");
            std::ofstream(folder / "config.json") << "new";
        }
        return real_rename(from_folder, from, to_folder, to, flags);
    };
    CHECK_OK(save_new(dir / "out", changes[1]));
    CHECK(TempDir::read(dir / "out/latest.txt") == "latest");
    CHECK(TempDir::read(dir / "out/config.json") == "new");
    CHECK(TempDir::read(dir / "out/late.txt") == "late");
    CHECK(names_in(dir.path()) == Names{"out"});
}

TEST_CASE("a cancelled save over a checkpoint leaves the old one") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        save_old(dir / "out", changes[1]);
        world.make(dir / "out");
        const auto before = names_in(dir / "out");
        const KeepCalls keep;
        world.calls();
        SaveOptions options{.overwrite = true};
        options.work.monitor.on_progress = [](const Progress& progress) { return progress.bytes_done == 0; };
        CHECK_FAULT(save(dir / "out", new_tensors(), options), Errc::cancelled);
        CHECK(state_of(dir / "out") == "old");
        CHECK(names_in(dir / "out") == before);
        CHECK(names_in(dir.path()) == Names{"out"});
    }
}

TEST_CASE("the root of a mount can be saved over") {
    const TempDir dir;
    fs::create_directory(dir / "out");
    if (::mount("tmpfs", (dir / "out").c_str(), "tmpfs", 0, "size=1m") != 0) {
        MESSAGE("skipped: no permission to mount");
        return;
    }
    CHECK_OK(save(dir / "out", old_tensors(), {.overwrite = true}));
    CHECK_OK(save_new(dir / "out", changes[1]));
    CHECK(state_of(dir / "out") == "new");
    CHECK(names_in(dir.path()) == Names{"out"});
    CHECK(names_in(dir / "out").size() == 4);
    ::umount2((dir / "out").c_str(), MNT_DETACH);
}

TEST_CASE("models of other frameworks stay, and so do other files than shards that the index names") {
    const TempDir dir;
    save_old(dir / "out", changes[0]);
    dir.write("out/flax_model.msgpack.index.json", R"({"weight_map":{"a":"flax_model.msgpack"}})");
    dir.write("out/flax_model.msgpack", "mine");
    std::string index = TempDir::read(dir / "out/model.safetensors.index.json");
    index.insert(index.find("\"a\""), "\"x\": \"config.json\", ");
    dir.write("out/model.safetensors.index.json", index);
    // Without an index of safetensors, the folder would be refused for the other one.
    check_error(error_of([&] { save_new(dir / "out", changes[4]); }), {Errc::already_exists},
                {"'flax_model.msgpack.index.json', which would be opened in place of model.safetensors"});
    CHECK(TempDir::read(dir / "out/model.safetensors.index.json") == index);
    CHECK_OK(save_new(dir / "out", changes[0]));
    CHECK(state_of(dir / "out") == "new");
    CHECK(TempDir::read(dir / "out/config.json") == "mine");
    CHECK(TempDir::read(dir / "out/flax_model.msgpack") == "mine");
    fs::remove(dir / "out/flax_model.msgpack.index.json");
    CHECK_OK(save_new(dir / "out", changes[4]));
    CHECK(names_in(dir / "out") == Names{"config.json", "flax_model.msgpack", "model.safetensors"});
}

TEST_CASE("the old index is read once for the plan, and once more for the commit") {
    const TempDir dir;
    save_old(dir / "out", changes[0]);
    const std::string index = TempDir::read(dir / "out/model.safetensors.index.json");
    constexpr std::size_t padding = 1'000'000;
    dir.write("out/model.safetensors.index.json", std::string(padding, ' ') + index);
    const CountedReads reads;
    CHECK_OK(save_new(dir / "out", changes[0]));
    CHECK(reads.bytes() >= 2 * padding);
    CHECK(reads.bytes() < 3 * padding);
}

TEST_CASE("an entry that replaces the target during the save is neither replaced nor lost") {
    for (const char* out : {"out", "out.safetensors"}) {
        for (const bool folder : {false, true}) {
            CAPTURE(out);
            CAPTURE(folder);
            const TempDir dir;
            const Change change = {"", out, 400, 400};
            save_old(dir / out, change);
            SaveOptions options{.max_shard_size = 400, .overwrite = true};
            bool done = false;
            options.work.monitor.on_progress = [&](const Progress& progress) {
                if (done || progress.bytes_done == 0) return true;
                done = true;
                fs::rename(dir / out, dir / "moved");
                if (folder) fs::create_directory(dir / out);
                dir.write(folder ? std::string(out) + "/precious" : std::string(out), "mine");
                return true;
            };
            CHECK_FAULT(save(dir / out, new_tensors(), options), Errc::file_changed);
            CHECK(TempDir::read(folder ? dir / out / "precious" : dir / out) == "mine");
            CHECK(state_of(dir / "moved") == "old");
            CHECK(names_in(dir.path()) == Names{"moved", out});
        }
    }
}

TEST_CASE("prepared files are private, and the replacement has the permissions of the old model") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        save_old(dir / "out", changes[0]);
        world.make(dir / "out");
        fs::permissions(dir / "out", fs::perms::owner_all);
        for (const auto& name : names_in(dir / "out"))
            if (name.ends_with(".safetensors")) fs::permissions(dir / "out" / name, fs::perms::owner_read);
        fs::permissions(dir / "out/model.safetensors.index.json", fs::perms::owner_read | fs::perms::group_read);
        const KeepCalls keep;
        world.calls();
        bool looked = false;
        SaveOptions options{.max_shard_size = 800, .overwrite = true};
        options.work.monitor.on_progress = [&](const Progress& progress) {
            if (progress.bytes_done == 0) return true;
            for (const fs::path& place : {dir / ".out.safemap-tmp", dir / "out/.safemap-tmp"}) {
                if (!fs::exists(place)) continue;
                looked = true;
                CHECK(fs::status(place).permissions() == fs::perms::owner_all);
            }
            return true;
        };
        CHECK_OK(save(dir / "out", new_tensors(), options));
        CHECK(looked);
        CHECK(fs::status(dir / "out").permissions() == fs::perms::owner_all);
        // Shards with new names get the permissions of the old model.
        const auto expected = fs::perms::owner_read | fs::perms::group_read;
        CHECK(fs::status(dir / "out/model-00001-of-00002.safetensors").permissions() == expected);
        CHECK(fs::status(dir / "out/model.safetensors.index.json").permissions() == expected);
    }
}

TEST_CASE("a process whose working directory is the folder is still in it afterwards") {
    const TempDir dir;
    save_old(dir / "out", changes[1]);
    CHECK(true_in_child([&] {
        if (::chdir((dir / "out").c_str()) != 0) return false;
        save(".", new_tensors(), {.max_shard_size = 400, .overwrite = true});
        return state_of(".") == "new" && fs::exists("config.json") && state_of(dir / "out") == "new";
    }));
    CHECK(names_in(dir.path()) == Names{"out"});
}

TEST_CASE("a save to a file in a folder first finishes an interrupted save of that folder") {
    const TempDir dir;
    fs::create_directories(dir / "out/.safemap-tmp/content");
    dir.write("out/.safemap-tmp/safemap.lock", "");
    save(dir / "next.safetensors", new_tensors());
    fs::rename(dir / "next.safetensors", dir / "out/.safemap-tmp/content/model.safetensors");
    using namespace std::string_literals;
    dir.write("out/.safemap-tmp/commit", "safemap commit 1\0+model.safetensors\0\0end\0"s);
    CHECK(state_of(dir / "out") == "new");
    CHECK_OK(save(dir / "out/model.safetensors", old_tensors(), {.overwrite = true}));
    CHECK(state_of(dir / "out") == "old");
    CHECK(names_in(dir / "out") == Names{"model.safetensors"});
}

TEST_CASE("a reader during saves over a folder always reads one of the two models") {
    for (const bool in_place : {false, true}) {
        CAPTURE(in_place);
        const TempDir dir = TempDir::in_memory();
        const Change change = changes[1];
        save_old(dir / "out", change);
        const NoExchange none(in_place);
        std::atomic<bool> over = false;
        std::atomic<int> mixed = 0;
        std::atomic<int> reads = 0;
        std::thread reader([&] {
            while (!over) {
                const std::string state = state_of(dir / "out");
                ++reads;
                if (state != "old" && state != "new") ++mixed;
            }
        });
        for (int i = 0; i < 60; ++i) {
            save(dir / "out", old_tensors(), {.max_shard_size = 400, .overwrite = true});
            save_new(dir / "out", change);
        }
        over = true;
        reader.join();
        CHECK(mixed == 0);
        CHECK(reads > 0);
    }
}

}  // namespace overwrite_test
