// Prints verdicts. A list for people is short; --json has all that the library lists.
#include "verdicts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace safemap::cli {
namespace {

constexpr std::size_t most_findings = 20;
constexpr std::size_t most_classes = 8;

std::size_t count_of(const Findings& findings, Verdict severity) {
    return static_cast<std::size_t>(
        std::count_if(findings.listed.begin(), findings.listed.end(),
                      [severity](const Finding& finding) { return finding.severity == severity; }));
}

std::string and_more(std::size_t all, std::size_t shown) {
    return all > shown ? fmt::format(" and {} more; --json lists them all", all - shown) : std::string();
}

/// Returns the names of harmless classes, which are listed last.
std::string class_line(const Findings& findings) {
    const std::size_t all = count_of(findings, Verdict::needs_classes);
    if (all == 0) return {};
    std::string names;
    const std::size_t first = findings.listed.size() - all;
    for (std::size_t i = 0; i < std::min(all, most_classes); ++i)
        names += (i == 0 ? "" : ", ") + printable(findings.listed[first + i].name);
    return fmt::format("needs classes: {}{}\n", names, and_more(all, most_classes));
}

}  // namespace

void write_findings(JsonWriter& json, const Findings& findings) {
    json.member("verdict", name(findings.verdict));
    json.key("findings").begin_array();
    for (const Finding& finding : findings.listed) {
        json.begin_object().member("name", finding.name).member("why", finding.why);
        json.member("severity", name(finding.severity)).member("record", finding.record).end_object();
    }
    json.end_array();
}

std::string verdict_text(const Findings& findings) {
    const std::string verdict(name(findings.verdict));
    if (findings.verdict == Verdict::ok) return verdict;
    const char* const at_least = findings.not_listed > 0 ? "at least " : "";
    return fmt::format("{}: {}{}", verdict, at_least, count_of(findings, findings.verdict));
}

std::string finding_lines(const Findings& findings) {
    std::string lines;
    const std::size_t bad = findings.listed.size() - count_of(findings, Verdict::needs_classes);
    for (std::size_t i = 0; i < std::min(bad, most_findings); ++i) {
        const Finding& finding = findings.listed[i];
        const std::string line = fmt::format("{}: {} {} ({})", name(finding.severity), printable(finding.name),
                                             printable(finding.why), printable(finding.record));
        lines += (finding.severity == Verdict::runs_code ? alarmed(line) : line) + '\n';
    }
    if (bad > most_findings) lines += fmt::format("findings:{}\n", and_more(bad, most_findings));
    return lines + class_line(findings);
}

std::string warning_of_code(const Findings& findings) {
    if (findings.verdict != Verdict::runs_code) return {};
    const std::size_t all = count_of(findings, Verdict::runs_code);
    const Finding& first = findings.listed.front();
    return alarmed(fmt::format("runs code: {} {}{}; nothing was called, but a program that unpickles IN would call it",
                               printable(first.name), printable(first.why),
                               all > 1 ? fmt::format(", and {} more", all - 1) : std::string())) +
           '\n';
}

}  // namespace safemap::cli
