// Opens forged folders of DCP. Random tensors in random boxes, whose items have any layout, are compared with the bytes
// that were cut; then one box is moved, doubled or lost. Files in subfolders, many files, copies of ranks, and changes
// of single bytes.
#include "distributed/dcp/read_dcp.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "forge/zstd.hpp"
#include "inspect.hpp"
#include "open/read.hpp"
#include "pickle/memory_share.hpp"
#include "soak.hpp"

#include "base/zstd.hpp"

namespace dcp_test {

using namespace safemap;
using namespace dcp_forge;
using state::Contents;

namespace {

Contents read(const Save& save, const OpenOptions& options = {}) {
    ThrowFirst faults;
    return open::read_located(open::locate(save.folder()), options, faults);
}

/// Opens a folder that saves of several ranks have written.
Contents read_ranks(const std::vector<Metadata>& ranks, const std::map<std::string, std::string>& files) {
    std::map<std::string, std::string> all = files;
    for (std::size_t r = 0; r < ranks.size(); ++r) all["__" + std::to_string(r) + ".metadata"] = ranks[r].pickle();
    ThrowFirst faults;
    return open::read_located(open::locate(std::make_shared<forge::Folder>(all)), {}, faults);
}

const LazyTensor& tensor_of(const Contents& contents, std::string_view name) {
    const auto found = std::find_if(contents.tensors.begin(), contents.tensors.end(),
                                    [&](const LazyTensor& tensor) { return tensor.name() == name; });
    REQUIRE(found != contents.tensors.end());
    return *found;
}

struct Tensor {
    std::string name;
    Dtype dtype;
    Shape shape;
    std::string bytes;
};

Tensor random_tensor(std::mt19937& random, std::string name) {
    constexpr Dtype dtypes[] = {Dtype::boolean, Dtype::u8,  Dtype::i16, Dtype::f16, Dtype::bf16,
                                Dtype::f32,     Dtype::i64, Dtype::f64, Dtype::c64};
    Tensor tensor{.name = std::move(name), .dtype = dtypes[random() % std::size(dtypes)], .shape = {}, .bytes = {}};
    for (std::size_t d = random() % 5; d > 0; --d) tensor.shape.push_back(random() % 12 == 0 ? 0 : 1 + random() % 9);
    tensor.bytes = random_bytes(random, *element_count(tensor.shape) * element_size(tensor.dtype));
    if (tensor.dtype == Dtype::boolean)
        for (char& byte : tensor.bytes) byte = byte & 1;
    return tensor;
}

bool is_empty(const Chunk& chunk) { return std::find(chunk.sizes.begin(), chunk.sizes.end(), 0) != chunk.sizes.end(); }

/// Leaves the items out that torch does not list: storage_data has one for each offset.
void list_once(Entry& entry) {
    for (Chunk& chunk : entry.chunks) {
        const auto same = [&](const Chunk& other) { return other.offsets == chunk.offsets; };
        const auto full = std::find_if(entry.chunks.begin(), entry.chunks.end(),
                                       [&](const Chunk& other) { return same(other) && !is_empty(other); });
        const auto first =
            full != entry.chunks.end() ? full : std::find_if(entry.chunks.begin(), entry.chunks.end(), same);
        chunk.item.listed = &*first == &chunk;
    }
}

struct Random {
    Save save = {};
    std::vector<Tensor> tensors = {};
};

/// Returns a checkpoint of random tensors, some of whose items are zstd streams.
Random random_save(std::mt19937& random) {
    Random out;
    const std::size_t ranks = 1 + random() % 6;
    for (std::size_t i = 1 + random() % 5; i > 0; --i) {
        const Tensor& tensor = out.tensors.emplace_back(random_tensor(random, "a." + std::to_string(i)));
        const auto boxes = reference::random_places(random, tensor.shape);
        add_tensor(out.save, random, tensor.name, tensor.dtype, tensor.shape, tensor.bytes, boxes, ranks);
        Entry& entry = out.save.metadata.entries.back();
        list_once(entry);
        if (random() % 2 == 0) entry.path = std::vector<Step>{"a", std::to_string(i)};
        if (!has_zstd()) continue;
        for (Chunk& chunk : entry.chunks) {
            if (random() % 8 != 0) continue;
            const std::string& held = out.save.files[chunk.item.file];
            const std::string packed = forge::zstd_frame(
                held.substr(static_cast<std::size_t>(chunk.item.offset), static_cast<std::size_t>(chunk.item.length)));
            const bool listed = chunk.item.listed;
            chunk.item = out.save.put("packed.distcp", packed);
            chunk.item.listed = listed;
            chunk.item.transforms = {"stream.zstd/1"};
        }
    }
    std::shuffle(out.save.metadata.entries.begin(), out.save.metadata.entries.end(), random);
    out.save.metadata.era = static_cast<Era>(random() % 4);
    return out;
}

void check_slice(std::mt19937& random, const LazyTensor& tensor, const Tensor& expected) {
    if (expected.shape.empty()) return;
    const auto d = random() % expected.shape.size();
    const std::uint64_t size = expected.shape[d];
    const std::uint64_t begin = random() % (size + 1);
    const std::uint64_t end = begin + random() % (size - begin + 1);
    Box box{Shape(expected.shape.size(), 0), expected.shape};
    box.start[d] = begin;
    box.extent[d] = end - begin;
    std::vector<Slice> slices(d + 1);
    slices[d] = {.start = static_cast<std::int64_t>(begin), .stop = static_cast<std::int64_t>(end)};
    const LazyTensor cut = tensor.slice(slices);
    CHECK(cut.shape() == box.extent);
    CHECK((bytes_of(cut) == elements_of(expected.bytes, element_size(expected.dtype), expected.shape, box)));
}

}  // namespace

TEST_CASE("random tensors in random boxes are what was cut, to the bit") {
    const unsigned seed = soak::seed(18);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < soak::rounds(600); ++round) {
        CAPTURE(round);
        const Random made = random_save(random);
        const Contents contents = read(made.save);
        CHECK(contents.format == Format::dcp);
        CHECK(contents.tensors.size() == made.tensors.size());
        for (const Tensor& expected : made.tensors) {
            const LazyTensor& tensor = tensor_of(contents, expected.name);
            CHECK(tensor.dtype() == expected.dtype);
            CHECK(tensor.shape() == expected.shape);
            CHECK((bytes_of(tensor) == expected.bytes));
            check_slice(random, tensor, expected);
        }
    }
}

TEST_CASE("a box that is moved, doubled or lost is a fault of its tensor") {
    const unsigned seed = soak::seed(19);
    CAPTURE(seed);
    std::mt19937 random(seed);
    int checked = 0;
    for (int round = 0; round < soak::rounds(1200); ++round) {
        Random made = random_save(random);
        auto& entries = made.save.metadata.entries;
        Entry& entry = entries[random() % entries.size()];
        if (entry.chunks.empty()) continue;
        const std::size_t which = random() % entry.chunks.size();
        Chunk& chunk = entry.chunks[which];
        if (is_empty(chunk)) continue;
        ++checked;
        Errc wanted = Errc::not_covered;
        const auto change = random() % (entry.shape.empty() ? 2 : 3);
        if (change == 0) entry.chunks.erase(entry.chunks.begin() + static_cast<std::ptrdiff_t>(which));
        else if (change == 1) entry.chunks.push_back(Chunk(chunk));
        else chunk.offsets[random() % entry.shape.size()] += random() % 2 == 0 ? 1 : -1;
        list_once(entry);
        if (change > 0) wanted = Errc::pieces_overlap;
        const auto error = error_of([&] { read(made.save); });
        REQUIRE(error.has_value());
        INFO(std::string(error->what()));
        CHECK(error->tensor() == entry.name);
        // A box that is moved may also leave its tensor, or the empty one beside it without an item.
        const bool moved =
            change == 2 && (error->code() == Errc::piece_outside || error->code() == Errc::piece_missing ||
                            error->code() == Errc::piece_mismatch);
        CHECK((moved || error->code() == wanted));
    }
    CHECK(checked > 50);
}

TEST_CASE("files may be below the folder, and many") {
    std::mt19937 random(3);
    Save save;
    const std::string bytes = random_bytes(random, 300 * 4);
    Entry entry{.name = "w", .dtype = "int32", .shape = {300}};
    for (std::int64_t i = 0; i < 300; ++i) {
        std::string file = "sub/" + std::to_string(i % 7) + "/file-" + std::to_string(i);
        Layout layout = contiguous({1});
        const std::string one = forge::view(forge::storage("IntStorage", "0", 1), 0, {1}, {1});
        entry.chunks.push_back(
            {{i},
             {1},
             save.put(file, zip_of(forge::pickle(one), "little", {bytes.substr(static_cast<std::size_t>(4 * i), 4)},
                                   false, layout.alignment))});
    }
    save.metadata.entries.push_back(entry);
    const Contents contents = read(save);
    CHECK((bytes_of(tensor_of(contents, "w")) == bytes));
    CHECK(contents.files.size() == 301);
    CHECK(contents.files.front() == ".metadata");
    CHECK(contents.layout->chunks == 300);
}

TEST_CASE("objects and the tensors in them have names and values") {
    std::mt19937 random(4);
    Save save;
    add_tensor(save, random, "model.w", Dtype::f32, {2, 3}, random_bytes(random, 24), {{{0, 0}, {2, 3}}}, 1);
    save.metadata["model.w"].path = std::vector<Step>{"model", "w"};
    save.add_object("step", forge::integer(7), std::vector<Step>{"step"});
    save.add_object("groups.1.lr", "G\x3f\xe0" + std::string(6, '\0'), std::vector<Step>{"groups", 1, "lr"});
    const std::string inner = forge::view(forge::storage("FloatStorage", "0", 2), 0, {2}, {1});
    save.metadata.entries.push_back(
        {.name = "nest",
         .item = save.put("__0_0.distcp",
                          object_item(forge::dict({forge::text("a.b"), forge::tuple({forge::integer(1), inner})}),
                                      {std::string("\1\2\3\4\5\6\7\10", 8)}))});
    const Contents contents = read(save);
    REQUIRE(contents.tree != nullptr);
    const StateTree& tree = *contents.tree;
    CHECK(std::get<std::int64_t>(tree[*tree.find("step")]) == 7);
    CHECK(std::get<double>(tree[*tree.find("groups/1/lr")]) == 0.5);
    CHECK(std::holds_alternative<StateTree::None>(tree[*tree.find("groups/0")]));
    CHECK(contents.tensors.size() == 2);
    CHECK(std::get<StateTree::Tensor>(tree[*tree.find("model/w")]).tensor.name() == "model.w");
    CHECK(bytes_of(tensor_of(contents, "nest/a.b/1")) == std::string("\1\2\3\4\5\6\7\10", 8));
}

TEST_CASE("objects that need more memory than the share of a thread are read, and those at one place once") {
    const auto lists = [](std::size_t count) { return "(" + std::string(count, ']') + "l"; };
    constexpr std::size_t large = 30'000;  // 5.4 MB
    std::mt19937 random(11);
    Save save;
    save.add_object("first", lists(large), std::vector<Step>{"first"});
    const auto at_one_place = [&](const std::string& name) {
        save.metadata.entries.push_back(save.metadata.entries.back());
        save.metadata.entries.back().name = name;
        save.metadata.entries.back().path = std::vector<Step>{name};
    };
    at_one_place("again");
    at_one_place("and_again");
    add_tensor(save, random, "w", Dtype::f32, {2}, "12345678", {{{0}, {2}}}, 1);
    save.add_object("last", lists(large), std::vector<Step>{"last"});
    const MemoryShare limit(16 << 20);
    std::vector<std::size_t> sizes;
    for (const unsigned threads : {1U, 4U}) {
        CAPTURE(threads);
        const Contents contents = read(save, {.work = {.threads = threads}});
        REQUIRE(contents.tree != nullptr);
        for (const char* const name : {"first", "again", "and_again", "last"}) {
            const StateTree::Node& node = (*contents.tree)[*contents.tree->find(name)];
            CHECK(std::get<StateTree::Sequence>(node).items.size() == large);
        }
        CHECK((bytes_of(tensor_of(contents, "w")) == "12345678"));
        sizes.push_back(contents.tree->size());
    }
    CHECK(sizes[0] == sizes[1]);
    CHECK(sizes[0] < 3 * large);

    save.add_object("bad", lists(100'000), std::vector<Step>{"bad"});
    at_one_place("bad_again");
    for (const unsigned threads : {1U, 4U}) {
        CAPTURE(threads);
        CollectFaults faults;
        open::read_located(open::locate(save.folder()), {.work = {.threads = threads}}, faults);
        REQUIRE(faults.faults().size() == 2);
        for (std::size_t i = 0; i < 2; ++i) {
            CHECK(faults.faults()[i].code() == Errc::pickle_too_large);
            CHECK(faults.faults()[i].tensor() == (i == 0 ? "bad" : "bad_again"));
        }
    }
}

TEST_CASE("a name that a tensor in an object would share with a tensor is refused or made unlike") {
    std::mt19937 random(5);
    Save save;
    add_tensor(save, random, "nest/a", Dtype::f32, {1}, random_bytes(random, 4), {{{0}, {1}}}, 1);
    const std::string inner = forge::view(forge::storage("FloatStorage", "0", 1), 0, {1}, {1});
    save.metadata.entries.push_back(
        {.name = "nest",
         .item = save.put("__0_0.distcp", object_item(forge::dict({forge::text("a"), inner}), {"abcd"}))});
    const auto error = error_of([&] {
        const Contents contents = read(save);
        CHECK(contents.tensors.size() == 2);
        CHECK(contents.tensors[0].name() != contents.tensors[1].name());
    });
    if (error) CHECK(error->code() == Errc::duplicate_name);
}

TEST_CASE("what several ranks have is read from the first, and its copies are given to verify") {
    std::mt19937 random(6);
    const std::string rows = random_bytes(random, 7 * 3 * 4);
    const std::string both = random_bytes(random, 16);
    std::vector<Metadata> ranks(2);
    Save files;
    for (std::int64_t r = 0; r < 2; ++r) {
        Save save;
        const std::string file = "__" + std::to_string(r) + "_0.distcp";
        const Box box{{static_cast<std::uint64_t>(4 * r), 0}, {static_cast<std::uint64_t>(4 - r), 3}};
        save.metadata.entries = {
            {.name = "rows",
             .dtype = "float32",
             .shape = {7, 3},
             .chunks = {{signed_of(box.start), signed_of(box.extent),
                         save.put(file, tensor_item(Dtype::f32, box.extent, elements_of(rows, 4, {7, 3}, box)))}}},
            {.name = "both",
             .dtype = "float32",
             .shape = {4},
             .chunks = {{{0}, {4}, save.put(file, tensor_item(Dtype::f32, {4}, both))}}}};
        save.add_object("step", forge::integer(9), {}, file);
        ranks[static_cast<std::size_t>(r)] = save.metadata;
        files.files[file] = save.files[file];
    }
    const Contents contents = read_ranks(ranks, files.files);
    CHECK((bytes_of(tensor_of(contents, "rows")) == rows));
    CHECK((bytes_of(tensor_of(contents, "both")) == both));
    CHECK(contents.layout->world_size == 2);
    REQUIRE(contents.replicas.more);
    std::map<std::string, bool> same;
    contents.replicas.each([&](const state::Replica& replica) {
        same[replica.name] = bytes_of(replica.first) == bytes_of(replica.other);
        CHECK(replica.first_file == "__0_0.distcp");
        CHECK(replica.other_file == "__1_0.distcp");
    });
    CHECK(same == std::map<std::string, bool>{{"both", true}, {"step", true}});
    // One rank without its metadata.
    const auto error = error_of([&] { read_ranks({ranks[0]}, files.files); });
    check_error(error, {Errc::not_covered}, {});
    CHECK(error->hint().find("__1_0.distcp") != std::string::npos);
}

TEST_CASE("every change of one byte of the metadata or of an item is read or refused, and nothing worse") {
    const unsigned seed = soak::seed(7);
    CAPTURE(seed);
    std::mt19937 random(seed);
    Save save;
    for (const char* const name : {"a", "b"}) {
        const Shape shape = {3, 2};
        add_tensor(save, random, name, Dtype::bf16, shape, random_bytes(random, 12),
                   {{{0, 0}, {1, 2}}, {{1, 0}, {2, 2}}}, 2);
        save.metadata.entries.back().path = std::vector<Step>{"model", name};
    }
    save.add_object("lr", "G\x3f\xe0" + std::string(6, '\0'), std::vector<Step>{"groups", 0, "lr"});
    const std::map<std::string, std::string> whole = save.all();
    int opened = 0;
    int refused = 0;
    for (const auto& each : whole) {
        const std::string& file = each.first;  // not a structured binding: Clang 14 cannot capture those
        const std::string& bytes = each.second;
        for (std::size_t i = soak::stride(12) - 1; i < bytes.size(); i += soak::stride(12)) {
            std::map<std::string, std::string> changed = whole;
            const auto bit = random() % 8;
            changed[file][i] = static_cast<char>(static_cast<unsigned>(bytes[i]) ^ 1U << bit);
            CAPTURE(file);
            CAPTURE(i);
            CAPTURE(bit);
            const auto error = error_of([&] {
                ThrowFirst faults;
                const Contents contents =
                    open::read_located(open::locate(std::make_shared<forge::Folder>(changed)), {}, faults);
                for (const LazyTensor& tensor : contents.tensors)
                    if (tensor.nbytes() < 1U << 20U) static_cast<void>(tensor.load());
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
            ++(error ? refused : opened);
        }
    }
    CHECK(opened > 0);
    CHECK(refused > 0);
}

}  // namespace dcp_test
