// Finds the prefix that explains how the names of two sides differ. Tested by tests/checkpoint/plan_test.cpp and
// tests/check/diff_tolerance_test.cpp.
#include "checkpoint/prefixes.hpp"

#include "base/name_index.hpp"
#include "base/text.hpp"

#include <safemap/advanced/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

using Names = std::vector<NamedShape>;

/// Returns the prefixes that names of `full` have before a name of `bare`. Looks only at the longest names of `bare`:
/// few other names end in them.
std::set<std::string_view> candidate_prefixes(const Names& bare, const Names& full) {
    constexpr std::size_t most = 16;
    std::array<NamedShape, 4> asked = {};
    const auto last = std::partial_sort_copy(bare.begin(), bare.end(), asked.begin(), asked.end(),
                                             [](auto& a, auto& b) { return a.name.size() > b.name.size(); });
    std::set<std::string_view> prefixes;
    for (auto item = asked.begin(); item != last; ++item) {
        for (const NamedShape& other : full) {
            if (!other.name.ends_with(item->name)) continue;
            const auto prefix = other.name.substr(0, other.name.size() - item->name.size());
            if (prefix.ends_with('.') || prefix.ends_with('/')) prefixes.insert(prefix);
            if (prefixes.size() > most) return {};  // too many candidates for a certain answer
        }
    }
    return prefixes;
}

}  // namespace

std::string certain_prefix(const Names& bare, const Names& full) {
    NameIndex index;
    index.add_all(NamesOf(full));
    const auto explains_all = [&](std::string_view prefix) {
        std::size_t explained = 0;
        for (const NamedShape& item : bare) {
            const auto other = index.find(std::string(prefix).append(item.name), NamesOf(full));
            if (other && *full[*other].shape == *item.shape) ++explained;
        }
        return explained == std::min(bare.size(), full.size());
    };

    std::string certain;
    for (const std::string_view prefix : candidate_prefixes(bare, full)) {
        if (!explains_all(prefix)) continue;
        if (!certain.empty()) return {};
        certain = prefix;
    }
    return certain;
}

void note_prefix(const std::string& prefix, std::string_view has, std::string_view lacks,
                 std::vector<std::string>& notes) {
    if (prefix.empty()) return;
    notes.push_back(std::string("names of ").append(has) + " begin with " + safemap::quoted(prefix) +
                    "; without it, they are the names of " + std::string(lacks) + " (--strip-prefix " +
                    shell_word(prefix) + ")");
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
