// Tests files of torch.save before 1.6, and storages inside plain pickles, forged. Legacy has the parts of a file, of
// which a test changes one; check_refused() expects a code and a message. From top to bottom: valid files, storages and
// views, lists of storages, faults, large and truncated files, plain pickles, mutations.
#include <safemap/advanced/flatten.hpp>

#include "torch/legacy.hpp"
#include "torch/plain.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"
#include "pickle/memory_share.hpp"
#include "soak.hpp"

#include <cstring>
#include <string>

namespace legacy_test {

using namespace safemap;
using namespace std::string_literals;
using forge::Legacy;
using forge::list_of;

namespace {

std::string magic_number() { return Legacy().magic; }

std::string stored(std::uint64_t count, const std::string& bytes) { return forge::little(count, 8) + bytes; }

/// Like forge::storage, with the sixth element that legacy files have.
std::string storage(std::string_view type, std::string_view key, std::int64_t count, const std::string& view = "N") {
    return forge::storage(type, key, count, "cpu", view);
}
std::string view(std::int64_t first, std::int64_t count) {
    return forge::tuple({forge::text("view"), forge::integer(first), forge::integer(count)});
}
std::string bytes_tensor(const std::string& storage, std::int64_t offset, std::int64_t size) {
    return forge::view(storage, offset, {size}, {1});
}

/// Returns a file with eight bytes in storage "a", and a tensor "x" of all of them.
Legacy eight() {
    return {.object = forge::dict({forge::text("x"), bytes_tensor(storage("ByteStorage", "a", 8), 0, 8)}),
            .keys = list_of({"a"}),
            .storages = stored(8, "01234567")};
}

std::optional<Error> fault_of(const Legacy& file) {
    return error_of([&] { return flatten(fixtures::open(file.join()).tree); });
}
void check_refused(const Legacy& file, Errc code, std::string_view words) {
    const auto error = fault_of(file);
    CAPTURE(words);
    REQUIRE(error.has_value());
    CAPTURE(error->message());
    CHECK(error->code() == code);
    CHECK(error->message().find(words) != std::string::npos);
}

/// Returns pickle.dump of one tensor whose storage is `file_bytes`, in either form of bytes objects.
std::string plain(const std::string& file_bytes, std::int64_t size = 8) {
    const std::string storage = forge::call("torch.storage", "_load_from_bytes", {file_bytes});
    return "\x80\x03" + forge::dict({forge::text("x"), bytes_tensor(storage, 0, size)}) + ".";
}
std::string as_bytes(std::string_view bytes) { return "B" + forge::little(bytes.size(), 4) + std::string(bytes); }
std::string as_latin1(std::string_view bytes) {
    std::string utf8;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x80) utf8 += static_cast<char>(0xC0 | byte >> 6);
        utf8 += byte < 0x80 ? c : static_cast<char>(0x80 | (byte & 0x3F));
    }
    return forge::call("_codecs", "encode", {forge::text(utf8), forge::text("latin1")});
}
/// Returns a file whose object is a storage of eight bytes.
std::string storage_file() {
    Legacy file = eight();
    file.object = storage("ByteStorage", "a", 8);
    return file.join();
}

}  // namespace

TEST_CASE("a storage of two types is refused") {
    Legacy file = eight();
    file.object = forge::dict({forge::text("x"), bytes_tensor(storage("ByteStorage", "a", 8), 0, 8), forge::text("y"),
                               bytes_tensor(storage("CharStorage", "a", 8), 0, 8)});
    const auto error = fault_of(file);
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::bad_tensor);
    CHECK(error->message().find("ByteStorage and CharStorage") != std::string::npos);
}

TEST_CASE("the magic number is recognised in every protocol") {
    const std::string frame = "\x95\x0d"s + std::string(7, '\0');
    CHECK(torch::is_legacy("\x80\x02" + magic_number() + "."));
    CHECK(torch::is_legacy("\x80\x03" + magic_number() + ".\x80\x03M"));
    CHECK(torch::is_legacy("\x80\x04" + frame + magic_number() + "."));
    CHECK(torch::is_legacy("\x80\x05" + frame + magic_number() + ".more"));
    CHECK(torch::is_legacy("L119547037146038801333356L\n.I1001\n."));
    CHECK_FALSE(torch::is_legacy("\x80\x02" + magic_number()));
    CHECK_FALSE(torch::is_legacy("\x80\x02" + forge::integer(5) + "."));
    CHECK_FALSE(torch::is_legacy("\x80\x02}."));
    CHECK_FALSE(torch::is_legacy("L119547037146038801333357L\n."));
    CHECK_FALSE(torch::is_legacy("Long ago\n"));
    CHECK_FALSE(torch::is_legacy(""));
}

TEST_CASE("storages follow each other, each after its element count") {
    Legacy file{.object = forge::dict({forge::text("x"), bytes_tensor(storage("ByteStorage", "a", 3), 1, 2),
                                       forge::text("y"), bytes_tensor(storage("ShortStorage", "b", 2), 0, 2)}),
                .keys = list_of({"b", "a"}),
                .storages = stored(2, "abcd") + stored(3, "012")};
    const auto archive = fixtures::open(file.join());
    CHECK(archive.notes.empty());
    CHECK(archive.records.empty());
    const auto flat = flatten(archive.tree);
    REQUIRE(flat.tensors.size() == 2);
    CHECK(bytes_of(flat.tensors[0]) == "12");
    CHECK(bytes_of(flat.tensors[1]) == "abcd");
    CHECK(flat.tensors[1].dtype() == Dtype::i16);
}

TEST_CASE("a file of protocol 1 is read, which has long integers as text and no opcode for the protocol") {
    Legacy file = eight();
    file.magic = "L119547037146038801333356L\n";
    file.version = "M\xe9\3";
    file.machine = forge::dict({forge::text("little_endian"), "I01\n"});
    std::string bytes;
    for (const std::string& part : {file.magic, file.version, file.machine, file.object, file.keys})
        bytes += part + ".";
    CHECK(bytes_of(flatten(fixtures::open(bytes + file.storages).tree).tensors.at(0)) == "01234567");
}

TEST_CASE("storages are read as little-endian, whatever the machine was") {
    Legacy file = eight();
    file.object = forge::dict({forge::text("x"), bytes_tensor(storage("ShortStorage", "a", 4), 0, 4)});
    file.storages = stored(4, "01234567");
    for (const char* little : {"\x88", "\x89", "N"}) {
        file.machine = forge::dict({forge::text("little_endian"), little});
        CHECK(bytes_of(flatten(fixtures::open(file.join()).tree).tensors.at(0)) == "01234567");
    }
}

TEST_CASE("views of storages in old files begin at their offset") {
    Legacy file = eight();
    const auto with = [&](const std::string& storage, std::int64_t offset, std::int64_t size) {
        file.object = forge::dict({forge::text("x"), bytes_tensor(storage, offset, size)});
        return fault_of(file);
    };
    CHECK_FALSE(with(storage("ByteStorage", "a", 8, view(2, 4)), 1, 3).has_value());
    CHECK(bytes_of(flatten(fixtures::open(file.join()).tree).tensors.at(0)) == "345");
    CHECK(with(storage("ByteStorage", "a", 8, view(2, 4)), 1, 4)->code() == Errc::storage_too_short);
    CHECK(with(storage("ByteStorage", "a", 8, view(6, 3)), 0, 1)->code() == Errc::storage_too_short);
    CHECK(with(storage("ByteStorage", "a", 8, view(-1, 3)), 0, 1)->code() == Errc::bad_tensor);
    CHECK(with(storage("ByteStorage", "a", 8, view(1, -3)), 0, 1)->code() == Errc::bad_tensor);
    CHECK(with(storage("ByteStorage", "a", 8, forge::integer(1)), 0, 1)->code() == Errc::bad_tensor);
    CHECK(with(storage("UntypedStorage", "a", 8, view(1, 3)), 0, 1)->code() == Errc::bad_tensor);
}

TEST_CASE("a storage and its tensors share bytes") {
    Legacy file = eight();
    file.object = forge::dict({forge::text("s"), storage("ShortStorage", "a", 4), forge::text("x"),
                               bytes_tensor(storage("ShortStorage", "a", 4), 1, 3)});
    file.storages = stored(4, "01234567");
    const auto flat = flatten(fixtures::open(file.join()).tree);
    REQUIRE(flat.tensors.size() == 1);
    CHECK(bytes_of(flat.tensors[0]) == "234567");
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].type == "torch.ShortStorage");
}

TEST_CASE("the sizes of storages are compared with the file and with the pickle") {
    Legacy file = eight();
    file.storages = stored(8, "0123456");
    check_refused(file, Errc::file_truncated, "storage 'a': expected 8 bytes, found 7 bytes");
    file.storages = "0123456";
    check_refused(file, Errc::file_truncated, "storage 'a'");
    file.storages = stored(std::uint64_t{1} << 60, "01234567");
    check_refused(file, Errc::file_truncated, "storage 'a'");
    file.storages = stored(~std::uint64_t{0}, "01234567");
    check_refused(file, Errc::bad_tensor, "-1 elements");
    file.storages = stored(7, "01234567");
    check_refused(file, Errc::bad_tensor, "7 elements, but 8 in the pickle");
    file.storages = stored(9, "012345678");
    check_refused(file, Errc::bad_tensor, "9 elements, but 8");

    file.object = forge::dict({forge::text("x"), bytes_tensor(storage("DoubleStorage", "a", 1), 0, 1)});
    file.storages = stored(std::uint64_t{1} << 62, "01234567");
    check_refused(file, Errc::file_truncated, "storage 'a'");
}

TEST_CASE("the list of storages must match the object") {
    Legacy file = eight();
    file.keys = list_of({});
    const auto error = fault_of(file);
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::bad_tensor);
    CHECK(error->tensor() == "x");
    file.keys = list_of({"a", "b"});
    check_refused(file, Errc::bad_tensor, "'b' belongs to no tensor");
    file.keys = list_of({"a", "a"});
    check_refused(file, Errc::bad_tensor, "listed twice");
    file.keys = "](" + forge::integer(1) + "e";
    check_refused(file, Errc::bad_tensor, "not text");
    file.keys = "}";
    check_refused(file, Errc::bad_tensor, "not a list");
}

TEST_CASE("a key that is too long is refused") {
    const std::string key(1025, 'k');
    Legacy file = eight();
    file.object = forge::dict({forge::text("x"), bytes_tensor(storage("ByteStorage", key, 8), 0, 8)});
    file.keys = list_of({});
    check_refused(file, Errc::bad_tensor, "a storage key of 1025 bytes is too long");
    file.keys = list_of({key});
    check_refused(file, Errc::bad_tensor, "belongs to no tensor");
}

TEST_CASE("other versions and other formats are refused") {
    Legacy file = eight();
    file.version = forge::integer(1002);
    check_refused(file, Errc::unknown_format, "unknown version");
    file.version = "}";
    check_refused(file, Errc::unknown_format, "unknown version");
    file = eight();
    file.magic = forge::integer(5);
    CHECK_FAULT(torch::LegacyFile(fixtures::source(file.join()), {0, file.join().size()}), Errc::unknown_format);
    file = eight();
    file.machine = "]a";
    check_refused(file, Errc::pickle_bad_stack, "the description of the machine: byte");
}

TEST_CASE("a fault of a tensor names it, and does not affect others") {
    Legacy file{.object = forge::dict({forge::text("bad"), bytes_tensor(storage("ByteStorage", "a", 8), 0, 9),
                                       forge::text("good"), bytes_tensor(storage("ByteStorage", "a", 8), 0, 8)}),
                .keys = list_of({"a"}),
                .storages = stored(8, "01234567")};
    CollectFaults faults;
    const auto archive = fixtures::read(file.join(), faults);
    REQUIRE(faults.faults().size() == 1);
    CHECK(faults.faults()[0].code() == Errc::storage_too_short);
    CHECK(faults.faults()[0].tensor() == "bad");
    REQUIRE(flatten(archive.tree).tensors.size() == 1);
}

TEST_CASE("bytes after the last storage are noted") {
    Legacy file = eight();
    file.trailing = "more";
    const auto archive = fixtures::open(file.join());
    CHECK(only_of(archive.notes) == "4 bytes after the last storage are ignored");
}

TEST_CASE("module classes are in persistent ids, with their sources") {
    const auto module = [](const std::string& word, const std::string& type) {
        return forge::tuple({forge::text(word), type, forge::text("net.py"), forge::text("class Net: ...")}) + "Q";
    };
    const std::string state = forge::dict({forge::text("w"), bytes_tensor(storage("ByteStorage", "a", 8), 0, 8)});
    Legacy file = eight();
    file.object = module("module", forge::global("my.net", "Net")) + ")\x81" + state + "b";
    auto flat = flatten(fixtures::open(file.join()).tree);
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].name() == "w");
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].type == "my.net.Net");

    file.object = module("module", forge::global("os", "system")) + forge::tuple({forge::text("exit 0")}) + "R";
    file.keys = list_of({});
    file.storages.clear();
    const auto archive = fixtures::open(file.join());
    CHECK(only_of(archive.notes).find("os.system") != std::string::npos);

    file.object = module("madule", forge::global("my.net", "Net"));
    flat = flatten(fixtures::open(file.join()).tree);
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].type == "a persistent id");
}

TEST_CASE("opening reads the pickles and the counts, and no tensor, however long the file is") {
    constexpr std::uint64_t gigabytes = 40'000'000'000;
    Legacy file{.object = forge::dict({forge::text("x"), bytes_tensor(storage("ByteStorage", "a", gigabytes), 0, 5),
                                       forge::text("pad"), forge::text(std::string(100'000, 'p')), forge::text("y"),
                                       bytes_tensor(storage("ByteStorage", "b", 4), 0, 4)}),
                .keys = list_of({"a", "b"})};
    const std::string head = file.join() + forge::little(gigabytes, 8);
    const std::string tail = stored(4, "last");
    std::uint64_t read = 0;
    const auto source = callback_source("m.pt", head.size() + gigabytes + tail.size(),
                                        [&](std::uint64_t offset, std::span<std::byte> into) {
                                            read += into.size();
                                            std::fill(into.begin(), into.end(), std::byte{0});
                                            for (std::size_t i = 0; i < into.size(); ++i) {
                                                const std::uint64_t at = offset + i;
                                                if (at < head.size()) into[i] = std::byte(head[at]);
                                                if (at >= head.size() + gigabytes)
                                                    into[i] = std::byte(tail[at - head.size() - gigabytes]);
                                            }
                                        });
    ThrowFirst faults;
    const auto flat = flatten(torch::read_legacy(source, faults).tree);
    CHECK(read < 1_MiB);
    REQUIRE(flat.tensors.size() == 2);
    CHECK(bytes_of(flat.tensors[0]) == std::string(5, '\0'));
    CHECK(bytes_of(flat.tensors[1]) == "last");
}

TEST_CASE("a large length in a pickle does not cause large reads") {
    const std::uint64_t size = 3'000'000'000;
    std::uint64_t largest = 0;
    const auto with = [&](const std::string& object) {
        const std::string head = Legacy{.object = object}.join();
        const auto source = callback_source("m.pt", size, [&](std::uint64_t offset, std::span<std::byte> into) {
            largest = std::max<std::uint64_t>(largest, into.size());
            std::memset(into.data(), 'N', into.size());
            if (offset < head.size()) {
                std::memcpy(into.data(), head.data() + offset, std::min(into.size(), head.size() - offset));
            }
        });
        ThrowFirst faults;
        return error_of([&] { torch::read_legacy(source, faults); });
    };
    CHECK(with("\x8e" + forge::little(size, 8))->code() == Errc::file_truncated);
    CHECK(with("\x95" + forge::little(~std::uint64_t{0}, 8))->code() == Errc::file_truncated);
    CHECK(with("\x8b" + forge::little(0xFFFFFFFF, 4))->code() == Errc::pickle_bad_count);
    CHECK(largest <= 4_KiB);
}

TEST_CASE("every truncation of a legacy file is refused as truncated") {
    for (const std::string& whole : {eight().join(), fixtures::content("train_legacy_protocol4.pt"), storage_file()}) {
        const std::size_t step = whole.size() > 4000 ? 37 : 1;
        for (std::size_t size = 64; size < whole.size(); size += step) {
            CAPTURE(size);
            check_error(error_of([&] { fixtures::open(std::string_view(whole).substr(0, size)); }),
                        {Errc::file_truncated}, {});
        }
    }
}

TEST_CASE("a plain pickle contains its storages, in either form of bytes objects") {
    const std::string nested = storage_file();
    for (const bool raw : {true, false}) {
        CAPTURE(raw);
        const std::string file = plain(raw ? as_bytes(nested) : as_latin1(nested));
        const auto flat = flatten(fixtures::open(file).tree);
        REQUIRE(flat.tensors.size() == 1);
        CHECK(bytes_of(flat.tensors[0]) == "01234567");
    }
}

TEST_CASE("a storage inside a plain pickle is checked like one in a file") {
    const auto code = [](const std::string& nested, std::int64_t size = 8) {
        const auto error = error_of([&] { fixtures::open(plain(as_bytes(nested), size)); });
        if (error) CHECK(error->tensor() == "x");
        return error ? error->code() : Errc::cancelled;
    };
    Legacy file = eight();
    file.object = storage("ByteStorage", "a", 8);
    CHECK(code(file.join()) == Errc::cancelled);
    CHECK(code(file.join(), 9) == Errc::storage_too_short);
    CHECK(code(file.join().substr(0, file.join().size() - 1)) == Errc::file_truncated);
    CHECK(code("") == Errc::file_truncated);
    CHECK(code("\x80\x02}.") == Errc::unknown_format);
    file.object = storage("ByteStorage", "a", 8, view(0, 4));
    CHECK(code(file.join()) == Errc::bad_tensor);
    // A file inside a file inside a file: only a storage is accepted.
    CHECK(code(eight().join()) == Errc::bad_tensor);
    file.object = forge::call("torch.storage", "_load_from_bytes", {as_bytes(storage_file())});
    file.keys = list_of({});
    CHECK(code(file.join()) == Errc::bad_tensor);

    const auto argument = [](const std::string& value) {
        const auto error = error_of([&] { fixtures::open(plain(value)); });
        return error ? error->code() : Errc::cancelled;
    };
    CHECK(argument(forge::text("bytes?")) == Errc::bad_tensor);
    CHECK(argument(forge::integer(1)) == Errc::bad_tensor);
    CHECK(argument(as_bytes(storage_file()) + "N") == Errc::bad_tensor);
    CHECK(argument(forge::call("_codecs", "encode", {forge::text("x"), forge::text("rot13")})) == Errc::bad_tensor);
}

TEST_CASE("a plain pickle cannot refer to other storages") {
    const std::string file = "\x80\x02" + bytes_tensor(forge::storage("ByteStorage", "a", 8), 0, 8) + ".";
    CHECK_FAULT(fixtures::open(file), Errc::bad_tensor);
    CHECK_FAULT(fixtures::open("\x80\x04\x95 a pickle"), Errc::file_truncated);
    const auto archive = fixtures::open("\x80\x02}.xyz");
    CHECK(only_of(archive.notes) == "3 bytes after the end of the pickle are ignored");
}

TEST_CASE("bytes after a plain pickle are refused under strict globals") {
    torch::NamedGlobals unknown;
    ThrowFirst faults;
    const std::string pickles = forge::pickle("}") + forge::pickle(forge::call("os", "system", {forge::text("true")}));
    CHECK_FAULT(torch::read_plain(fixtures::source(pickles), faults, &unknown), Errc::trailing_bytes);
    CHECK_OK(torch::read_plain(fixtures::source(forge::pickle("}")), faults, &unknown));
    CHECK_OK(torch::read_plain(fixtures::source(pickles), faults));
}

TEST_CASE("a magic number after the first block of a file still makes it a file of torch.save") {
    Legacy file = eight();
    std::string noise;
    for (int i = 0; i < 600; ++i) noise += "N0";
    file.magic = noise + magic_number();
    CHECK_FALSE(torch::is_legacy(std::string_view(file.join()).substr(0, 512)));
    ThrowFirst faults;
    CHECK(flatten(torch::read_plain(fixtures::source(file.join()), faults).tree).tensors.size() == 1);
    file.machine = forge::call("os", "system", {forge::text("true")}) + "0" + file.machine;
    torch::NamedGlobals unknown;
    CHECK_FAULT(torch::read_plain(fixtures::source(file.join()), faults, &unknown), Errc::unknown_global);
}

TEST_CASE("storages that share one text are each charged for their size") {
    std::string file = "\x80\x03" + forge::global("torch.storage", "_load_from_bytes") + "q\0"s + "0" + "B" +
                       forge::little(60'000, 4) + std::string(60'000, 'x') + "q\1"s + "0](";
    const std::string utils = forge::global("torch._utils", "_rebuild_tensor");
    for (int i = 0; i < 20'000; ++i) {
        const std::string storage = "h\0"s + "h\1\x85"s + "R";
        file += utils + forge::tuple({storage, "K\0"s, ")", ")"}) + "R";
    }
    file += "e.";
    CollectFaults faults;
    static_cast<void>(error_of([&] { fixtures::read(file, faults); }));
    CHECK_FALSE(faults.faults().empty());
    bool bounded = false;
    for (const Error& fault : faults.faults()) bounded = bounded || fault.code() == Errc::pickle_too_large;
    CHECK(bounded);
}

TEST_CASE("the pickles of a storage inside a pickle have the memory that is left of the pickle around it") {
    const auto lists = [](std::size_t count) { return "(" + std::string(count, ']') + "l"; };
    const auto opens = [&](std::size_t around, std::size_t inside) {
        Legacy file = eight();
        file.object = storage("ByteStorage", "a", 8);
        file.machine = lists(inside);
        const std::string inner = forge::call("torch.storage", "_load_from_bytes", {as_bytes(file.join())});
        const std::string outer = forge::dict({forge::text("lists"), lists(around), forge::text("x"),  //
                                               bytes_tensor(inner, 0, 8)});
        const MemoryShare limit(8 << 20);
        return error_of([&] { fixtures::open("\x80\x03" + outer + "."); });
    };
    CHECK(!opens(0, 10'000));
    CHECK(!opens(10'000, 10'000));
    CHECK(!opens(28'000, 0));
    for (const std::size_t inside : {std::size_t{28'000}, std::size_t{100'000}}) {
        const auto error = opens(28'000, inside);
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::pickle_too_large);
    }
}

TEST_CASE("legacy files and plain pickles with random bytes changed are read or refused, and nothing worse") {
    const unsigned seed = soak::seed(20240607);
    CAPTURE(seed);
    std::uint32_t state = seed;
    const auto random = [&] { return state = state * 1664525 + 1013904223, state >> 8; };
    for (const char* file :
         {"train_legacy_protocol4.pt", "module_legacy.pt", "plain_pickle2.pkl", "plain_pickle4.pkl"}) {
        CAPTURE(file);
        const std::string whole = fixtures::content(file);
        for (int round = 0; round < soak::rounds(700); ++round) {
            std::string bytes = whole;
            for (std::uint32_t i = 0; i <= random() % 4; ++i)
                bytes[random() % bytes.size()] = static_cast<char>(random());
            CollectFaults faults;
            const auto error = error_of([&] {
                for (const LazyTensor& tensor : flatten(fixtures::read(bytes, faults).tree).tensors) {
                    if (tensor.nbytes() <= 1_MiB) static_cast<void>(error_of([&] { return tensor.load(); }));
                }
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
        }
    }
}

}  // namespace legacy_test
