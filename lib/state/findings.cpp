// Merges and orders findings. Tested by tests/state/findings_test.cpp.
#include "state/findings.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI {

std::string_view name(Verdict verdict) noexcept {
    switch (verdict) {
        case Verdict::ok: return "ok";
        case Verdict::needs_classes: return "needs classes";
        case Verdict::unknown: return "unknown";
        case Verdict::runs_code: break;
    }
    return "runs code";
}

}  // namespace safemap::SAFEMAP_ABI

namespace safemap::SAFEMAP_ABI::state {

namespace {

/// The order of a list: the worst first, then by name and reason.
bool is_before(const Finding& a, const Finding& b) {
    if (a.severity != b.severity) return a.severity > b.severity;
    return a.name != b.name ? a.name < b.name : a.why < b.why;
}

bool is_same_finding(const Finding& a, const Finding& b) { return !is_before(a, b) && !is_before(b, a); }

void cut(Findings& findings) {
    if (findings.listed.size() <= Findings::most_listed) return;
    findings.not_listed += findings.listed.size() - Findings::most_listed;
    findings.listed.resize(Findings::most_listed);
}

}  // namespace

void add_findings(const Findings& from, Findings& to, std::string_view prefix) {
    to.verdict = std::max(to.verdict, from.verdict);
    to.not_listed += from.not_listed;
    if (from.listed.empty()) return;
    std::vector<Finding> others = from.listed;
    for (Finding& finding : others) finding.record.insert(0, prefix);
    std::vector<Finding> all;
    all.reserve(to.listed.size() + others.size());
    // If two findings are equal, the first one stays: the one that was listed before.
    std::merge(std::move_iterator(to.listed.begin()), std::move_iterator(to.listed.end()),
               std::move_iterator(others.begin()), std::move_iterator(others.end()), std::back_inserter(all),
               is_before);
    all.erase(std::unique(all.begin(), all.end(), is_same_finding), all.end());
    to.listed = std::move(all);
    cut(to);
}

void FindingList::add(Finding finding) {
    if (finding.severity == Verdict::ok) return;
    const auto severity = static_cast<std::size_t>(finding.severity);
    std::vector<Finding>& listed = by_severity_[severity];
    std::string key = finding.name + '\0' + finding.why;
    if (met_.contains(key)) return;
    if (listed.size() == Findings::most_listed) {
        ++beyond_[severity];
        return;
    }
    met_.insert(std::move(key));
    listed.push_back(std::move(finding));
}

Findings FindingList::findings() const {
    Findings all;
    for (std::size_t severity = by_severity_.size(); severity-- > 0;) {
        const std::vector<Finding>& listed = by_severity_[severity];
        if (!listed.empty()) all.verdict = std::max(all.verdict, static_cast<Verdict>(severity));
        all.listed.insert(all.listed.end(), listed.begin(), listed.end());
        all.not_listed += beyond_[severity];
    }
    std::sort(all.listed.begin(), all.listed.end(), is_before);
    cut(all);
    return all;
}

}  // namespace safemap::SAFEMAP_ABI::state
