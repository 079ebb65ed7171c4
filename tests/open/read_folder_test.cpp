// Tests which files of a folder are the checkpoint.
#include "open/read.hpp"

#include "base/folder.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"

namespace read_folder_test {

using namespace safemap;
using state::Contents;

namespace {

Contents read(std::map<std::string, std::string> files) {
    ThrowFirst faults;
    return open::read_located(open::locate(std::make_shared<forge::Folder>(std::move(files))), {}, faults);
}

const std::string one = forge::u8_file({{"one", 1}});
const std::string two = forge::u8_file({{"two", 2}});
const std::string index_of_two = R"({"metadata":{"total_size":2},"weight_map":{"two":"two.safetensors"}})";

std::string first_name(const Contents& contents) { return contents.tensors.at(0).name(); }

}  // namespace

TEST_CASE("an index is preferred to model.safetensors, and unread files are noted") {
    const Contents contents = read({{"model.safetensors", one},
                                    {"model.safetensors.index.json", index_of_two},
                                    {"two.safetensors", two},
                                    {"pytorch_model.bin", "x"},
                                    {"config.json", "{}"}});
    CHECK(first_name(contents) == "two");
    CHECK(contents.files == std::vector<std::string>{"two.safetensors"});
    CHECK(only_of(contents.notes) ==
          "read model.safetensors.index.json; not read: model.safetensors, pytorch_model.bin");
}

TEST_CASE("model.safetensors is preferred to PyTorch's files") {
    const Contents contents = read({{"model.safetensors", one},
                                    {"pytorch_model.bin", "x"},
                                    {"pytorch_model.bin.index.json", R"({"weight_map":{}})"}});
    CHECK(first_name(contents) == "one");
    CHECK(contents.files == std::vector<std::string>{"model.safetensors"});
    CHECK(contents.notes.at(0).find("pytorch_model.bin, pytorch_model.bin.index.json") != std::string::npos);
}

TEST_CASE("a PyTorch index is preferred to pytorch_model.bin") {
    // A .bin is identified by its content, so safetensors will do.
    const Contents contents = read(
        {{"pytorch_model.bin", one}, {"pytorch_model.bin.index.json", R"({"weight_map":{"two":"b"}})"}, {"b", two}});
    CHECK(first_name(contents) == "two");
    CHECK(first_name(read({{"pytorch_model.bin", one}, {"other.bin", two}})) == "one");
}

TEST_CASE("a single file of weights is the checkpoint, whatever its name") {
    for (const char* name : {"adapter.safetensors", "a.pt", "a.pth", "a.bin"}) {
        const Contents contents = read({{name, one}, {"README.md", "x"}, {"config.json", "{}"}});
        CHECK(contents.files == std::vector<std::string>{name});
        CHECK(contents.notes.empty());
    }
}

TEST_CASE("files that a trainer leaves beside a model are not the model, but are noted") {
    const std::map<std::string, std::string> left = {
        {"training_args.bin", "x"}, {"optimizer.pt", "x"},     {"optimizer_1.bin", "x"}, {"scheduler.pt", "x"},
        {"rng_state.pth", "x"},     {"rng_state_12.pth", "x"}, {"scaler.pt", "x"}};
    for (const char* name :
         {"adapter_model.safetensors", "adapter_model.bin", "optimizer.safetensors", "my_optimizer.pt"}) {
        CAPTURE(name);
        auto files = left;
        files[name] = one;
        const Contents contents = read(files);
        CHECK(contents.files == std::vector<std::string>{name});
        REQUIRE(contents.notes.size() == 1);
        for (const auto& file : left) CHECK(contents.notes[0].find(file.first) != std::string::npos);
    }
    const auto rivals = error_of([&] {
        static_cast<void>(read({{"a.bin", one}, {"b.bin", two}, {"training_args.bin", "x"}}));
    });
    check_error(rivals, {Errc::several_models}, {});
    CHECK(rivals->message().find("training_args") == std::string::npos);
    // If there is nothing else, they are the checkpoint.
    CHECK(first_name(read({{"optimizer.pt", one}, {"config.json", "{}"}})) == "one");
    CHECK_FAULT(read({{"optimizer.pt", one}, {"scheduler.pt", two}}), Errc::not_a_checkpoint);
}

TEST_CASE("a hidden file is not a model") {
    CHECK(first_name(read({{"a.ckpt", one}, {"._a.ckpt", "x"}, {".b.safetensors", two}})) == "one");
}

TEST_CASE("two models are an error that lists them") {
    const auto listed = [](std::map<std::string, std::string> files) {
        const auto error = error_of([&] { static_cast<void>(read(files)); });
        check_error(error, {Errc::several_models}, {});
        CHECK_FALSE(error->hint().empty());
        CHECK(error->path() == "folder");
        for (const auto& file : files) CHECK(error->message().find(file.first) != std::string::npos);
    };
    listed({{"a.safetensors", one}, {"b.safetensors", two}});
    listed({{"a.pt", one}, {"b.bin", two}});
    listed({{"a.safetensors.index.json", index_of_two}, {"b.safetensors.index.json", index_of_two}});
    listed({{"model.fp16.safetensors", one}, {"model.bf16.safetensors", two}});
    listed({{"a.bin.index.json", "{}"}, {"b.bin.index.json", "{}"}});
}

TEST_CASE("a folder without weights is refused") {
    CHECK_FAULT(read({}), Errc::not_a_checkpoint);
    CHECK_FAULT(read({{"config.json", "{}"}, {".bin", "x"}}), Errc::not_a_checkpoint);
}

TEST_CASE("a folder without weights whose folders have checkpoints deeper inside is refused with their paths") {
    const auto hint_of = [](const std::map<std::string, std::string>& files) {
        const auto error = error_of([&] { static_cast<void>(read(files)); });
        check_error(error, {Errc::not_a_checkpoint}, {});
        return error->hint();
    };
    CHECK(hint_of({{"info.json", "{}"},
                   {"policy/tokenizer/vocab.json", "{}"},
                   {"policy/weights/model/model.safetensors", one},
                   {"value/inner/a/b/model.safetensors", two}}) ==
          "give the folder of a checkpoint in it: folder/policy/weights, folder/value/inner/a");
    CHECK(hint_of({{"info.json", "{}"}, {"policy/tokenizer/vocab.json", "{}"}, {".old/a/b/model.bin", one}}).empty());
    CHECK(hint_of({{"info.json", "{}"}, {"a/b/c/d/e/f/g/model.bin", one}}).empty());
}

}  // namespace read_folder_test
