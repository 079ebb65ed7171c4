// Tests small files that a save copies beside the tensors. From top to bottom: new folders, plans and single files,
// replacing and keeping files, refused extras, ShardWriter, resumed and killed saves.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/shard_writer.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/digest.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace extras_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

std::vector<LazyTensor> tensors_of(std::uint64_t seed) {
    return {tensor("a", Dtype::f32, {100}, seed), tensor("b", Dtype::f32, {100}, seed + 1)};
}

/// Writes a model folder `name` of two shards and two extras with this text.
void write_model(const TempDir& dir, const std::string& name, std::uint64_t seed, const std::string& text) {
    fs::remove_all(dir / name);
    save(dir / name, tensors_of(seed), {.max_shard_size = 400});
    dir.write(name + "/config.json", text);
    dir.write(name + "/tokenizer.json", std::string(30'000, 't') + text);
}

SaveOptions options_of(const Checkpoint& model) {
    SaveOptions options{.max_shard_size = 400, .extras = model.extras()};
    options.work.threads = 1;
    return options;
}

ino_t inode_of(const fs::path& path) {
    struct stat status = {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_ino;
}

ExtraFile extra(std::string name, std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {std::move(name), memory_source("memory", std::vector<std::byte>(bytes.begin(), bytes.end()))};
}

/// A source with the identity of another source, but different bytes.
class Pretender final : public Source {
public:
    Pretender(const fs::path& path, std::string text)
        : identity_(open_file(path)->identity()), text_(std::move(text)) {}
    const std::string& name() const noexcept override { return identity_; }
    std::uint64_t size() const noexcept override { return text_.size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        std::memcpy(into.data(), text_.data() + offset, into.size());
    }
    std::string identity() const override { return identity_; }

private:
    std::string identity_;
    std::string text_;
};

}  // namespace

TEST_CASE("extras are copied with the tensors to a new folder") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    const Checkpoint model = Checkpoint::open(dir / "in");
    const SaveReport report = save(dir / "out", model, options_of(model));
    CHECK(report.extras == Names{"config.json", "tokenizer.json"});
    CHECK(report.files.size() == 3);
    CHECK(contents_of(dir / "out") == contents_of(dir / "in"));
    std::uint64_t bytes = 0;
    for (const std::string& file : report.files) bytes += fs::file_size(dir / "out" / file);
    CHECK(report.bytes_written == bytes);
    CHECK(names_in(dir.path()) == Names{"in", "out"});
    // Without the option, no extras are copied.
    CHECK(save(dir / "bare", model).extras.empty());
    CHECK(names_in(dir / "bare") == Names{"model.safetensors"});
}

TEST_CASE("an extra of several blocks is copied whole") {
    const TempDir dir;
    const auto bytes = random_bytes(5'000'001, 3);
    SaveOptions options;
    options.extras.files = {{"large.txt", memory_source("memory", bytes)}};
    save(dir / "out", tensors_of(1), options);
    const std::string found = TempDir::read(dir / "out/large.txt");
    CHECK(std::ranges::equal(std::as_bytes(std::span(found)), bytes));
}

TEST_CASE("a plan lists the extras and copies none") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    const Checkpoint model = Checkpoint::open(dir / "in");
    SaveOptions options = options_of(model);
    Names planned;
    options.on_plan = [&](const SaveReport& plan) { planned = plan.extras; };
    options.plan_only = true;
    CHECK(save(dir / "out", model, options).extras == Names{"config.json", "tokenizer.json"});
    CHECK(planned == Names{"config.json", "tokenizer.json"});
    CHECK(names_in(dir.path()) == Names{"in"});
}

TEST_CASE("a save to a single file copies no extras") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    const Checkpoint model = Checkpoint::open(dir / "in");
    CHECK(save(dir / "out.safetensors", model, options_of(model)).extras.empty());
    CHECK(names_in(dir.path()) == Names{"in", "out.safetensors"});
}

TEST_CASE("extras replace those of the old model, and a model saved over itself keeps its own") {
    const TempDir dir;
    for (const bool in_place : {false, true}) {
        CAPTURE(in_place);
        write_model(dir, "in", 1, "one");
        write_model(dir, "out", 7, "two");
        dir.write("out/mine.txt", "mine");
        const NoExchange none(in_place);
        const Checkpoint model = Checkpoint::open(dir / "in");
        SaveOptions options = options_of(model);
        options.overwrite = true;
        CHECK(save(dir / "out", model, options).extras == Names{"config.json", "tokenizer.json"});
        CHECK(TempDir::read(dir / "out/config.json") == "one");
        CHECK(TempDir::read(dir / "out/mine.txt") == "mine");
        CHECK(digests(Checkpoint::open(dir / "out")).checkpoint == digests(model).checkpoint);

        const Checkpoint own = Checkpoint::open(dir / "out");
        const ino_t before = inode_of(dir / "out/config.json");
        options.extras = own.extras();
        CHECK(options.extras.files.size() == 3);
        CHECK(save(dir / "out", own, options).extras.empty());
        CHECK(inode_of(dir / "out/config.json") == before);
        CHECK(TempDir::read(dir / "out/config.json") == "one");
    }
}

TEST_CASE("without overwrite, an existing file that differs from an extra stays, and is noted") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    fs::create_directory(dir / "out");
    dir.write("out/config.json", "two");
    dir.write("out/tokenizer.json", TempDir::read(dir / "in/tokenizer.json"));
    const Checkpoint model = Checkpoint::open(dir / "in");
    SaveOptions options = options_of(model);
    options.plan_only = true;
    SaveReport report = save(dir / "out", model, options);
    CHECK(report.extras.empty());
    CHECK(only_of(report.notes) == "'config.json' is not copied: the output folder has a different file of that name");
    dir.write("out/config.json", "onf");
    CHECK(save(dir / "out", model, options).notes.size() == 1);
    options.overwrite = true;
    report = save(dir / "out", model, options);
    CHECK(report.extras == Names{"config.json", "tokenizer.json"});
    CHECK(report.notes.empty());
}

TEST_CASE("a file that only claims the identity of an extra is replaced") {
    const TempDir dir;
    save(dir / "out", tensors_of(7));
    dir.write("out/config.json", "old");
    SaveOptions options{.overwrite = true};
    options.extras.files = {{"config.json", std::make_shared<Pretender>(dir / "out/config.json", "new")}};
    CHECK(save(dir / "out", tensors_of(1), options).extras.size() == 1);
    CHECK(TempDir::read(dir / "out/config.json") == "new");
}

TEST_CASE("a folder with the name of an extra stays, with a note") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    save(dir / "out", tensors_of(7));
    fs::create_directory(dir / "out/config.json");
    const Checkpoint model = Checkpoint::open(dir / "in");
    SaveOptions options = options_of(model);
    options.overwrite = true;
    const SaveReport report = save(dir / "out", model, options);
    CHECK(report.extras == Names{"tokenizer.json"});
    CHECK(only_of(report.notes).find("config.json") != std::string::npos);
    CHECK(fs::is_directory(dir / "out/config.json"));
}

TEST_CASE("an extra that changed since open is an error, and nothing is saved") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    const Checkpoint model = Checkpoint::open(dir / "in");
    const SaveOptions options = options_of(model);
    dir.write("in/config.json", "another");
    check_error(error_of([&] { save(dir / "out", model, options); }), {Errc::file_changed}, {},
                {.path = (dir / "in/config.json").native()});
    fs::resize_file(dir / "in/tokenizer.json", 5);
    CHECK_FAULT(save(dir / "out", model, options), Errc::file_changed);
    CHECK(names_in(dir.path()) == Names{"in"});
}

TEST_CASE("invalid names of extras are refused") {
    const TempDir dir;
    const auto fault_of = [&](std::vector<ExtraFile> files) {
        SaveOptions options;
        options.extras.files = std::move(files);
        const auto error = error_of([&] { save(dir / "out", tensors_of(1), options); });
        CHECK(names_in(dir.path()).empty());
        return error ? error->code() : Errc{};
    };
    using namespace std::string_literals;
    for (const std::string& name : {""s, "."s, ".."s, "../x"s, "a/b"s, "/x"s, "a\0b"s, ".safemap-tmp"s})
        CHECK(fault_of({extra(name, "x")}) == Errc::invalid_argument);
    CHECK(fault_of({extra("model.safetensors", "x")}) == Errc::invalid_argument);
    CHECK(fault_of({extra("a", "x"), extra("a", "x")}) == Errc::invalid_argument);
    CHECK(fault_of({{"a", nullptr}}) == Errc::invalid_argument);
}

TEST_CASE("a ShardWriter copies extras, too") {
    const TempDir dir;
    SaveOptions options;
    options.extras.files = {extra("config.json", "{}"), extra("empty.txt", "")};
    const std::vector<Declaration> declared = {{"a", Dtype::u8, {2}}};
    ShardWriter writer(dir / "out", declared, options);
    writer.write("a", std::as_bytes(std::span("xy", 2)));
    CHECK(writer.commit().extras == Names{"config.json", "empty.txt"});
    CHECK(names_in(dir / "out") == Names{"config.json", "empty.txt", "model.safetensors"});
    CHECK(TempDir::read(dir / "out/config.json") == "{}");
}

TEST_CASE("a killed save is resumed, and writes its extras again") {
    const TempDir dir;
    write_model(dir, "in", 1, "one");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    const Checkpoint model = Checkpoint::open(dir / "in");
    SaveOptions options = options_of(model);
    if (child == 0) {
        options.work.monitor.on_progress = [](const Progress& progress) {
            if (progress.bytes_done == progress.bytes_total) ::raise(SIGKILL);
            return true;
        };
        save(dir / "out", model, options);
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    dir.write("in/config.json", "changed meanwhile");
    options = options_of(Checkpoint::open(dir / "in"));
    options.resume = true;
    const SaveReport report = save(dir / "out", model, options);
    CHECK_FALSE(report.resumed.empty());
    CHECK(report.extras == Names{"config.json", "tokenizer.json"});
    CHECK(contents_of(dir / "out") == contents_of(dir / "in"));
    CHECK(names_in(dir.path()) == Names{"in", "out"});
}

TEST_CASE("a save with extras that is killed at any system call leaves the old or the new of everything") {
    const TempDir dir = TempDir::in_memory();
    write_model(dir, "in", 1, "new");
    const Checkpoint model = Checkpoint::open(dir / "in");
    SaveOptions options = options_of(model);
    options.overwrite = true;
    const std::string new_digest = digests(model).checkpoint;
    for (const bool in_place : {false, true}) {
        CAPTURE(in_place);
        bool died = true;
        int nth = soak::step(8);
        for (; died; nth += soak::step(8)) {
            CAPTURE(nth);
            REQUIRE(nth < 300);
            write_model(dir, "out", 7, "old");
            const NoExchange none(in_place);
            const pid_t child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                ScriptedCalls calls;
                calls.die_at(nth);
                const auto error = error_of([&] { save(dir / "out", model, options); });
                ::_exit(error ? 99 : 0);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            died = WIFSIGNALED(status);
            REQUIRE((died || status == 0));
            const Checkpoint left = Checkpoint::open(dir / "out");
            const bool is_new = digests(left).checkpoint == new_digest;
            for (const ExtraFile& file : left.extras().files) {
                std::string text(3, '\0');
                file.source->read_at(file.source->size() - 3, std::as_writable_bytes(std::span(text)));
                CHECK(text == (is_new ? "new" : "old"));
            }
            if (!died) CHECK(is_new);
        }
        CHECK(nth > 50);
    }
}

}  // namespace extras_test
