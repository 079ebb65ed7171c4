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

TEST_CASE("only the folder of a model or of a training, and a model's file, have extras") {
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
    CHECK(names_of(Checkpoint::open(index).extras().files) == Names{"config.json"});
    // A file of any other name is not the model of the folder.
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

TEST_CASE("a file has the extras beside it only by a usual name and beside a configuration, and only the model's") {
    const TempDir dir;
    const Names beside = {"config.json", "tokenizer.json", "vocab.txt"};
    for (const std::string& name : beside) dir.write(name, name);
    for (const char* name : {"README.md", "LICENSE", "notes.txt", "trainer_state.json", "ds_config.json", "other.json",
                             "latest", "tokenizer.bin"})
        dir.write(name, "no");
    const auto of = [&](const std::string& name, const std::string& content) {
        dir.write(name, content);
        const Checkpoint opened = Checkpoint::open(dir / name);
        fs::remove(dir / name);
        dir.write(name, content);
        return names_of(opened.extras().files);
    };
    const std::string pickle = containers::pt({{"w", Dtype::f32, {1}, "1234"}});
    for (const char* name : {"model.safetensors", "model.fp16.safetensors", "adapter_model.safetensors",
                             "model-00001-of-00001.safetensors"})
        CHECK(of(name, model()) == beside);
    CHECK(of("pytorch_model.bin", pickle) == beside);
    CHECK(of("adapter_model.pt", pickle) == beside);
    for (const char* name : {"weights.safetensors", "my_model.safetensors", "diffusion_pytorch_model.safetensors",
                             "x-00001-of-00001.safetensors"})
        CHECK(of(name, model()).empty());
    for (const char* name : {"model.pt", "consolidated.00.pth", "checkpoint-3.pt"}) CHECK(of(name, pickle).empty());
    CHECK(Checkpoint::open(dir / "adapter_model.pt").stem() == "adapter_model");
    CHECK(Checkpoint::open(dir / "pytorch_model.bin").stem() == "model");
    CHECK(Checkpoint::open(dir / "weights.safetensors").stem() == "model");

    const std::vector<fs::path> shards = {dir / "model-00001-of-00002.safetensors",
                                          dir / "model-00002-of-00002.safetensors"};
    dir.write(shards[0].filename().native(), model());
    dir.write(shards[1].filename().native(), containers::safetensors({{"v", Dtype::u8, {1}, "1"}}));
    CHECK(names_of(Checkpoint::open(shards).extras().files) == beside);

    fs::remove(dir / "config.json");
    CHECK(Checkpoint::open(dir / "model.safetensors").extras().files.empty());
    fs::create_directory(dir / "config.json");
    CHECK(Checkpoint::open(dir / "model.safetensors").extras().files.empty());
    CHECK(Checkpoint::open(dir / "adapter_model.pt").stem() == "model");
}

namespace {

/// Returns the names of the extras, each with its content: the folder that it was written to.
Names places_of(const Extras& extras) {
    Names places;
    for (const ExtraFile& file : extras.files) {
        std::string content(file.source->size(), '\0');
        file.source->read_at(0, std::as_writable_bytes(std::span(content)));
        places.push_back(file.name + '=' + content);
    }
    return places;
}

bool mentions(const Names& notes, std::string_view text) {
    return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return note.find(text) != note.npos; });
}

}  // namespace

TEST_CASE("the extras of a training folder are beside the weights, below them, and up to the parent of the path") {
    const TempDir dir;
    const fs::path save = dir / "home/run/checkpoint-3";
    fs::create_directories(save / "huggingface");
    dir.write("home/run/checkpoint-3/pytorch_model_fsdp.bin", containers::pt({{"w", Dtype::f32, {1}, "1234"}}));
    for (const char* file : {"trainer_state.json", "ds_config.json", "README.md", "latest", "optimizer.pt",
                             "training_args.bin", "zero_to_fp32.py", ".config.json"})
        dir.write(std::string("home/run/checkpoint-3/") + file, "no");
    const auto extras = [](const fs::path& path) { return Checkpoint::open(path).extras(); };
    CHECK(extras(save).files.empty());
    dir.write("home/config.json", "home");
    dir.write("home/tokenizer.json", "home");
    CHECK(extras(save).files.empty());              // only the direct parent
    CHECK(extras(dir / "home/run").files.empty());  // the weights are deeper
    dir.write("home/run/config.json", "run");
    for (const char* path : {"home/run", "home/run/checkpoint-3", "home/run/checkpoint-3/", "home/run/checkpoint-3/."})
        CHECK(places_of(extras(dir / path)) == Names{"config.json=run"});
    const std::vector<fs::path> listed = {save / "pytorch_model_fsdp.bin"};
    CHECK(Checkpoint::open(listed).extras().files.empty());
    dir.write("home/run/checkpoint-3/huggingface/config.json", "huggingface");
    dir.write("home/run/checkpoint-3/huggingface/vocab.json", "huggingface");
    const Extras both = extras(save);
    CHECK(places_of(both) == Names{"config.json=huggingface", "vocab.json=huggingface"});
    CHECK(only_of(both.notes).find("'config.json' of ") == 0);
    CHECK(only_of(both.notes).find("/home/run is not copied: another one is nearer") != std::string::npos);
    dir.write("home/run/checkpoint-3/config.json", "checkpoint-3");
    CHECK(places_of(extras(save)) == Names{"config.json=checkpoint-3", "vocab.json=huggingface"});
    // A link to the folder counts as the folder.
    fs::create_directory_symlink(save, dir / "link");
    dir.write("generation_config.json", "beside the link");
    CHECK(places_of(extras(dir / "link")) == Names{"config.json=checkpoint-3", "vocab.json=huggingface"});
    CHECK(Checkpoint::open(save).stem() == "model");

    fs::remove(save / "config.json");
    fs::remove_all(save / "huggingface");
    fs::remove(dir / "home/run/config.json");
    dir.write("home/run/adapter_config.json", "run");
    CHECK(Checkpoint::open(save).stem() == "adapter_model");
}

TEST_CASE("an adapter has the tokenizer above its folder, and a finished model has nothing of there") {
    const TempDir dir;
    fs::create_directories(dir / "run/save");
    dir.write("run/tokenizer.json", "above");
    dir.write("run/README.md", "above");
    dir.write("run/save/README.md", "beside");
    dir.write("run/save/adapter_model.safetensors", model());
    CHECK(places_of(Checkpoint::open(dir / "run/save").extras()) == Names{"README.md=beside", "tokenizer.json=above"});
    dir.write("run/save/model.safetensors", model());
    CHECK(places_of(Checkpoint::open(dir / "run/save").extras()) == Names{"README.md=beside"});
}

TEST_CASE("hostile files around a training folder are left out, with a note") {
    const TempDir dir;
    fs::create_directories(dir / "run/save");
    dir.write("secret", "x");
    dir.write("run/save/pytorch_model_fsdp.bin", containers::pt({{"w", Dtype::f32, {1}, "1234"}}));
    fs::create_symlink("../secret", dir / "run/config.json");
    fs::create_symlink("/etc/hostname", dir / "run/save/tokenizer.json");
    dir.write("run/vocab.json", "");
    fs::resize_file(dir / "run/vocab.json", (64 << 20) + 1);
    fs::create_directory(dir / "run/adapter_config.json");
    REQUIRE(::mkfifo((dir / "run/save/config.json").c_str(), 0600) == 0);
    REQUIRE(::mkfifo((dir / "run/save/merges.txt").c_str(), 0600) == 0);
    const Extras extras = Checkpoint::open(dir / "run/save").extras();
    CHECK(extras.files.empty());
    for (const char* note :
         {"'config.json' is not copied: it is a link out of the folder", "it is a pipe",
          "'tokenizer.json' is not copied: it is a link out of the folder, to ", "'vocab.json' is not copied: it has ",
          "'adapter_config.json' is not copied: it is a folder"})
        CHECK(mentions(extras.notes, note));
    // Nor is a link to a folder followed.
    fs::create_directory(dir / "private");
    dir.write("private/config.json", "x");
    fs::create_directory_symlink("../../private", dir / "run/save/huggingface");
    const Extras linked = Checkpoint::open(dir / "run/save").extras();
    CHECK(linked.files.empty());
    CHECK(mentions(linked.notes, "'huggingface' is not looked into: it is a link out of the folder, to "));
    fs::remove(dir / "run/save/huggingface");
    // A file that is found elsewhere is not noted.
    fs::create_directory(dir / "run/save/huggingface");
    dir.write("run/save/huggingface/config.json", "good");
    const Extras found = Checkpoint::open(dir / "run/save").extras();
    CHECK(places_of(found) == Names{"config.json=good"});
    CHECK_FALSE(mentions(found.notes, "it is a pipe"));
}

TEST_CASE("code and folders of modules are not copied, and named") {
    const TempDir dir;
    dir.write("model.safetensors", model());
    dir.write("config.json", "{}");
    for (const char* code : {"modeling_custom.py", "configuration_custom.py", "train.py", "zero_to_fp32.py"})
        dir.write(code, "");
    for (const char* folder : {"1_Pooling", "2_Dense", "onnx"}) fs::create_directory(dir / folder);
    CHECK(only_of(Checkpoint::open(dir.path()).extras().notes) ==
          "code is not copied: configuration_custom.py, modeling_custom.py; the model may need it (trust_remote_code)");
    dir.write("modules.json", "[]");
    CHECK(mentions(Checkpoint::open(dir.path()).extras().notes,
                   "folders of modules are not copied: 1_Pooling, 2_Dense; "));
    fs::create_directory(dir / "0_Transformer");
    fs::rename(dir / "model.safetensors", dir / "0_Transformer/model.safetensors");
    dir.write("modules.json", R"([{"path": "0_Transformer"}, {"path": "1_Pooling"}, {"path": "2_Dense"}])");
    CHECK(only_of(Checkpoint::open(dir.path()).extras().notes)
              .starts_with("folders of modules are not copied: 1_Pooling, 2_Dense; "));
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
