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

/// The bytes that tensors take in a shard.
struct Load {
    std::uint64_t size = 0;
    std::uint64_t header = 0;  ///< cannot wrap: it is about the size of names and shapes, which are in memory

    bool within(const ShardLimits& limits) const noexcept { return size <= limits.size && header <= limits.header; }
    /// Returns true if both together are within the limits. Each of them must be.
    bool fits_with(const Load& other, const ShardLimits& limits) const noexcept {
        return other.size <= limits.size - size && other.header <= limits.header - header;
    }
    void add(const Load& other) noexcept {
        size += other.size;
        header += other.header;
    }
    void subtract(const Load& other) noexcept {
        size -= other.size;
        header -= other.header;
    }
};

/// The units that go into a shard as a whole: the tensors of a storage, or of a layer. Units are numbered in the order
/// of their first tensors.
struct Units {
    std::vector<std::uint32_t> of;     ///< unit of each tensor
    std::vector<std::uint32_t> first;  ///< first tensor of each unit
    std::vector<Load> loads;
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
            units.loads.push_back({.size = tensors[tensor].size});
        } else {
            units.of[tensor] = units.of[first];
        }
        units.loads[units.of[tensor]].header += tensors[tensor].header;
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
            units.loads.emplace_back();
        }
        units.of[tensor] = units.of[first];
        Load& load = units.loads[units.of[first]];
        if (tensor == first_of_storage) load.size = sum_of_sizes(load.size, tensors[tensor].size);
        load.header += tensors[tensor].header;
    });
    return units;
}

/// Fills shards with units. A new shard begins where `begins(unit, load of the open shard)` returns true. A unit beyond
/// the limits gets a shard of its own, before the open shard.
template <class Begins> Shards fill(std::span<const Load> loads, const ShardLimits& limits, Begins&& begins) {
    Shards shards;
    std::vector<std::uint32_t> open;
    Load load;
    const auto close = [&] {
        if (!open.empty()) shards.push_back(std::move(open));
        open.clear();
        load = {};
    };
    for (std::uint32_t unit = 0; unit < loads.size(); ++unit) {
        if (!loads[unit].within(limits)) {
            shards.push_back({unit});
            continue;
        }
        if (begins(unit, load)) close();
        open.push_back(unit);
        load.add(loads[unit]);
    }
    close();
    return shards;
}

Shards greedy(std::span<const Load> loads, const ShardLimits& limits) {
    return fill(loads, limits,
                [&](std::uint32_t unit, const Load& open) { return !open.fits_with(loads[unit], limits); });
}

/// Contiguous runs of loads, each of them of a size within a bound, and within the limit of headers.
class Balance {
public:
    Balance(std::vector<Load> loads, std::uint64_t max_header) : loads_(std::move(loads)), max_header_(max_header) {}

    /// Returns the smallest bound that needs no more runs than `max` does.
    std::uint64_t smallest_bound(std::uint64_t max) const {
        const std::size_t fewest = runs(max);
        std::uint64_t low = 0;
        for (const Load& load : loads_) low = std::max(low, load.size);
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
        std::vector<bool> begins(loads_.size());
        std::uint64_t rest = 0;
        for (const Load& load : loads_) rest += load.size;
        std::uint64_t runs_left = loads_.empty() ? 0 : needed.front();
        Load open;
        for (std::size_t i = 0; i < loads_.size(); ++i) {
            const std::uint64_t mean = rest / std::max<std::uint64_t>(runs_left, 1);
            const bool enough = open.size >= mean || loads_[i].size / 2 > mean - open.size;
            const bool affordable = runs_left > 1 && needed[i] < runs_left;
            if (i == 0 || !open.fits_with(loads_[i], limits(bound)) || (open.size > 0 && enough && affordable)) {
                begins[i] = true;
                if (i > 0) {
                    rest -= open.size;
                    --runs_left;
                }
                open = {};
            }
            open.add(loads_[i]);
        }
        return begins;
    }

private:
    ShardLimits limits(std::uint64_t bound) const noexcept { return {bound, max_header_}; }

    std::size_t runs(std::uint64_t bound) const {
        std::size_t count = loads_.empty() ? 0 : 1;
        Load open;
        for (const Load& load : loads_) {
            if (!open.fits_with(load, limits(bound))) {
                ++count;
                open = {};
            }
            open.add(load);
        }
        return count;
    }

    /// Returns the minimum number of runs from each size to the last one.
    std::vector<std::uint32_t> runs_behind(std::uint64_t bound) const {
        std::vector<std::uint32_t> needed(loads_.size() + 1);
        std::size_t end = loads_.size();
        Load sum;  // the sum of loads [i, end)
        for (std::size_t i = loads_.size(); i-- > 0;) {
            while (!sum.fits_with(loads_[i], limits(bound))) sum.subtract(loads_[--end]);
            sum.add(loads_[i]);
            needed[i] = needed[end] + 1;
        }
        return needed;
    }

    std::vector<Load> loads_;
    std::uint64_t max_header_;
};

Shards balanced(std::span<const Load> loads, const ShardLimits& limits) {
    std::vector<Load> within;
    within.reserve(loads.size());
    std::copy_if(loads.begin(), loads.end(), std::back_inserter(within),
                 [&](const Load& load) { return load.within(limits); });
    const Balance balance(std::move(within), limits.header);
    const std::vector<bool> begins = balance.beginnings(balance.smallest_bound(limits.size));
    std::size_t next = 0;
    return fill(loads, limits, [&](std::uint32_t, const Load&) { return bool(begins[next++]); });
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

Split by_layers(const Units& units, const ShardLimits& limits) {
    const Shards split = greedy(units.loads, limits);
    const std::vector<std::uint32_t> shard_of = shards_of(split, units.first.size());
    Split result;
    result.shards.resize(split.size());
    for (std::uint32_t i = 0; i < units.of.size(); ++i) result.shards[shard_of[units.of[i]]].push_back(i);
    for (std::uint32_t unit = 0; unit < units.first.size(); ++unit)
        if (units.loads[unit].size > limits.size && result.shards[shard_of[unit]].size() > 1)
            result.large_layers.push_back(
                {.tensor = units.first[unit], .shard = shard_of[unit], .size = units.loads[unit].size});
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

Split split(std::span<const Sized> tensors, ShardLimits limits, ShardStrategy strategy) {
    const bool in_layers = strategy == ShardStrategy::by_prefix;
    const Units units = in_layers ? layers_of(tensors) : storages_of(tensors);
    // Summed first, so that no sum below can wrap.
    std::uint64_t total = 0;
    for (const Load& load : units.loads) total = sum_of_sizes(total, load.size);
    Split split;
    switch (strategy) {
        case ShardStrategy::greedy: split.shards = with_followers(greedy(units.loads, limits), units); break;
        case ShardStrategy::balanced: split.shards = with_followers(balanced(units.loads, limits), units); break;
        case ShardStrategy::by_prefix: split = by_layers(units, limits); break;
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
