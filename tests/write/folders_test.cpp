// Tests SaveOptions::folders: other checkpoints in subfolders of the saved one, in the same commit. From top to bottom:
// files and options, refusals, later saves, killed and failing saves, permissions, verify() of the optimizer's folder.
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/shard_writer.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>

namespace folders_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;

constexpr std::uint64_t count = 3;  // number of tensors of a checkpoint, each in a shard of its own

/// Returns a checkpoint in a file, because a source in memory cannot be resumed.
Checkpoint checkpoint_in(const TempDir& dir, const std::string& name, std::uint64_t seed) {
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < count; ++i)
        tensors.push_back(tensor(name + std::to_string(i), Dtype::f32, {100}, seed + i));
    const fs::path file = dir / (name + std::to_string(seed) + ".safetensors");
    save(file, tensors, {.metadata = {{"who", name}}, .overwrite = true});
    return Checkpoint::open(file);
}

/// Old and new checkpoints of a model and a state, in a separate folder.
struct Inputs {
    TempDir dir = {};
    Checkpoint old_model = checkpoint_in(dir, "m", 10);
    Checkpoint old_state = checkpoint_in(dir, "s", 20);
    Checkpoint new_model = checkpoint_in(dir, "m", 30);
    Checkpoint new_state = checkpoint_in(dir, "s", 40);
};
const Inputs& inputs() {
    static const Inputs all;
    return all;
}

SaveOptions options_with(const Checkpoint& state, std::uint64_t shard = 400) {
    SaveOptions options{.max_shard_size = shard, .folders = {{"optimizer", state}}, .overwrite = true};
    options.work.threads = 1;
    return options;
}

/// Returns every file below a folder, by its path.
std::map<std::string, std::string> files_below(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file())
            files.emplace(entry.path().lexically_relative(folder).native(), TempDir::read(entry.path()));
    return files;
}

/// Returns the files that separate saves to the two places give.
std::map<std::string, std::string> plain_saves(const Checkpoint& model, const Checkpoint& state,
                                               std::uint64_t shard = 400, bool checksums = false) {
    const TempDir dir;
    const SaveOptions options{.max_shard_size = shard, .checksums = checksums};
    save(dir / "out", model, options);
    save(dir / "out/optimizer", state, options);
    return files_below(dir / "out");
}

std::string digest_of(const Checkpoint& model) { return digests(model).checkpoint; }

/// Returns "old", "new", or the fault.
std::string state_of(const fs::path& folder, const Checkpoint& old_one, const Checkpoint& new_one) {
    try {
        const std::string found = digest_of(Checkpoint::open(folder));
        return found == digest_of(old_one) ? "old" : found == digest_of(new_one) ? "new" : "mixed";
    } catch (const Error& error) {
        return error.what();
    }
}

/// The state before the save.
struct World {
    const char* what;
    bool in_place;
    std::function<void(const fs::path&)> make;
};
void make_old(const fs::path& out, std::uint64_t shard) {
    save(out, inputs().old_model, options_with(inputs().old_state, shard));
    std::ofstream(out / "config.json") << "mine";
    std::ofstream(out / "optimizer/notes.txt") << "mine";
    fs::create_directories(out / "optimizer/inner");
    std::ofstream(out / "optimizer/inner/a.txt") << "mine";
}
const std::vector<World>& worlds() {
    static const std::vector<World> all = {
        {"nothing", false, [](const fs::path&) {}},
        {"an old save with other shards", false, [](const fs::path& out) { make_old(out, 800); }},
        {"an old save with shards of the same names", false, [](const fs::path& out) { make_old(out, 400); }},
        {"an old save without the folder", false, [](const fs::path& out) { save(out, inputs().old_model); }},
        {"an old save that is replaced in place", true, [](const fs::path& out) { make_old(out, 800); }},
        {"an old save without the folder, in place", true, [](const fs::path& out) { save(out, inputs().old_model); }},
    };
    return all;
}

/// Checks that the new checkpoints are complete, and that all other files are still there.
void check_finished(const TempDir& dir, bool had_files) {
    static const auto plain = plain_saves(inputs().new_model, inputs().new_state);
    auto expected = plain;
    if (had_files)
        for (const char* file : {"config.json", "optimizer/notes.txt", "optimizer/inner/a.txt"})
            expected.emplace(file, "mine");
    CHECK(files_below(dir / "out") == expected);
    CHECK(names_in(dir.path()) == Names{"out"});
    CHECK(!fs::exists(dir / "out/.safemap-tmp"));
}

mode_t mode_of(const fs::path& path) {
    struct stat status = {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

}  // namespace

TEST_CASE("a subfolder has the files of a separate save to it") {
    const Inputs& in = inputs();
    for (const std::uint64_t shard : {400U, 4'000U}) {
        for (const bool checksums : {false, true}) {
            CAPTURE(shard);
            CAPTURE(checksums);
            const TempDir dir;
            SaveOptions options = options_with(in.new_state, shard);
            options.checksums = checksums;
            options.folders.emplace("ema weights", in.new_model);
            const SaveReport report = save(dir / "out", in.new_model, options);
            auto expected = plain_saves(in.new_model, in.new_state, shard, checksums);
            for (const auto& [name, bytes] : plain_saves(in.new_model, in.new_state, shard, checksums))
                if (!name.starts_with("optimizer/")) expected.emplace("ema weights/" + name, bytes);
            CHECK(files_below(dir / "out") == expected);
            Names reported = report.files;
            CHECK(reported.back() == (shard == 400 ? "model.safetensors.index.json" : "model.safetensors"));
            std::sort(reported.begin(), reported.end());
            Names written;
            std::uint64_t bytes = 0;
            for (const auto& [name, content] : expected) {
                written.push_back(name);
                bytes += content.size();
            }
            std::sort(written.begin(), written.end());
            CHECK(reported == written);
            CHECK(report.bytes_written == bytes);
            CHECK(report.layout.files.size() == reported.size());
            CHECK(report.tensors == 3 * count);
            CHECK(report.bytes_read == 3 * count * 400);
        }
    }
}

TEST_CASE("options about the checkpoint itself do not apply to subfolders") {
    const Inputs& in = inputs();
    const TempDir dir;
    SaveOptions options = options_with(in.new_state);
    options.dtype = Dtype::bf16;
    options.metadata = {{"license", "mit"}};
    options.exact_metadata = true;
    options.extras.files = {{"config.json", memory_source("config.json", random_bytes(10, 1))}};
    save(dir / "out", in.new_model, options);
    const auto expected = plain_saves(in.new_model, in.new_state);
    for (const auto& [name, bytes] : files_below(dir / "out"))
        if (name.starts_with("optimizer/")) CHECK(bytes == expected.at(name));
    CHECK(names_in(dir / "out/optimizer").size() == count + 1);
    CHECK(Checkpoint::open(dir / "out")["m0"].dtype() == Dtype::bf16);
}

TEST_CASE("a plan includes the subfolders and writes nothing") {
    const TempDir dir;
    SaveOptions options = options_with(inputs().new_state);
    options.plan_only = true;
    const SaveReport plan = save(dir / "out", inputs().new_model, options);
    CHECK(plan.files.size() == 2 * (count + 1));
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("invalid names of subfolders are refused, and so are subfolders of a single file or a ShardWriter") {
    const TempDir dir;
    const Inputs& in = inputs();
    const auto save_with = [&](const std::string& name, const fs::path& out = "out") {
        SaveOptions options{.folders = {{name, in.new_state}}};
        options.extras.files = {{"config.json", memory_source("config.json", random_bytes(10, 1))}};
        save(dir / out.native(), in.new_model, options);
    };
    using namespace std::string_literals;
    for (const std::string& name : {""s, "."s, ".."s, ".hidden"s, ".safemap-tmp"s, "a/b"s, "/"s, "a\0b"s,
                                    std::string(256, 'x'), "model.safetensors"s, "config.json"s}) {
        CAPTURE(name);
        CHECK_FAULT(save_with(name), Errc::invalid_argument);
    }
    CHECK_FAULT(save_with("optimizer", "out.safetensors"), Errc::invalid_argument);
    const std::vector<Declaration> declarations = {{"w", Dtype::f32, {100}}};
    CHECK_FAULT(ShardWriter(dir / "out", declarations, {.folders = {{"optimizer", in.new_state}}}),
                Errc::invalid_argument);
    CHECK(names_in(dir.path()).empty());
    CHECK_OK(save_with(std::string(255, 'x')));
}

TEST_CASE("a non-folder, and without overwrite a folder with a checkpoint, is not replaced by a subfolder") {
    const Inputs& in = inputs();
    const TempDir dir;
    SUBCASE("a file") { dir.write("mine", "mine"); }
    SUBCASE("a link to a folder") { fs::create_directory(dir / "mine"); }
    const bool link = fs::is_directory(dir / "mine");
    save(dir / "out", in.old_model);
    if (link) fs::create_directory_symlink("../mine", dir / "out/optimizer");
    else fs::rename(dir / "mine", dir / "out/optimizer");
    CHECK_FAULT(save(dir / "out", in.new_model, options_with(in.new_state)), Errc::already_exists);
    CHECK(fs::is_symlink(dir / "out/optimizer") == link);
    CHECK(state_of(dir / "out", in.old_model, in.new_model) == "old");
    // Without overwrite.
    save(dir / "other/", in.old_model, {.overwrite = true});
    fs::create_directory(dir / "parent");
    fs::rename(dir / "other", dir / "parent/optimizer");
    SaveOptions options = options_with(in.new_state);
    options.overwrite = false;
    CHECK_FAULT(save(dir / "parent", in.new_model, options), Errc::already_exists);
    CHECK(names_in(dir / "parent") == Names{"optimizer"});
    fs::rename(dir / "parent/optimizer", dir / "parent/else");
    fs::create_directory(dir / "parent/optimizer");
    dir.write("parent/optimizer/notes.txt", "mine");
    CHECK_OK(save(dir / "parent", in.new_model, options));
    CHECK(TempDir::read(dir / "parent/optimizer/notes.txt") == "mine");
    CHECK(state_of(dir / "parent/optimizer", in.old_state, in.new_state) == "new");
}

TEST_CASE("a subfolder that a later save does not write stays, and is noted as part of another save") {
    const Inputs& in = inputs();
    for (const bool in_place : {false, true}) {
        const TempDir dir;
        make_old(dir / "out", 800);
        const NoExchange none(in_place);
        const SaveReport report = save(dir / "out", in.new_model, {.max_shard_size = 400, .overwrite = true});
        REQUIRE(report.notes.size() == 1);
        CHECK(report.notes[0].find("'optimizer'") != std::string::npos);
        CHECK(report.notes[0].find("another save") != std::string::npos);
        CHECK(state_of(dir / "out", in.old_model, in.new_model) == "new");
        CHECK(state_of(dir / "out/optimizer", in.old_state, in.new_state) == "old");
        CHECK(save(dir / "out", in.new_model, options_with(in.new_state)).notes.empty());
        CHECK(state_of(dir / "out/optimizer", in.old_state, in.new_state) == "new");
    }
    // Files that are not a checkpoint are not noted.
    const TempDir dir;
    fs::create_directories(dir / "out/optimizer");
    dir.write("out/optimizer/optimizer.bin", "mine");
    CHECK(save(dir / "out", in.new_model, {.overwrite = true}).notes.empty());
}

TEST_CASE("a save with a folder replaces both old checkpoints and leaves everything else") {
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const TempDir dir;
        world.make(dir / "out");
        const bool had_files = fs::exists(dir / "out/config.json");
        const NoExchange none(world.in_place);
        CHECK_OK(save(dir / "out", inputs().new_model, options_with(inputs().new_state)));
        check_finished(dir, had_files);
    }
}

TEST_CASE(
    "a save with a folder that is killed at any system call leaves the old or the new, and the next one finishes") {
    const Inputs& in = inputs();
    for (const World& world : worlds()) {
        for (const bool resume : {false, true}) {
            CAPTURE(world.what);
            CAPTURE(resume);
            const NoExchange none(world.in_place);
            SaveOptions options = options_with(in.new_state);
            options.resume = resume;
            std::size_t most_kept = 0;
            bool was_new = false;
            bool died = true;
            for (int nth = soak::step(24); died; nth += soak::step(24)) {
                CAPTURE(nth);
                REQUIRE(nth < 600);
                const TempDir dir = TempDir::in_memory();
                const fs::path out = dir / "out";
                world.make(out);
                const bool was_there = fs::exists(out);
                const bool had_files = fs::exists(out / "config.json");
                died = killed_at(nth, in.dir / "m30.safetensors", out, options);
                if (was_there || fs::exists(out)) {
                    const std::string state = state_of(out, in.old_model, in.new_model);
                    CHECK((state == "new" || (was_there && state == "old")));
                    CHECK(!(was_new && state == "old"));
                    was_new = state == "new";
                    // In place, the subfolder is written before the model.
                    if (!world.in_place && (was_new || had_files))
                        CHECK(state_of(out / "optimizer", in.old_state, in.new_state) == state);
                }
                if (had_files) CHECK(TempDir::read(out / "optimizer/inner/a.txt") == "mine");
                SaveReport report;
                CHECK_OK(report = save(out, in.new_model, options));
                most_kept = std::max(most_kept, report.resumed.size());
                check_finished(dir, had_files);
            }
            if (soak::whole() && resume) CHECK(most_kept >= 2 * count);
            if (!resume) CHECK(most_kept == 0);
        }
    }
}

TEST_CASE("every system call of a save with a folder may fail: both are old, or both are new") {
    const Inputs& in = inputs();
    for (const World& world : worlds()) {
        CAPTURE(world.what);
        const NoExchange none(world.in_place);
        bool failed = true;
        for (int nth = soak::step(12); failed; nth += soak::step(12)) {
            CAPTURE(nth);
            REQUIRE(nth < 600);
            const TempDir dir = TempDir::in_memory();
            const fs::path out = dir / "out";
            world.make(out);
            const bool was_there = fs::exists(out);
            const bool had_files = fs::exists(out / "config.json");
            const auto failure =
                fail_at(nth, nth % 2 == 0 ? EIO : ENOSPC, [&] { save(out, in.new_model, options_with(in.new_state)); });
            const auto& error = failure.error;
            const auto& which = failure.which;
            failed = !which.empty();
            CAPTURE(which);
            const bool counts = !error || error->hint().find("the new checkpoint is committed") != std::string::npos;
            if (error && !was_there) {
                CHECK(names_in(dir.path()).empty());
            } else {
                CHECK(state_of(out, in.old_model, in.new_model) == (counts ? "new" : "old"));
                if (!error || (had_files && !counts))
                    CHECK(state_of(out / "optimizer", in.old_state, in.new_state) == (counts ? "new" : "old"));
                if (!counts && !had_files) CHECK(!fs::exists(out / "optimizer"));
            }
            CHECK_OK(save(out, in.new_model, options_with(in.new_state)));
            check_finished(dir, had_files);
        }
    }
}

TEST_CASE("a file that appears in a new subfolder is not lost if that folder is rolled back after a disk error") {
    const TempDir dir = TempDir::in_memory();
    const fs::path out = dir / "out";
    static fs::path place;
    static bool fails;
    place = out;
    fails = true;
    {
        const ScriptedCalls calls;  // restores the table at the end
        io::calls.fsync = [](int descriptor) {
            if (!fails || !fs::exists(place / "optimizer")) return ::fsync(descriptor);
            fails = false;
            std::ofstream(place / "optimizer/late.txt") << "precious";
            errno = EIO;
            return -1;
        };
        CHECK_FAULT(save(out, inputs().new_model, options_with(inputs().new_state)), Errc::io_error);
    }
    CHECK(!fails);
    CHECK(TempDir::read(out / "optimizer/late.txt") == "precious");
}

TEST_CASE("a subfolder has the permissions of the one it replaces, or else of its parent") {
    const Inputs& in = inputs();
    for (const bool in_place : {false, true}) {
        for (const bool had_folder : {false, true}) {
            CAPTURE(in_place);
            CAPTURE(had_folder);
            const TempDir dir;
            save(dir / "out", in.old_model, {.max_shard_size = 400});
            REQUIRE(::chmod((dir / "out").c_str(), 0750) == 0);
            if (had_folder) {
                save(dir / "out/optimizer", in.old_state, {.max_shard_size = 400});
                REQUIRE(::chmod((dir / "out/optimizer").c_str(), 0701) == 0);
            }
            const NoExchange none(in_place);
            CHECK_OK(save(dir / "out", in.new_model, options_with(in.new_state)));
            CHECK(mode_of(dir / "out") == 0750);
            CHECK(mode_of(dir / "out/optimizer") == (had_folder ? 0701 : 0750));
        }
    }
    for (const mode_t mask : {0022U, 0027U, 0777U}) {
        const TempDir dir;
        const mode_t before = ::umask(mask);
        const auto error = error_of([&] { save(dir / "out", in.new_model, options_with(in.new_state)); });
        ::umask(before);
        CHECK(!error);
        CHECK(mode_of(dir / "out/optimizer") == (0777 & ~mask));
        REQUIRE(::chmod((dir / "out").c_str(), 0700) == 0);
        REQUIRE(::chmod((dir / "out/optimizer").c_str(), 0700) == 0);
    }
}

TEST_CASE("verify looks into the folder of the optimizer") {
    const Inputs& in = inputs();
    const TempDir dir;
    SaveOptions options = options_with(in.new_state);
    options.checksums = true;
    options.folders.emplace("else", in.new_model);
    save(dir / "out", in.new_model, options);
    VerifyReport report = verify(dir / "out");
    CHECK(report.ok());
    CHECK(report.tensors == 2 * count);
    CHECK(report.bytes == 2 * count * 400);
    CHECK(report.checked_bytes == report.bytes);
    const fs::path shard = dir / "out/optimizer/model-00002-of-00003.safetensors";
    {
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-1, std::ios::end);
        file.put('x');
    }
    report = verify(dir / "out");
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::checksum_mismatch);
    CHECK(report.faults[0].path() == shard.native());
    CHECK(report.faults[0].tensor() == "s1");
    fs::remove(shard);
    report = verify(dir / "out");
    REQUIRE(!report.ok());
    CHECK(report.faults[0].code() == Errc::shard_missing);
    // Other subfolders do not belong to the checkpoint.
    fs::remove_all(dir / "out/optimizer");
    fs::remove(dir / "out/else/model-00001-of-00003.safetensors");
    CHECK(verify(dir / "out").ok());
}

TEST_CASE("verify does not follow a link called optimizer, and skips one that it may not read") {
    const Inputs& in = inputs();
    const TempDir dir;
    save(dir / "out", in.new_model, {.max_shard_size = 400});
    fs::create_directory_symlink(".", dir / "out/optimizer");
    CHECK(verify(dir / "out").tensors == count);
    fs::remove(dir / "out/optimizer");
    save(dir / "out/optimizer", in.new_state);
    fs::permissions(dir / "out/optimizer", fs::perms::none);
    if (::geteuid() != 0) CHECK(verify(dir / "out").tensors == count);
    fs::permissions(dir / "out/optimizer", fs::perms::owner_all);
    CHECK(verify(dir / "out").tensors == 2 * count);
}

TEST_CASE("a subfolder named like a shard of the old index does not block a save in place") {
    const TempDir dir;
    fs::create_directories(dir / "out/a.safetensors");
    dir.write("out/a.safetensors/mine", "mine");
    dir.write("out/model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
    const NoExchange none(true);
    CHECK_OK(save(dir / "out", inputs().new_model, {.overwrite = true}));
    CHECK(TempDir::read(dir / "out/a.safetensors/mine") == "mine");
}

}  // namespace folders_test
