// Tests lists of findings: their order, their limit, and that a finding is listed once.
#include "state/findings.hpp"

#include "doctest_safemap.hpp"

#include <initializer_list>
#include <string>

namespace findings_test {

using namespace safemap;

namespace {

Findings found(std::initializer_list<Finding> all) {
    state::FindingList list;
    for (const Finding& finding : all) list.add(finding);
    return list.findings();
}

std::string text_of(const Findings& findings) {
    std::string text(name(findings.verdict));
    for (const Finding& each : findings.listed) text += "; " + each.name + " " + each.why + " in " + each.record;
    return text;
}

}  // namespace

TEST_CASE("findings are ordered by danger and name, and each is listed once") {
    const Findings first = found({{"my.Net", "is not known", Verdict::unknown, "a"},
                                  {"os.system", "runs a program", Verdict::runs_code, "a"},
                                  {"dict", "", Verdict::ok, "a"},
                                  {"my.Net", "is not known", Verdict::unknown, "b"}});
    CHECK(text_of(first) == "runs code; os.system runs a program in a; my.Net is not known in a");
    Findings all = found(
        {{"my.Net", "is not known", Verdict::unknown, "x"}, {"a.Linear", "a class", Verdict::needs_classes, "x"}});
    CHECK(text_of(all) == "unknown; my.Net is not known in x; a.Linear a class in x");
    state::add_findings(first, all, "f: ");
    CHECK(text_of(all) ==
          "runs code; os.system runs a program in f: a; my.Net is not known in x; a.Linear a class in x");
    CHECK(text_of(found({})) == "ok");
}

TEST_CASE("a list of findings is limited, and keeps the worst") {
    state::FindingList list;
    for (std::size_t i = 0; i < Findings::most_listed + 3; ++i)
        list.add({"m.C" + std::to_string(i), "is not known", Verdict::unknown, "r"});
    list.add({"os.system", "runs a program", Verdict::runs_code, "r"});
    const Findings all = list.findings();
    CHECK(all.listed.size() == Findings::most_listed);
    CHECK(all.listed.front().name == "os.system");
    CHECK(all.not_listed == 4);
    CHECK(all.verdict == Verdict::runs_code);
}

}  // namespace findings_test
