// Tests saves that continue one that was killed, or stopped. From top to bottom: killed at any system call; stopped at
// any system call; not allowed to continue; a killed save that had come to its end; other inputs and options; after a
// reboot.
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <safemap/checkpoint.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string_view>
#include <thread>

namespace resume_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

constexpr std::uint64_t count = 6;  // number of tensors, each in a shard of its own

/// Returns a checkpoint in a file, because a source in memory cannot be resumed.
fs::path source_in(const TempDir& dir, std::uint64_t seed = 1) {
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < count; ++i)
        tensors.push_back(tensor("t" + std::to_string(i), Dtype::f32, {1'000}, seed + i));
    save(dir / "in.safetensors", tensors, {.overwrite = true});
    return dir / "in.safetensors";
}

SaveOptions options_for(bool overwrite = false) {
    SaveOptions options{.max_shard_size = 4'000, .overwrite = overwrite, .resume = true};
    options.work.threads = 1;
    return options;
}

}  // namespace

TEST_CASE("a save killed at any system call is continued, and gives the same files") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    for (const bool checksums : {false, true}) {
        for (const char* how : {"new", "exchanged", "exchanged with folders", "in place"}) {
            CAPTURE(checksums);
            CAPTURE(how);
            const bool overwrite = std::string_view(how) != "new";
            const bool in_place = std::string_view(how) == "in place";
            const bool folders = std::string_view(how).ends_with("with folders");
            const NoExchange none(in_place);
            SaveOptions options = options_for(overwrite);
            options.checksums = checksums;
            fs::remove_all(dir / "whole");
            save(dir / "whole", Checkpoint::open(in), options);
            const auto expected = contents_of(dir / "whole");
            REQUIRE(expected.size() == count + 1);

            std::size_t most_kept = 0;
            bool died = true;
            for (int nth = soak::step(8); died; nth += soak::step(8)) {
                CAPTURE(nth);
                REQUIRE(nth < 400);
                fs::remove_all(dir / "out");
                if (overwrite) save(dir / "out", std::vector<LazyTensor>{tensor("old", Dtype::f32, {3})});
                if (folders) {
                    fs::create_directories(dir / "out/logs/today");
                    dir.write("out/logs/today/a.txt", "mine");
                }
                died = killed_at(nth, in, dir / "out", options);
                if (!died) break;
                if (!overwrite && fs::exists(dir / "out")) continue;  // the save had finished
                SaveReport report;
                CHECK_OK(report = save(dir / "out", Checkpoint::open(in), options));
                if (folders) CHECK(TempDir::read(dir / "out/logs/today/a.txt") == "mine");
                fs::remove_all(dir / "out/logs");
                CHECK(contents_of(dir / "out") == expected);
                CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
                CHECK(report.resumed.size() <= count + 1);
                most_kept = std::max(most_kept, report.resumed.size());
            }
            if (soak::whole()) CHECK(most_kept >= count);
        }
    }
}

namespace {

/// Inode, size and time of modification of each file in a folder: a file that is written again has others.
using Stamps = std::map<std::string, std::string>;

Stamps stamps_in(const fs::path& folder) {
    Stamps stamps;
    for (const std::string& name : names_in(folder)) {
        struct stat status = {};
        REQUIRE(::stat((folder / name).c_str(), &status) == 0);
        stamps[name] = std::to_string(status.st_ino) + ' ' + std::to_string(status.st_size) + ' ' +
                       std::to_string(status.st_mtim.tv_sec) + '.' + std::to_string(status.st_mtim.tv_nsec);
    }
    return stamps;
}

/// Returns the files that a stopped save has left, wherever its hidden folder is.
Stamps left_by_stopped(const TempDir& dir) {
    for (const char* hidden : {".out.safemap-tmp", "out/.safemap-tmp"}) {
        if (!fs::exists(dir / hidden)) continue;
        // As after a kill, but for unfinished files.
        CHECK(names_in(dir / hidden) == Names{"content", "journal", "safemap.lock"});
        return stamps_in(dir / hidden / "content");
    }
    return {};
}

/// Saves, and is asked to stop at the nth system call. Returns the error, or nothing if the save finished. `reached` is
/// false if there are fewer calls.
std::optional<Error> stopped_at(int nth, const Checkpoint& model, const fs::path& out, SaveOptions options,
                                bool& reached) {
    std::stop_source stop;
    options.work.monitor.stop = stop.get_token();
    ScriptedCalls calls;
    calls.before_nth(nth, [&] { stop.request_stop(); });
    auto error = error_of([&] { save(out, model, options); });
    reached = calls.count() >= nth;
    return error;
}

}  // namespace

TEST_CASE("a save with resume that is stopped at any step keeps its finished shards, and is continued") {
    const TempDir dir = TempDir::in_memory();
    const Checkpoint model = Checkpoint::open(source_in(dir));
    dir.write("config.json", "{}");
    for (const bool checksums : {false, true})
        for (const char* how : {"new", "exchanged", "in place"}) {
            CAPTURE(checksums);
            CAPTURE(how);
            const bool overwrite = std::string_view(how) != "new";
            const NoExchange none(std::string_view(how) == "in place");
            SaveOptions options = options_for(overwrite);
            options.checksums = checksums;
            options.extras.files.push_back({"config.json", open_file(dir / "config.json")});
            fs::remove_all(dir / "whole");
            save(dir / "whole", model, options);
            const auto expected = contents_of(dir / "whole");

            std::size_t most_kept = 0;
            std::size_t nothing_kept = 0;
            bool reached = true;
            for (int nth = soak::step(6); reached; nth += soak::step(6)) {
                CAPTURE(nth);
                REQUIRE(nth < 600);
                fs::remove_all(dir / "out");
                if (overwrite) save(dir / "out", std::vector<LazyTensor>{tensor("old", Dtype::f32, {3})});
                const auto old = overwrite ? stamps_in(dir / "out") : Stamps();
                const auto error = stopped_at(nth, model, dir / "out", options, reached);
                if (!error) {  // the stop came too late: the save was complete, or was being committed
                    CHECK(contents_of(dir / "out") == expected);
                    CHECK(names_in(dir.path()) == Names{"config.json", "in.safetensors", "out", "whole"});
                    continue;
                }
                CHECK(error->code() == Errc::cancelled);
                const Stamps kept = left_by_stopped(dir);
                CHECK(error->hint().empty() == kept.empty());
                if (!kept.empty()) CHECK(error->hint().starts_with(std::to_string(kept.size()) + " of 7 files"));
                nothing_kept += kept.empty() ? 1 : 0;
                most_kept = std::max(most_kept, kept.size());
                // The old checkpoint is still there, whole.
                CHECK(fs::exists(dir / "out") == overwrite);
                for (const auto& [name, stamp] : old) CHECK(stamps_in(dir / "out").at(name) == stamp);

                SaveReport report;
                std::size_t read = 0;
                {
                    const CountedReads reads;
                    CHECK_OK(report = save(dir / "out", model, options));
                    read = reads.bytes();
                }
                CHECK(contents_of(dir / "out") == expected);
                CHECK(names_in(dir.path()) == Names{"config.json", "in.safetensors", "out", "whole"});
                // Not a byte of the finished shards is read or written again.
                CHECK(std::set(report.resumed.begin(), report.resumed.end()).size() == kept.size());
                const Stamps after = stamps_in(dir / "out");
                for (const auto& [name, stamp] : kept) CHECK(after.at(name) == stamp);
                const std::size_t shards = kept.size() - kept.count("model.safetensors.index.json");
                CHECK(report.bytes_read == 4'000 * (count - shards));
                if (!checksums) CHECK(read < 4'000 * (count - shards + 1));  // also the journal, and old headers
            }
            if (!soak::whole()) continue;
            CHECK(most_kept == count + 1);
            CHECK(nothing_kept > 0);
        }
}

TEST_CASE("a save that may not remove what a stopped one has left begins anew elsewhere, and is whole") {
    const TempDir dir = TempDir::in_memory();
    const Checkpoint model = Checkpoint::open(source_in(dir));
    const SaveOptions options = options_for(true);
    save(dir / "whole", model, options);
    const auto expected = contents_of(dir / "whole");
    const auto stop_late = [&] {
        std::size_t kept = 0;
        for (int nth = 10; kept < 2; nth += 10) {
            REQUIRE(nth < 600);
            for (const char* name : {"out", ".out.safemap-tmp"}) fs::remove_all(dir / name);
            save(dir / "out", std::vector<LazyTensor>{tensor("old", Dtype::f32, {3})});
            bool reached = true;
            CHECK(stopped_at(nth, model, dir / "out", options, reached));
            kept = left_by_stopped(dir).size();
        }
        REQUIRE(fs::exists(dir / ".out.safemap-tmp"));
    };
    std::vector<std::string> called;
    {
        stop_late();
        ScriptedCalls calls;
        calls.remember();
        CHECK(save(dir / "out", model, options).resumed.size() >= 2);
        called = calls.names();
    }
    std::size_t elsewhere = 0;
    const auto written = std::find(called.begin(), called.end(), "pwrite");
    for (std::size_t i = 0; i < static_cast<std::size_t>(written - called.begin()); ++i) {
        if (called[i] != "unlinkat") continue;
        CAPTURE(i);
        stop_late();
        SaveReport report;
        const auto failure =
            fail_at(static_cast<int>(i) + 1, EACCES, [&] { report = save(dir / "out", model, options); });
        CHECK(failure.which == "unlinkat");
        CHECK_FALSE(failure.error);
        CHECK(report.resumed.empty());
        ++elsewhere;
        CHECK(contents_of(dir / "out") == expected);
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
    }
    CHECK(elsewhere >= 3);  // the calls remove an empty sibling, a token, and what is not finished
}

TEST_CASE("a save that is stopped again and again comes to its end") {
    const TempDir dir = TempDir::in_memory();
    const Checkpoint model = Checkpoint::open(source_in(dir));
    save(dir / "whole", model, options_for());
    const auto expected = contents_of(dir / "whole");
    std::mt19937 random(soak::seed(7));
    for (int round = 0; round < soak::rounds(200, 20); ++round) {
        fs::remove_all(dir / "out");
        SaveOptions options = options_for();
        options.work.threads = 1 + static_cast<unsigned>(round % 3);
        Stamps kept;
        bool reached = true;
        for (int stops = 0; true; ++stops) {
            REQUIRE(stops < 100);
            // A stop that comes later each time: otherwise none of them might come to a finished shard.
            const int nth = 10 + 5 * stops + static_cast<int>(random() % 40);
            const auto error = stopped_at(nth, model, dir / "out", options, reached);
            if (!error) break;
            CHECK(error->code() == Errc::cancelled);
            const Stamps now = left_by_stopped(dir);
            for (const auto& [name, stamp] : kept) CHECK(now.at(name) == stamp);
            kept = now;
        }
        CHECK(contents_of(dir / "out") == expected);
        const Stamps after = stamps_in(dir / "out");
        for (const auto& [name, stamp] : kept) CHECK(after.at(name) == stamp);
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
    }
}

TEST_CASE("a stop keeps shards only for a save that can resume them, and every other failure removes them") {
    const TempDir dir = TempDir::in_memory();
    const Checkpoint model = Checkpoint::open(source_in(dir));
    const Names before = names_in(dir.path());
    // Some of the shards are finished by then, and others are not.
    constexpr int halfway = 70;
    const auto stopped_halfway = [&](const SaveOptions& options) {
        bool reached = false;
        return stopped_at(halfway, model, dir / "out", options, reached);
    };
    SaveOptions options = options_for();
    SUBCASE("without resume") {
        options.resume = false;
        const auto error = stopped_halfway(options);
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::cancelled);
        CHECK(error->hint().empty());
        CHECK(names_in(dir.path()) == before);
    }
    SUBCASE("of tensors in memory") {
        std::vector<LazyTensor> tensors;
        for (std::uint64_t i = 0; i < count; ++i)
            tensors.push_back(tensor("t" + std::to_string(i), Dtype::f32, {1'000}, i));
        options.work.monitor.on_progress = [](const Progress& progress) { return progress.bytes_done == 0; };
        CHECK_FAULT(save(dir / "out", tensors, options), Errc::cancelled);
        CHECK(names_in(dir.path()) == before);
    }
    SUBCASE("of one file") {
        options.work.monitor.on_progress = [](const Progress& progress) { return progress.bytes_done == 0; };
        CHECK_FAULT(save(dir / "out.safetensors", model, options), Errc::cancelled);
        CHECK(names_in(dir.path()) == before);
    }
    SUBCASE("an exception of the caller") {
        options.work.monitor.on_progress = [](const Progress& progress) -> bool {
            if (progress.bytes_done == progress.bytes_total) throw std::runtime_error("enough");
            return true;
        };
        CHECK_THROWS_AS(save(dir / "out", model, options), std::runtime_error);
        CHECK(names_in(dir.path()) == before);
    }
    SUBCASE("a disk that fails") {
        ScriptedCalls calls;
        calls.fail_all("pwrite", EIO);
        CHECK_FAULT(save(dir / "out", model, options), Errc::io_error);
        CHECK(names_in(dir.path()) == before);
    }
    SUBCASE("a plan that the caller does not want keeps what an earlier save has finished") {
        REQUIRE(stopped_halfway(options).has_value());
        const Stamps kept = left_by_stopped(dir);
        REQUIRE(!kept.empty());
        options.on_plan = [](const SaveReport&) { throw Error(Errc::cancelled, "not this"); };
        CHECK_FAULT(save(dir / "out", model, options), Errc::cancelled);
        CHECK(left_by_stopped(dir) == kept);
        options.on_plan = {};
        CHECK(save(dir / "out", model, options).resumed.size() == kept.size());
    }
}

TEST_CASE("a save that was killed after its folder appeared is finished") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    const fs::path journal = dir / ".out.safemap-tmp/journal";
    const auto publish = [&] {
        static int nth = 1;  // only the first subcase searches
        for (;; ++nth) {
            REQUIRE(nth < 400);
            fs::remove_all(dir / "out");
            fs::remove_all(dir / ".out.safemap-tmp");
            REQUIRE(killed_at(nth, in, dir / "out", options_for()));
            if (fs::exists(dir / "out") && fs::exists(journal)) return;
        }
    };
    const auto refused = [&](const SaveOptions& options) {
        const auto before = contents_of(dir / "out");
        CHECK_FAULT(save(dir / "out", Checkpoint::open(in), options), Errc::already_exists);
        CHECK(contents_of(dir / "out") == before);
        CHECK(fs::exists(journal));
    };
    publish();
    const auto expected = contents_of(dir / "out");

    SUBCASE("by the same save") {
        SaveReport report;
        CHECK_OK(report = save(dir / "out", Checkpoint::open(in), options_for()));
        CHECK(report.resumed.size() == count + 1);
        CHECK(report.bytes_read == 0);
        CHECK(contents_of(dir / "out") == expected);
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out"});
        CHECK_FAULT(save(dir / "out", Checkpoint::open(in), options_for()), Errc::already_exists);
    }
    SUBCASE("but not without resume, or with other options") {
        SaveOptions options = options_for();
        options.resume = false;
        refused(options);
        options = options_for();
        options.checksums = true;
        refused(options);
        CHECK_OK(save(dir / "out", Checkpoint::open(in), options_for()));
    }
    SUBCASE("but not if a file was changed or removed since") {
        const fs::path file = dir / "out/model.safetensors.index.json";
        REQUIRE(fs::exists(file));
        fs::remove(file);
        refused(options_for());
        CHECK(!fs::exists(file));
        dir.write("out/model.safetensors.index.json", "{}");
        refused(options_for());
    }
    SUBCASE("but not if another folder has its name") {
        fs::copy(dir / "out", dir / "copy", fs::copy_options::recursive);
        fs::remove_all(dir / "out");
        fs::rename(dir / "copy", dir / "out");
        refused(options_for());
    }
}

TEST_CASE("a save with a different input or different options is not continued") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    static int nth = 0;
    const auto leave_half = [&] {
        fs::remove_all(dir / "out");
        REQUIRE(killed_at(nth, in, dir / "out", options_for()));
    };
    // Finds a call where some shards are finished and others are not; only the first subcase searches.
    const auto half_is_left = [&] {
        leave_half();
        const auto resumed = save(dir / "out", Checkpoint::open(in), options_for()).resumed.size();
        return resumed > 2 && resumed < count;
    };
    for (nth = std::max(nth, 20); !half_is_left(); ++nth) REQUIRE(nth < 400);
    const auto resumed_with = [&](SaveOptions options) {
        leave_half();
        const auto report = save(dir / "out", Checkpoint::open(in), options);
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out"});
        return report.resumed.size();
    };
    CHECK(resumed_with(options_for()) > 2);

    SUBCASE("without resume") {
        SaveOptions options = options_for();
        options.resume = false;
        CHECK(resumed_with(options) == 0);
    }
    SUBCASE("with other options") {
        SaveOptions options = options_for();
        options.alignment = 64;
        CHECK(resumed_with(options) == 0);
        options = options_for();
        options.dtype = Dtype::bf16;
        options.max_shard_size = 2'000;
        CHECK(resumed_with(options) == 0);
    }
    SUBCASE("of a source that was written again") {
        leave_half();
        source_in(dir, 100);
        CHECK(save(dir / "out", Checkpoint::open(in), options_for()).resumed.empty());
        CHECK(read_file(dir / "out/model-00001-of-00006.safetensors").at("t0").bytes == random_bytes(4'000, 100));
    }
    SUBCASE("with a modified finished shard") {
        leave_half();
        const fs::path shard = dir / ".out.safemap-tmp/content/model-00001-of-00006.safetensors";
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // times of files count ticks of up to 10 ms
        {
            std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
            file.seekp(-1, std::ios::end);
            file.put('x');
        }
        const auto report = save(dir / "out", Checkpoint::open(in), options_for());
        CHECK(!report.resumed.empty());
        CHECK(std::find(report.resumed.begin(), report.resumed.end(), "model-00001-of-00006.safetensors") ==
              report.resumed.end());
        CHECK(read_file(dir / "out/model-00001-of-00006.safetensors").at("t0").bytes == random_bytes(4'000, 1));
    }
    SUBCASE("of tensors in memory") {
        leave_half();
        const std::vector<LazyTensor> tensors = {tensor("t0", Dtype::f32, {1'000})};
        CHECK(save(dir / "out", tensors, options_for()).resumed.empty());
    }
    SUBCASE("as a single file") {
        CHECK(save(dir / "out.safetensors", Checkpoint::open(in), options_for()).resumed.empty());
    }
}

namespace {

/// A machine after a reboot: files are the same, and the device has another number.
class Restarted {
public:
    Restarted() {
        io::calls.fstat = [](int descriptor, struct stat* status) {
            return renumbered(::fstat(descriptor, status), status);
        };
        io::calls.fstatat = [](int folder, const char* name, struct stat* status, int flags) {
            return renumbered(::fstatat(folder, name, status, flags), status);
        };
    }
    ~Restarted() { io::calls = before_; }
    Restarted(const Restarted&) = delete;
    Restarted& operator=(const Restarted&) = delete;

private:
    static int renumbered(int result, struct stat* status) {
        if (result == 0) status->st_dev += 1000;
        return result;
    }
    io::Calls before_ = io::calls;
};

}  // namespace

TEST_CASE("a killed save is continued after a reboot, which changes the number of the device") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    std::size_t most_kept = 0;
    for (int nth = 20; most_kept <= 2; nth += 7) {
        REQUIRE(nth < 400);
        fs::remove_all(dir / "out");
        if (!killed_at(nth, in, dir / "out", options_for())) continue;
        const Restarted restarted;
        SaveReport report;
        CHECK_OK(report = save(dir / "out", Checkpoint::open(in), options_for(true)));
        most_kept = std::max(most_kept, report.resumed.size());
    }
    CHECK(most_kept > 2);
}

TEST_CASE("a committed save in place that was killed counts after a reboot, and the next save finishes it") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    const Checkpoint model = Checkpoint::open(in);
    bool died = true;
    int listed = 0;
    soak::Sample sample(2);
    for (int nth = 1; died; ++nth) {
        CAPTURE(nth);
        REQUIRE(nth < 500);
        // Only the last calls matter here; other tests cover those before the list is written.
        if (nth < 90 ? nth % 20 != 0 : !sample.next()) continue;
        fs::remove_all(dir / "out");
        const fs::path old = source_in(dir, 50);
        save(dir / "out", Checkpoint::open(old), options_for(true));
        source_in(dir);
        const NoExchange none;
        died = killed_at(nth, in, dir / "out", options_for(true));
        const Restarted restarted;
        if (fs::exists(dir / "out/.safemap-tmp/commit")) {
            ++listed;
            CHECK(Checkpoint::open(dir / "out").size() == count);
        }
        CHECK_OK(save(dir / "out", Checkpoint::open(in), options_for(true)));
        CHECK(read_file(dir / "out/model-00001-of-00006.safetensors").at("t0").bytes == random_bytes(4'000, 1));
        CHECK(!fs::exists(dir / "out/.safemap-tmp"));
    }
    CHECK(listed > 3);
}

}  // namespace resume_test
