// Tests files that other programs write to the target during a save, at any moment: no failure and no kill loses one.
// From top to bottom: files and folders that appear before a kill, changes during the exchange, name conflicts,
// rollbacks, old copies that cannot be removed.
#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/checkpoint.hpp>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>

namespace latecomer_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

std::vector<LazyTensor> tensors(std::uint64_t seed) {
    return {tensor("a", Dtype::f32, {100}, seed), tensor("b", Dtype::f32, {100}, seed + 1)};
}

void save_old(const fs::path& out) {
    fs::remove_all(out);
    save(out, tensors(1), {.max_shard_size = 400});
    if (fs::is_directory(out)) std::ofstream(out / "config.json") << "first";
}

SaveReport save_new(const fs::path& out) {
    return save(out, tensors(5), {.max_shard_size = 400, .overwrite = true, .work = {.threads = 1}});
}

/// Returns 1 for the old model, 5 for the new one, and 0 for anything else.
std::uint64_t model_at(const fs::path& out) {
    const Checkpoint model = Checkpoint::open(out);
    std::vector<std::byte> bytes(400);
    for (const std::uint64_t seed : {1U, 5U}) {
        bool all = true;
        for (std::uint64_t i = 0; i < 2; ++i) {
            const TensorView value = model[i == 0 ? "a" : "b"].load();
            all = all && std::ranges::equal(value.bytes(), random_bytes(400, seed + i));
        }
        if (all) return seed;
    }
    return 0;
}

/// Creates a file by a rename, as careful programs do.
void put(const fs::path& path, const std::string& text) {
    const fs::path unfinished = path.native() + ".unfinished";
    std::ofstream(unfinished) << text;
    fs::rename(unfinished, path);
}

/// Returns every file below `folder` with this text.
Names files_with(const fs::path& folder, const std::string& text) {
    Names found;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file() && TempDir::read(entry.path()) == text)
            found.push_back(entry.path().lexically_relative(folder).native());
    std::sort(found.begin(), found.end());
    return found;
}

/// Runs `work` in a child process. Returns true if a signal ended it.
template <class Work> bool is_killed(Work&& work) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const auto error = error_of(work);
        ::_exit(error ? 99 : 0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || status == 0));
    return WIFSIGNALED(status);
}

/// Runs callbacks right before and right after the exchange of two folders; one of them may kill the process.
class AtExchange {
public:
    explicit AtExchange(
        std::function<void()> before, std::function<void()> after = [] {}) {
        before_ = std::move(before);
        after_ = std::move(after);
        real_ = calls_.renameat2;
        io::calls.renameat2 = [](int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
            if ((flags & RENAME_EXCHANGE) == 0) return real_(from_folder, from, to_folder, to, flags);
            // Only once: undoing an exchange is an exchange too.
            const auto first = std::exchange(before_, [] {});
            const auto last = std::exchange(after_, [] {});
            first();
            const int result = real_(from_folder, from, to_folder, to, flags);
            last();
            return result;
        };
    }
    ~AtExchange() { io::calls = calls_; }
    AtExchange(const AtExchange&) = delete;
    AtExchange& operator=(const AtExchange&) = delete;

private:
    static inline std::function<void()> before_, after_;
    static inline int (*real_)(int, const char*, int, const char*, unsigned) = nullptr;
    io::Calls calls_ = io::calls;
};

void die() { ::raise(SIGKILL); }

/// Returns the number of system calls of a save over the old model in `out`.
int calls_of_save(const fs::path& out) {
    ScriptedCalls calls;
    calls.fail_nth(0, 0);
    save_new(out);
    return calls.count();
}

}  // namespace

TEST_CASE("a file that appears in the folder at any system call of a save that is then killed is not lost") {
    const TempDir dir = TempDir::in_memory();
    const fs::path out = dir / "out";
    save_old(out);
    const int all = calls_of_save(out);
    int round = 0;
    // The commit is at the end.
    for (int nth = all - 80; nth <= all; nth += soak::step(4)) {
        const int dies_after = std::vector{0, 1, 2, 5, 11}[static_cast<std::size_t>(round++ % 5)];
        const char* const name = round % 3 == 0 ? "config.json" : "late.txt";
        CAPTURE(nth);
        CAPTURE(dies_after);
        CAPTURE(name);
        save_old(out);
        is_killed([&] {
            ScriptedCalls calls;
            calls.before_nth(nth, [&] { put(out / name, "precious"); });
            calls.die_at(nth + dies_after);
            save_new(out);
        });
        const std::uint64_t model = model_at(out);
        CHECK((model == 1 || model == 5));
        CHECK(!files_with(dir.path(), "precious").empty());
        CHECK_OK(save_new(out));
        CHECK(model_at(out) == 5);
        CHECK(files_with(dir.path(), "precious") == Names{"out/" + std::string(name)});
        CHECK(names_in(dir.path()) == Names{"out"});
        Names expected = {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"};
        if (std::string(name) == "late.txt") expected.insert(expected.begin() + 1, name);
        CHECK(names_in(out) == expected);
    }
}

TEST_CASE("a folder that appears in the folder before a kill is not lost") {
    const TempDir dir = TempDir::in_memory();
    const fs::path out = dir / "out";
    save_old(out);
    CHECK(is_killed([&] {
        const AtExchange moment(
            [&] {
                fs::create_directory(out / "logs");
                put(out / "logs/a", "precious");
            },
            die);
        save_new(out);
    }));
    CHECK_OK(save_new(out));
    CHECK(files_with(dir.path(), "precious") == Names{"out/logs/a"});
    CHECK(names_in(dir.path()) == Names{"out"});
}

TEST_CASE("a file that appears in a subfolder at any system call of a save that is then killed is not lost") {
    const TempDir dir = TempDir::in_memory();
    const fs::path out = dir / "out";
    const auto save_old_with_folder = [&] {
        save_old(out);
        fs::create_directories(out / "logs/today");
        std::ofstream(out / "logs/today/a.txt") << "first";
    };
    save_old_with_folder();
    const int all = calls_of_save(out);
    int round = 0;
    for (int nth = all - 140; nth <= all; nth += soak::step(7)) {
        const int dies_after = std::vector{0, 1, 2, 5, 11, 23}[static_cast<std::size_t>(round++ % 6)];
        const char* const name = round % 3 == 0 ? "logs/today/a.txt" : "logs/today/late.txt";
        CAPTURE(nth);
        CAPTURE(dies_after);
        CAPTURE(name);
        save_old_with_folder();
        is_killed([&] {
            ScriptedCalls calls;
            calls.before_nth(nth, [&] { put(out / name, "precious"); });
            calls.die_at(nth + dies_after);
            save_new(out);
        });
        const std::uint64_t model = model_at(out);
        CHECK((model == 1 || model == 5));
        CHECK(!files_with(dir.path(), "precious").empty());
        CHECK_OK(save_new(out));
        CHECK(model_at(out) == 5);
        CHECK(files_with(dir.path(), "precious") == Names{"out/" + std::string(name)});
        CHECK(fs::exists(out / "logs/today/a.txt"));
        CHECK(names_in(dir.path()) == Names{"out"});
    }
}

TEST_CASE("no file is lost that others add to a subfolder during the exchange") {
    struct Row {
        const char* what;
        std::function<void(const fs::path& logs)> act;
        const char* expected;  // relative to the folder
    };
    const Row rows[] = {
        {"a new folder",
         [](const fs::path& logs) {
             fs::create_directory(logs / "new");
             put(logs / "new/x", "precious");
         },
         "new/x"},
        {"the folder is made anew",
         [](const fs::path& logs) {
             fs::remove_all(logs);
             fs::create_directory(logs);
             put(logs / "x", "precious");
         },
         "x"},
        {"the folder is moved, and comes back with other files",
         [](const fs::path& logs) {
             fs::rename(logs, logs.parent_path() / "moved");
             fs::create_directories(logs / "today");
             put(logs / "today/a.txt", "precious");
         },
         "today/a.txt"},
        {"a file becomes a folder",
         [](const fs::path& logs) {
             fs::remove(logs / "today/a.txt");
             fs::create_directory(logs / "today/a.txt");
             put(logs / "today/a.txt/x", "precious");
         },
         "today/a.txt.saved-1/x"},
        {"a folder becomes a file",
         [](const fs::path& logs) {
             fs::remove_all(logs / "today");
             put(logs / "today", "precious");
         },
         "today.saved-1"},
        {"a folder becomes a link",
         [](const fs::path& logs) {
             fs::remove_all(logs / "today");
             put(logs / "x", "precious");
             fs::create_symlink("x", logs / "today");
         },
         "x"},
        {"a file is written to", [](const fs::path& logs) { std::ofstream(logs / "today/a.txt") << "precious"; },
         "today/a.txt"},
    };
    for (const Row& row : rows) {
        for (const bool killed : {false, true}) {
            CAPTURE(row.what);
            CAPTURE(killed);
            const TempDir dir = TempDir::in_memory();
            const fs::path out = dir / "out";
            save_old(out);
            fs::create_directories(out / "logs/today");
            std::ofstream(out / "logs/today/a.txt") << "first";
            const auto work = [&](const std::function<void()>& after) {
                const AtExchange moment([&] { row.act(out / "logs"); }, after);
                save_new(out);
            };
            if (killed) CHECK(is_killed([&] { work(die); }));
            else CHECK_OK(work([] {}));
            CHECK(!files_with(dir.path(), "precious").empty());
            CHECK_OK(save_new(out));
            // A link to the file has the same content.
            Names found = files_with(out / "logs", "precious");
            std::erase_if(found, [&](const std::string& file) { return fs::is_symlink(out / "logs" / file); });
            CHECK(found == Names{row.expected});
            CHECK(model_at(out) == 5);
            CHECK(names_in(dir.path()) == Names{"out"});
        }
    }
}

TEST_CASE("a file with the name of a new file is renamed, with a note") {
    for (const bool killed : {false, true}) {
        CAPTURE(killed);
        const TempDir dir = TempDir::in_memory();
        const fs::path out = dir / "out";
        save_old(out);
        const char* const shard = "model-00001-of-00002.safetensors";
        const std::string saved = std::string(shard) + ".saved-1";
        Names notes;
        const auto save_with_latecomer = [&](const std::function<void()>& after) {
            const AtExchange moment([&] { put(out / shard, "precious"); }, after);
            notes = save_new(out).notes;
        };
        if (killed) {
            CHECK(is_killed([&] { save_with_latecomer(die); }));
            CHECK(files_with(dir.path(), "precious").size() == 1);
            CHECK_OK(notes = save_new(out).notes);
        } else {
            CHECK_OK(save_with_latecomer([] {}));
        }
        CHECK(only_of(notes).find(saved) != std::string::npos);
        CHECK(files_with(dir.path(), "precious") == Names{"out/" + saved});
        CHECK(model_at(out) == 5);
        CHECK(names_in(dir.path()) == Names{"out"});
    }
}

TEST_CASE("an entry that replaces the target before a kill is moved aside") {
    for (const bool folder : {false, true}) {
        CAPTURE(folder);
        const TempDir dir = TempDir::in_memory();
        const std::string name = folder ? "out" : "out.safetensors";
        const fs::path out = dir / name;
        save_old(out);
        CHECK(is_killed([&] {
            const AtExchange moment(
                [&] {
                    fs::rename(out, dir / "moved");
                    if (folder) fs::create_directory(out);
                    put(folder ? out / "a" : out, "precious");
                },
                die);
            save_new(out);
        }));
        Names notes;
        CHECK_OK(notes = save_new(out).notes);
        CHECK(only_of(notes).find(name + ".saved-1") != std::string::npos);
        CHECK(files_with(dir.path(), "precious") == Names{name + (folder ? ".saved-1/a" : ".saved-1")});
        CHECK(model_at(out) == 5);
        CHECK(model_at(dir / "moved") == 1);
        CHECK(names_in(dir.path()) == Names{"moved", name, name + ".saved-1"});
    }
}

TEST_CASE("a file that appears in a new model is not lost if the model is rolled back after a disk error") {
    for (const bool over_old : {false, true}) {
        CAPTURE(over_old);
        const TempDir dir = TempDir::in_memory();
        const fs::path out = dir / "out";
        if (over_old) save_old(out);
        static fs::path place;
        static bool fails;
        place = out;
        fails = true;
        {
            const ScriptedCalls calls;  // restores the table at the end
            io::calls.fsync = [](int descriptor) {
                // The folder that already contains the new model.
                struct stat parent = {};
                struct stat synced = {};
                const bool appeared =
                    fs::exists(place / "model.safetensors.index.json") &&
                    TempDir::read(place / "model-00001-of-00002.safetensors")
                            .find(std::string(reinterpret_cast<const char*>(random_bytes(16, 5).data()), 16)) !=
                        std::string::npos;
                if (fails && appeared && ::stat(place.parent_path().c_str(), &parent) == 0 &&
                    ::fstat(descriptor, &synced) == 0 && parent.st_ino == synced.st_ino) {
                    fails = false;
                    put(place / "late.txt", "precious");
                    errno = EIO;
                    return -1;
                }
                return ::fsync(descriptor);
            };
            CHECK_FAULT(save_new(out), Errc::io_error);
        }
        CHECK(!fails);
        CHECK(files_with(dir.path(), "precious") == Names{"out/late.txt"});
        if (over_old) CHECK(model_at(out) == 1);
        CHECK_OK(save_new(out));
        CHECK(files_with(dir.path(), "precious") == Names{"out/late.txt"});
        CHECK(names_in(dir.path()) == Names{"out"});
    }
}

TEST_CASE("an old copy that cannot be removed is reported, and removed by the next save") {
    for (const char* name : {"out", "out.safetensors"}) {
        CAPTURE(name);
        const TempDir dir = TempDir::in_memory();
        const fs::path out = dir / name;
        save_old(out);
        Names notes;
        {
            const AtExchange moment([] {},
                                    [] {
                                        io::calls.unlinkat = [](int, const char*, int) {
                                            errno = EIO;
                                            return -1;
                                        };
                                    });
            CHECK_OK(notes = save_new(out).notes);
        }
        CHECK(only_of(notes).find("could not be removed") != std::string::npos);
        CHECK(model_at(out) == 5);
        CHECK(names_in(dir.path()).size() == 2);
        CHECK_OK(notes = save_new(out).notes);
        CHECK(notes.empty());
        CHECK(names_in(dir.path()) == Names{name});
    }
}

TEST_CASE("an edit whose result cannot be reopened is done, and reports it") {
    const TempDir dir = TempDir::in_memory();
    const fs::path file = dir / "out.safetensors";
    save_old(file);
    EditReport report;
    {
        const AtExchange moment([] {},
                                [] {
                                    io::calls.openat = [](int folder, const char* name, int flags, mode_t mode) {
                                        if (std::string_view(name).ends_with("out.safetensors")) {
                                            errno = EIO;
                                            return -1;
                                        }
                                        return ::openat(folder, name, flags, mode);
                                    };
                                });
        CHECK_OK(report = edit(file, {.set = {{"license", "mit"}}}));
    }
    CHECK(report.changed);
    CHECK(only_of(report.notes).find("could not be read again") != std::string::npos);
    CHECK(metadata_of(file) == std::map<std::string, std::string>{{"format", "pt"}, {"license", "mit"}});
    CHECK(std::map<std::string, std::string>(report.metadata.begin(), report.metadata.end()) == metadata_of(file));
}

TEST_CASE("a file added during a save to a folder without a checkpoint is not replaced") {
    for (const bool in_place : {false, true}) {
        for (const char* name : {"model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
            CAPTURE(in_place);
            CAPTURE(name);
            const TempDir dir = TempDir::in_memory();
            const fs::path out = dir / "out";
            const NoExchange none(in_place);
            fs::create_directories(out);
            SaveOptions options{.max_shard_size = 400};
            options.work.monitor.on_progress = [&](const Progress&) {
                put(out / name, "precious");
                return true;
            };
            CHECK_FAULT(save(out, tensors(5), options), Errc::already_exists);
            CHECK(TempDir::read(out / name) == "precious");
            CHECK(names_in(dir.path()) == Names{"out"});
        }
    }
}

}  // namespace latecomer_test
