// Lists tensors and their aliases as one list of names.
#include "checkpoint/all_names.hpp"

#include "checkpoint/origin.hpp"
#include "checkpoint/sorted_names.hpp"

#include <safemap/advanced/names.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

std::vector<NamedTensor> all_names(const Checkpoint& checkpoint, const Selection& selection) {
    if (auto found = checkpoint::Origin::sorted_names(checkpoint).find(checkpoint, selection)) return *std::move(found);
    std::vector<NamedTensor> names;
    names.reserve(checkpoint.size());
    checkpoint::for_each_name(checkpoint, [&](std::string_view name, std::size_t tensor, bool) {
        if (selection.matches(name)) names.push_back({name, tensor});
    });
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
