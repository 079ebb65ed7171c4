#include "entries.hpp"

#include <string_view>
#include <unordered_map>
#include <utility>

namespace safemap::cli {

std::vector<Entry> select_entries(const Checkpoint& checkpoint, const Selection& selection) {
    std::unordered_map<std::string_view, const AliasGroup*> groups;
    for (const AliasGroup& group : checkpoint.aliases())
        if (!group.empty()) groups.emplace(group.front(), &group);

    std::vector<Entry> entries;
    entries.reserve(checkpoint.size());
    for (const LazyTensor& tensor : checkpoint) {
        std::vector<std::string> names;
        if (selection.matches(tensor.name())) names.push_back(tensor.name());
        const auto group = groups.find(tensor.name());
        if (group != groups.end()) {
            for (std::size_t i = 1; i < group->second->size(); ++i)
                if (selection.matches((*group->second)[i])) names.push_back((*group->second)[i]);
        }
        if (names.empty()) continue;
        LazyTensor selected = names.front() == tensor.name() ? tensor : tensor.renamed(names.front());
        entries.push_back({std::move(selected), std::move(names), tensor.name()});
    }
    return entries;
}

std::uint64_t total_bytes(const std::vector<Entry>& entries) {
    std::uint64_t total = 0;
    for (const Entry& entry : entries) total += entry.tensor.nbytes();
    return total;
}

}  // namespace safemap::cli
