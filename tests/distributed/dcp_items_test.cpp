// Tests the items of DCP folders: every fault with its code, file and name; items that are shared; the notes on files
// and items; and how much is read.
#include "distributed/dcp/items.hpp"

#include <safemap/tensor_view.hpp>
#include "base/zstd.hpp"
#include "check_error.hpp"
#include "distributed/dcp/read_dcp.hpp"
#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "forge/zstd.hpp"
#include "inspect.hpp"
#include "open/read.hpp"

#include <atomic>
#include <functional>

namespace dcp_items_test {

using namespace safemap;
using namespace dcp_forge;
using state::Contents;

namespace {

Contents read(const std::shared_ptr<const Folder>& folder, const OpenOptions& options = {}) {
    ThrowFirst faults;
    return open::read_located(open::locate(folder), options, faults);
}
Contents read(const Save& save, const OpenOptions& options = {}) { return read(save.folder(), options); }

/// Two tensors of two chunks each in the files of two ranks, and an object.
Save small() {
    std::mt19937 random(1);
    Save save;
    for (const char* const name : {"a", "b"}) {
        Entry entry{.name = name, .dtype = "float32", .shape = {4, 2}};
        for (std::int64_t r = 0; r < 2; ++r)
            entry.chunks.push_back({{2 * r, 0},
                                    {2, 2},
                                    save.put("__" + std::to_string(r) + "_0.distcp",
                                             tensor_item(Dtype::f32, {2, 2}, random_bytes(random, 16)))});
        save.metadata.entries.push_back(entry);
    }
    save.add_object("step", forge::integer(3));
    return save;
}

Item& item(Save& save, const std::string& name, std::size_t chunk) { return save.metadata[name].chunks.at(chunk).item; }

/// Puts another item in place of that of the second chunk of `b`.
void replace(Save& save, const std::string& bytes) { item(save, "b", 1) = save.put("__1_0.distcp", bytes); }

/// One fault: changes `small()`, and checks the code, a part of the message, the file and the tensor.
void check_fault(const char* fault, Errc code, const std::string& text, const std::function<void(Save&)>& inflict,
                 const std::string& file = "folder/__1_0.distcp", const std::string& tensor = "b") {
    CAPTURE(fault);
    Save save = small();
    inflict(save);
    check_error(error_of([&] { read(save); }), {code}, {text}, {.tensor = tensor, .path = file});
}

std::string pickle_of(Dtype dtype, const Shape& shape) { return tensor_pickle(dtype, shape, contiguous(shape)); }

/// A folder that counts what is read.
struct Counting final : Folder {
    struct Counter {
        std::atomic<std::uint64_t> reads = 0;
        std::atomic<std::uint64_t> bytes = 0;
    };
    struct File final : Source {
        std::shared_ptr<const Source> source;
        std::shared_ptr<Counter> counter;

        const std::string& name() const noexcept override { return source->name(); }
        std::uint64_t size() const noexcept override { return source->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
            ++counter->reads;
            counter->bytes += into.size();
            source->read_at(offset, into);
        }
    };

    explicit Counting(std::shared_ptr<const Folder> folder) : held(std::move(folder)) {}
    const std::string& name() const noexcept override { return held->name(); }
    std::vector<std::string> list() const override { return held->list(); }
    std::vector<std::string> folders() const override { return held->folders(); }
    std::shared_ptr<const Folder> folder(std::string_view below) const override { return held->folder(below); }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        auto out = std::make_shared<File>();
        out->source = held->open(file);
        out->counter = counter;
        if (!out->source) return nullptr;
        return out;
    }

    std::shared_ptr<const Folder> held;
    std::shared_ptr<Counter> counter = std::make_shared<Counter>();
};

}  // namespace

TEST_CASE("missing files are named, all in one message") {
    Save save = small();
    save.files.erase("__0_0.distcp");
    auto error = error_of([&] { read(save); });
    check_error(error, {Errc::rank_missing}, {"__0_0.distcp"});
    CHECK(error->message().find("__1_0.distcp") == std::string::npos);
    save.files.clear();
    save.files["other.distcp"] = "";
    error = error_of([&] { read(save); });
    REQUIRE(error.has_value());
    CHECK(error->message().find("__0_0.distcp") != std::string::npos);
    CHECK(error->message().find("__1_0.distcp") != std::string::npos);
}

TEST_CASE("items that are not where the metadata says") {
    check_fault("a file is a byte short", Errc::piece_missing, "past the end",
                [](Save& save) { save.files["__1_0.distcp"].pop_back(); });
    check_fault("an item is a byte long", Errc::piece_missing, "past the end",
                [](Save& save) { item(save, "b", 1).length += 1; });
    check_fault("an item is far away", Errc::piece_missing, "past the end",
                [](Save& save) { item(save, "b", 1).offset = INT64_MAX; });
    check_fault("an item begins a byte early", Errc::zip_overlap, "'a'",
                [](Save& save) { item(save, "b", 1).offset -= 1; });
    check_fault("an item is a byte short", Errc::zip_bad_directory, "",
                [](Save& save) { item(save, "b", 1).length -= 1; });
    check_fault("an item without bytes", Errc::zip_bad_directory, "",
                [](Save& save) { item(save, "b", 1).length = 0; });
    check_fault("an item that is no zip", Errc::zip_bad_directory, "",
                [](Save& save) { replace(save, std::string(500, 'x')); });
    check_fault("the item of a chunk in the item of another", Errc::zip_overlap, "'a'",
                [](Save& save) { item(save, "b", 1).offset = item(save, "a", 1).offset + 1; });
    const std::string good = tensor_item(Dtype::f32, {2, 2}, std::string(16, 'g'));
    check_fault("a byte before the zip", Errc::zip_bad_directory, "", [&](Save& save) { replace(save, "x" + good); });
    check_fault("a byte after the zip", Errc::zip_bad_directory, "", [&](Save& save) { replace(save, good + "x"); });
}

TEST_CASE("items that hold something else than their chunk") {
    const auto holds = [](const char* what, const std::string& opcodes, Errc code, const std::string& text,
                          const std::string& storage = std::string(64, 's')) {
        check_fault(what, code, text, [&](Save& save) { replace(save, object_item(opcodes, {storage})); });
    };
    const std::string plain = pickle_of(Dtype::f32, {2, 2});
    holds("a tensor of one dimension", pickle_of(Dtype::f32, {4}), Errc::piece_mismatch, "[2, 2]");
    holds("a longer tensor", pickle_of(Dtype::f32, {2, 3}), Errc::piece_mismatch, "[2, 3]");
    holds("a tensor of another dtype", pickle_of(Dtype::f64, {2, 2}), Errc::piece_mismatch, "F64");
    holds("a number", forge::integer(5), Errc::piece_mismatch, "a number");
    holds("a list", "](" + plain + "e", Errc::piece_mismatch, "a list");
    holds("a call", forge::call("os", "system", {forge::text("true")}), Errc::unsafe_call, "system");
    holds("a function", "](" + plain + forge::global("builtins", "eval") + "e", Errc::unsafe_call, "eval");
    holds("strides beyond the storage", tensor_pickle(Dtype::f32, {2, 2}, {.strides = {1000, 1}, .elements = 16}),
          Errc::storage_too_short, "");
    holds("a short storage", plain, Errc::storage_too_short, "", "short");
    check_fault("no storage", Errc::zip_missing_record, "data/0",
                [&](Save& save) { replace(save, object_item(plain)); });
    check_fault("a pickle whose checksum is wrong", Errc::checksum_mismatch, "", [&](Save& save) {
        replace(save, forge::zip({{.name = "archive/data.pkl", .data = forge::pickle(plain), .crc32 = 1},
                                  {.name = "archive/data/0", .data = std::string(16, 's')}}));
    });
    check_fault(
        "an object that runs code", Errc::unsafe_call, "os.system",
        [](Save& save) {
            save.metadata["step"].item =
                save.put("__0_0.distcp", object_item(forge::call("posix", "system", {forge::text("true")})));
        },
        "folder/__0_0.distcp", "step");
}

TEST_CASE("a tensor with attributes, or of a subclass, is the tensor in it") {
    Save save = small();
    const std::string plain = pickle_of(Dtype::f32, {2, 2});
    replace(save, object_item(forge::call("torch._utils", "_rebuild_parameter", {plain, "\x88", forge::ordered()}),
                              {std::string(16, 'p')}));
    const Contents contents = read(save);
    CHECK(bytes_of(contents.tensors[1]).substr(16) == std::string(16, 'p'));
}

TEST_CASE("transforms other than zstd are refused by name") {
    const auto refused = [](const std::vector<std::string>& transforms, const std::string& text) {
        check_fault(text.c_str(), Errc::unknown_transform, text,
                    [&](Save& save) { item(save, "b", 1).transforms = transforms; });
    };
    refused({"stream.rot13/1"}, "stream.rot13/1");
    refused({"stream.zstd/1", "stream.aes/1"}, "stream.aes/1");
    refused({"stream.zstd/2"}, "stream.zstd/2");
    if (!has_zstd()) refused({"stream.zstd/1"}, "");
}

TEST_CASE("zstd items are read, and bounded by what their chunk has" * doctest::skip(!has_zstd())) {
    const auto pack = [](Save& save, const std::string& bytes) {
        replace(save, forge::zstd_frame(bytes));
        item(save, "b", 1).transforms = {"stream.zstd/1"};
    };
    Save save = small();
    pack(save, tensor_item(Dtype::f32, {2, 2}, std::string(16, 'z')));
    save.metadata["step"].item = save.put("__1_0.distcp", forge::zstd_frame(object_item(forge::integer(8))));
    save.metadata["step"].item.transforms = {"stream.zstd/1.5"};
    const Contents contents = read(save);
    CHECK(bytes_of(contents.tensors[1]).substr(16) == std::string(16, 'z'));
    CHECK(std::get<std::int64_t>((*contents.tree)[*contents.tree->find("step")]) == 8);
    check_fault("far more bytes", Errc::inflate_failed, "", [&](Save& s) { pack(s, std::string(2U << 20, '\0')); });
    check_fault("a text", Errc::zip_bad_directory, "", [&](Save& s) { pack(s, "text"); });
    check_fault("a frame that is a byte short", Errc::inflate_failed, "", [&](Save& s) {
        pack(s, tensor_item(Dtype::f32, {2, 2}, std::string(16, 'z')));
        item(s, "b", 1).length -= 1;
    });
}

TEST_CASE("items that several chunks share are read once, and overlapping ones are not shared") {
    Save save = small();
    item(save, "a", 0) = item(save, "b", 0);
    Contents contents = read(save);
    CHECK(bytes_of(contents.tensors[0]).substr(0, 16) == bytes_of(contents.tensors[1]).substr(0, 16));
    // An object whose item is that of a tensor, and a tensor whose item is that of an object.
    save = small();
    save.metadata["step"].item = item(save, "a", 0);
    contents = read(save);
    CHECK(contents.tensors.size() == 3);
    check_fault(
        "the item of an object", Errc::piece_mismatch, "a number",
        [](Save& s) { item(s, "b", 1) = s.metadata["step"].item; }, "folder/__0_0.distcp");
}

TEST_CASE("strict globals refuse unknown names in items, and all names are listed") {
    Save save = small();
    const std::string unknown = forge::call("my.module", "Thing", {});
    save.add_object("thing", unknown);
    const Contents contents = read(save);
    CHECK(std::any_of(contents.globals.begin(), contents.globals.end(), [](const NamedGlobal& global) {
        return global.module == "my.module" && global.name == "Thing" && global.called && !global.known;
    }));
    OpenOptions strict;
    strict.strict_globals = true;
    CHECK_FAULT(read(save, strict), Errc::unknown_global);
    CHECK_OK(read(small(), strict));
}

TEST_CASE("leftovers of other saves, and records without a checksum, are noted") {
    Save save = small();
    CHECK(read(save).notes.empty());
    save.files["__7_0.distcp"] = "older";
    save.files["__8_0.distcp"] = "";
    save.files[".metadata.tmp"] = "x";
    const Contents contents = read(save);
    CHECK(has_note(contents, "__7_0.distcp"));
    CHECK_FALSE(has_note(contents, "__8_0.distcp"));
    CHECK(has_note(contents, ".metadata.tmp"));
    CHECK(contents.layout->world_size == 2);
    save = small();
    replace(save, forge::zip({{.name = "archive/data.pkl", .data = forge::pickle(pickle_of(Dtype::f32, {2, 2}))},
                              {.name = "archive/data/0", .data = std::string(16, 's'), .crc32 = 0}}));
    CHECK(has_note(read(save), "1 item has records without a checksum"));
}

TEST_CASE("a common.pt of Megatron is under its name") {
    Save save = small();
    save.add_object("common.pt", forge::integer(1), std::vector<Step>{"common.pt"});
    std::map<std::string, std::string> files = save.all();
    files["common.pt"] = forge::archive(forge::dict({forge::text("iteration"), forge::integer(5)}));
    const Contents contents = read(std::make_shared<forge::Folder>(files));
    CHECK(has_note(contents, "common.pt.2"));
    CHECK(std::get<std::int64_t>((*contents.tree)[*contents.tree->find("common.pt.2/iteration")]) == 5);
    CHECK(contents.files.back() == "common.pt");
    files["common.pt"] = "nothing";
    CHECK(error_of([&] { read(std::make_shared<forge::Folder>(files)); }).has_value());
}

TEST_CASE("every fault is reported once when faults are collected") {
    Save save = small();
    replace(save, "nothing");
    item(save, "a", 0).offset = INT64_MAX;
    struct Collect final : FaultSink {
        std::vector<Error> all;
        void fault(Error error) override { all.push_back(std::move(error)); }
    } faults;
    const std::string names[] = {".metadata"};
    const Contents contents = distributed::read_dcp(save.folder(), names, {}, faults);
    CHECK(faults.all.size() == 2);
    CHECK(contents.tensors.empty());
    CHECK(contents.tree->find("step").has_value());
}

TEST_CASE("neighbours are read together, and the bytes of large tensors are not read") {
    std::mt19937 random(2);
    Save save;
    Entry many{.name = "small", .dtype = "float32", .shape = {1000}};
    std::string whole = random_bytes(random, 4000);
    for (std::int64_t i = 0; i < 1000; ++i)
        many.chunks.push_back(
            {{i},
             {1},
             save.put("__0_0.distcp", tensor_item(Dtype::f32, {1}, whole.substr(static_cast<std::size_t>(4 * i), 4)))});
    std::shuffle(many.chunks.begin(), many.chunks.end(), random);
    save.metadata.entries.push_back(many);
    constexpr std::int64_t large = 1 << 20;
    Entry few{.name = "large", .dtype = "uint8", .shape = {8, large}};
    const std::string row(large, 'r');
    for (std::int64_t i = 0; i < 8; ++i)
        few.chunks.push_back({{i, 0}, {1, large}, save.put("__1_0.distcp", tensor_item(Dtype::u8, {1, large}, row))});
    save.metadata.entries.push_back(few);
    const auto folder = std::make_shared<Counting>(save.folder());
    const Contents contents = read(folder);
    CHECK(folder->counter->reads < 100);
    CHECK(folder->counter->bytes < 3U << 20);
    CHECK((bytes_of(contents.tensors[0]) == whole));
    for (const LazyTensor& tensor : contents.tensors) CHECK(tensor.nbytes() == bytes_of(tensor).size());
}

TEST_CASE("a pool of any number of threads finds the same, in the same order") {
    Save save = small();
    for (int i = 0; i < 600; ++i) {
        const std::string file = "__" + std::to_string(i % 5) + "_0.distcp";
        save.add_object("o" + std::to_string(i),
                        forge::call("module" + std::to_string(i % 3), "C" + std::to_string(i % 7), {}), {}, file);
    }
    std::vector<std::string> first;
    for (const unsigned threads : {1U, 2U, 16U}) {
        OpenOptions options;
        options.work.threads = threads;
        const Contents contents = read(save, options);
        std::vector<std::string> found;
        for (const NamedGlobal& global : contents.globals)
            found.push_back(global.record + ' ' + global.module + '.' + global.name);
        if (first.empty()) first = found;
        CHECK(found == first);
    }
}

}  // namespace dcp_items_test
