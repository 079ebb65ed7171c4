// Splits tensors into shards.
#include "write/shards.hpp"

#include "base/checked.hpp"

#include <safemap/bytes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using Shards = std::vector<std::vector<std::uint32_t>>;

/// The units that go into a shard as a whole: the tensors of a storage, or of a layer. Units are numbered in the order
/// of their first tensors.
struct Units {
    std::vector<std::uint32_t> of;     ///< unit of each tensor
    std::vector<std::uint32_t> first;  ///< first tensor of each unit
    std::vector<std::uint64_t> sizes;
};

/// Calls `visit` with each tensor and the first tensor of its storage, the only one whose size counts.
template <class Visit> void for_each_counted(std::span<const Sized> tensors, Visit&& visit) {
    std::unordered_map<std::uint64_t, std::uint32_t> storages;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        const std::uint64_t storage = tensors[i].storage;
        visit(i, storage == 0 ? i : storages.try_emplace(storage, i).first->second);
    }
}

Units storages_of(std::span<const Sized> tensors) {
    Units units;
    units.of.resize(tensors.size());
    for_each_counted(tensors, [&](std::uint32_t tensor, std::uint32_t first) {
        if (tensor == first) {
            units.of[tensor] = static_cast<std::uint32_t>(units.first.size());
            units.first.push_back(tensor);
            units.sizes.push_back(tensors[tensor].size);
        } else {
            units.of[tensor] = units.of[first];
        }
    });
    return units;
}

/// Disjoint sets of tensors that can be joined. The smallest number represents a set.
class Sets {
public:
    explicit Sets(std::size_t tensors) : parent_(tensors) { std::iota(parent_.begin(), parent_.end(), 0U); }

    std::uint32_t first_of(std::uint32_t tensor) {
        while (parent_[tensor] != tensor) tensor = parent_[tensor] = parent_[parent_[tensor]];
        return tensor;
    }
    void join(std::uint32_t a, std::uint32_t b) {
        a = first_of(a);
        b = first_of(b);
        parent_[std::max(a, b)] = std::min(a, b);
    }

private:
    std::vector<std::uint32_t> parent_;
};

Units layers_of(std::span<const Sized> tensors) {
    Sets sets(tensors.size());
    std::unordered_map<std::uint64_t, std::uint32_t> layers;
    for_each_counted(tensors, [&](std::uint32_t tensor, std::uint32_t first) {
        sets.join(tensor, first);
        if (const std::uint64_t layer = tensors[tensor].layer; layer != 0)
            sets.join(tensor, layers.try_emplace(layer, tensor).first->second);
    });
    Units units;
    units.of.resize(tensors.size());
    for_each_counted(tensors, [&](std::uint32_t tensor, std::uint32_t first_of_storage) {
        const std::uint32_t first = sets.first_of(tensor);
        if (tensor == first) {
            units.of[tensor] = static_cast<std::uint32_t>(units.first.size());
            units.first.push_back(tensor);
            units.sizes.push_back(0);
        }
        units.of[tensor] = units.of[first];
        std::uint64_t& size = units.sizes[units.of[first]];
        if (tensor == first_of_storage) size = sum_of_sizes(size, tensors[tensor].size);
    });
    return units;
}

/// Fills shards with units. A new shard begins where `begins(unit, size of the open shard)` returns true. A unit larger
/// than `max` gets a shard of its own, before the open shard.
template <class Begins> Shards fill(std::span<const std::uint64_t> sizes, std::uint64_t max, Begins&& begins) {
    Shards shards;
    std::vector<std::uint32_t> open;
    std::uint64_t open_size = 0;
    const auto close = [&] {
        if (!open.empty()) shards.push_back(std::move(open));
        open.clear();
        open_size = 0;
    };
    for (std::uint32_t unit = 0; unit < sizes.size(); ++unit) {
        if (sizes[unit] > max) {
            shards.push_back({unit});
            continue;
        }
        if (begins(unit, open_size)) close();
        open.push_back(unit);
        open_size += sizes[unit];
    }
    close();
    return shards;
}

Shards greedy(std::span<const std::uint64_t> sizes, std::uint64_t max) {
    return fill(sizes, max, [&](std::uint32_t unit, std::uint64_t open) { return sizes[unit] > max - open; });
}

/// Contiguous runs of sizes, each of them at most as large as a bound.
class Balance {
public:
    explicit Balance(std::vector<std::uint64_t> sizes) : sizes_(std::move(sizes)) {}

    /// Returns the smallest bound that needs no more runs than `max` does.
    std::uint64_t smallest_bound(std::uint64_t max) const {
        const std::size_t fewest = runs(max);
        std::uint64_t low = sizes_.empty() ? 0 : *std::max_element(sizes_.begin(), sizes_.end());
        while (low < max) {
            const std::uint64_t middle = low + (max - low) / 2;
            if (runs(middle) > fewest) low = middle + 1;
            else max = middle;
        }
        return low;
    }

    /// Returns where runs begin. Each run ends near the mean of what is left, if the runs that are left suffice for the
    /// rest.
    std::vector<bool> beginnings(std::uint64_t bound) const {
        const std::vector<std::uint32_t> needed = runs_behind(bound);
        std::vector<bool> begins(sizes_.size());
        std::uint64_t rest = std::accumulate(sizes_.begin(), sizes_.end(), std::uint64_t{0});
        std::uint64_t runs_left = sizes_.empty() ? 0 : needed.front();
        std::uint64_t open = 0;
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            const std::uint64_t mean = rest / std::max<std::uint64_t>(runs_left, 1);
            const bool enough = open >= mean || sizes_[i] / 2 > mean - open;
            const bool affordable = runs_left > 1 && needed[i] < runs_left;
            if (i == 0 || sizes_[i] > bound - open || (open > 0 && enough && affordable)) {
                begins[i] = true;
                if (i > 0) {
                    rest -= open;
                    --runs_left;
                }
                open = 0;
            }
            open += sizes_[i];
        }
        return begins;
    }

private:
    std::size_t runs(std::uint64_t bound) const {
        std::size_t count = sizes_.empty() ? 0 : 1;
        std::uint64_t open = 0;
        for (const std::uint64_t size : sizes_) {
            if (size > bound - open) {
                ++count;
                open = 0;
            }
            open += size;
        }
        return count;
    }

    /// Returns the minimum number of runs from each size to the last one.
    std::vector<std::uint32_t> runs_behind(std::uint64_t bound) const {
        std::vector<std::uint32_t> needed(sizes_.size() + 1);
        std::size_t end = sizes_.size();
        std::uint64_t sum = 0;  // sum of sizes [i, end)
        for (std::size_t i = sizes_.size(); i-- > 0;) {
            while (sum > bound - sizes_[i]) sum -= sizes_[--end];
            sum += sizes_[i];
            needed[i] = needed[end] + 1;
        }
        return needed;
    }

    std::vector<std::uint64_t> sizes_;
};

Shards balanced(std::span<const std::uint64_t> sizes, std::uint64_t max) {
    std::vector<std::uint64_t> within;
    within.reserve(sizes.size());
    std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(within),
                 [=](std::uint64_t size) { return size <= max; });
    const Balance balance(std::move(within));
    const std::vector<bool> begins = balance.beginnings(balance.smallest_bound(max));
    std::size_t next = 0;
    return fill(sizes, max, [&](std::uint32_t, std::uint64_t) { return bool(begins[next++]); });
}

std::vector<std::uint32_t> shards_of(const Shards& shards, std::size_t members) {
    std::vector<std::uint32_t> shard_of(members);
    for (std::uint32_t shard = 0; shard < shards.size(); ++shard)
        for (const std::uint32_t member : shards[shard]) shard_of[member] = shard;
    return shard_of;
}

/// Returns the shards with the first tensor of each storage, followed by the other tensors, storage by storage.
Shards with_followers(const Shards& split, const Units& units) {
    Shards shards(split.size());
    const std::vector<std::uint32_t> shard_of = shards_of(split, units.first.size());
    std::vector<std::uint32_t> followers;
    for (std::uint32_t i = 0; i < units.of.size(); ++i) {
        const std::uint32_t unit = units.of[i];
        if (units.first[unit] == i) shards[shard_of[unit]].push_back(i);
        else followers.push_back(i);
    }
    std::stable_sort(followers.begin(), followers.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return units.of[a] < units.of[b]; });
    for (const std::uint32_t i : followers) shards[shard_of[units.of[i]]].push_back(i);
    return shards;
}

Split by_layers(const Units& units, std::uint64_t max) {
    const Shards split = greedy(units.sizes, max);
    const std::vector<std::uint32_t> shard_of = shards_of(split, units.first.size());
    Split result;
    result.shards.resize(split.size());
    for (std::uint32_t i = 0; i < units.of.size(); ++i) result.shards[shard_of[units.of[i]]].push_back(i);
    for (std::uint32_t unit = 0; unit < units.first.size(); ++unit)
        if (units.sizes[unit] > max && result.shards[shard_of[unit]].size() > 1)
            result.large_layers.push_back(
                {.tensor = units.first[unit], .shard = shard_of[unit], .size = units.sizes[unit]});
    return result;
}

bool is_number(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::uint64_t sum_of_sizes(std::uint64_t sum, std::uint64_t size) {
    if (const auto next = checked_add(sum, size)) return *next;
    throw Error(Errc::shape_overflow, "the total size of all tensors does not fit in 64 bits");
}

Split split(std::span<const Sized> tensors, std::uint64_t max_shard_size, ShardStrategy strategy) {
    const bool in_layers = strategy == ShardStrategy::by_prefix;
    const Units units = in_layers ? layers_of(tensors) : storages_of(tensors);
    // Summed first, so that no sum below can wrap.
    const std::uint64_t total = std::accumulate(units.sizes.begin(), units.sizes.end(), std::uint64_t{0}, sum_of_sizes);
    Split split;
    switch (strategy) {
        case ShardStrategy::greedy: split.shards = with_followers(greedy(units.sizes, max_shard_size), units); break;
        case ShardStrategy::balanced:
            split.shards = with_followers(balanced(units.sizes, max_shard_size), units);
            break;
        case ShardStrategy::by_prefix: split = by_layers(units, max_shard_size); break;
    }
    split.total_size = total;
    return split;
}

std::string_view layer_of(std::string_view name) {
    for (std::size_t begin = 0; begin < name.size();) {
        const std::size_t end = std::min(name.find_first_of("./", begin), name.size());
        if (is_number(name.substr(begin, end - begin))) return name.substr(0, end);
        begin = end + 1;
    }
    return {};
}

std::string shard_name(const std::string& stem, std::size_t shard, std::size_t shards) {
    char numbers[64] = "";
    if (shards != 1) std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", shard + 1, shards);
    return stem + numbers + ".safetensors";
}

std::string index_name(const std::string& stem) { return stem + ".safetensors.index.json"; }

}  // namespace safemap::SAFEMAP_ABI::write
