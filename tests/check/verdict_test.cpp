// Tests the verdicts of files and folders, also of those that do not open.
#include <safemap/checkpoint.hpp>
#include <safemap/scan.hpp>
#include <safemap/verify.hpp>

#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace check_verdict_test {

using namespace safemap;

using namespace std::string_literals;

namespace {

const std::string evil = forge::call("posix", "system", {forge::text("id")});
const std::string damaged = "\x80\2"s + evil + "\xff";

std::string names_in(const Findings& findings) {
    std::string names;
    for (const Finding& each : findings.listed) names += (names.empty() ? "" : " ") + each.name + " in " + each.record;
    return names;
}

}  // namespace

TEST_CASE("verify gives the verdict of a file that does not open") {
    const TempDir folder;
    forge::Zip zip;
    zip.add("a/data.pkl", damaged);
    const std::string bad_record = forge::archive(evil).substr(0, 60);
    for (const auto& row : {std::pair{"a.pt", zip.join()}, std::pair{"b.pt", damaged},
                            std::pair{"c.safetensors", forge::pickle(evil)}, std::pair{"d.bin", bad_record}}) {
        const auto& name = row.first;
        const auto& bytes = row.second;
        CAPTURE(name);
        const VerifyReport report = verify(folder.write(name, bytes));
        CHECK_FALSE(report.ok());
        CHECK(report.verdict() == Verdict::runs_code);
        CHECK(report.findings.listed.front().name == "posix.system");
        CHECK(examine(folder / name).verdict == Verdict::runs_code);
    }
    CHECK(examine(folder.write("e.bin", "GGUF and more")).verdict == Verdict::unknown);
    CHECK(examine(folder.write("f.bin", "")).verdict == Verdict::ok);
    CHECK_FAULT(examine(folder / "missing"), Errc::path_not_found);
}

TEST_CASE("a sound file has the verdict that it was opened with") {
    const TempDir folder;
    const auto path = folder.write("a.pt", forge::archive(evil));
    const Checkpoint opened = Checkpoint::open(path);
    CHECK(opened.verdict() == Verdict::runs_code);
    CHECK(names_in(opened.findings()) == "posix.system in a/data.pkl");
    CHECK(Checkpoint(opened.select({})).verdict() == Verdict::runs_code);
    CHECK(names_in(verify(path).findings) == "posix.system in a/data.pkl");
    VerifyOptions strict;
    strict.open.strict_globals = true;
    CHECK(names_in(verify(path, strict).findings) == "posix.system in a/data.pkl");
    const auto plain = folder.write("b.safetensors", forge::safetensors("{}", ""));
    CHECK(Checkpoint::open(plain).verdict() == Verdict::ok);
    CHECK(names_in(verify(plain).findings).empty());
}

TEST_CASE("the files of a folder are examined, and texts among them are not") {
    const TempDir folder;
    std::filesystem::create_directory(folder / "inner");
    std::filesystem::create_directory(folder / ".hidden");
    folder.write("README", "command: a text\nthat reads\nlike a pickle.");
    folder.write("vocab.txt", "cat\ndog\nbird");
    folder.write("model.safetensors", forge::safetensors("{}", ""));
    folder.write("config.json", "{}");
    CHECK(examine(folder.path()).verdict == Verdict::ok);
    folder.write("inner/state", damaged);
    folder.write(".hidden/state.pkl", damaged);
    CHECK(names_in(examine(folder.path())) == "posix.system in inner/state the pickle in inner/state");
    folder.write("weights.bin", "no pickle");
    CHECK(names_in(examine(folder.path())).find("the file in weights.bin") != std::string::npos);
}

TEST_CASE("the items of torch.distributed.checkpoint are judged, also if the folder does not open") {
    const std::string old = "cposix\nsystem\n(S'id'\ntR0}.";
    const std::pair<const char*, std::string> items[] = {
        {"an object", forge::archive(evil)},
        {"a pickle", forge::pickle(evil)},
        {"an old pickle", old},
        {"an old pickle before a zip", old + forge::archive("}")},
    };
    for (const auto& row : items) {
        const auto& about = row.first;
        const auto& item = row.second;
        CAPTURE(about);
        dcp_forge::Save save;
        save.add_object("first", "}");
        dcp_forge::Entry entry{.name = "evil", .path = std::nullopt, .item = save.put("__0_0.distcp", item)};
        save.metadata.entries.push_back(std::move(entry));
        save.add_object("last", "}");
        const TempDir folder;
        for (const auto& [name, bytes] : save.all()) folder.write(name, bytes);
        CHECK(verify(folder.path()).verdict() == Verdict::runs_code);
        CHECK(examine(folder.path()).verdict == Verdict::runs_code);
        CHECK(examine(folder / "__0_0.distcp").verdict == Verdict::runs_code);
        const auto scanned = [&] {
            Verdict worst = Verdict::ok;
            const std::filesystem::path paths[] = {folder.path()};
            scan(paths, {}, [&](const ScannedCheckpoint& one) { worst = std::max(worst, one.findings.verdict); });
            return worst;
        };
        CHECK(scanned() == Verdict::runs_code);
        folder.write("__0_0.distcp", forge::archive(evil));  // not the file of the metadata
        CHECK(examine(folder.path()).verdict == Verdict::runs_code);
        CHECK(scanned() == Verdict::runs_code);
        std::filesystem::remove(folder / ".metadata");
        CHECK(examine(folder / "__0_0.distcp").verdict >= Verdict::unknown);
    }
}

}  // namespace check_verdict_test
