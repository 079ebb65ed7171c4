// Tests saves that continue a killed save.
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
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
