// Tests the public behaviour of an opened checkpoint. From top to bottom: names and selections, options, the ways to
// open, access modes and private copies, faults, the page cache, network file systems, changed files, many and large
// files, threads.
#include <safemap/checkpoint.hpp>
#include <safemap/diff.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include "check_error.hpp"
#include "child_process.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "io/scripted_calls.hpp"
#include "temp_dir.hpp"

#include <safemap/verify.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace checkpoint_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

Checkpoint open(std::string_view content) { return Checkpoint::open(forge::source(content)); }

std::string bytes_of(const LazyTensor& tensor) {
    std::string bytes(tensor.nbytes(), '\0');
    tensor.read(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

/// Sets a modification time later than the open, even on a file system with a coarse clock.
void touch(const fs::path& file) { fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1)); }

/// Writes one tensor "tI" of four bytes to each of `count` files, and their index.
void write_shards(const TempDir& dir, int count) {
    std::string weight_map;
    for (int i = 0; i < count; ++i) {
        const std::string number = std::to_string(i);
        dir.write("s" + number + ".safetensors", forge::u8_file({{"t" + number, 4}}));
        weight_map += (i > 0 ? ",\"t" : "\"t") + number + "\":\"s" + number + ".safetensors\"";
    }
    dir.write("model.safetensors.index.json", R"({"weight_map":{)" + weight_map + "}}");
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
    CHECK(bytes_of(*model.find("b")) == std::string("\0\x01\x02", 3));
    CHECK(model.find("c") == nullptr);
    CHECK(model.tree() == nullptr);
}

TEST_CASE("the tree of a flat state dict is built once, for all threads") {
    const auto opened = open(forge::pt({{"b", {2}, {1, 2}}, {"a", {1}, {3}}, {"c", {1}, {4}}}));
    const Checkpoint part =
        opened.select(Selection::names({"a", "c"})).renamed([](auto name) { return "x." + std::string(name); });
    std::vector<const StateTree*> trees(4);
    std::vector<std::thread> threads;
    for (const StateTree*& tree : trees)
        threads.emplace_back(
            [&tree, &part, &opened, first = &trees.front()] { tree = &tree == first ? opened.tree() : part.tree(); });
    for (std::thread& thread : threads) thread.join();
    for (const StateTree* const tree : trees) CHECK(tree == opened.tree());

    REQUIRE(opened.tree() != nullptr);
    const StateTree& tree = *opened.tree();
    const auto& items = std::get<StateTree::Dict>(tree[tree.root()]).items;
    REQUIRE(items.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(std::get<std::string>(tree[items[i].first]) == opened.tensor(i).name());
        const auto& leaf = std::get<StateTree::Tensor>(tree[items[i].second]);
        CHECK(leaf.tensor.name().empty());
        CHECK(leaf.tensor.stored() == opened.tensor(i).stored());
    }
    CHECK(opened.parts().empty());
    const Checkpoint below = opened.below("a");
    CHECK(bytes_of(below.tensor(0)) == bytes_of(opened["a"]));
}

TEST_CASE("a missing name suggests similar names") {
    const auto model = open(forge::u8_file({{"layer.weight", 1}, {"layer.bias", 1}}));
    check_error(error_of([&] { static_cast<void>(model["layer.wieght"]); }), {Errc::tensor_not_found}, {},
                {.hint = "did you mean 'layer.weight'?"});
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
    CHECK(model.find("gone") == nullptr);
    CHECK(model.find("format") == nullptr);
    const auto error = error_of([&] { static_cast<void>(model["lm_haed"]); });
    REQUIRE(error.has_value());
    CHECK(error->hint().find("'lm_head'") != std::string::npos);
}

TEST_CASE("a selection keeps the order") {
    const auto model = open(forge::u8_file({{"l.1.w", 1}, {"x", 1}, {"l.0.w", 1}, {"l.10.w", 1}}));
    const auto selected = model.select(Selection::glob("l.*"));
    REQUIRE(selected.size() == 3);
    CHECK(selected.tensor(0).name() == "l.1.w");
    CHECK(selected.tensor(2).name() == "l.10.w");
    CHECK(model.select(Selection::prefix("l.1")).size() == 1);
}

TEST_CASE("a selection has a tied tensor once, under its first selected name") {
    const auto model = open(tied);
    const auto names = [&](const Selection& selection) {
        std::vector<std::string> found;
        const Checkpoint selected = model.select(selection);
        for (const LazyTensor& tensor : selected) found.push_back(tensor.name());
        return found;
    };
    using Names = std::vector<std::string>;
    CHECK(names({}) == Names{"b", "wte", "pt"});
    CHECK(names(Selection::names({"lm_head"})) == Names{"lm_head"});
    CHECK(names(Selection::names({"lm_head", "head2", "b"})) == Names{"b", "head2"});
    CHECK(names(Selection().exclude("wte")) == Names{"b", "head2", "pt"});
    CHECK(model.residency(Selection::names({"lm_head"})).total == 2);
    CHECK(bytes_of(model.select(Selection::names({"lm_head"}))["lm_head"]) == "bc");
}

TEST_CASE("tensors outlive the checkpoint they came from") {
    std::optional<LazyTensor> tensor;
    {
        const auto model = open(forge::u8_file({{"a", 4}}));
        tensor = model["a"];
    }
    CHECK(bytes_of(*tensor) == std::string("\0\1\2\3", 4));
}

TEST_CASE("open options take effect") {
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

TEST_CASE("a list of files is one checkpoint, in the given order") {
    const TempDir dir;
    const std::vector<fs::path> files = {
        dir.write("z.safetensors", forge::safetensors(R"({"__metadata__":{"format":"pt","by":"z"},)"
                                                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                                      "bb")),
        dir.write("a.safetensors", forge::safetensors(R"({"__metadata__":{"format":"pt","by":"a"},)"
                                                      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})",
                                                      "a"))};
    const auto model = Checkpoint::open(files);
    REQUIRE(model.size() == 2);
    CHECK(model.tensor(0).name() == "b");
    CHECK(bytes_of(model["a"]) == "a");
    CHECK(model.files() == std::vector<std::string>{files[0].native(), files[1].native()});
    CHECK(model.metadata() == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    CHECK(model.notes() == std::vector<std::string>{files[1].native() + ": allowed: tensor 'a': unknown field 'x'"});
    CHECK(model.total_bytes() == 3);

    const std::vector<fs::path> missing = {files[0], dir.path() / "none.safetensors"};
    CHECK_FAULT(Checkpoint::open(missing), Errc::path_not_found);
    CHECK_FAULT(Checkpoint::open(std::span<const fs::path>()), Errc::invalid_argument);
}

TEST_CASE("a list of sources is one checkpoint, and duplicate names are refused") {
    const auto named = [](const char* name, const std::string& bytes) {
        const auto all = std::as_bytes(std::span(bytes));
        return memory_source(name, std::vector<std::byte>(all.begin(), all.end()));
    };
    std::vector<std::shared_ptr<const Source>> sources = {named("one", forge::u8_file({{"a", 1}})),
                                                          named("two", forge::u8_file({{"b", 2}, {"c", 3}}))};
    CHECK(Checkpoint::open(sources).size() == 3);

    sources.push_back(named("three", forge::u8_file({{"d", 1}, {"b", 2}})));
    check_error(error_of([&] { static_cast<void>(Checkpoint::open(sources)); }), {Errc::duplicate_name}, {},
                {.tensor = "b", .path = "three", .message = "duplicate name, also in two"});

    sources.back() = named("broken", "no checkpoint at all");
    CHECK_FAULT(Checkpoint::open(sources), Errc::unknown_format);
    sources.back() = nullptr;
    CHECK_FAULT(Checkpoint::open(sources), Errc::invalid_argument);
}

TEST_CASE("a shard that is not a regular file is refused with its kind, without blocking") {
    const TempDir dir;
    REQUIRE(::mkfifo((dir / "1").c_str(), 0600) == 0);
    std::filesystem::create_directory(dir / "2");
    const auto index = dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"1","b":"2","c":"3"}})");
    check_error(error_of([&] { static_cast<void>(Checkpoint::open(index)); }), {Errc::shard_missing}, {},
                {.message = "expected a regular file, found a pipe"});
    const auto report = verify(dir.path());
    REQUIRE(report.faults.size() == 3);
    for (const Error& fault : report.faults) CHECK(fault.code() == Errc::shard_missing);
    CHECK(report.faults[1].message() == "expected a regular file, found a folder");
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

TEST_CASE("views of a private copy can be written to, and the file does not change") {
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
    CHECK(again.bytes()[0] == changed);  // views of one open share its private copy
    CHECK((*model)["a"].load().at<std::uint8_t>(1) != std::to_integer<std::uint8_t>(changed));  // load() reads the file
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

TEST_CASE("page cache calls cover only selected tensors") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3'000'000}, {"b", 20'000'000}}));
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::fsync(descriptor) == 0);
    ::close(descriptor);
    const auto model = Checkpoint::open(file);
    const TensorView view = model["b"].view();

    std::uint64_t prefetched = 0;
    model.prefetch(Selection::names({"a"}), {.monitor = {.on_progress = [&](const Progress& progress) {
                                                 prefetched = progress.bytes_done;
                                                 return true;
                                             }}});
    CHECK(prefetched == 3'000'000);
    CHECK(model.residency(Selection::names({"a"})).resident == 3'000'000);
    model.prefetch();
    CHECK(model.residency().resident == 23'000'000);
    CHECK(model.residency().total == 23'000'000);
    CHECK(model.residency(Selection::names({"none"})).total == 0);
    model.evict(Selection::names({"b"}));
    CHECK(view.bytes()[5] == std::byte{3'000'005 % 251});
    std::stop_source stop;
    stop.request_stop();
    CHECK_FAULT(model.prefetch({}, {.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
}

TEST_CASE("files on network file systems are read, and mapped only on request") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3}}));
    const EverythingOn fuse(0x65735546);
    const auto model = Checkpoint::open(file);
    CHECK(bytes_of(model["a"]) == std::string("\0\1\2", 3));
    CHECK(model["a"].load().nbytes() == 3);
    const auto error = error_of([&] { static_cast<void>(model["a"].view()); });
    check_error(error, {Errc::no_view}, {});
    CHECK(error->path() == file.native());
    CHECK(error->tensor() == "a");
    CHECK_FALSE(error->hint().empty());
    CHECK(Checkpoint::open(file, {.access = Access::mapped})["a"].view().nbytes() == 3);
    CHECK_FAULT(Checkpoint::open(file, {.access = static_cast<Access>(77)}), Errc::invalid_argument);
}

TEST_CASE("a private copy on a network file system can be written to, and its views share it") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 6}, {"b", 2}}));
    const EverythingOn nfs(0x6969);
    auto model = std::optional(Checkpoint::open(file, {.access = Access::private_copy}));
    const TensorView view = (*model)["a"].view();
    CHECK(view.writable());
    view.mutable_bytes()[1] = std::byte{77};
    CHECK((*model)["a"].slice({Slice::at(1)}).view().at<std::uint8_t>() == 77);
    CHECK((*model)["a"].load().at<std::uint8_t>(1) == 1);  // load() reads the file
    fs::resize_file(file, 9);                              // touching a mapping of the file would now be a SIGBUS
    CHECK_FAULT((*model)["b"].view(), Errc::file_changed);
    CHECK((*model)["a"].view().at<std::uint8_t>(1) == 77);
    model.reset();
    CHECK(view.bytes()[5] == std::byte{5});
}

TEST_CASE("load() reads the file that was opened, or refuses it if it has changed") {
    const TempDir dir;
    const std::string content = forge::u8_file({{"a", 9'000}, {"b", 100'000}});
    const auto path = [&](const char* name) { return dir / (std::string(name) + ".safetensors"); };
    for (const auto* name : {"cut", "replaced", "overwritten", "grown", "removed"})
        dir.write(path(name).filename().native(), content);
    const auto cut = Checkpoint::open(path("cut"));
    const auto replaced = Checkpoint::open(path("replaced"));
    const auto overwritten = Checkpoint::open(path("overwritten"));
    const auto grown = Checkpoint::open(path("grown"));
    const auto removed = Checkpoint::open(path("removed"));

    fs::resize_file(path("cut"), 50'000);
    dir.write("new", std::string(content.size(), 'x'));
    fs::rename(dir / "new", path("replaced"));
    std::fstream(path("overwritten"), std::ios::in | std::ios::out | std::ios::binary).seekp(60'000)
        << "something else";
    touch(path("overwritten"));
    fs::resize_file(path("grown"), content.size() + 1);
    fs::remove(path("removed"));

    for (const auto* name : {"a", "b"}) {
        CAPTURE(name);
        CHECK_FAULT(cut[name].load(), Errc::file_changed);
        CHECK_FAULT(overwritten[name].load(), Errc::file_changed);
        CHECK_FAULT(grown[name].load(), Errc::file_changed);
        CHECK(bytes_of(replaced[name]).substr(0, 2) == (*name == 'a' ? std::string("\0\1", 2) : "\xd7\xd8"));
        CHECK(bytes_of(removed[name]) == bytes_of(replaced[name]));
        CHECK(removed[name].view().nbytes() == removed[name].nbytes());
    }
    CHECK_FAULT(cut.prefetch(), Errc::file_changed);
    CHECK_FAULT(digests(overwritten), Errc::file_changed);
    CHECK_FAULT(digest(overwritten["a"]), Errc::file_changed);
    CHECK_FAULT(diff(replaced, overwritten), Errc::file_changed);
    CHECK(diff(replaced, removed).different.empty());
    const auto error = error_of([&] { static_cast<void>(overwritten["b"].load()); });
    REQUIRE(error);
    CHECK(error->path() == path("overwritten").native());
    CHECK(error->tensor() == "b");
}

TEST_CASE("a stop request cancels open() of many files, and verify() while it opens them") {
    const TempDir dir;
    write_shards(dir, 5);
    std::stop_source stop;
    const OpenOptions stopped = {.work = {.monitor = {.stop = stop.get_token()}, .threads = 2}};
    CHECK_OK(Checkpoint::open(dir.path(), stopped));
    stop.request_stop();
    CHECK_FAULT(Checkpoint::open(dir.path(), stopped), Errc::cancelled);
    const std::vector<std::filesystem::path> files = {dir / "s0.safetensors"};
    CHECK_FAULT(Checkpoint::open(files, stopped), Errc::cancelled);
    CHECK_FAULT(verify(dir.path(), {.work = stopped.work}), Errc::cancelled);
    CHECK_OK(verify(dir.path(), {.open = stopped}));  // verify() uses its own `work`
}

TEST_CASE("a checkpoint with more shards than descriptors is opened, loaded, cached and verified") {
    const TempDir dir;
    constexpr int shards = 100;
    write_shards(dir, shards);
    CHECK(true_in_child([&] {
        const rlimit both = {32, 32};
        bool well = ::setrlimit(RLIMIT_NOFILE, &both) == 0;
        const auto model = Checkpoint::open(dir.path(), {.work = {.threads = 4}});
        well = well && model.size() == shards;
        for (int round = 0; round < 2; ++round)
            for (const LazyTensor& tensor : model)
                well = well && bytes_of(tensor) == std::string("\0\1\2\3", 4) && tensor.view().nbytes() == 4;
        model.prefetch();
        model.evict();
        return well && verify(dir.path()).ok();
    }));
}

TEST_CASE("a read-only checkpoint in a read-only folder can be opened") {
    const TempDir dir;
    write_shards(dir, 3);
    for (const auto& entry : fs::directory_iterator(dir.path())) fs::permissions(entry.path(), fs::perms(0444));
    fs::permissions(dir.path(), fs::perms(0555));
    const bool root = ::geteuid() == 0;  // root may do everything
    CHECK(true_in_child([&] {
        constexpr uid_t nobody = 65534;
        if (root && (::setresgid(nobody, nobody, nobody) != 0 || ::setresuid(nobody, nobody, nobody) != 0))
            return false;
        const auto model = Checkpoint::open(dir.path());
        model.prefetch();
        for (const LazyTensor& tensor : model)
            if (bytes_of(tensor) != std::string("\0\1\2\3", 4) || tensor.view().nbytes() != 4) return false;
        return model.size() == 3 && verify(dir.path()).ok();
    }));
    fs::permissions(dir.path(), fs::perms(0755));
}

TEST_CASE("tensors beyond four gigabytes can be read, viewed and cached") {
    const TempDir dir;
    constexpr std::uint64_t first = (std::uint64_t{9} << 29) + 3;  // 4.5 GiB
    const auto file = dir.write("m.safetensors", forge::safetensors(forge::u8_header({{"hole", first}, {"far", 8}})));
    const std::uint64_t header = fs::file_size(file);
    fs::resize_file(file, header + first);
    std::ofstream(file, std::ios::app | std::ios::binary) << "far away";
    const auto model = Checkpoint::open(file);
    CHECK(bytes_of(model["far"]) == "far away");
    const TensorView far = model["far"].view();
    CHECK(far.bytes()[4] == std::byte{'a'});
    const auto tail = model["hole"].slice({{.start = -2'000'000}});
    tail.evict();
    tail.prefetch();
    CHECK(tail.residency().resident == 2'000'000);
    for (const TensorView& value : {tail.view(), tail.load()}) CHECK(value.bytes()[1'999'999] == std::byte{0});
}

TEST_CASE("several threads can read, view, prefetch and evict one checkpoint") {
    const TempDir dir;
    constexpr int shards = 12;
    write_shards(dir, shards);
    const FewDescriptors few(8);
    const auto model = Checkpoint::open(dir.path());
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                for (int i = 0; i < 200; ++i) {
                    const auto tensor = model["t" + std::to_string((i * 7 + t) % shards)];
                    const TensorView view = tensor.view();
                    if (t == 0) tensor.evict();
                    if (t == 1) tensor.prefetch();
                    if (view.bytes()[3] != std::byte{3} || bytes_of(tensor)[2] != 2) ++wrong;
                    if (tensor.residency().resident > 4) ++wrong;
                }
            });
    }
    CHECK(wrong == 0);
}

}  // namespace checkpoint_test
