// Tests reading the files of ranks side by side: each once, which error is thrown, and how a stop request ends it.
#include "distributed/pickles.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "temp_dir.hpp"

#include "io/file_folder.hpp"
#include "pickle/memory_share.hpp"

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

namespace rank_files_test {

using namespace safemap;
using distributed::for_each_file;

namespace {

/// A folder in memory. Counts how often each file is opened.
class Ranks final : public Folder {
public:
    explicit Ranks(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) names_.push_back("tag/rank_" + std::to_string(i));
    }

    const std::string& name() const noexcept override { return name_; }
    std::vector<std::string> list() const override { return names_; }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        {
            const std::lock_guard lock(mutex_);
            ++opened_[std::string(file)];
        }
        if (file == missing) return nullptr;
        if (file == folder) throw Error(Errc::shard_missing, "a folder; expected a file").with_path("run/" + folder);
        if (file == refused) throw Error(Errc::permission_denied, "open it").with_path("run/" + refused);
        return memory_source("run/" + std::string(file), std::vector<std::byte>(1));
    }
    const std::map<std::string, int>& opened() const { return opened_; }

    std::string missing, folder, refused;

private:
    std::string name_ = "run";
    std::vector<std::string> names_;
    mutable std::mutex mutex_;
    mutable std::map<std::string, int> opened_;
};

void do_nothing(std::size_t, const std::shared_ptr<const Source>&) {}

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

}  // namespace

TEST_CASE("every file is read once, under its own number") {
    for (const unsigned threads : {0U, 1U, 2U, 200U}) {
        CAPTURE(threads);
        const Ranks ranks(50);
        const auto files = ranks.list();
        std::vector<std::string> names(files.size());
        for_each_file(ranks, files, {.threads = threads},
                      [&](std::size_t i, const std::shared_ptr<const Source>& source) { names[i] += source->name(); });
        for (std::size_t i = 0; i < files.size(); ++i) CHECK(names[i] == "run/" + files[i]);
        CHECK(ranks.opened().size() == 50);
        for (const auto& each : ranks.opened()) CHECK(each.second == 1);
    }
    CHECK_OK(for_each_file(Ranks(0), {}, {}, do_nothing));
}

TEST_CASE("no more files than threads are read at a time, and never more than eight") {
    for (const unsigned threads : {1U, 3U, 64U}) {
        CAPTURE(threads);
        const Ranks ranks(64);
        std::atomic<unsigned> now = 0;
        std::atomic<unsigned> most = 0;
        for_each_file(ranks, ranks.list(), {.threads = threads}, [&](auto, const auto&) {
            const unsigned running = ++now;
            unsigned seen = most.load();
            while (running > seen && !most.compare_exchange_weak(seen, running)) {
            }
            nap();
            --now;
        });
        CHECK(most.load() <= std::min(threads, 8U));
        if (threads > 1) CHECK(most.load() > 1);
    }
}

TEST_CASE("the first error in the order of the files is thrown, with the path of its file") {
    const Ranks ranks(40);
    const auto files = ranks.list();
    for (int round = 0; round < 20; ++round) {
        std::atomic<int> before = 0;
        const auto error = error_of([&] {
            for_each_file(ranks, files, {.threads = 8}, [&](std::size_t i, const auto&) {
                if (i < 9) ++before;
                // The first file with an error is the last to finish.
                if (i == 9) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                if (i >= 9) throw Error(Errc::field_missing, "number " + std::to_string(i));
            });
        });
        REQUIRE(error.has_value());
        CHECK(error->message() == "number 9");
        CHECK(error->path() == "run/tag/rank_9");
        CHECK(before == 9);
    }
}

TEST_CASE("a file whose pickle needs more memory than a share is read again alone, in its place among the errors") {
    const Ranks ranks(40);
    const auto files = ranks.list();
    for (const std::size_t bad : {std::size_t{12}, std::size_t{35}}) {
        CAPTURE(bad);
        std::vector<int> calls(files.size());
        std::atomic<int> running = 0;
        std::atomic<bool> beside = false;
        const auto error = error_of([&] {
            for_each_file(ranks, files, {.threads = 4}, [&](std::size_t i, const auto&) {
                const bool others = ++running > 1;
                const bool again = ++calls[i] == 2;
                if (again && others) beside = true;
                nap();
                --running;
                if (i % 10 == 4 && !again) MemoryShare::exceed();
                if (i % 20 == 4 && !again) throw Error(Errc::pickle_too_large, "a share");
                if (i == bad) throw Error(Errc::bad_tensor, "no");
                if (i == 24 && again) throw Error(Errc::pickle_too_large, "the whole limit");
            });
        });
        REQUIRE(error.has_value());
        CHECK(!beside);
        CHECK(error->message() == (bad == 12 ? "no" : "the whole limit"));
        CHECK(error->path() == "run/tag/rank_" + std::to_string(bad == 12 ? 12 : 24));
        CHECK(calls[4] == 2);
        if (bad == 12) CHECK(calls[14] < 2);
        else CHECK(calls[14] == 2);
    }
    const auto alone = error_of([&] {
        for_each_file(ranks, ranks.list(), {.threads = 1}, [](auto, const auto&) {
            MemoryShare::exceed();
            throw Error(Errc::pickle_too_large, "all of it");
        });
    });
    REQUIRE(alone.has_value());
    CHECK(alone->path() == "run/tag/rank_0");
}

TEST_CASE("an error keeps the path that it has, and other exceptions pass") {
    const Ranks ranks(3);
    const auto error = error_of([&] {
        for_each_file(ranks, ranks.list(), {},
                      [](auto, const auto&) { throw Error(Errc::bad_tensor, "no").with_path("elsewhere"); });
    });
    REQUIRE(error.has_value());
    CHECK(error->path() == "elsewhere");
    CHECK_THROWS_AS(
        for_each_file(ranks, ranks.list(), {}, [](auto, const auto&) { throw std::runtime_error("other"); }),
        std::runtime_error);
}

TEST_CASE("after an error no more files are opened") {
    const Ranks ranks(100);
    CHECK_FAULT(for_each_file(ranks, ranks.list(), {.threads = 1},
                              [](std::size_t i, const auto&) {
                                  if (i == 4) throw Error(Errc::bad_tensor, "no");
                              }),
                Errc::bad_tensor);
    CHECK(ranks.opened().size() == 5);
}

TEST_CASE("a file that is not there, or is something else, is a missing rank") {
    Ranks ranks(5);
    ranks.missing = "tag/rank_3";
    check_error(error_of([&] { for_each_file(ranks, ranks.list(), {}, do_nothing); }), {Errc::rank_missing}, {},
                {.path = "run/tag/rank_3"});
    ranks.folder = "tag/rank_1";
    check_error(error_of([&] { for_each_file(ranks, ranks.list(), {}, do_nothing); }), {Errc::rank_missing}, {},
                {.path = "run/tag/rank_1", .message = "a folder; expected a file"});
    ranks.refused = "tag/rank_0";
    CHECK_FAULT(for_each_file(ranks, ranks.list(), {}, do_nothing), Errc::permission_denied);
}

TEST_CASE("files of a real folder are found below it, and links without an end are missing") {
    const TempDir dir;
    std::filesystem::create_directories(dir.path() / "tag/sub");
    std::ofstream(dir.path() / "tag/a") << "x";
    std::filesystem::create_symlink("nowhere", dir.path() / "tag/b");
    const auto folder = open_folder(dir.path());
    const auto one = [&](const std::string& file) {
        for_each_file(*folder, std::vector<std::string>{file}, {},
                      [](auto, const std::shared_ptr<const Source>& source) { CHECK(source->size() == 1); });
    };
    CHECK_OK(one("tag/a"));
    for (const char* file : {"tag/b", "tag/c", "tag/sub", "other/a", ""}) {
        CAPTURE(file);
        check_error(error_of([&] { one(file); }), {Errc::rank_missing}, {}, {.path = (dir.path() / file).native()});
    }
    CHECK_FAULT(one("../a"), Errc::shard_outside_folder);
}

TEST_CASE("a stop request ends it before the next file, and comes before other errors") {
    for (const unsigned threads : {1U, 4U}) {
        CAPTURE(threads);
        const Ranks ranks(1000);
        std::stop_source stop;
        std::atomic<int> read = 0;
        CHECK_FAULT(for_each_file(ranks, ranks.list(), {.monitor = {.stop = stop.get_token()}, .threads = threads},
                                  [&](auto, const auto&) {
                                      if (++read == 20) stop.request_stop();
                                  }),
                    Errc::cancelled);
        CHECK(read >= 20);
        CHECK(read < 20 + 4);
        CHECK_FAULT(for_each_file(ranks, ranks.list(), {.monitor = {.stop = stop.get_token()}, .threads = threads},
                                  [](auto, const auto&) { throw Error(Errc::bad_tensor, "no"); }),
                    Errc::cancelled);
    }
}

}  // namespace rank_files_test
