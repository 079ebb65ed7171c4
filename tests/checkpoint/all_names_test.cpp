// Tests the list of all names of a checkpoint, in order.
#include <safemap/checkpoint.hpp>

#include <safemap/advanced/names.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "soak.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace all_names_test {

using namespace safemap;

namespace {

Checkpoint open(std::string_view content) { return Checkpoint::open(forge::source(content)); }

/// Returns index and name of each entry: "0:wte 0:head".
std::string listed(const std::vector<NamedTensor>& names) {
    std::string text;
    for (const NamedTensor& named : names)
        text += (text.empty() ? "" : " ") + std::to_string(named.tensor) + ':' + std::string(named.name);
    return text;
}

using Random = std::minstd_rand;

std::string random_name(Random& random) {
    static constexpr std::string_view letters = "aab..//-0";
    std::string name;
    for (auto left = random() % 6; left > 0; --left) name += letters[random() % letters.size()];
    return name;
}

/// Returns a checkpoint of tensors without elements, some of them tied.
Checkpoint random_checkpoint(Random& random, std::size_t tensors) {
    std::map<std::string, std::string> stored, tied;
    while (stored.size() < tensors) {
        const std::string name = random_name(random);
        stored.emplace(name, '"' + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
    }
    for (std::size_t i = 0; i < tensors / 4; ++i)
        if (const std::string name = random_name(random); !stored.contains(name))
            tied.emplace(name, std::next(stored.begin(), static_cast<std::ptrdiff_t>(random() % tensors))->first);
    std::string ties, header;
    for (const auto& [name, tensor] : tied) ties += (ties.empty() ? "\"" : ",\"") + name + "\":\"" + tensor + '"';
    std::vector<std::string> items;
    for (const auto& [name, item] : stored) items.push_back(item);
    std::shuffle(items.begin(), items.end(), random);
    for (const std::string& item : items) header += ',' + item;
    return open(forge::safetensors(R"({"__metadata__":{)" + ties + '}' + header + '}'));
}

Selection random_selection(Random& random) {
    const auto pattern = [&] { return random_name(random) + (random() % 3 == 0 ? "" : "*") + random_name(random); };
    Selection selection;
    if (random() % 3 == 0) selection = Selection::prefix(random_name(random));
    else if (random() % 2 == 0) selection = Selection::names({random_name(random), random_name(random)});
    for (auto left = random() % 3; left > 0; --left) selection.include(pattern());
    for (auto left = random() % 2; left > 0; --left) selection.exclude(pattern());
    return selection;
}

/// Returns what `selection` has of all names, each of which it looks at.
std::string filtered(const Checkpoint& model, const Selection& selection) {
    std::vector<NamedTensor> names = all_names(model);
    std::erase_if(names, [&](const NamedTensor& named) { return !selection.matches(named.name); });
    return listed(names);
}

}  // namespace

TEST_CASE("the other names of a tied tensor follow its own") {
    const auto model = open(forge::safetensors(
        R"({"__metadata__":{"head2":"wte","head":"wte","c":"b","format":"pt"},)"
        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"wte":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
        "xyz"));
    CHECK(listed(all_names(model)) == "0:a 1:wte 1:head 1:head2 2:b 2:c");
    CHECK(listed(all_names(model, Selection::glob("*e*"))) == "1:wte 1:head 1:head2");
    CHECK(listed(all_names(model, Selection::glob("*").exclude("wte").exclude("b"))) == "0:a 1:head 1:head2 2:c");
    CHECK(all_names(model, Selection::glob("d")).empty());
}

TEST_CASE("a checkpoint without tensors has no names") {
    const auto model = open(forge::safetensors("{}"));
    CHECK(all_names(model).empty());
}

TEST_CASE("many selections of random names: the same as a look at all names") {
    const unsigned seed = soak::seed(20261129);
    CAPTURE(seed);
    for (unsigned round = 0; round < static_cast<unsigned>(soak::rounds_of_one_thread(40)); ++round) {
        CAPTURE(round);
        Random random(seed + round);
        const auto model = random_checkpoint(random, 1 + random() % 400);
        for (int i = 0; i < 100; ++i) {
            const Selection selection = random_selection(random);
            REQUIRE(listed(all_names(model, selection)) == filtered(model, selection));
        }
    }
}

TEST_CASE("threads select names of one checkpoint") {
    Random random(1);
    const auto model = random_checkpoint(random, 400);
    const std::string before = listed(all_names(model, Selection::prefix("a")));
    std::vector<std::string> after(4);
    std::vector<std::thread> threads;
    for (std::string& found : after)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) found = listed(all_names(model, Selection::prefix("a")));
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& found : after) CHECK(found == before);
}

}  // namespace all_names_test
