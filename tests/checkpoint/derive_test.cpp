// Tests select() and renamed() against lists filtered by hand, below() combined with them, and what they refuse. From
// top to bottom: the slow reference and random inputs, random chains, ties, refusals, reads, parts of a tree, the
// structure document.
#include <safemap/checkpoint.hpp>

#include "check_error.hpp"
#include "checkpoint/origin.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/digest.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace derive_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

const fs::path pt = fs::path(SAFEMAP_TEST_DATA) / "pt";

Checkpoint open(std::string_view content) { return Checkpoint::open(forge::source(content)); }

std::string bytes_of(const LazyTensor& tensor) {
    std::string bytes(tensor.nbytes(), '\0');
    tensor.read(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

using Rename = std::function<std::string(std::string_view)>;

/// A slow reference: a checkpoint as plain lists.
struct Twin {
    struct Name {
        std::string name;
        bool in_metadata;
    };
    struct Tensor {
        LazyTensor tensor;
        std::vector<Name> names;
    };
    std::vector<Tensor> tensors = {};
    std::map<std::string, std::string> metadata = {};  // without ties

    explicit Twin(const Checkpoint& opened) : metadata(opened.metadata().begin(), opened.metadata().end()) {
        for (const LazyTensor& tensor : opened) {
            tensors.push_back({tensor, {{tensor.name(), false}}});
            for (const AliasGroup& group : opened.aliases()) {
                if (group.front() != tensor.name()) continue;
                for (std::size_t i = 1; i < group.size(); ++i) {
                    const auto pair = metadata.find(group[i]);
                    const bool tie = pair != metadata.end() && pair->second == tensor.name();
                    if (tie) metadata.erase(pair);
                    tensors.back().names.push_back({group[i], tie});
                }
            }
        }
    }

    void select(const Selection& selection) {
        for (Tensor& each : tensors)
            std::erase_if(each.names, [&](const Name& name) { return !selection.matches(name.name); });
        std::erase_if(tensors, [](const Tensor& each) { return each.names.empty(); });
    }
    void rename(const Rename& rename) {
        for (Tensor& each : tensors)
            for (Name& name : each.names) name.name = rename(name.name);
    }
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const Tensor& each : tensors)
            for (const Name& name : each.names) all.push_back(name.name);
        return all;
    }
};

void check(const Checkpoint& derived, const Twin& twin) {
    REQUIRE(derived.size() == twin.tensors.size());
    std::vector<AliasGroup> groups;
    auto metadata = twin.metadata;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < twin.tensors.size(); ++i) {
        const LazyTensor& tensor = twin.tensors[i].tensor;
        const std::vector<Twin::Name>& names = twin.tensors[i].names;
        CHECK(derived.tensor(i).name() == names.front().name);
        CHECK(derived.tensor(i).stored() == tensor.stored());
        CHECK(bytes_of(derived.tensor(i)) == bytes_of(tensor));
        total += tensor.nbytes();
        if (names.size() > 1) groups.emplace_back();
        for (const Twin::Name& name : names) {
            if (names.size() > 1) groups.back().push_back(name.name);
            if (&name != &names.front() && name.in_metadata) metadata.emplace(name.name, names.front().name);
            REQUIRE(derived.find(name.name) != nullptr);
            CHECK(derived[name.name].name() == name.name);
            CHECK(derived[name.name].stored() == tensor.stored());
        }
    }
    CHECK(derived.aliases() == groups);
    CHECK(derived.total_bytes() == total);
    CHECK(std::map<std::string, std::string>(derived.metadata().begin(), derived.metadata().end()) == metadata);
    CHECK(std::is_sorted(derived.metadata().begin(), derived.metadata().end()));
    std::vector<std::string> all;
    for (const NamedTensor& named : all_names(derived)) all.emplace_back(named.name);
    CHECK(all == twin.names());
}

/// Returns a file of tensors t0, t1, ..., some of them with several names, and with metadata.
Checkpoint random_model(std::mt19937& random) {
    const unsigned long count = random() % 9;
    std::string header = R"({"__metadata__":{"format":"pt","who":"me","path":"t")";
    for (unsigned i = 0; i < 6 && count > 0; ++i)
        if (random() % 2 == 0) header += ",\"o" + std::to_string(i) + "\":\"t" + std::to_string(random() % count) + '"';
    header += '}';
    for (unsigned long i = 0; i < count; ++i)
        header += ",\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[3],"data_offsets":[)" +
                  std::to_string(3 * i) + ',' + std::to_string(3 * i + 3) + "]}";
    std::string data(3 * count, '\0');
    for (char& byte : data) byte = static_cast<char>(random());
    return open(forge::safetensors(header + '}', data));
}

/// Returns a random selection of names and globs.
Selection random_selection(std::mt19937& random, const Twin& twin) {
    if (random() % 4 == 0) return Selection().exclude(random() % 2 == 0 ? "o*" : "*1*");
    std::vector<std::string> names;
    for (const std::string& name : twin.names())
        if (random() % 3 != 0) names.push_back(name);
    return Selection::names(std::move(names));
}

/// Returns a random renaming that swaps names and adds new ones.
Rename random_rename(std::mt19937& random, const Twin& twin) {
    std::vector<std::string> before = twin.names();
    std::vector<std::string> after = before;
    std::shuffle(after.begin(), after.end(), random);
    std::map<std::string, std::string> table;
    for (std::size_t i = 0; i < before.size(); ++i)
        table[before[i]] = random() % 2 == 0 ? after[i] : after[i] + "." + std::to_string(random() % 10);
    return [table = std::move(table)](std::string_view name) { return table.at(std::string(name)); };
}

const std::string tied = forge::safetensors(
    R"({"__metadata__":{"format":"pt","head":"wte","head2":"wte","note":"mine"},)"
    R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"wte":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
    "abc");

}  // namespace

TEST_CASE("chains of select and renamed give the same as lists filtered by hand") {
    std::random_device device;
    const unsigned seed = device();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto run = [&](const Checkpoint& opened) {
        Checkpoint derived = opened;
        Twin twin(opened);
        for (unsigned step = 0; step < 4; ++step) {
            if (random() % 2 == 0) {
                const Selection selection = random_selection(random, twin);
                derived = derived.select(selection);
                twin.select(selection);
            } else {
                const Rename rename = random_rename(random, twin);
                derived = derived.renamed(rename);
                twin.rename(rename);
            }
            check(derived, twin);
        }
    };
    for (unsigned i = 0; i < 200; ++i) run(random_model(random));
    for (const char* const file : {"tied.pt", "train_gpt.pt", "module.pt", "tied_legacy.pt"})
        for (unsigned i = 0; i < 5; ++i) run(Checkpoint::open(pt / file));
}

TEST_CASE("selecting all tensors and keeping all names gives an equal checkpoint") {
    for (const char* const file : {"tied.pt", "train_gpt.pt", "flat.pt"}) {
        const Checkpoint opened = Checkpoint::open(pt / file);
        const Checkpoint same = opened.select({}).renamed([](std::string_view name) { return std::string(name); });
        CHECK(names_of(same) == names_of(opened));
        CHECK(same.aliases() == opened.aliases());
        CHECK(same.metadata() == opened.metadata());
        CHECK(same.files() == opened.files());
        CHECK(same.notes() == opened.notes());
        CHECK(lost_without_structure(same) == lost_without_structure(opened));
        CHECK(same.skipped().size() == opened.skipped().size());
        CHECK(same.globals().size() == opened.globals().size());
        CHECK(checkpoint::Origin::storages(same).size() == checkpoint::Origin::storages(opened).size());
        CHECK(same.parts() == opened.parts());
        CHECK(same.fingerprint() == opened.fingerprint());
        CHECK(same.tree() == opened.tree());
        CHECK(structure_of(same) == structure_of(opened));
        CHECK(digests(same).checkpoint == digests(opened).checkpoint);
    }
    const Checkpoint opened = open(tied);
    const Checkpoint same = opened.select({});
    CHECK(same.metadata() == opened.metadata());
}

TEST_CASE("a selection may keep any of a tied tensor's names, or none") {
    const Checkpoint model = open(tied);
    using Pairs = std::vector<std::pair<std::string, std::string>>;
    const Checkpoint both = model.select(Selection::glob("head*"));
    CHECK(names_of(both) == std::vector<std::string>{"head"});
    CHECK(both.aliases() == std::vector<AliasGroup>{{"head", "head2"}});
    CHECK(both.metadata() == Pairs{{"format", "pt"}, {"head2", "head"}, {"note", "mine"}});
    const Checkpoint one = both.select(Selection::names({"head2"}));
    CHECK(names_of(one) == std::vector<std::string>{"head2"});
    CHECK(bytes_of(one["head2"]) == "bc");
    CHECK(one.aliases().empty());
    CHECK(one.metadata() == Pairs{{"format", "pt"}, {"note", "mine"}});
    CHECK(one.find("wte") == nullptr);
    const Checkpoint none = model.select(Selection::names({}));
    CHECK(none.empty());
    CHECK(none.metadata() == one.metadata());
    CHECK(none.select({}).empty());
}

TEST_CASE("renaming two tensors to one name is refused with both names and the result") {
    const Checkpoint model = open(tied);
    const auto renamed_to = [](std::map<std::string, std::string> table) {
        return [table = std::move(table)](std::string_view name) {
            const auto found = table.find(std::string(name));
            return found == table.end() ? std::string(name) : found->second;
        };
    };
    for (const auto& change : {std::pair("b", "wte"), {"b", "head"}, {"head", "b"}, {"head", "head2"}}) {
        CAPTURE(change.first);
        CHECK_FAULT(model.renamed(renamed_to({{change.first, change.second}})), Errc::name_collision);
    }
    check_error(error_of([&] {
                    return model.renamed(renamed_to({{"b", "x"}, {"head", "x"}}));
                }),
                {Errc::name_collision}, {}, {.message = "'b' and 'head' would both become 'x'"});
    // The other name of a tied tensor is a metadata key, and can collide with other keys.
    check_error(error_of([&] {
                    return model.renamed(renamed_to({{"head", "note"}}));
                }),
                {Errc::name_collision}, {}, {.message = "'head' would become 'note', which is already a metadata key"});
    CHECK_OK(model.renamed(renamed_to({{"b", "note"}})));
    // Names can be swapped in a cycle.
    CHECK_OK(model.renamed(renamed_to({{"b", "wte"}, {"wte", "head"}, {"head", "b"}})));
    CHECK_OK(model.select(Selection().exclude("wte")).renamed(renamed_to({{"b", "wte"}})));
    CHECK_FAULT(model.renamed([](std::string_view) -> std::string { throw Error(Errc::cancelled, "no"); }),
                Errc::cancelled);
}

TEST_CASE("select, renamed and below read nothing") {
    std::string file;
    {
        std::string header = R"({"__metadata__":{"o":"p.a",)";
        header += R"("safemap.structure":"{\"v\":1,\"root\":{\"p\":{\"a\":[\"T\",{\"n\":\"p.a\"}]}}}"},)";
        header += R"("p.a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
        file = forge::safetensors(header, "xy");
    }
    std::atomic<unsigned> reads = 0;
    const auto read = [&](std::uint64_t offset, std::span<std::byte> into) {
        ++reads;
        std::copy_n(std::as_bytes(std::span(file)).begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                    into.begin());
    };
    const Checkpoint opened = Checkpoint::open(callback_source("counted", file.size(), read));
    const unsigned before = reads;
    const Checkpoint derived =
        opened.select(Selection::names({"o"})).renamed([](std::string_view name) { return "n." + std::string(name); });
    const Checkpoint part = derived.below("p");
    static_cast<void>(structure_of(derived));
    CHECK(reads == before);
    CHECK(bytes_of(derived["n.o"]) == "xy");
    CHECK(bytes_of(part["a"]) == "xy");
    CHECK(reads == before + 2);
}

TEST_CASE("below() of a selection has the selected tensors, with the names of the tree") {
    const Checkpoint whole = Checkpoint::open(pt / "train_gpt.pt");
    const auto mark = [](std::string_view name) { return "x" + std::string(name); };
    const Checkpoint model = whole.select(Selection::glob("model/*").exclude("*positions")).renamed(mark);
    CHECK(model.parts() == std::vector<std::string>{"model"});
    const Checkpoint part = model.below("model");
    CHECK(part.find("tokens.weight") != nullptr);
    CHECK(part.find("positions") == nullptr);
    CHECK(part.aliases() == std::vector<AliasGroup>{{"tokens.weight", "head.weight"}});
    CHECK(std::any_of(part.skipped().begin(), part.skipped().end(), [](const SkippedObject& object) {
        return object.name == "positions" && object.why == "a tensor that was not stored";
    }));
    CHECK(whole.below("model").size() == part.size() + 1);
    CHECK(model.below("optimizer").empty());
    // The same in the other order.
    const Checkpoint again = whole.below("model").select(Selection().exclude("positions")).renamed(mark);
    CHECK(again.size() == part.size());
    CHECK(again["xhead.weight"].stored() == part["head.weight"].stored());
    const auto error = error_of([&] { return model.below("nodel"); });
    REQUIRE(error);
    CHECK(error->hint() == "its parts are 'model'");
}

TEST_CASE("the structure document of a selection has the new names, and objects for unselected tensors") {
    const std::string header =
        R"({"__metadata__":{"safemap.structure":)"
        R"("{\"v\":1,\"root\":{\"a\":[\"T\"],\"b\":[\"@T\",\"a\"],\"c\":[\"T\"]}}"},)"
        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
    const Checkpoint opened = open(forge::safetensors(header, "xy"));
    const Checkpoint derived =
        opened.select(Selection::names({"a"})).renamed([](std::string_view) { return std::string("n"); });
    CHECK(structure_of(derived) == R"({"v":1,"root":{"a":["T",{"n":"n"}],"b":["@T","a"],)"
                                   R"("c":["o","torch.Tensor",["t"],{},"a tensor that was not stored"]}})");
    // Without a tree, the document is a dictionary of the original names.
    CHECK(structure_of(open(tied).select(Selection::names({"head"}))) ==
          R"({"v":1,"root":{"b":["o","torch.Tensor",["t"],{},"a tensor that was not stored"],)"
          R"("wte":["T",{"n":"head"}],"head":["@T","wte"],"head2":["@T","wte"]}})");
}

}  // namespace derive_test
