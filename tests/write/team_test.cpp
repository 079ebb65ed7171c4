// Tests saves by several processes, which are threads here: the bytes of one process, what each rank reads, and every
// way to fail. tests/cli/many_nodes.py does so with processes of MPI.
#include <safemap/advanced/team.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"
#include "write/thread_team.hpp"
#include "write/together.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <stop_token>

namespace team_test {

using namespace safemap;
using namespace samples;
using thread_team::Member;
using thread_team::on_ranks;

namespace {

using Names = std::vector<std::string>;

/// Returns the error of a rank.
std::optional<Error> error_in(const std::exception_ptr& exception) {
    if (!exception) return std::nullopt;
    return error_of([&] { std::rethrow_exception(exception); });
}

void check_none(const std::vector<std::exception_ptr>& errors) {
    for (const auto& each : errors) {
        const auto error = error_in(each);
        CHECK_MESSAGE(!error, (error ? error->what() : ""));
    }
}

/// Saves on every rank. Returns the report of rank 0.
template <class What>
SaveReport save_together(unsigned size, const fs::path& out, const What& what, const SaveOptions& options) {
    SaveReport first;
    std::size_t left = 0;
    check_none(on_ranks(
        size,
        [&](Member& team) {
            SaveOptions own = options;
            own.team = &team;
            const SaveReport report = save(out, what, own);
            if (team.rank() == 0) first = report;
        },
        &left));
    CHECK(left == 0);
    return first;
}

/// Returns tensors of every kind, large enough for many blocks: whole runs, strided, in boxes, and small ones.
std::vector<LazyTensor> many_tensors() {
    std::vector<LazyTensor> tensors = {
        tensor("a.large", Dtype::f32, {1'000, 1'300}, 1),
        transposed("b.transposed", Dtype::f32, 900, 700, 2),
        tensor("c.sliced", Dtype::bf16, {3'000, 900}, 3).slice({{}, {.start = 1, .step = 2}}),
        tensor("d.scalar", Dtype::f64, {}, 4),
        tensor("e.empty", Dtype::f32, {0, 3}, 5),
        tensor("f.packed", Dtype::f4, {4'000, 600}, 6),
        tensor("g.integers", Dtype::i64, {300'000}, 7),
    };
    for (std::uint64_t i = 0; i < 40; ++i)
        tensors.push_back(tensor("small." + std::to_string(i), Dtype::f32, {i * 97 % 5'000}, 100 + i));
    return tensors;
}

/// A checkpoint in a file, because a save from memory cannot be resumed.
fs::path source_in(const TempDir& dir) {
    save(dir / "in.safetensors", many_tensors());
    return dir / "in.safetensors";
}

}  // namespace

TEST_CASE("several processes write the bytes of one, whatever the options") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    const std::vector<std::pair<std::string, SaveOptions>> kinds = {
        {"one shard", {}},
        {"shards", {.max_shard_size = 2'000'000}},
        {"many shards", {.max_shard_size = 100'000}},
        {"one file", {.one_file = true}},
        {"ranks", {.ranks = 3}},
        {"ranks of columns", {.ranks = 4, .rank_dimension = 1}},
        {"cast", {.dtype = Dtype::f16, .max_shard_size = 1'500'000}},
        {"not durable", {.max_shard_size = 3'000'000, .durable = false, .drop_cache = true}},
    };
    soak::Sample sample(3);
    for (const auto& kind : kinds)
        for (const bool checksums : {false, true}) {
            SaveOptions options = kind.second;
            options.checksums = checksums;
            options.work.threads = 2;
            fs::remove_all(dir / "one");
            const SaveReport expected = save(dir / "one", tensors, options);
            for (const unsigned size : {2U, 3U, 7U}) {
                if (!sample.next()) continue;
                CAPTURE(kind.first);
                CAPTURE(checksums);
                CAPTURE(size);
                fs::remove_all(dir / "many");
                const SaveReport report = save_together(size, dir / "many", tensors, options);
                if (options.one_file) CHECK(TempDir::read(dir / "many") == TempDir::read(dir / "one"));
                else CHECK(contents_of(dir / "many") == contents_of(dir / "one"));
                CHECK(names_in(dir.path()) == Names{"many", "one"});
                CHECK(report.files.size() == expected.files.size());
                CHECK(report.bytes_written == expected.bytes_written);
                REQUIRE(report.casts.size() == expected.casts.size());
                for (std::size_t i = 0; i < report.casts.size(); ++i) {
                    CHECK(report.casts[i].values == expected.casts[i].values);
                    CHECK(report.casts[i].overflowed == expected.casts[i].overflowed);
                    CHECK(report.casts[i].non_finite == expected.casts[i].non_finite);
                }
            }
        }
}

TEST_CASE("a nested checkpoint, its optimizer and small files are saved together") {
    const TempDir dir = TempDir::in_memory();
    const fs::path data = fs::path(SAFEMAP_TEST_DATA) / "pt";
    const Checkpoint model = Checkpoint::open(data / "train_gpt.pt");
    const Checkpoint optimizer = Checkpoint::open(data / "nested.pt");
    dir.write("config.json", "{}");
    SaveOptions options{.max_shard_size = 50'000, .checksums = true, .folders = {{"optimizer", optimizer}}};
    options.extras.files.push_back({"config.json", open_file(dir / "config.json")});
    save(dir / "one", model, options);
    save_together(3, dir / "many", model, options);
    for (const char* folder : {"", "optimizer"})
        for (const auto& name : names_in(dir / "one" / folder)) {
            if (name == "optimizer") continue;
            CHECK(TempDir::read(dir / "many" / folder / name) == TempDir::read(dir / "one" / folder / name));
        }
    CHECK(names_in(dir / "many") == names_in(dir / "one"));
    CHECK(verify(dir / "many").ok());
}

TEST_CASE("each process reads what it writes, and for digests what several write") {
    const TempDir dir = TempDir::in_memory();
    constexpr std::uint64_t count = 24;
    constexpr std::uint64_t bytes = 700'000;
    const auto content = random_bytes(count * bytes, 1);
    for (const bool checksums : {false, true}) {
        CAPTURE(checksums);
        std::atomic<std::uint64_t> read = 0;
        std::mutex mutex;
        std::vector<std::uint64_t> of_rank(4);
        fs::remove_all(dir / "out");
        check_none(on_ranks(4, [&](Member& team) {
            std::atomic<std::uint64_t> own = 0;
            const auto source = callback_source("counted", content.size(), [&](std::uint64_t at, auto to) {
                own += to.size();
                std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
            });
            std::vector<LazyTensor> tensors;
            for (std::uint64_t i = 0; i < count; ++i)
                tensors.emplace_back("t" + std::to_string(10 + i), stored_run(Dtype::u8, {bytes}, source, i * bytes));
            SaveOptions options{.max_shard_size = 3 * bytes, .checksums = checksums, .team = &team};
            save(dir / "out", tensors, options);
            const std::lock_guard lock(mutex);
            of_rank[team.rank()] = own;
            read += own;
        }));
        // Three boundaries between four ranks cut at most three tensors.
        CHECK(read >= count * bytes);
        CHECK(read <= (count + (checksums ? 3 : 0)) * bytes);
        for (const std::uint64_t each : of_rank) {
            CHECK(each >= count * bytes / 4 - 2 * bytes);
            CHECK(each <= count * bytes / 4 + 3 * bytes);
        }
    }
}

TEST_CASE("an old checkpoint is replaced by several processes, by exchange and in place") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    SaveOptions options{.max_shard_size = 2'000'000, .checksums = true, .overwrite = true};
    save(dir / "expected", tensors, options);
    for (const bool in_place : {false, true}) {
        CAPTURE(in_place);
        const NoExchange none(in_place);
        fs::remove_all(dir / "out");
        save(dir / "out", std::vector<LazyTensor>{tensor("old", Dtype::f32, {3})});
        dir.write("out/README.md", "mine");
        save_together(3, dir / "out", tensors, options);
        CHECK(TempDir::read(dir / "out/README.md") == "mine");
        fs::remove(dir / "out/README.md");
        CHECK(contents_of(dir / "out") == contents_of(dir / "expected"));
    }
}

TEST_CASE("one process plans, and all have the report of the plan") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    std::atomic<int> plans = 0;
    check_none(on_ranks(3, [&](Member& team) {
        SaveOptions options{.team = &team, .plan_only = true, .on_plan = [&](const SaveReport&) { ++plans; }};
        CHECK(save(dir / "out", tensors, options).tensors == tensors.size());
    }));
    CHECK(plans == 1);
    CHECK(names_in(dir.path()).empty());
    save_together(3, dir / "out", tensors, {.on_plan = [&](const SaveReport&) { ++plans; }});
    CHECK(plans == 2);
    CHECK(Checkpoint::open(dir / "out").size() == tensors.size());
}

// Failures.

TEST_CASE("a process that fails ends all of them with its error, and nothing is left") {
    const TempDir dir = TempDir::in_memory();
    const auto content = random_bytes(8'000'000, 1);
    for (const unsigned failing : {0U, 1U, 2U}) {
        CAPTURE(failing);
        std::size_t left = 0;
        const auto errors = on_ranks(
            3,
            [&](Member& team) {
                std::atomic<int> reads = 0;
                const auto source =
                    callback_source("failing", content.size(), [&](std::uint64_t at, std::span<std::byte> to) {
                        if (team.rank() == failing && ++reads == 3) throw Error(Errc::io_error, "the disk is gone");
                        std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
                    });
                const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::u8, {content.size()}, source, 0)}};
                SaveOptions options{.checksums = true, .team = &team};
                options.work.threads = 1;
                save(dir / "out", tensors, options);
            },
            &left);
        for (unsigned rank = 0; rank < 3; ++rank) {
            CAPTURE(rank);
            const auto error = error_in(errors[rank]);
            REQUIRE(error.has_value());
            INFO(std::string(error->what()));
            CHECK(error->code() == Errc::io_error);
            CHECK(error->tensor() == "w");
            CHECK(error->message().find("the disk is gone") != std::string::npos);
            const bool told = rank != failing && failing != 0;
            CHECK((error->message().find("rank " + std::to_string(failing)) != std::string::npos) == told);
        }
        CHECK(left == 0);
        CHECK(names_in(dir.path()).empty());
    }
}

TEST_CASE("an exception of the caller passes through where it is thrown, and ends the others") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    const auto errors = on_ranks(3, [&](Member& team) {
        SaveOptions options{.team = &team};
        if (team.rank() == 0) options.on_plan = [](const SaveReport&) { throw std::runtime_error("no"); };
        save(dir / "out", tensors, options);
    });
    CHECK_THROWS_AS(std::rethrow_exception(errors[0]), std::runtime_error);
    for (const unsigned rank : {1U, 2U}) {
        const auto error = error_in(errors[rank]);
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::io_error);
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("any process can cancel") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    for (const unsigned cancelling : {0U, 2U}) {
        CAPTURE(cancelling);
        const auto errors = on_ranks(3, [&](Member& team) {
            SaveOptions options{.checksums = true, .team = &team};
            if (team.rank() == cancelling) options.work.monitor.on_progress = [](const Progress&) { return false; };
            save(dir / "out", tensors, options);
        });
        for (const auto& each : errors) {
            const auto error = error_in(each);
            REQUIRE(error.has_value());
            CHECK(error->code() == Errc::cancelled);
        }
        CHECK(names_in(dir.path()).empty());
    }
}

TEST_CASE("a process that is stopped at any step ends all, and with resume the finished shards stay") {
    const TempDir dir = TempDir::in_memory();
    const Checkpoint model = Checkpoint::open(source_in(dir));
    SaveOptions options{.max_shard_size = 700'000, .checksums = true, .resume = true};
    save(dir / "whole", model, options);
    const auto expected = contents_of(dir / "whole");
    std::size_t most_kept = 0;
    bool reached = true;
    for (int nth = soak::step(60); reached; nth += soak::step(60)) {
        CAPTURE(nth);
        REQUIRE(nth < 3000);
        fs::remove_all(dir / "out");
        const unsigned stopped = static_cast<unsigned>(nth) % 3;
        std::stop_source stop;
        std::vector<std::exception_ptr> errors;
        {
            ScriptedCalls calls;
            calls.before_nth(nth, [&] { stop.request_stop(); });
            errors = on_ranks(3, [&](Member& team) {
                SaveOptions own = options;
                own.team = &team;
                if (team.rank() == stopped) own.work.monitor.stop = stop.get_token();
                save(dir / "out", model, own);
            });
            reached = calls.count() >= nth;
        }
        // All have saved, or none has.
        const bool ended = errors[0] != nullptr;
        std::size_t kept = 0;
        if (ended) {
            for (const auto& each : errors) {
                const auto error = error_in(each);
                REQUIRE(error.has_value());
                CHECK(error->code() == Errc::cancelled);
            }
            const fs::path content = dir / ".out.safemap-tmp/content";
            if (fs::exists(content)) kept = names_in(content).size();
            CHECK(error_in(errors[0])->hint().empty() == (kept == 0));
            CHECK(!fs::exists(dir / "out"));
            most_kept = std::max(most_kept, kept);
            // Any number of processes continues, also one.
            const SaveReport report =
                nth % 2 == 0 ? save(dir / "out", model, options) : save_together(2, dir / "out", model, options);
            CHECK(report.resumed.size() == kept);
        } else {
            check_none(errors);
        }
        CHECK(contents_of(dir / "out") == expected);
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
    }
    if (soak::whole()) CHECK(most_kept > 3);
}

TEST_CASE("processes with different plans are refused before anything is written") {
    const TempDir dir = TempDir::in_memory();
    save(dir / "a.safetensors", std::vector<LazyTensor>{tensor("w", Dtype::f32, {9}, 1)});
    fs::copy_file(dir / "a.safetensors", dir / "b.safetensors");
    const Checkpoint model = Checkpoint::open(dir / "a.safetensors");
    const Checkpoint copy = Checkpoint::open(dir / "b.safetensors");
    const auto refused = [&](const std::function<void(Member&, SaveOptions&)>& run, const char* what) {
        CAPTURE(what);
        const auto errors = on_ranks(3, [&](Member& team) {
            SaveOptions options{.team = &team};
            run(team, options);
        });
        for (const auto& each : errors) {
            const auto error = error_in(each);
            REQUIRE(error.has_value());
            INFO(std::string(error->what()));
            CHECK(error->code() == Errc::invalid_argument);
            CHECK(error->message().find("rank 2 has another plan than rank 0") != std::string::npos);
            CHECK(error->message().find(what) != std::string::npos);
            CHECK_FALSE(error->hint().empty());
        }
        CHECK(names_in(dir.path()) == Names{"a.safetensors", "b.safetensors"});
    };
    const auto on_last = [](const Member& team) { return team.rank() == 2; };
    refused([&](Member& team, SaveOptions& options) { save(dir / "out", on_last(team) ? copy : model, options); },
            "source files");
    refused(
        [&](Member& team, SaveOptions& options) {
            const auto renamed = model.renamed([](std::string_view name) { return std::string(name) + "x"; });
            save(dir / "out", on_last(team) ? renamed : model, options);
        },
        "names, dtypes or shapes");
    refused(
        [&](Member& team, SaveOptions& options) {
            if (on_last(team)) options.metadata["a"] = "b";
            save(dir / "out", model, options);
        },
        "the files to write");
    refused(
        [&](Member& team, SaveOptions& options) {
            options.durable = !on_last(team);
            save(dir / "out", model, options);
        },
        "the options");
}

TEST_CASE("a target that not all processes see is refused before the first byte, and nothing is left in either place") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    for (const char* place : {"a", "b"}) fs::create_directory(dir / place);
    const SkippedSleeps sleeps;
    const auto errors = on_ranks(2, [&](Member& team) {
        SaveOptions options{.team = &team};
        save(dir / (team.rank() == 0 ? "a" : "b") / "out", tensors, options);
    });
    CHECK(sleeps.total() >= std::chrono::seconds(2));
    for (const auto& each : errors) {
        const auto error = error_in(each);
        REQUIRE(error.has_value());
        INFO(std::string(error->what()));
        CHECK(error->code() == Errc::invalid_argument);
        CHECK(error->hint().find("file system that all processes share") != std::string::npos);
    }
    CHECK(names_in(dir / "a").empty());
    CHECK(names_in(dir / "b").empty());
    // One of them has no such folder at all.
    const auto others = on_ranks(2, [&](Member& team) {
        SaveOptions options{.team = &team};
        save(dir / (team.rank() == 0 ? "a" : "missing") / "out", tensors, options);
    });
    for (const auto& each : others) CHECK(error_in(each).value().code() == Errc::path_not_found);
    CHECK(names_in(dir / "a").empty());
}

TEST_CASE("a failure before the save is the failure of all") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    const auto errors = on_ranks(3, [&](Member& team) {
        if (team.rank() == 1) fail_together(team, Error(Errc::path_not_found, "no such file").with_path("in.pt"));
        SaveOptions options{.team = &team};
        save(dir / "out", tensors, options);
    });
    for (const auto& each : errors) {
        const auto error = error_in(each);
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::path_not_found);
        CHECK(error->path() == "in.pt");
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a process that ends without a save is named, and the others end") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = many_tensors();
    const auto errors = on_ranks(3, [&](Member& team) {
        if (team.rank() == 1) return static_cast<void>(team.exchange({}));
        SaveOptions options{.team = &team};
        save(dir / "out", tensors, options);
    });
    CHECK_FALSE(errors[1]);
    for (const unsigned rank : {0U, 2U}) {
        const auto error = error_in(errors[rank]);
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::invalid_argument);
        CHECK(error->message().find("rank 1 has ended") != std::string::npos);
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a save that was killed is continued by several processes, which keep its finished files") {
    const TempDir dir = TempDir::in_memory();
    const fs::path in = source_in(dir);
    SaveOptions options{.max_shard_size = 500'000, .checksums = true, .resume = true};
    options.work.threads = 1;
    save(dir / "whole", Checkpoint::open(in), options);
    std::size_t most_kept = 0;
    for (int nth = 40; nth < 400; nth += soak::step(30)) {
        CAPTURE(nth);
        fs::remove_all(dir / "out");
        if (!killed_at(nth, in, dir / "out", options) || fs::exists(dir / "out")) break;
        const SaveReport report = save_together(3, dir / "out", Checkpoint::open(in), options);
        CHECK(contents_of(dir / "out") == contents_of(dir / "whole"));
        CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
        most_kept = std::max(most_kept, report.resumed.size());
    }
    CHECK(most_kept > 0);
}

TEST_CASE("a team is refused where one process writes") {
    const TempDir dir;
    const auto tensors = many_tensors();
    thread_team::Wires wires(1);
    Member alone(wires, 0);
    std::vector<std::byte> memory;
    CHECK_FAULT(save(*memory_sink("m", memory), tensors, {.team = &alone}), Errc::invalid_argument);
    // A team of one is one process.
    save(dir / "out", tensors, {.team = &alone});
    CHECK(Checkpoint::open(dir / "out").size() == tensors.size());
    CHECK_FAULT(fail_together(alone, Error(Errc::busy, "x")), Errc::busy);
}

TEST_CASE("packed numbers and texts are unpacked, and a cut message is an error") {
    using write::Packer;
    using write::Unpacker;
    const std::string bytes = Packer().number(7).text("a\0b").text({}).number(~0ULL).take();
    Unpacker from(bytes);
    CHECK(from.number() == 7);
    CHECK(from.text() == "a");
    CHECK(from.text().empty());
    CHECK(from.number() == ~0ULL);
    CHECK(from.done());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        Unpacker cut(std::string_view(bytes).substr(0, size));
        CHECK_FAULT((cut.number(), cut.text(), cut.text(), cut.number()), Errc::io_error);
    }
}

}  // namespace team_test
