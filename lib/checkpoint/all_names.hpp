// Lists the selected tensors, for callers that do not need a checkpoint of them.
#pragma once

#include "base/name_index.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/checkpoint.hpp>

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns the tensors of checkpoint.select(selection). Copies nothing else of the checkpoint.
std::vector<LazyTensor> selected(const Checkpoint& checkpoint, const Selection& selection);

/// Calls use(name, tensor, is_own) with each name, in the order of all_names().
template <class Use> void for_each_name(const Checkpoint& checkpoint, Use&& use) {
    std::unordered_map<std::string_view, const AliasGroup*, NameHash> groups;
    for (const AliasGroup& group : checkpoint.aliases())
        if (!group.empty()) groups.emplace(group.front(), &group);
    for (std::size_t i = 0; i < checkpoint.size(); ++i) {
        const std::string& name = checkpoint.tensor(i).name();
        use(std::string_view(name), i, true);
        const auto group = groups.find(name);
        if (group == groups.end()) continue;
        for (std::size_t k = 1; k < group->second->size(); ++k) use(std::string_view((*group->second)[k]), i, false);
    }
}

/// Returns true if `names[i]` is the first name of its tensor in the result of all_names().
inline bool is_first_name(const std::vector<NamedTensor>& names, std::size_t i) {
    return i == 0 || names[i].tensor != names[i - 1].tensor;
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
