// Tests which small files belong to a model folder.
#include "forge/containers.hpp"
#include "inspect.hpp"

#include <sys/stat.h>

namespace extras_test {

using namespace safemap;
using namespace containers;

namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

std::string model() { return containers::safetensors({{"w", Dtype::u8, {1}, "1"}}); }

Names extras_in_folder(const fs::path& folder) { return names_of(Checkpoint::open(folder).extras().files); }
Names extras_in(const TempDir& dir) { return extras_in_folder(dir.path()); }

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
    CHECK(names_of(extras.files) == sorted);
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
    const fs::path snapshot = dir / "snapshots/0a1b";
    fs::create_directories(snapshot / "unet");
    fs::create_symlink("../../blobs/1", snapshot / "model.safetensors");
    fs::create_symlink("../../blobs/2", snapshot / "config.json");
    fs::create_symlink("../../../blobs/1", snapshot / "unet/model.safetensors");
    fs::create_symlink("../../../blobs/2", snapshot / "unet/config.json");
    CHECK(extras_in_folder(snapshot / "unet") == Names{"config.json"});
    const Extras extras = Checkpoint::open(snapshot).extras();
    REQUIRE(names_of(extras.files) == Names{"config.json"});
    CHECK(extras.files[0].source->size() == 2);
}

TEST_CASE("links out of the folder are not followed, and a note says where they lead") {
    const TempDir dir;
    fs::create_directories(dir / "model/inner");
    dir.write("secret.txt", "x");
    dir.write("model/model.safetensors", model());
    dir.write("model/inner/own.json", "{}");
    fs::create_symlink("../secret.txt", dir / "model/notes.txt");
    fs::create_symlink(dir / "secret.txt", dir / "model/LICENSE");
    fs::create_symlink("/etc/hostname", dir / "model/tokenizer.json");
    fs::create_symlink("inner/own.json", dir / "model/config.json");
    fs::create_symlink("../model/inner/own.json", dir / "model/generation_config.json");
    fs::create_symlink("nowhere", dir / "model/broken.json");
    REQUIRE(::mkfifo((dir / "model/pipe.json").c_str(), 0600) == 0);
    fs::create_symlink("/dev/null", dir / "model/device.json");
    for (const fs::path& path : {dir / "model", dir / "link"}) {
        if (!fs::exists(path)) fs::create_directory_symlink("model", path);
        const Extras extras = Checkpoint::open(path).extras();
        CHECK(names_of(extras.files) == Names{"config.json", "generation_config.json"});
        REQUIRE(extras.notes.size() == 3);
        CHECK(extras.notes[0].find("'LICENSE' is not copied: it is a link out of the folder, to ") == 0);
        CHECK(extras.notes[1].find(fs::canonical(dir / "secret.txt").native()) != std::string::npos);
        CHECK(extras.notes[2].find("/etc/hostname") != std::string::npos);
    }
}

TEST_CASE("a file of more than 64 MiB is not an extra, and is noted") {
    const TempDir dir;
    dir.write("model.safetensors", model());
    dir.write("large.json", "");
    fs::resize_file(dir / "large.json", (64 << 20) + 1);
    dir.write("just.json", "");
    fs::resize_file(dir / "just.json", 64 << 20);
    const Extras extras = Checkpoint::open(dir.path()).extras();
    CHECK(names_of(extras.files) == Names{"just.json"});
    CHECK(only_of(extras.notes).find("large.json") != std::string::npos);
}

TEST_CASE("only the folder of a finished model has extras") {
    const auto with = [](const char* name, const std::string& content) {
        const TempDir dir;
        dir.write("config.json", "{}");
        dir.write(name, content);
        return extras_in(dir);
    };
    CHECK(with("model.safetensors", model()) == Names{"config.json"});
    CHECK(with("adapter_model.safetensors", model()) == Names{"config.json"});
    CHECK(with("model-00001-of-00001.safetensors", model()) == Names{"config.json"});
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

TEST_CASE("a model has the name under which it was opened, unless its file has another one") {
    const auto stem = [](const char* name) {
        const TempDir dir;
        dir.write(name, model());
        return Checkpoint::open(dir.path()).stem();
    };
    CHECK(stem("adapter_model.safetensors") == "adapter_model");
    CHECK(stem("diffusion_pytorch_model.fp16.safetensors") == "diffusion_pytorch_model");
    CHECK(stem("weights.safetensors") == "model");
    CHECK(checkpoint_of(model()).stem() == "model");
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
