// Lists of findings: in order, bounded, and each finding once.
#pragma once

#include <safemap/verdict.hpp>

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// Adds the findings of another file. The names of their records get `prefix` in front. Takes time linear in both
/// lists.
void add_findings(const Findings& from, Findings& to, std::string_view prefix = {});

/// Collects the findings of a file, in any order.
class FindingList {
public:
    /// Adds a finding, unless it is listed with another record. Ignores the severity `ok`.
    void add(Finding finding);
    /// Returns the findings in order.
    Findings findings() const;

private:
    std::array<std::vector<Finding>, 4> by_severity_ = {};
    std::unordered_set<std::string> met_ = {};  ///< name and reason of each listed finding
    std::array<std::uint64_t, 4> beyond_ = {};  ///< findings that were not kept, by severity
};

}  // namespace safemap::SAFEMAP_ABI::state
