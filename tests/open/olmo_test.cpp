// Tests safetensors with OLMo's names: the tree that they encode, and names that only look like them.
#include <safemap/checkpoint.hpp>

#include <safemap/advanced/structure.hpp>

#include "forge/containers.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include "base/encodings.hpp"

#include <algorithm>

namespace olmo_test {

using namespace safemap;
using containers::Sample;
using namespace std::string_literals;

namespace {

/// Returns urlsafe_b64encode(pickle.dumps((keys, pickled), protocol=4)).
std::string olmo(std::initializer_list<std::string> keys, bool pickled = false) {
    const std::string pickle = "\x80\x04" + forge::tuple(keys) + (pickled ? "\x88" : "\x89") + "\x86.";
    std::string text = to_base64(pickle);
    std::replace(text.begin(), text.end(), '+', '-');
    std::replace(text.begin(), text.end(), '/', '_');
    return text;
}
std::string text(std::string_view value) { return forge::text(value); }
Sample u8(std::string name, std::string bytes) {
    const auto size = bytes.size();
    return {std::move(name), Dtype::u8, {size}, std::move(bytes)};
}
Checkpoint open(const std::vector<Sample>& samples) {
    return Checkpoint::open(forge::source(containers::safetensors(samples)));
}

}  // namespace

TEST_CASE("names become the paths of their keys, and pickled values become part of the tree") {
    const std::string groups = forge::pickle("]" + forge::dict({text("lr"), "G\x3f\xe0\0\0\0\0\0\0"s}) + "a");
    const auto checkpoint = open({u8(olmo({text("state"), forge::integer(0), text("exp_avg")}), "ab"),
                                  u8(olmo({text("state"), forge::integer(0), text("a/b?")}), "cd"),
                                  u8(olmo({text("param_groups")}, true), groups)});
    CHECK(names_of(checkpoint) == std::vector<std::string>{"state/0/exp_avg", "state/0/a~1b?"});
    CHECK(bytes_of(checkpoint["state/0/exp_avg"]) == "ab");
    REQUIRE(checkpoint.tree() != nullptr);
    const StateTree& tree = *checkpoint.tree();
    const auto rate = tree.find("param_groups/0/lr");
    REQUIRE(rate.has_value());
    CHECK(std::get<double>(tree[*rate]) == 0.5);
    CHECK(checkpoint.notes().size() == 1);
    CHECK(lost_without_structure(checkpoint).size() == 1);
}

TEST_CASE("a flat state dict keeps its keys") {
    const auto checkpoint = open({u8(olmo({text("a/b")}), "x"), u8(olmo({text("c")}), "y")});
    CHECK(names_of(checkpoint) == std::vector<std::string>{"a/b", "c"});
}

TEST_CASE("a file in which not every name is OLMo's is left as it is") {
    const auto kept = [](const std::vector<Sample>& samples) {
        const auto checkpoint = open(samples);
        CHECK(checkpoint.tree() == nullptr);
        std::vector<std::string> wanted;
        for (const Sample& sample : samples) wanted.push_back(sample.name);
        CHECK(names_of(checkpoint) == wanted);
    };
    const std::string good = olmo({text("a")});
    kept({u8("gAAA", "x")});
    kept({u8("model.weight", "x")});
    kept({u8(good, "x"), u8("gA", "x")});
    kept({u8(olmo({}), "x")});
    kept({u8(olmo({forge::tuple({text("a")})}), "x")});
    kept({u8(olmo({"N"}), "x")});
    kept({u8(olmo({text("a") + forge::global("os", "system") + "0"}), "x")});
    kept({u8(good, "x"), u8(olmo({text("a"), text("b")}), "x")});
    kept({u8(good, "x"), u8(olmo({text("a")}, true), "x")});
    kept({u8(olmo({text(std::string(9000, 'a'))}), "x")});
}

TEST_CASE("names stay encoded if a value cannot be unpickled") {
    const std::string name = olmo({text("a")}, true);
    for (const Sample& sample : {u8(name, "\x80\x02X"), u8(name, ""), Sample{name, Dtype::i16, {1}, "N."}}) {
        const auto checkpoint = open({sample});
        CHECK(names_of(checkpoint) == std::vector<std::string>{name});
        CHECK(checkpoint.tree() == nullptr);
        CHECK(only_of(checkpoint.notes()).find("look like OLMo's") != std::string::npos);
    }
    const auto as_they_stand = containers::safetensors({u8(olmo({text("b")}), "x")});
    const auto kept = Checkpoint::open(forge::source(as_they_stand), {.olmo_names = false});
    CHECK(names_of(kept) == std::vector<std::string>{olmo({text("b")})});
    // Nothing in the pickle is called.
    const auto attack = open({u8(name, forge::pickle(forge::call("os", "system", {text("true")})))});
    const auto bytes = containers::safetensors({u8(name, forge::pickle(forge::call("os", "system", {text("true")})))});
    CHECK_FAULT(Checkpoint::open(forge::source(bytes), {.strict_globals = true}), Errc::unknown_global);
    REQUIRE(attack.skipped().size() == 1);
    CHECK(attack.skipped()[0].type == "os.system");
    CHECK(has_note(attack, "os.system"));
}

}  // namespace olmo_test
