// What a caller sees of an opened checkpoint.
#include <safemap/checkpoint.hpp>
#include <safemap/verify.hpp>

#include "doctest_safemap.hpp"
#include "forge.hpp"
#include "temp_dir.hpp"

#include <sys/stat.h>

using namespace safemap;

namespace {

Checkpoint open(std::string_view content) { return Checkpoint::open(forge::source(content)); }

std::string bytes_of(const LazyTensor& tensor) {
    std::string bytes(tensor.nbytes(), '\0');
    tensor.read(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

const std::string tied = forge::safetensors(
    R"({"__metadata__":{"format":"pt","lm_head":"wte","head2":"wte","gone":"nowhere","b":"wte"},)"
    R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"wte":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
    R"("pt":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}})",
    "abc");

}  // namespace

TEST_CASE("tensors are listed by offset and found by name") {
    const auto model = open(forge::u8_file({{"b", 3}, {"a", 2}}));
    CHECK(model.format() == Format::safetensors);
    CHECK(name(model.format()) == "safetensors");
    REQUIRE(model.size() == 2);
    CHECK_FALSE(model.empty());
    CHECK(model.total_bytes() == 5);
    CHECK(model.tensor(0).name() == "b");
    CHECK(model.begin()[1].name() == "a");
    CHECK(model.end() - model.begin() == 2);
    CHECK(bytes_of(model["a"]) == "\x03\x04");
    CHECK(bytes_of(model.find("b").value()) == std::string("\0\x01\x02", 3));
    CHECK_FALSE(model.find("c").has_value());
    CHECK(model.tree() == nullptr);
    CHECK(model.checksums().empty());
}

TEST_CASE("a name that is not there gives near ones") {
    const auto model = open(forge::u8_file({{"layer.weight", 1}, {"layer.bias", 1}}));
    const auto error = error_of([&] { static_cast<void>(model["layer.wieght"]); });
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::tensor_not_found);
    CHECK(error->hint() == "did you mean 'layer.weight'?");
    CHECK_FAULT(open(forge::safetensors("{}"))["x"], Errc::tensor_not_found);
}

TEST_CASE("tied tensors of the safetensors package are found by all their names") {
    const auto model = open(tied);
    CHECK(model.size() == 3);
    REQUIRE(model.aliases().size() == 1);
    CHECK(model.aliases()[0] == AliasGroup{"wte", "head2", "lm_head"});
    CHECK(model["lm_head"].name() == "lm_head");
    CHECK(bytes_of(model["lm_head"]) == "bc");
    CHECK(bytes_of(model["head2"]) == "bc");
    CHECK(bytes_of(model["b"]) == "a");
    CHECK_FALSE(model.find("gone").has_value());
    CHECK_FALSE(model.find("format").has_value());
    const auto error = error_of([&] { static_cast<void>(model["lm_haed"]); });
    REQUIRE(error.has_value());
    CHECK(error->hint().find("'lm_head'") != std::string::npos);
}

TEST_CASE("a selection keeps the order") {
    const auto model = open(forge::u8_file({{"l.1.w", 1}, {"x", 1}, {"l.0.w", 1}, {"l.10.w", 1}}));
    const auto selected = model.select(Selection::glob("l.*"));
    REQUIRE(selected.size() == 3);
    CHECK(selected[0].name() == "l.1.w");
    CHECK(selected[2].name() == "l.10.w");
    CHECK(model.select(Selection::prefix("l.1")).size() == 1);
}

TEST_CASE("tensors outlive the checkpoint they came from") {
    std::optional<LazyTensor> tensor;
    {
        const auto model = open(forge::u8_file({{"a", 4}}));
        tensor = model["a"];
    }
    CHECK(bytes_of(*tensor) == std::string("\0\1\2\3", 4));
}

TEST_CASE("options are obeyed") {
    const auto source = forge::source(forge::u8_file({{"a", 1}}));
    const auto longer = forge::source(forge::u8_file({{"a", 1}}) + "more");
    CHECK_OK(Checkpoint::open(source, {.policy = Policy::strict}));
    CHECK_FAULT(Checkpoint::open(longer, {.policy = Policy::strict}), Errc::trailing_bytes);
    CHECK_FAULT(Checkpoint::open(longer), Errc::trailing_bytes);
    const auto lenient = Checkpoint::open(longer, {.policy = Policy::lenient});
    CHECK(lenient.notes() == std::vector<std::string>{"allowed: 4 bytes after the last tensor"});
    CHECK_FAULT(Checkpoint::open(source, {.max_header_bytes = 10}), Errc::header_too_large);
    CHECK_FAULT(Checkpoint::open(std::shared_ptr<const Source>()), Errc::invalid_argument);
}

TEST_CASE("files, folders and indexes of the file system are opened") {
    const TempDir dir;
    const auto file = dir.write("1.safetensors", forge::u8_file({{"a", 3}}));
    const auto single = Checkpoint::open(file);
    CHECK(single.files() == std::vector<std::string>{"1.safetensors"});
    CHECK(Checkpoint::open(dir.path()).size() == 1);
    const auto index = dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
    CHECK(Checkpoint::open(index).size() == 1);
    const auto view = Checkpoint::open(dir.path())["a"].view();
    CHECK(view.bytes().size() == 3);
    const auto variant = dir.write("model.safetensors.index.fp16.json", R"({"weight_map":{"a":"1.safetensors"}})");
    CHECK(Checkpoint::open(variant).size() == 1);
    CHECK_FAULT(Checkpoint::open(dir / "nothing"), Errc::path_not_found);
    for (const char* name : {"weights.json", "index", "model.bin"}) {
        const auto other = dir.write(name, " \n{\"weight_map\": {\"a\": \"1.safetensors\"}}");
        const auto model = Checkpoint::open(other);
        CHECK(model.files() == std::vector<std::string>{"1.safetensors"});
    }
    CHECK_FAULT(Checkpoint::open(dir.write("config.json", "{\"a\": 1}")), Errc::unknown_format);
    CHECK_FAULT(Checkpoint::open(dir.write("x.index.json", "{")), Errc::index_not_json);
}

TEST_CASE("a shard that is no file is named as what it is, and nobody waits for it") {
    const TempDir dir;
    REQUIRE(::mkfifo((dir / "1").c_str(), 0600) == 0);
    std::filesystem::create_directory(dir / "2");
    const auto index = dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"1","b":"2","c":"3"}})");
    const auto error = error_of([&] { static_cast<void>(Checkpoint::open(index)); });
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::shard_missing);
    CHECK(error->message() == "a pipe, wanted a regular file");
    const auto report = verify(dir.path());
    REQUIRE(report.faults.size() == 3);
    for (const Error& fault : report.faults) CHECK(fault.code() == Errc::shard_missing);
    CHECK(report.faults[1].message() == "a folder, wanted a regular file");
    CHECK(report.faults[1].path() == (dir / "2").native());
    CHECK(report.faults[2].message().find("no such file") != std::string::npos);
}

TEST_CASE("copied access never maps") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3}}));
    const auto model = Checkpoint::open(file, {.access = Access::copied});
    CHECK_FAULT(model["a"].view(), Errc::no_view);
    CHECK(bytes_of(model["a"]).size() == 3);
    CHECK(model["a"].load().nbytes() == 3);
}

TEST_CASE("a private copy is changed through its views, and the file stays as it is") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3}, {"b", 2}}));
    const std::string before = TempDir::read(file);
    const OpenOptions options{.access = Access::private_copy};
    std::optional<Checkpoint> model = Checkpoint::open(file, options);
    const auto other = Checkpoint::open(dir.path(), options);
    const TensorView view = (*model)["a"].view();
    const std::byte changed{static_cast<unsigned char>(~std::to_integer<unsigned>(view.bytes()[1]))};
    view.mutable_bytes()[1] = changed;

    const TensorView again = (*model)["a"].slice({Slice::at(1)}).view();
    CHECK(again.bytes()[0] == changed);  // one copy for each open
    CHECK((*model)["a"].load().at<std::uint8_t>(1) != std::to_integer<std::uint8_t>(changed));  // reads the file
    const TensorView theirs = other["a"].view();
    CHECK(theirs.bytes()[1] != changed);
    model.reset();
    CHECK(view.bytes()[1] == changed);
    CHECK(TempDir::read(file) == before);

    const auto mapped = Checkpoint::open(file);
    const TensorView read_only = mapped["a"].view();
    CHECK_FAULT(read_only.mutable_bytes(), Errc::read_only);
    const TensorView loaded = mapped["a"].load();
    loaded.mutable_as<std::uint8_t>()[0] = 9;
    CHECK(loaded.at<std::uint8_t>(0) == 9);
}

TEST_CASE("a fault names the file and the tensor") {
    const TempDir dir;
    const auto file = dir.write(
        "m.safetensors", forge::safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "dddd"));
    const auto error = error_of([&] { static_cast<void>(Checkpoint::open(file)); });
    REQUIRE(error.has_value());
    CHECK(error->path() == file.native());
    CHECK(error->tensor() == "a");
}
