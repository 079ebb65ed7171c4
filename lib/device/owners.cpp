// Which group owns a tensor.
#include "device/owners.hpp"

#include "device/cache.hpp"
#include "lazy/same_tensor.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

/// The tensors of a group that is being made. They are in the table already, so that an equal tensor finds them. If the
/// group is not made after all, they are removed.
class Owners::Newcomers {
public:
    explicit Newcomers(Table& table) noexcept : table_(table) {}
    ~Newcomers() {
        for (const auto& entry : entries_) table_.erase(entry);
    }
    Newcomers(const Newcomers&) = delete;
    Newcomers& operator=(const Newcomers&) = delete;

    bool empty() const noexcept { return tensors_.empty(); }
    /// Returns the number of an equal tensor that was added before.
    std::optional<std::uint32_t> find(const LazyTensor& tensor, std::size_t key) const {
        const auto [begin, end] = table_.equal_range(key);
        for (auto entry = begin; entry != end; ++entry)
            if (entry->second.group == nullptr && SameTensor()(&tensors_[entry->second.tensor], &tensor))
                return entry->second.tensor;
        return std::nullopt;
    }
    std::uint32_t add(LazyTensor&& tensor, std::size_t key, std::size_t expected) {
        const auto number = static_cast<std::uint32_t>(tensors_.size());
        if (tensors_.empty()) {
            tensors_.reserve(expected);
            entries_.reserve(expected);
            // Otherwise it grows by itself: reserve() grows by no more than it has to.
            if (expected > table_.size()) table_.reserve(table_.size() + expected);
        }
        entries_.push_back(table_.insert({key, {nullptr, number}}));
        tensors_.push_back(std::move(tensor));
        return number;
    }

    /// Makes the group. Sets `at[number]` to the number in its layout of the tensor that add() gave `number`.
    std::shared_ptr<Group> make_group(const std::shared_ptr<View>& view, std::vector<std::uint32_t>& at) {
        at.resize(tensors_.size());
        std::vector<std::uint32_t> from;
        Layout layout = lay_out(std::move(tensors_), from);
        auto group = std::make_shared<Group>(view, view->cache->number_group(), std::move(layout));
        for (std::uint32_t i = 0; i < from.size(); ++i) {
            at[from[i]] = i;
            entries_[from[i]]->second = {group.get(), i};
        }
        entries_.clear();
        return group;
    }

private:
    Table& table_;
    std::vector<LazyTensor> tensors_;
    std::vector<Table::iterator> entries_;  // parallel to tensors_
};

std::vector<Owners::Place> Owners::own(const std::shared_ptr<View>& view, std::vector<LazyTensor>& tensors) {
    std::vector<Place> places(tensors.size());  // outlives the lock: the last owner of a group may be in it
    const std::lock_guard lock(mutex_);
    Newcomers newcomers(table_);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t key = TensorHash()(&tensors[i]);
        places[i] = find_known(tensors[i], key);
        if (places[i].group) continue;
        const auto before = newcomers.find(tensors[i], key);
        places[i].moved = !before;
        places[i].tensor = before ? *before : newcomers.add(std::move(tensors[i]), key, tensors.size() - i);
    }
    if (newcomers.empty()) return places;
    std::vector<std::uint32_t> at;
    const auto group = newcomers.make_group(view, at);
    for (Place& place : places)
        if (!place.group) place = {group, at[place.tensor], place.moved};
    return places;
}

std::shared_ptr<Group> Owners::find(const LazyTensor& tensor) const {
    const std::size_t key = TensorHash()(&tensor);
    const std::lock_guard lock(mutex_);
    return find_known(tensor, key).group;
}

Owners::Place Owners::find_known(const LazyTensor& tensor, std::size_t key) const {
    const auto [begin, end] = table_.equal_range(key);
    for (auto entry = begin; entry != end; ++entry) {
        const Owned& owned = entry->second;
        // The destructor of the group begins with forget(), so it waits until this returns.
        if (owned.group == nullptr || !SameTensor()(&owned.group->layout.tensors[owned.tensor], &tensor)) continue;
        if (auto group = owned.group->weak_from_this().lock())
            return {.group = std::move(group), .tensor = owned.tensor};
    }
    return {};
}

void Owners::forget(const Group& group) noexcept {
    const std::lock_guard lock(mutex_);
    const auto is_of_group = [&](const auto& entry) { return entry.second.group == &group; };
    try {
        for (const LazyTensor& tensor : group.layout.tensors) {
            const auto [begin, end] = table_.equal_range(TensorHash()(&tensor));
            const auto found = std::find_if(begin, end, is_of_group);
            if (found != end) table_.erase(found);
        }
    } catch (...) {  // a hash may need memory
        std::erase_if(table_, is_of_group);
    }
}

}  // namespace safemap::SAFEMAP_ABI::device
