// Tests scan() as a library: the order of visits, what ends it, and that what a checkpoint has read is not opened
// again. tests/cli/commands/scan.py tests what is found.
#include <safemap/scan.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "temp_dir.hpp"

#include <filesystem>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

namespace scan_test {

using namespace safemap;

namespace {

std::string one_byte(const std::string& name) {
    return forge::safetensors("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a");
}

std::vector<std::string> scanned(const TempDir& folder, const ScanOptions& options = {}) {
    std::vector<std::string> found;
    const std::filesystem::path paths[] = {folder.path()};
    scan(paths, options, [&](const ScannedCheckpoint& one) {
        found.push_back(one.path.lexically_relative(folder.path()).native() + (one.fault ? " !" : ""));
    });
    return found;
}

void fill(const TempDir& folder) {
    for (const char* const name : {"b/deep", "a"}) std::filesystem::create_directories(folder / name);
    folder.write("b/deep/model-00001-of-00002.safetensors", one_byte("x"));
    folder.write("b/deep/model-00002-of-00002.safetensors", one_byte("y"));
    folder.write("b/deep/model.safetensors.index.json",
                 R"({"weight_map":{"x":"model-00001-of-00002.safetensors","y":"model-00002-of-00002.safetensors"}})");
    folder.write("z.safetensors", one_byte("z"));
    folder.write("a/cut.safetensors", "12345");
}

}  // namespace

TEST_CASE("Checkpoints of several files are visited first, then files, sorted by name") {
    const TempDir folder;
    fill(folder);
    const std::vector<std::string> found = scanned(folder);
    CHECK(found ==
          std::vector<std::string>{"b/deep/model.safetensors.index.json", "a/cut.safetensors !", "z.safetensors"});
    CHECK(scanned(folder, {.open = {.work = {.threads = 8}}}) == found);
}

TEST_CASE("A path that does not exist, a stop request and the visitor's exception end a scan") {
    const TempDir folder;
    fill(folder);
    const std::filesystem::path gone[] = {folder / "gone"};
    CHECK_FAULT(scan(gone, {}, [](const ScannedCheckpoint&) {}), Errc::path_not_found);
    std::stop_source stop;
    stop.request_stop();
    ScanOptions options;
    options.open.work.monitor.stop = stop.get_token();
    CHECK_FAULT(scanned(folder, options), Errc::cancelled);
    const std::filesystem::path paths[] = {folder.path()};
    CHECK_THROWS_AS(scan(paths, {}, [](const ScannedCheckpoint&) { throw std::runtime_error("enough"); }),
                    std::runtime_error);
}

}  // namespace scan_test
