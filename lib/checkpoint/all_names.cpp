// Lists tensors and their aliases as one list of names.
#include "checkpoint/all_names.hpp"

#include <safemap/advanced/names.hpp>

#include "base/name_index.hpp"

#include <unordered_map>

namespace safemap::SAFEMAP_ABI {

std::vector<NamedTensor> all_names(const Checkpoint& checkpoint, const Selection& selection) {
    std::unordered_map<std::string_view, const AliasGroup*, NameHash> groups;
    for (const AliasGroup& group : checkpoint.aliases())
        if (!group.empty()) groups.emplace(group.front(), &group);

    std::vector<NamedTensor> names;
    names.reserve(checkpoint.size());
    const auto add = [&](std::string_view name, std::size_t tensor) {
        if (selection.matches(name)) names.push_back({name, tensor});
    };
    for (std::size_t i = 0; i < checkpoint.size(); ++i) {
        const std::string& name = checkpoint.tensor(i).name();
        add(name, i);
        const auto group = groups.find(name);
        if (group == groups.end()) continue;
        for (std::size_t k = 1; k < group->second->size(); ++k) add((*group->second)[k], i);
    }
    return names;
}

std::vector<LazyTensor> checkpoint::selected(const Checkpoint& checkpoint, const Selection& selection) {
    std::vector<LazyTensor> tensors;
    const std::vector<NamedTensor> names = all_names(checkpoint, selection);
    for (std::size_t i = 0; i < names.size(); ++i)
        if (is_first_name(names, i))
            tensors.push_back(checkpoint.tensor(names[i].tensor).renamed(std::string(names[i].name)));
    return tensors;
}

}  // namespace safemap::SAFEMAP_ABI
