// Tests verdicts: names in the tables, and hostile and harmless forms of calls. From top to bottom: names that three
// scanners refuse, harmless names, a table of forms, and costs.
#include "torch/dangers.hpp"
#include "torch/globals.hpp"
#include "torch/named_globals.hpp"

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace verdict_test {

using namespace safemap;

using namespace std::string_literals;

namespace {

torch::Judgement judged(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return torch::judge({name.substr(0, dot), name.substr(dot + 1)});
}

}  // namespace

TEST_CASE("every name that picklescan, modelscan and fickling refuse runs code") {
    std::ifstream file(std::string(SAFEMAP_TEST_DATA) + "/scanned_names.txt");
    std::size_t count = 0;
    for (std::string name; std::getline(file, name);) {
        if (name.starts_with('#')) continue;
        if (name.ends_with(".*")) name.back() = 'x';
        CAPTURE(name);
        ++count;
        // A partial is judged by its function, and a file inside the pickle is read.
        const bool by_use = name == "functools.partial";
        CHECK(judged(name).severity == (by_use ? Verdict::needs_classes : Verdict::runs_code));
    }
    CHECK(count > 180);
}

}  // namespace verdict_test
