// Tests which small files belong to a model folder.
#include "containers.hpp"

#include <sys/stat.h>

namespace extras_test {

using namespace safemap;
using namespace containers;

namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

std::string model() { return containers::safetensors({{"w", Dtype::u8, {1}, "1"}}); }

Names names_of(const Extras& extras) {
    Names names;
    for (const ExtraFile& file : extras.files) names.push_back(file.name);
    return names;
}

Names extras_in(const TempDir& dir) { return names_of(Checkpoint::open(dir.path()).extras()); }

}  // namespace

TEST_CASE("the small files beside a model are extras; weights, code and hidden files are not") {
    const TempDir dir;
    dir.write("model.safetensors", model());
    const Names wanted = {
        "LICENSE",    "LICENSE.txt",  "NOTICE.md",          "README.md",      "chat.jinja",           "config.json",
        "merges.txt", "spiece.model", "tokenizer.tiktoken", "tokenizer.json", "tokenizer_config.json"};
    for (const std::string& name : wanted) dir.write(name, name);
    for (const char* name : {"pytorch_model.bin.index.json", "tokenizer.bin.index.json", "tokenizer.py",
                             "tokenizer.bin", "tokenizer.sft", "modeling.py", "notes.md", "my_LICENSE", "readme.md",
                             ".config.json", "._config.json", "optimizer.pt", "LICENSE.pkl"})
        dir.write(name, "no");
    fs::create_directory(dir / "folder.json");
    REQUIRE(::mkfifo((dir / "pipe.json").c_str(), 0600) == 0);
    fs::create_symlink("nowhere", dir / "dangling.json");
    Names sorted = wanted;
    std::sort(sorted.begin(), sorted.end());
    const Extras extras = Checkpoint::open(dir.path()).extras();
    CHECK(names_of(extras) == sorted);
    CHECK(extras.notes.empty());
    for (const ExtraFile& file : extras.files) {
        std::string content(file.source->size(), '\0');
        file.source->read_at(0, std::as_writable_bytes(std::span(content)));
        CHECK(content == file.name);
    }
}

TEST_CASE("the symbolic links of a hub cache are followed") {
    const TempDir dir;
    fs::create_directories(dir / "blobs");
    dir.write("blobs/1", model());
    dir.write("blobs/2", "{}");
    fs::create_directory(dir / "snapshot");
    fs::create_symlink("../blobs/1", dir / "snapshot/model.safetensors");
    fs::create_symlink("../blobs/2", dir / "snapshot/config.json");
    const Extras extras = Checkpoint::open(dir / "snapshot").extras();
    REQUIRE(names_of(extras) == Names{"config.json"});
    CHECK(extras.files[0].source->size() == 2);
}

TEST_CASE("a file of more than 64 MiB is not an extra, and is noted") {
    const TempDir dir;
    dir.write("model.safetensors", model());
    dir.write("large.json", "");
    fs::resize_file(dir / "large.json", (64 << 20) + 1);
    dir.write("just.json", "");
    fs::resize_file(dir / "just.json", 64 << 20);
    const Extras extras = Checkpoint::open(dir.path()).extras();
    CHECK(names_of(extras) == Names{"just.json"});
    REQUIRE(extras.notes.size() == 1);
    CHECK(extras.notes[0].find("large.json") != std::string::npos);
}

TEST_CASE("only the folder of a finished model has extras") {
    const auto with = [](const char* name, const std::string& content) {
        const TempDir dir;
        dir.write("config.json", "{}");
        dir.write(name, content);
        return extras_in(dir);
    };
    CHECK(with("model.safetensors", model()) == Names{"config.json"});
    CHECK(with("weights.safetensors", model()).empty());

    const TempDir dir;
    dir.write("config.json", "{}");
    const fs::path index = write_shards(dir, {{"w", Dtype::u8, {1}, "1"}});
    CHECK(extras_in(dir) == Names{"config.json"});
    // A path to a file is not a model folder, whatever is beside it.
    CHECK(Checkpoint::open(index).extras().files.empty());
    const std::vector<fs::path> files = {dir / "shard0.safetensors"};
    CHECK(Checkpoint::open(files).extras().files.empty());
    CHECK(Checkpoint::open(files.front()).extras().files.empty());
    CHECK(checkpoint_of(model()).extras().files.empty());
}

TEST_CASE("a shard that an index names is not an extra") {
    const TempDir dir;
    dir.write("shard.txt", model());
    dir.write("merges.txt", "");
    dir.write("model.safetensors.index.json", R"({"weight_map":{"w":"shard.txt"}})");
    CHECK(extras_in(dir) == Names{"merges.txt"});
}

TEST_CASE("extras() of a folder that was replaced since open is refused") {
    const TempDir dir;
    dir.write("model.safetensors", model());
    dir.write("config.json", "{}");
    const Checkpoint opened = Checkpoint::open(dir.path());
    CHECK(opened.extras().files.size() == 1);
    fs::remove(dir / "model.safetensors");
    CHECK_FAULT(opened.extras(), Errc::file_changed);
}

}  // namespace extras_test
