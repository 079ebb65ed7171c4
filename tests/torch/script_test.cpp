// Tests TorchScript archives, forged: which attributes become tensors, and their names.
#include "torch/script.hpp"

#include <safemap/advanced/flatten.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"
#include "pickle/memory_share.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace script_test {

using namespace safemap;

namespace {

std::string tensor() { return forge::view(forge::storage("ByteStorage", "0", 4), 0, {4}, {1}); }
std::string module(const std::string& type, std::initializer_list<std::string> attributes) {
    return forge::global("__torch__." + type, "Net") + ")\x81" + forge::dict(attributes) + "b";
}
torch::Archive open(const std::string& root) {
    forge::Zip zip;
    zip.add("a/data.pkl", forge::pickle(root));
    zip.add("a/data/0", "0123");
    zip.add("a/constants.pkl", forge::pickle(")"));
    return fixtures::open(zip.join());
}
std::vector<std::string> names(const std::string& root) { return names_of(flatten(open(root).tree).tensors); }

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a module's own tensors come first, then those of its children, with dots between names") {
    const std::string inner = module("inner", {forge::text("scale"), tensor(), forge::text("steps"), "K\7"});
    const std::string root =
        module("net", {forge::text("training"), "\x88", forge::text("first"), inner, forge::text("weight"), tensor(),
                       forge::text("none"), "N", forge::text("second"), module("b", {forge::text("third"), inner})});
    const auto archive = open(root);
    CHECK(only_of(archive.notes).find("TorchScript") != std::string::npos);
    const auto flat = flatten(archive.tree);
    CHECK(flat.verbatim);
    REQUIRE(flat.tensors.size() == 1);  // all have the same storage
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"weight", "first.scale", "second.third.scale"});
    CHECK(flat.skipped.empty());
}

TEST_CASE(
    "lists and dictionaries of tensors keep their indices and keys, and lists and dictionaries of other values are "
    "omitted") {
    const auto tagged = [](std::string_view function, const std::string& value) {
        return forge::call("torch.jit._pickle", function, {value, forge::text("List[Tensor]")});
    };
    CHECK(names(module("net", {forge::text("list"), tagged("build_tensorlist", "](" + tensor() + "e"),
                               forge::text("ints"), tagged("build_intlist", "](K\1K\2e")})) == Names{"list/0"});
    CHECK(
        names(module("net", {forge::text("map"), tagged("restore_type_tag", forge::dict({forge::text("k"), tensor()})),
                             forge::text("empty"), tagged("restore_type_tag", "}")})) == Names{"map/k"});
    CHECK(names(forge::global("__torch__.net", "Net") + ")\x81" + forge::tuple({tensor(), "N"}) + "b") == Names{"0"});
}

TEST_CASE("a module that occurs twice has both names, and one that contains itself is refused") {
    const auto shared = flatten(open(module("net", {forge::text("a"), module("s", {forge::text("w"), tensor()}) + "q\1",
                                                    forge::text("b"), "h\1"}))
                                    .tree);
    REQUIRE(shared.aliases.size() == 1);
    CHECK(shared.aliases[0] == AliasGroup{"a.w", "b.w"});
    CHECK_FAULT(open(forge::global("__torch__", "Net") + ")\x81q\1" +
                     forge::dict({forge::text("self"), "h\1", forge::text("w"), tensor()}) + "b"),
                Errc::pickle_too_large);

    std::string doubling = module("net", {forge::text("w"), tensor()});
    for (int i = 0; i < 60; ++i) {
        doubling = module("net", {forge::text("a"), doubling + "q\1", forge::text("b"), "h\1"});
    }
    CHECK_FAULT(open(doubling), Errc::pickle_too_large);
}

TEST_CASE("names are limited in length and unique, however deep the modules are") {
    std::string deep = module("net", {forge::text("w"), tensor()});
    for (int i = 0; i < 300; ++i) deep = module("net", {forge::text("m"), deep});
    CHECK(names(deep).at(0).size() == 601);
    for (int i = 0; i < 300; ++i) deep = module("net", {forge::text("m"), deep});
    CHECK_FAULT(open(deep), Errc::pickle_too_large);
    CHECK_FAULT(open(module("net", {forge::text("a.b"), tensor(), forge::text("a"),
                                    module("net", {forge::text("b"), tensor()})})),
                Errc::bad_tensor);
}

TEST_CASE("a fault of a tensor gives its dotted name") {
    const std::string wrong = forge::view(forge::storage("ByteStorage", "0", 4), 0, {5}, {1});
    check_error(error_of([&] {
                    open(module("net", {forge::text("a"), module("s", {forge::text("w"), wrong})}));
                }),
                {Errc::storage_too_short}, {}, {.tensor = "a.w"});
}

TEST_CASE("an archive with constants whose root is not a module is read like any other") {
    CHECK(names(forge::dict({forge::text("x"), forge::dict({forge::text("y"), tensor()})})) == Names{"x/y"});
}

TEST_CASE("the constants of a frozen module, which has no tensors of its own, are read") {
    const auto archive = [](const std::string& root) {
        forge::Zip zip;
        zip.add("a/data.pkl", forge::pickle(root));
        zip.add("a/data/0", "0123");
        zip.add("a/constants/0", "abcd");
        zip.add("a/constants.pkl", forge::pickle(forge::tuple({tensor(), "K\1", tensor()})));
        return fixtures::open(zip.join());
    };
    const auto frozen = archive(module("net", {forge::text("training"), "\x89"}));
    const auto flat = flatten(frozen.tree);
    REQUIRE(flat.tensors.size() == 1);
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"CONSTANTS.c0", "CONSTANTS.c2"});
    CHECK(fixtures::described(flat.tensors[0]).sha256 == sha256(std::as_bytes(std::span("abcd", 4))));
    CHECK(only_of(frozen.notes).find("its constants are read") != std::string::npos);
    CHECK(names(module("net", {forge::text("w"), tensor()})) == Names{"w"});
    // If the module has tensors too, names in the constants are still checked under strict globals.
    forge::Zip zip;
    zip.add("a/data.pkl", forge::pickle(module("net", {forge::text("w"), tensor()})));
    zip.add("a/data/0", "0123");
    zip.add("a/constants.pkl", forge::pickle(forge::tuple({forge::call("os", "system", {forge::text("true")})})));
    ThrowFirst faults;
    torch::NamedGlobals unknown;
    CHECK_OK(torch::read_archive(fixtures::source(zip.join()), faults));
    CHECK_FAULT(torch::read_archive(fixtures::source(zip.join()), faults, &unknown), Errc::unknown_global);
    CHECK(flatten(archive(module("net", {forge::text("w"), tensor()})).tree).tensors.size() == 1);
}

TEST_CASE(
    "constants that need more memory than a share are read again outside of it, and may call anything until then") {
    const std::string lists = "(" + std::string(20'000, ']') + "l0";
    forge::Zip zip;
    zip.add("a/data.pkl", forge::pickle(module("net", {forge::text("w"), tensor()})));
    zip.add("a/data/0", "0123");
    zip.add("a/constants.pkl", forge::pickle(lists + forge::call("os", "system", {forge::text("true")})));
    ThrowFirst faults;
    torch::NamedGlobals whole(false);
    CHECK_OK(torch::read_archive(fixtures::source(zip.join()), faults, &whole));
    CHECK(whole.asks_for_code());
    CHECK(whole.all().back().name == "system");
    const MemoryShare share(1 << 20, 1 << 20);
    torch::NamedGlobals in_share(false);
    CHECK_OK(torch::read_archive(fixtures::source(zip.join()), faults, &in_share));
    CHECK(in_share.asks_for_code());
    CHECK(MemoryShare::was_too_small());
}

}  // namespace script_test
