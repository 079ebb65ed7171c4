// Compares the direct reader of flat state dicts with the reader that builds a tree: the same names, ties, notes,
// faults and structure document.
#include "base/text.hpp"
#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "pickle/pickle.hpp"
#include "state/contents.hpp"
#include "state/flat_dict.hpp"
#include "state/structure.hpp"
#include "torch/rebuild.hpp"

#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace flat_test {

using namespace safemap;

namespace {

struct Outcome {
    bool flat = false;
    std::string says;  ///< all visible results as text
};

/// Returns storages of forty floats each, under the keys 0 to 9.
torch::Storages storages() {
    static const auto bytes = memory_source("storages", std::vector<std::byte>(1600));
    return {.find = [](std::string_view key) -> RecordData {
        if (key.size() != 1 || key[0] < '0' || key[0] > '9') throw Error(Errc::zip_missing_record, "no such storage");
        return {bytes, {static_cast<std::uint64_t>(key[0] - '0') * 160, 160}};
    }};
}

void tell(std::ostream& out, const StateTree& tree) {
    const auto own = [](const std::string& name) { return std::optional(name); };
    out << tree << '\n' << state::structure_of(tree, own) << '\n';
}

Outcome outcome(const std::string& value, bool past_tree, std::uint64_t memory) {
    const std::string bytes = forge::pickle(value);
    const PickleGraph pickle = read_pickle(bytes, {.max_memory = memory});
    CollectFaults faults;
    const torch::Storages all = storages();
    std::ostringstream out;
    Outcome result;
    try {
        auto rebuilt = past_tree ? torch::rebuild_state(pickle, all, faults) : torch::rebuild(pickle, all, faults);
        result.flat = rebuilt.flat.has_value();
        state::Contents contents;
        contents.notes = rebuilt.notes;
        if (rebuilt.flat) state::set_flat(contents, std::move(*rebuilt.flat));
        else state::set_tree(contents, std::move(rebuilt.tree));
        tell(out, contents.tree.late ? contents.tree.late->tree(contents.tensors) : *contents.tree);
        for (const LazyTensor& tensor : contents.tensors) {
            const StridedView view = tensor.strided_view();
            out << tensor.name() << ' ' << name(tensor.dtype()) << ' ' << tensor.shape() << view.offset;
            for (const auto stride : view.strides) out << ',' << stride;
            if (tensor.placement()) out << " at " << tensor.placement()->extent.offset;
            out << '\n';
        }
        for (const AliasGroup& group : contents.aliases) {
            for (const std::string& each : group) out << each << " = ";
            out << '\n';
        }
        for (const auto& each : contents.skipped) out << each.name << each.type << each.why << '\n';
        for (const auto& each : contents.notes) out << each << '\n';
        for (const auto& each : contents.lost_without_structure) out << each << '\n';
    } catch (const Error& error) {
        out << error.message();
    }
    for (const Error& fault : faults.faults()) out << fault.tensor() << fault.message() << '\n';
    result.says = out.str();
    return result;
}

/// Compares both readers; returns true if the direct one was used.
bool same(const std::string& value, std::uint64_t memory = 64 << 20) {
    const Outcome tree = outcome(value, false, memory);
    const Outcome flat = outcome(value, true, memory);
    CHECK(!tree.flat);
    CHECK(flat.says == tree.says);
    return flat.flat;
}

using forge::call;
using forge::integer;
using forge::text;
using forge::tuple;

std::string vector_of(const char* key, std::int64_t size, std::int64_t offset = 0) {
    return forge::view(forge::storage("FloatStorage", key, 40), offset, {size}, {1});
}
/// Returns an OrderedDict; `attributes` are set by BUILD.
std::string ordered(const std::string& items, const std::string& attributes = {}) {
    return call("collections", "OrderedDict", {}) + "(" + items + "u" + (attributes.empty() ? "" : attributes + "b");
}
std::string with_metadata(const std::string& items, const std::string& metadata) {
    return ordered(items, forge::dict({text("_metadata"), metadata}));
}
const std::string two = text("a") + vector_of("0", 40) + text("b") + vector_of("1", 4, 2);

}  // namespace

TEST_CASE("flat state dicts are read without a tree") {
    CHECK(same(ordered(two)));
    CHECK(same(forge::dict({two})));
    CHECK(same(with_metadata(two, ordered(text("") + forge::dict({text("version"), integer(1)})))));
    // Objects that are only in attributes are noted as usual.
    CHECK(same(with_metadata(two, call("argparse", "Namespace", {}))));
    CHECK(same(with_metadata(two, vector_of("0", 40))));
    CHECK(same(with_metadata(two, vector_of("5", 40))));
    // A record longer than the pickle states; empty tensors; and two tensors of one storage.
    CHECK(same(ordered(text("a") + forge::view(forge::storage("FloatStorage", "0", 3), 0, {3}, {1}))));
    CHECK(same(ordered(text("a") + vector_of("0", 0) + text("b") + vector_of("0", 0))));
    CHECK(same(ordered(text("a") + vector_of("0", 4) + text("b") + vector_of("0", 4, 4))));
}

TEST_CASE("ties of flat state dicts are found without a tree") {
    CHECK(same(ordered(text("a") + vector_of("0", 4) + two + text("c") + vector_of("0", 40))) ==
          false);  // duplicate key a
    CHECK(same(ordered(two + text("c") + vector_of("0", 40))));
    CHECK(same(ordered(two + text("c") + vector_of("1", 4, 2) + text("d") + vector_of("0", 40) + text("e") +
                       vector_of("1", 4, 2) + text("f") + vector_of("3", 1))));
}

TEST_CASE("a dictionary that needs a tree is read as one") {
    const auto with = [](const std::string& value) { return ordered(two + text("c") + value); };
    CHECK_FALSE(same(ordered("")));
    CHECK_FALSE(same(with(integer(7))));
    CHECK_FALSE(same(with("N")));
    CHECK_FALSE(same(with(call("torch._utils", "_rebuild_parameter", {vector_of("2", 4), "\x88", "}"}))));
    CHECK_FALSE(same(with(forge::view(forge::storage("FloatStorage", "0", 40, "meta"), 0, {}, {}))));
    const auto requires_grad = call("torch._utils", "_rebuild_tensor_v2",
                                    {forge::storage("FloatStorage", "2", 40), integer(0), tuple({}), tuple({}), "\x88",
                                     call("collections", "OrderedDict", {})});
    CHECK_FALSE(same(with(requires_grad)));
    CHECK_FALSE(same(ordered(integer(1) + vector_of("0", 4))));
    CHECK_FALSE(same(ordered(two + integer(1) + vector_of("0", 4))));
    CHECK_FALSE(same(ordered(two + text("") + vector_of("0", 4))));
    CHECK_FALSE(same(ordered(two + text("__metadata__") + vector_of("0", 4))));
    // One object under two names, through the memo, is one node.
    CHECK_FALSE(same(ordered(text("a") + vector_of("0", 4) + "q\1" + text("b") + "h\1")));
    // An attribute that holds an item, or the dictionary itself.
    CHECK_FALSE(same(with_metadata(text("a") + vector_of("0", 4) + "q\1", "h\1")));
    CHECK_FALSE(
        same(call("collections", "OrderedDict", {}) + "q\2(" + two + "u" + forge::dict({text("self"), "h\2"}) + "b"));
}

TEST_CASE("faults of a flat state dict are the same without a tree") {
    for (const std::string& wrong :
         {vector_of("0", 41), vector_of("x", 4), vector_of("0", 4, -1), vector_of("0", -4),
          forge::view(forge::storage("OddStorage", "0", 40), 0, {}, {}),
          forge::view(forge::storage("FloatStorage", "0", 50), 0, {}, {}), forge::view(integer(1), 0, {}, {})}) {
        CHECK_FALSE(same(ordered(two + text("wrong") + wrong + text("z") + vector_of("3", 4))));
        CHECK_FALSE(same(with_metadata(two, wrong)));
    }
}

TEST_CASE("memory of a flat state dict is charged as for its tree") {
    std::string items;
    for (int i = 0; i < 40; ++i) items += text("tensor " + std::to_string(i)) + vector_of("0", 40 - i);
    unsigned refused = 0;
    for (std::uint64_t memory = 80'000; memory < 400'000; memory += 1'500) {
        const std::string bytes = forge::pickle(ordered(items));
        try {
            static_cast<void>(read_pickle(bytes, {.max_memory = memory}));
        } catch (const Error&) {
            continue;
        }
        refused += same(ordered(items), memory) ? 0 : 1;
    }
    CHECK(refused > 3);
    CHECK(same(ordered(items)));
}

TEST_CASE("random dictionaries give the same result with and without a tree") {
    std::mt19937_64 random(15);
    const auto up_to = [&](std::uint64_t most) { return random() % (most + 1); };
    unsigned flat = 0;
    for (int round = 0; round < 400; ++round) {
        std::string items;
        const std::uint64_t count = 1 + up_to(12);
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::string key = up_to(40) == 0 ? std::string() : "t" + std::to_string(up_to(60));
            const std::string digit(1, static_cast<char>('0' + up_to(9)));
            items += text(key) + (up_to(50) == 0 ? integer(3)
                                                 : vector_of(digit.c_str(), static_cast<std::int64_t>(up_to(20)),
                                                             static_cast<std::int64_t>(up_to(2) * 10)));
        }
        flat += same(up_to(1) == 0 ? ordered(items) : with_metadata(items, forge::dict({text("v"), integer(2)})));
    }
    CHECK(flat > 50);
    CHECK(flat < 400);
}

}  // namespace flat_test
