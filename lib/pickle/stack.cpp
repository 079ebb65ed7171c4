// Tested by tests/pickle/pickle_test.cpp.
#include "pickle/stack.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI {

PickleStack::Id& PickleMemo::added(std::uint64_t index) {
    if (index > input_.size()) {
        // CPython holds an array of all entries up to the last.
        if (index > max_memory_ / entry_cost)
            throw input_.fault(Errc::pickle_bad_memo, "memo entry " + std::to_string(index));
        const auto [entry, fresh] = far_.try_emplace(index, PickleGraph::nothing);
        if (fresh) allowance_.spend(far_entry_cost);
        return entry->second;
    }
    const std::size_t size = std::max<std::size_t>(index + 1, near_.size() * 2);
    allowance_.spend(entry_cost * (size - near_.size()));
    near_.resize(size, PickleGraph::nothing);
    return near_[index];
}

PickleStack::Id PickleMemo::far_at(std::uint64_t index) const {
    const auto far = far_.find(index);
    return far == far_.end() ? PickleGraph::nothing : far->second;
}

}  // namespace safemap::SAFEMAP_ABI
