// Tests saves to sinks: to memory, to a callback, to a file as a sink. Every test that uses everywhere.hpp also checks
// that sinks get the bytes of a save to a path.
#include <safemap/sink.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/verify.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

namespace sink_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;

namespace {

/// A sink that counts calls, and fails on demand.
class Strict final : public Sink {
public:
    enum class Fail { never, allocate, write, commit };
    explicit Strict(Fail fail = Fail::never, int at = 0) : fail_(fail), at_(at) {}

    const std::string& name() const noexcept override { return name_; }
    void allocate(std::uint64_t size) override {
        ++allocated;
        file.resize(static_cast<std::size_t>(size));
        if (fail_ == Fail::allocate) throw Error(Errc::no_space, "full");
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        std::unique_lock lock(mutex_);
        threads.insert(std::this_thread::get_id());
        changed_.notify_all();
        // The first thread waits for another, if the test expects one.
        changed_.wait_for(lock, std::chrono::seconds(20), [this] { return threads.size() >= wait_for; });
        if (fail_ == Fail::write && writes == at_) throw std::runtime_error("a caller's own");
        ++writes;
        std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    bool read_back(std::uint64_t, std::span<std::byte> into) const override { return breaks_word && into.empty(); }
    void commit() override {
        ++committed;
        if (fail_ == Fail::commit) throw Error(Errc::io_error, "the end");
    }
    void abandon() noexcept override { ++abandoned; }

    std::vector<std::byte> file;
    int allocated = 0;
    int writes = 0;
    int committed = 0;
    int abandoned = 0;
    std::set<std::thread::id> threads;
    std::size_t wait_for = 0;
    bool breaks_word = false;  ///< says that it can read back, and does not

private:
    std::string name_ = "strict";
    Fail fail_;
    int at_;
    std::mutex mutex_;
    std::condition_variable changed_;
};

std::vector<LazyTensor> many_blocks() {
    return {tensor("a", Dtype::f32, {1'500'000}, 1), transposed("t", Dtype::f32, 700, 600, 2),
            transposed("tiles", Dtype::f32, 4, 600'000, 5), tensor("e", Dtype::f32, {0}, 3),
            tensor("b", Dtype::u8, {3'000'001}, 4)};
}

}  // namespace

TEST_CASE("random tensors and options give every sink the bytes of a save to a path") {
    std::mt19937_64 random(soak::seed(20));
    const auto up_to = [&](std::uint64_t most) { return random() % (most + 1); };
    const Dtype dtypes[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::i16, Dtype::u8, Dtype::boolean, Dtype::c64};
    for (int round = 0; round < soak::rounds(60); ++round) {
        const TempDir dir;
        std::vector<LazyTensor> tensors;
        for (std::uint64_t i = up_to(8); i > 0; --i) {
            const std::string name = "t" + std::to_string(i);
            const Dtype dtype = dtypes[up_to(6)];
            if (up_to(2) == 0) tensors.push_back(transposed(name, dtype, 1 + up_to(300), 1 + up_to(300), random()));
            else tensors.push_back(tensor(name, dtype, {up_to(900), up_to(40)}, random()));
        }
        SaveOptions options{.alignment = up_to(1) == 0 ? 8U : 256U,
                            .align_tensors = up_to(1) == 0,
                            .checksums = up_to(1) == 0,
                            .work = {.threads = static_cast<unsigned>(up_to(4))}};
        if (up_to(1) == 0) options.dtype = Dtype::f16;
        if (up_to(1) == 0) options.metadata = {{"who", "me"}, {"\u00e4", "\u4e16"}};
        CAPTURE(round);
        CHECK_OK(save_everywhere(dir / "f.safetensors", tensors, options));
        CHECK(verify(dir / "f.safetensors").ok());
    }
}

TEST_CASE("a checkpoint in memory opens like one in a file, with ties and structure") {
    const TempDir dir;
    const auto model = Checkpoint::open(std::filesystem::path(SAFEMAP_TEST_DATA) / "pt/train_gpt.pt");
    CHECK_OK(save_everywhere(dir / "f.safetensors", model));
    std::vector<std::byte> bytes;
    save(*memory_sink("in memory", bytes), model);
    const auto opened = Checkpoint::open(memory_source("in memory", bytes));
    const auto on_disk = Checkpoint::open(dir / "f.safetensors");
    CHECK(opened.size() == on_disk.size());
    CHECK(opened.aliases() == on_disk.aliases());
    REQUIRE(opened.tree() != nullptr);
    CHECK(opened.tree()->size() == on_disk.tree()->size());
}

TEST_CASE("a sink is allocated once, written by several threads, and committed once") {
    Strict sink;
    sink.wait_for = 2;
    const SaveReport report = save(sink, many_blocks(), {.checksums = true, .work = {.threads = 4}});
    CHECK(sink.threads.size() >= 2);
    CHECK(sink.allocated == 1);
    CHECK(sink.committed == 1);
    CHECK(sink.abandoned == 0);
    CHECK(sink.file.size() == report.bytes_written);
    CHECK(report.files == std::vector<std::string>{"strict"});
}

TEST_CASE("a sink that fails is abandoned once, and its exception passes through") {
    using Fail = Strict::Fail;
    const auto tensors = many_blocks();
    const auto check = [&](Strict& sink, Errc code) {
        const auto error = error_of([&] { save(sink, tensors); });
        check_error(error, {code}, {});
        CHECK(std::string(error->what()).starts_with("save strict"));
        CHECK(error->path() == "strict");
        CHECK(sink.abandoned == 1);
    };
    Strict full(Fail::allocate);
    check(full, Errc::no_space);
    CHECK(full.writes == 0);
    Strict late(Fail::commit);
    check(late, Errc::io_error);

    Strict whole;
    save(whole, tensors);
    for (int at = soak::step(3) - 1; at < whole.writes; at += soak::step(3)) {
        Strict sink(Fail::write, at);
        CHECK_THROWS_WITH_AS(save(sink, tensors), "a caller's own", std::runtime_error);
        CHECK(sink.abandoned == 1);
        CHECK(sink.committed == 0);
    }
}

TEST_CASE("a save that is cancelled, or whose source fails, leaves the memory unchanged") {
    std::vector<std::byte> into = {std::byte{1}, std::byte{2}};
    const auto before = into;
    const auto sink = memory_sink("m", into);
    CHECK_FAULT(save(*sink, many_blocks(),
                     {.work = {.monitor = {.on_progress = [](const Progress& p) { return p.bytes_done == 0; }}}}),
                Errc::cancelled);
    CHECK(into == before);
    const auto broken = callback_source(
        "s", 100, [](std::uint64_t, std::span<std::byte>) { throw Error(Errc::io_error, "a bad disk"); });
    const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::u8, {100}, broken, 0)}};
    CHECK_FAULT(save(*sink, tensors), Errc::io_error);
    CHECK(into == before);
    CHECK_OK(save(*sink, many_blocks()));  // the same sink can be used again
    CHECK(into.size() > 2);
}

TEST_CASE("memory that is too small is refused before anything is written") {
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {100})};
    const auto size = static_cast<std::size_t>(save(*callback_sink("c", [](auto, auto) {}), tensors).bytes_written);
    std::vector<std::byte> memory(size + 3, std::byte{9});
    CHECK_FAULT(save(*memory_sink("m", std::span(memory).first(size - 1)), tensors), Errc::no_space);
    CHECK(memory == std::vector<std::byte>(size + 3, std::byte{9}));
    CHECK_OK(save(*memory_sink("m", std::span(memory)), tensors));
    CHECK(memory[size] == std::byte{9});
    CHECK(Checkpoint::open(memory_source("m", std::vector(memory.begin(), memory.end() - 3))).size() == 1);
}

TEST_CASE("a file sink refuses, replaces and cleans up as a save to a path does") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {100})};
    dir.write("f", "old");
    CHECK_FAULT(save(*file_sink(dir / "f"), tensors), Errc::already_exists);
    CHECK(TempDir::read(dir / "f") == "old");
    CHECK_FAULT(save(*file_sink(dir / "no/f"), tensors), Errc::path_not_found);

    const auto replacing = file_sink(dir / "f", {.overwrite = true, .durable = false});
    CHECK_FAULT(save(*replacing, many_blocks(),
                     {.work = {.monitor = {.on_progress = [](const Progress& p) { return p.bytes_done == 0; }}}}),
                Errc::cancelled);
    CHECK(TempDir::read(dir / "f") == "old");
    CHECK(names_in(dir.path()) == std::vector<std::string>{"f"});
    CHECK_OK(save(*replacing, tensors));
    CHECK(Checkpoint::open(dir / "f").size() == 1);
    CHECK(names_in(dir.path()) == std::vector<std::string>{"f"});
}

TEST_CASE("options that only make sense for a path are refused, and a plan does not touch the sink") {
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {100})};
    Strict sink;
    for (const SaveOptions& options :
         {SaveOptions{.overwrite = true}, SaveOptions{.resume = true}, SaveOptions{.durable = false},
          SaveOptions{.extras = {.files = {{"config.json", memory_source("c", std::vector<std::byte>(1))}}}}})
        CHECK_FAULT(save(sink, tensors, options), Errc::invalid_argument);
    CHECK_FAULT(save(sink, tensors, {.alignment = 7}), Errc::invalid_argument);
    const TempDir dir;
    save(dir / "f.safetensors", tensors);
    const Checkpoint model = Checkpoint::open(dir / "f.safetensors");
    CHECK_FAULT(save(sink, tensors, {.folders = {{"optimizer", model}}}), Errc::invalid_argument);
    int told = 0;
    const SaveReport plan = save(sink, tensors, {.plan_only = true, .on_plan = [&](const SaveReport&) { ++told; }});
    CHECK(told == 1);
    CHECK(plan.tensors == 1);
    CHECK(sink.allocated == 0);
    CHECK(sink.abandoned == 0);
}

TEST_CASE("a sink that was never allocated is not abandoned") {
    const auto tensors = many_blocks();
    std::stop_source stop;
    stop.request_stop();
    const Work works[] = {{.monitor = {.on_progress = [](const Progress&) { return false; }}},
                          {.monitor = {.stop = stop.get_token()}}};
    for (const Work& work : works) {
        Strict sink;
        CHECK_FAULT(save(sink, tensors, {.work = work}), Errc::cancelled);
        CHECK(sink.allocated == 0);
        CHECK(sink.abandoned == 0);
    }
}

TEST_CASE("a transposed tensor is read about once if the sink can be read back, and is correct otherwise") {
    constexpr std::uint64_t size = 4 * 600'000 * 4;
    const auto bytes = random_bytes(size, 7);
    std::atomic<std::uint64_t> read = 0;
    const auto source = callback_source("s", size, [&](std::uint64_t offset, std::span<std::byte> into) {
        read += into.size();
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    });
    const std::vector<LazyTensor> tensors = {
        {"t", stored_run(Dtype::f32, {600'000, 4}, source, 0), StridedView{.shape = {4, 600'000}, .strides = {1, 4}}}};
    std::vector<std::byte> memory;
    save(*memory_sink("m", memory), tensors, {.checksums = true});
    CHECK(read < 4 * size);
    std::vector<std::byte> called(memory.size());
    save(*callback_sink("c",
                        [&](std::uint64_t offset, std::span<const std::byte> part) {
                            std::copy(part.begin(), part.end(), called.begin() + static_cast<std::ptrdiff_t>(offset));
                        }),
         tensors, {.checksums = true});
    CHECK(called == memory);
    const TempDir dir;
    dir.write("f.safetensors", text_of(memory));
    CHECK(verify(dir / "f.safetensors").ok());
}

TEST_CASE("a sink that does not read back what it said it could fails the save") {
    Strict sink;
    sink.breaks_word = true;
    const std::vector<LazyTensor> tensors = {transposed("tiles", Dtype::f32, 4, 600'000)};
    check_error(error_of([&] { save(sink, tensors, {.checksums = true}); }), {Errc::io_error}, {}, {.path = "strict"});
    CHECK(sink.committed == 0);
    CHECK(sink.abandoned == 1);
}

TEST_CASE("invalid sinks are refused") {
    const TempDir dir;
    CHECK_FAULT(callback_sink("c", nullptr), Errc::invalid_argument);
    CHECK_FAULT(file_sink(dir / "f/"), Errc::invalid_argument);
}

TEST_CASE("a file sink is flushed to disk at commit, unless it is not durable") {
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {100})};
    for (const bool durable : {true, false}) {
        const TempDir dir;
        ScriptedCalls scripted;
        scripted.fail_all("fsync", EIO);
        const auto error = error_of([&] { save(*file_sink(dir / "f", {.durable = durable}), tensors); });
        CHECK(error.has_value() == durable);
        CHECK(fs::exists(dir / "f") != durable);
    }
}

}  // namespace sink_test
