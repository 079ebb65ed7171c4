// Tests reading some top-level values of a file without the others: which values, in which order, from every kind of
// file; and that calls which run code are refused wherever they are, and other objects are not.
#include "torch/parts.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/lazy_tensor.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"
#include "soak.hpp"

#include "state/structure.hpp"

#include <array>
#include <cstddef>
#include <random>
#include <thread>

namespace parts_test {

using namespace safemap;
using namespace std::string_literals;

namespace {

using torch::Parts;
using Keys = std::vector<std::string_view>;

Parts parts_of(const std::string& file, const Keys& keys = {}, torch::NamedGlobals* globals = nullptr) {
    return torch::read_parts(fixtures::source(file, "rank.pt"), keys, globals);
}

/// Returns the keys of the root, which must be texts.
std::vector<std::string> keys_of(const StateTree& tree) {
    std::vector<std::string> keys;
    for (const auto& item : std::get<StateTree::Dict>(tree[tree.root()]).items)
        keys.push_back(std::get<std::string>(tree[item.first]));
    return keys;
}
using Names = std::vector<std::string>;

/// Returns everything in a tree other than the elements of its tensors, as text.
std::string text_of(const StateTree& tree) {
    return state::structure_of(tree, [](const std::string& name) { return name; });
}
template <class T> const T& at(const StateTree& tree, std::string_view path) {
    const auto node = tree.find(path);
    REQUIRE(node.has_value());
    const T* const found = std::get_if<T>(&tree[*node]);
    REQUIRE(found != nullptr);
    return *found;
}
std::string loaded(const StateTree& tree, std::string_view path) {
    return ::bytes_of(at<StateTree::Tensor>(tree, path).tensor);
}

std::string number(std::int64_t value) { return forge::integer(value); }
/// Returns a tensor of the eight bytes in the storage `key`.
std::string bytes_of(std::string_view key) { return forge::view(forge::storage("ByteStorage", key, 8), 0, {8}, {1}); }
/// Returns a dictionary with four keys: "one" (a tensor), "two" (a number), "three" (a dictionary with a tensor) and
/// "four" (a text).
std::string four() {
    return forge::dict({forge::text("one"), bytes_of("0"), forge::text("two"), number(2), forge::text("three"),
                        forge::dict({forge::text("inner"), bytes_of("1")}), forge::text("four"), forge::text("end")});
}
std::string zip_of(const std::string& value) { return forge::archive(value, {{"0", "01234567"}, {"1", "abcdefgh"}}); }

/// Returns a legacy file of this object, which has the storages "0" and "1".
std::string legacy_of(const std::string& value) {
    return forge::pickle("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"s) + forge::pickle(number(1001)) +
           forge::pickle(forge::dict({})) + forge::pickle(value) +
           forge::pickle("](" + forge::text("0") + forge::text("1") + "e") + forge::little(8, 8) + "01234567" +
           forge::little(8, 8) + "abcdefgh";
}
/// Returns an object of a class, as pickle writes it: made without arguments, then its attributes.
std::string object(std::string_view module, std::string_view name, const std::string& state) {
    return forge::global(module, name) + ")\x81" + state + "b";
}

std::string attack() { return forge::call("os", "system", {forge::text("true")}); }

}  // namespace

TEST_CASE("the keys asked for are read, in the order of the pickle, each once") {
    const std::string file = zip_of(four());
    const Parts two = parts_of(file, {"three", "one", "three", "absent"});
    CHECK(keys_of(two.tree) == Names{"one", "three"});
    CHECK(loaded(two.tree, "one") == "01234567");
    CHECK(loaded(two.tree, "three/inner") == "abcdefgh");
    CHECK(two.notes.empty());
    CHECK(keys_of(parts_of(file, {"two"}).tree) == Names{"two"});
    CHECK(at<std::int64_t>(parts_of(file, {"two"}).tree, "two") == 2);
    CHECK(keys_of(parts_of(file, {"absent"}).tree).empty());
    // A part of a key is another key.
    CHECK(keys_of(parts_of(file, {"tw", "twos", ""}).tree).empty());
}

TEST_CASE("values that are not asked for are not rebuilt, so their faults do not matter") {
    const std::string value = forge::dict({forge::text("good"), bytes_of("0"), forge::text("bad"), bytes_of("9")});
    const std::string file = forge::archive(value, {{"0", "01234567"}});
    CHECK(loaded(parts_of(file, {"good"}).tree, "good") == "01234567");
    check_error(error_of([&] { parts_of(file); }), {Errc::zip_missing_record}, {},
                {.tensor = "bad", .path = "rank.pt"});
    // Neither do they add nodes: two keys, two texts, and the root.
    const std::string list = "](" + number(1) + number(2) + number(3) + "e";
    const std::string lists = zip_of(forge::dict({forge::text("a"), list, forge::text("b"), forge::text("x")}));
    CHECK(parts_of(lists, {"b"}).tree.size() == 3);
    CHECK(parts_of(lists, {"a"}).tree.size() == 6);
}

TEST_CASE("all keys give the tree that the whole file gives") {
    ThrowFirst faults;
    for (const std::string& value :
         {four(), forge::dict({}), forge::ordered() + "(" + forge::text("one") + bytes_of("0") + "u"}) {
        const std::string file = zip_of(value);
        Parts parts = parts_of(file);
        const Parts whole = torch::read_whole(fixtures::source(file));
        CHECK(text_of(whole.tree) == text_of(fixtures::with_tree(fixtures::read(file, faults)).tree));
        std::get<StateTree::Dict>(parts.tree[parts.tree.root()]).ordered =
            std::get<StateTree::Dict>(whole.tree[whole.tree.root()]).ordered;
        CHECK(text_of(parts.tree) == text_of(whole.tree));
    }
    for (const char* name : {"train_gpt.pt", "train_protocol5.pt", "train_legacy_protocol4.pt", "nested.pt"}) {
        CAPTURE(name);
        const std::string file = fixtures::content(name);
        const StateTree whole = fixtures::open(file).tree;
        CHECK(text_of(parts_of(file).tree) == text_of(whole));
        for (const std::string& key : keys_of(whole)) {
            CAPTURE(key);
            const Parts one = parts_of(file, {key});
            CHECK(keys_of(one.tree) == Names{key});
            const auto& item = std::get<StateTree::Dict>(one.tree[one.tree.root()]).items.front();
            CHECK(text_of(one.tree.subtree(item.second)) == text_of(whole.subtree(whole.find(key).value())));
        }
    }
}

TEST_CASE("a value that another one shares is read with it, and stays shared") {
    const std::string shared = "](" + bytes_of("0") + "eq\1";
    const Parts parts = parts_of(zip_of(forge::dict({forge::text("a"), shared, forge::text("b"), "h\1"})), {"b"});
    CHECK(loaded(parts.tree, "b/0") == "01234567");
    const Parts both = parts_of(zip_of(forge::dict({forge::text("a"), shared, forge::text("b"), "h\1"})));
    CHECK(both.tree.find("a") == both.tree.find("b"));
    // A value that holds the root itself.
    const Parts cycle = parts_of(zip_of("}q\1" + forge::text("self") + "h\1s"), {"self"});
    CHECK(keys_of(cycle.tree) == Names{"self"});
    CHECK_OK(static_cast<void>(at<StateTree::Dict>(cycle.tree, "self/self/self")));
}

TEST_CASE("a repeated key keeps its place and has the last value") {
    const std::string file =
        zip_of(forge::dict({forge::text("a"), number(1), forge::text("b"), number(2), forge::text("a"), number(3)}));
    for (const Keys& keys : {Keys{}, Keys{"b", "a"}}) {
        const Parts parts = parts_of(file, keys);
        CHECK(keys_of(parts.tree) == Names{"a", "b"});
        CHECK(at<std::int64_t>(parts.tree, "a") == 3);
    }
    // A long key in many places is hashed once.
    const std::string key = forge::text(std::string(500'000, 'k')) + "q\1" + "0";
    std::string items;
    for (int i = 0; i < 200'000; ++i) items += "h\1N";
    CHECK(keys_of(parts_of(zip_of(key + "}(" + items + "u")).tree).size() == 1);
}

TEST_CASE("keys that are not texts are left out, with a note if all keys are wanted") {
    const std::string file =
        zip_of(forge::dict({number(1), number(10), forge::text("a"), number(2), "\x88", "N", ")", "N"}));
    const Parts all = parts_of(file);
    CHECK(keys_of(all.tree) == Names{"a"});
    CHECK(only_of(all.notes) == "3 keys of the file's dictionary are not texts, and are left out");
    CHECK(parts_of(file, {"a"}).notes.empty());
}

TEST_CASE("legacy files and plain pickles are read like zips, and a zip may have bytes before it") {
    const std::string value = four();
    for (const std::string& file : {zip_of(value), legacy_of(value), "more" + zip_of(value)}) {
        const Parts parts = parts_of(file, {"three", "two"});
        CHECK(keys_of(parts.tree) == Names{"two", "three"});
        CHECK(loaded(parts.tree, "three/inner") == "abcdefgh");
    }
    CHECK(parts_of(legacy_of(value) + "!").notes.size() == 1);
    const Parts plain = parts_of("\x80\x02" + forge::dict({forge::text("a"), number(1)}) + ".", {"a"});
    CHECK(at<std::int64_t>(plain.tree, "a") == 1);
    const std::string state = fixtures::content("plain_pickle4.pkl");
    CHECK(text_of(torch::read_whole(fixtures::source(state)).tree) == text_of(fixtures::open(state).tree));
    CHECK(loaded(parts_of(state, {"layer.bias"}).tree, "layer.bias") ==
          loaded(fixtures::open(state).tree, "layer.bias"));
    // A legacy file whose magic number is spelled with more bytes than formats are detected from.
    const std::string longer = forge::pickle("X" + forge::little(600, 4) + std::string(600, 'x') + "0" +
                                             "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"s);
    CHECK(keys_of(parts_of(longer + legacy_of(value).substr(15), {"two"}).tree) == Names{"two"});
}

TEST_CASE("records may be deflated") {
    forge::Zip zip;
    zip.add_deflated("a/data.pkl", forge::pickle(four()));
    zip.add_deflated("a/data/0", "01234567");
    zip.add_deflated("a/data/1", "abcdefgh");
    const Parts parts = parts_of(zip.join(), {"three"});
    CHECK(loaded(parts.tree, "three/inner") == "abcdefgh");
}

TEST_CASE("tensors outlive everything but their source") {
    std::optional<LazyTensor> tensor;
    {
        const Parts parts = parts_of(zip_of(four()), {"one"});
        tensor = at<StateTree::Tensor>(parts.tree, "one").tensor;
    }
    CHECK(tensor->load().nbytes() == 8);
}

TEST_CASE("a file without a dictionary is refused, unless all of it is read") {
    for (const std::string& value : {bytes_of("0"), number(1), "](" + number(1) + "e", forge::call("my", "Thing", {}),
                                     "N"s, object("my", "Thing", four())}) {
        for (const std::string& file : {zip_of(value), legacy_of(value + bytes_of("1") + "0" + bytes_of("0") + "0")}) {
            check_error(error_of([&] { parts_of(file, {"one"}); }), {Errc::field_missing}, {},
                        {.path = "rank.pt", .message = "the file holds no dictionary"});
            CHECK_OK(torch::read_whole(fixtures::source(file)));
        }
    }
    const Parts tensor = torch::read_whole(fixtures::source(zip_of(bytes_of("0"))));
    CHECK(loaded(tensor.tree, "") == "01234567");
}

TEST_CASE("a call that runs code is refused wherever it is, and named") {
    const std::string safe = four();
    const auto with = [](const std::string& value) {
        return forge::dict(
            {forge::text("one"), bytes_of("0"), forge::text("bad"), value, forge::text("x"), bytes_of("1")});
    };
    const std::pair<std::string, const char*> attacks[]{
        {with(attack()), "os.system"},
        {with("](" + attack() + "e"), "os.system"},
        {with(object("my", "Thing", forge::dict({forge::text("a"), attack()}))), "os.system"},
        {with(forge::call("builtins", "eval", {forge::text("1")})), "builtins.eval"},
        {with(forge::call("__builtin__", "eval", {forge::text("1")})), "builtins.eval"},
        {with(forge::call("torch.serialization", "os.system", {forge::text("true")})), "os.system"},
        {with(forge::call("copyreg", "_reconstructor", {forge::global("subprocess", "Popen")})), "subprocess.Popen"},
        // Dropped before the dictionary is made, as a key, and a function that only is a value.
        {attack() + "0" + safe, "os.system"},
        {with(forge::dict({attack(), "N"})), "os.system"},
        {with(forge::global("os", "system")), "os.system"},
        {with(object("my", "Thing",
                     forge::dict({forge::text("__setstate__"), forge::global("torch.storage", "_load_from_bytes")}))),
         "torch.storage._load_from_bytes"},
    };
    for (const auto& row : attacks) {
        const char* const called = row.second;
        CAPTURE(called);
        for (const std::string& file : {zip_of(row.first), legacy_of(row.first)}) {
            for (const Keys& keys : {Keys{"one"}, Keys{"bad"}, Keys{}, Keys{"absent"}}) {
                check_error(error_of([&] { parts_of(file, keys); }), {Errc::unsafe_call}, {called},
                            {.path = "rank.pt"});
            }
            CHECK_FAULT(torch::read_whole(fixtures::source(file)), Errc::unsafe_call);
            // A plain file of torch.save keeps its tensors.
            CHECK(flatten(fixtures::open(file).tree).tensors.size() == 2);
        }
    }
}

TEST_CASE("a call that runs code is refused in the other pickles of a file, too") {
    const std::string value = four();
    std::string file = legacy_of(value);
    const std::string machine = forge::pickle(forge::dict({}));
    file.replace(file.find(machine), machine.size(), forge::pickle(attack()));
    CHECK_FAULT(parts_of(file, {"two"}), Errc::unsafe_call);
    // A storage inside the pickle is a file of its own.
    const auto embedded = [](const std::string& bytes) {
        const std::string storage =
            forge::call("torch.storage", "_load_from_bytes", {"B" + forge::little(bytes.size(), 4) + bytes});
        return "\x80\x03" + forge::dict({forge::text("a"), number(1), forge::text("x"), storage}) + ".";
    };
    const std::string inner = legacy_of(forge::storage("ByteStorage", "0", 8));
    const std::string one =
        inner.substr(0, inner.find(forge::pickle("](" + forge::text("0") + forge::text("1") + "e")));
    const std::string rest = forge::pickle("](" + forge::text("0") + "e") + forge::little(8, 8) + "01234567";
    CHECK(keys_of(parts_of(embedded(one + rest), {"a"}).tree) == Names{"a"});
    std::string bad = one;
    bad.replace(bad.find(machine), machine.size(), forge::pickle(attack()));
    CHECK_FAULT(parts_of(embedded(bad + rest), {"a"}), Errc::unsafe_call);
    // One that cannot be read may do anything.
    CHECK_FAULT(parts_of(embedded(one), {"a"}), Errc::file_truncated);
}

TEST_CASE("objects of classes that do not run code stay, with what they hold") {
    const std::string scaler =
        object("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler",
               forge::dict({forge::text("cur_scale"), number(65536), forge::text("cur_iter"), number(3)}));
    const std::string stage = forge::call("deepspeed.runtime.zero.config", "ZeroStageEnum", {number(2)});
    const std::string address =
        object("deepspeed.utils.tensor_fragment", "fragment_address",
               forge::dict({forge::text("numel"), number(12), forge::text("start"), number(4)}));
    const std::string arguments = object("argparse", "Namespace", forge::dict({forge::text("lr"), number(1)}));
    // An enum that Python pickles by its name.
    const std::string by_name =
        forge::call("builtins", "getattr", {forge::global("my.config", "Kind"), forge::text("two")});
    const std::string file =
        zip_of(forge::dict({forge::text("loss_scaler"), scaler, forge::text("zero_stage"), stage, forge::text("slices"),
                            "](" + address + "e", forge::text("args"), arguments, forge::text("kind"), by_name}));
    torch::NamedGlobals globals(false);
    const Parts parts = parts_of(file, {}, &globals);
    const auto is = [&](std::string_view path, std::string_view type) {
        return at<StateTree::Opaque>(parts.tree, path).type == type;
    };
    CHECK(is("loss_scaler", "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"));
    CHECK(at<std::int64_t>(parts.tree, "loss_scaler/cur_scale") == 65536);
    CHECK(is("zero_stage", "deepspeed.runtime.zero.config.ZeroStageEnum"));
    CHECK(at<std::int64_t>(parts.tree, "zero_stage/0") == 2);
    CHECK(is("slices/0", "deepspeed.utils.tensor_fragment.fragment_address"));
    CHECK(at<std::int64_t>(parts.tree, "slices/0/start") == 4);
    CHECK(is("args", "argparse.Namespace"));
    CHECK(at<std::int64_t>(parts.tree, "args/lr") == 1);
    CHECK(at<StateTree::Constant>(parts.tree, "kind").text == "my.config.Kind.two");
    CHECK(globals.asks_for_code());
    CHECK(globals.all().size() >= 4);
}

TEST_CASE("strict globals refuse every unknown class, wanted or not") {
    const std::string known = zip_of(four());
    const std::string unknown =
        zip_of(forge::dict({forge::text("a"), number(1), forge::text("b"), forge::call("my", "Thing", {})}));
    const std::string of_script =
        zip_of(forge::dict({forge::text("a"), number(1), forge::text("b"), forge::call("__torch__", "Thing", {})}));
    const auto strict = [](const std::string& file) {
        torch::NamedGlobals globals(true);
        static_cast<void>(parts_of(file, {"a"}, &globals));
    };
    CHECK_OK(strict(known));
    CHECK_FAULT(strict(unknown), Errc::unknown_global);
    CHECK_FAULT(strict(of_script), Errc::unknown_global);
    check_error(error_of([&] { strict(zip_of(attack() + "0" + four())); }), {Errc::unknown_global}, {"os.system"});
}

TEST_CASE("damaged files are refused with their path") {
    const auto code_of = [](const std::string& file) {
        const auto error = error_of([&] { parts_of(file, {"two"}); });
        REQUIRE(error.has_value());
        CHECK(error->path() == "rank.pt");
        return error->code();
    };
    const std::string zip = zip_of(four());
    const std::string legacy = legacy_of(four());
    for (std::size_t size = 4; size < zip.size(); size += 7) CHECK(code_of(zip.substr(0, size)) != Errc::unsafe_call);
    CHECK(code_of(zip.substr(0, zip.size() / 2)) == Errc::zip_bad_directory);
    for (const std::size_t cut : {std::size_t{1}, std::size_t{30}, legacy.size() - 20})
        CHECK(code_of(legacy.substr(0, legacy.size() - cut)) == Errc::file_truncated);
    CHECK(code_of({}) == Errc::file_truncated);
    CHECK(code_of(std::string(100, '\0')) == Errc::unknown_format);
    CHECK(code_of("version https://git-lfs.github.com/spec/v1\n") == Errc::unknown_format);
    std::string flipped = zip;
    flipped[flipped.find("inner")] = 'I';
    CHECK(code_of(flipped) == Errc::checksum_mismatch);
    forge::Zip none;
    none.add("a/byteorder", "little");
    CHECK(code_of(none.join()) == Errc::zip_missing_record);
    const std::string tensor = forge::view(forge::storage("ByteStorage", "0", 9), 0, {9}, {1});
    CHECK(code_of(zip_of(forge::dict({forge::text("two"), tensor}))) == Errc::storage_too_short);
}

TEST_CASE("files are read by several threads at once, each with its own globals") {
    const std::string value = forge::dict({forge::text("a"), forge::call("my", "Thing", {number(1)})});
    const auto source = fixtures::source(zip_of(value));
    std::array<std::size_t, 4> named{};
    std::vector<std::thread> threads;
    for (std::size_t& count : named) {
        threads.emplace_back([&count, &source] {
            for (int i = 0; i < 20; ++i) {
                torch::NamedGlobals globals(false);
                static_cast<void>(torch::read_parts(source, {}, &globals));
                count = globals.all().size();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::size_t count : named) CHECK(count == 1);
}

TEST_CASE("a mutated file gives some of the keys asked for, or an error with its path") {
    std::mt19937 random(soak::seed(20));
    const std::string file = legacy_of(four());
    std::size_t read = 0;
    std::size_t refused = 0;
    for (int i = 0; i < soak::rounds(4000); ++i) {
        std::string mutated = file;
        const int changes = std::uniform_int_distribution(1, 3)(random);
        for (int change = 0; change < changes; ++change)
            mutated[random() % mutated.size()] = static_cast<char>(random() & 0xFF);
        const auto error = error_of([&] {
            const Parts parts = parts_of(mutated, {"one", "three"});
            for (const std::string& key : keys_of(parts.tree)) CHECK((key == "one" || key == "three"));
            ++read;
        });
        if (!error) continue;
        ++refused;
        CHECK(error->path() == "rank.pt");
        CHECK(exit_code(error->code()) == 1);
    }
    CHECK(read > 0);
    CHECK(refused > 0);
}

}  // namespace parts_test
