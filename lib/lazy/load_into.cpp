// Loads many tensors into memory of the caller. Targets are sorted by their place in the sources and divided into
// groups: small neighbours, strips of one storage, or one large tensor. Workers gather block after block of the groups,
// straight into the caller's memory; only tiles of a transposed tensor go through a buffer.
#include "base/faults.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "lazy/strips.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

using Targets = std::vector<const LoadTarget*>;

/// Returns the sum of all sizes. Throws invalid_argument for a span that has not the size of its value.
std::uint64_t checked_total(std::span<const LoadTarget> targets) {
    std::uint64_t total = 0;
    for (const LoadTarget& target : targets) {
        const std::uint64_t size = target.tensor.nbytes();
        if (target.into.size() != size)
            throw Error(Errc::invalid_argument, "the memory has " + std::to_string(target.into.size()) +
                                                    " bytes, but the value has " + std::to_string(size))
                .with_tensor(target.tensor.name());
        total += size;
    }
    return total;
}

/// Returns the targets with elements in the order of their first bytes, the sources in the order of the targets.
Targets in_stored_order(std::span<const LoadTarget> targets) {
    struct Placed {
        std::size_t source;
        std::uint64_t offset;
        const LoadTarget* target;
    };
    std::vector<Placed> placed;
    placed.reserve(targets.size());
    std::unordered_map<const Source*, std::size_t> sources;
    for (const LoadTarget& target : targets) {
        if (target.into.empty()) continue;
        const StoredTensor& stored = *target.tensor.stored();
        const auto first = static_cast<std::uint64_t>(reach_of(target.tensor.strided_view())->first);
        const StoredTensor::Place place =
            stored.locate(whole_bytes(stored.dtype()) ? first : first * bits(stored.dtype()) / 8);
        const auto source = sources.try_emplace(&stored.source(place.source), sources.size()).first;
        placed.push_back({source->second, place.offset, &target});
    }
    std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
        return a.source != b.source ? a.source < b.source : a.offset < b.offset;
    });
    Targets sorted;
    sorted.reserve(placed.size());
    for (const Placed& each : placed) sorted.push_back(each.target);
    return sorted;
}

class Loads {
public:
    Loads(Targets targets, unsigned threads, Watch& watch)
        : targets_(std::move(targets)), workers_(threads), watch_(watch) {
        for (std::size_t first = 0; first < targets_.size(); first += groups_.back().count) {
            groups_.push_back(group_from(first));
            row_.add(blocks_in(groups_.back()));
        }
    }

    void run() {
        row_.each(workers_.count(), watch_, [this](BlockRow::Place place, unsigned worker) {
            watch_.check_stop();
            const Group& group = groups_[place.item];
            switch (group.kind) {
                case Group::Kind::neighbours: return load_neighbours(group, worker);
                case Group::Kind::strips: return load_strips(group, place.block, worker);
                case Group::Kind::large: return load_block(*targets_[group.first], place.block, worker);
            }
        });
    }

private:
    /// Targets that are read together, or one that is read in blocks.
    struct Group {
        enum class Kind : std::uint8_t { neighbours, strips, large };
        std::size_t first;
        std::size_t count;
        Kind kind;
    };

    auto tensor_from(std::size_t first) const {
        return [this, first](std::size_t i) -> const LazyTensor& { return targets_[first + i]->tensor; };
    }
    std::size_t strips_from(std::size_t first) const { return count_strips(first, targets_.size(), tensor_from(0)); }

    Group group_from(std::size_t first) const {
        using Kind = Group::Kind;
        if (const std::size_t strips = strips_from(first); strips > 1) return {first, strips, Kind::strips};
        const std::size_t most = workers_.buffer_size();
        if (targets_[first]->into.size() > most) return {first, 1, Kind::large};
        std::size_t next = first;
        for (std::size_t size = 0; next < targets_.size(); ++next) {
            size += targets_[next]->into.size();
            if (next > first && (size > most || strips_from(next) > 1)) break;
        }
        return {first, next - first, Kind::neighbours};
    }

    Strips strips_of(const Group& group) const {
        const LazyTensor& one = targets_[group.first]->tensor;
        return {one, one.dtype(), group.count, workers_.buffer_size()};
    }
    Blocks blocks_of(const LazyTensor& tensor) const { return Blocks::for_disk(tensor, workers_.buffer_size()); }

    std::uint64_t blocks_in(const Group& group) const {
        switch (group.kind) {
            case Group::Kind::neighbours: return 1;
            case Group::Kind::strips: return strips_of(group).units();
            case Group::Kind::large: return blocks_of(targets_[group.first]->tensor).count();
        }
        return 0;
    }

    /// Returns the means to gather values that `is_cast` from several pieces, or others.
    GatherRoom room_for(const LazyTensor& tensor, unsigned worker) {
        const bool is_cast = tensor.dtype() != tensor.stored()->dtype() && tensor.piece_count() > 1;
        return {.scratch = is_cast ? workers_.buffer(worker) : std::span<std::byte>(), .watch = &watch_};
    }

    void load_neighbours(const Group& group, unsigned worker) {
        Gatherer& gatherer = workers_.gatherer(worker);
        gatherer.begin(room_for(targets_[group.first]->tensor, worker));
        std::uint64_t size = 0;
        for (std::size_t i = group.first; i < group.first + group.count; ++i) {
            const auto& [tensor, into] = *targets_[i];
            gatherer.add(tensor, tensor.dtype(), 0, into);
            size += into.size();
        }
        gatherer.flush();
        watch_.add(size);
    }

    void load_strips(const Group& group, std::uint64_t number, unsigned worker) {
        const Strips strips = strips_of(group);
        const Strips::Unit unit = strips.unit(number);
        const auto place = [&](std::size_t i) {
            return targets_[group.first + i]->into.subspan(unit.part.offset, unit.part.size);
        };
        strips.gather_apart(unit, workers_.gatherer(worker), place, {.watch = &watch_}, tensor_from(group.first));
        watch_.add(unit.bytes());
    }

    void load_block(const LoadTarget& target, std::uint64_t number, unsigned worker) {
        const Blocks blocks = blocks_of(target.tensor);
        Gatherer& gatherer = workers_.gatherer(worker);
        if (blocks.ranges()) {
            const auto into = target.into.subspan(blocks.range(number).offset);
            watch_.add(blocks.gather(number, target.tensor, gatherer, into, room_for(target.tensor, worker)).size());
            return;
        }
        const auto tile = blocks.gather(number, target.tensor, gatherer, workers_.buffer(worker), {.watch = &watch_});
        blocks.scatter(number, [&](std::uint64_t at, std::uint64_t in_tile, std::uint64_t size) {
            std::memcpy(target.into.data() + at, tile.data() + in_tile, size);
        });
        watch_.add(tile.size());
    }

    Targets targets_;
    Workers workers_;
    Watch& watch_;
    std::vector<Group> groups_;
    BlockRow row_;  // blocks of all groups
};

}  // namespace

void load_into(std::span<const LoadTarget> targets, const Work& work) {
    Watch watch(work.monitor, "loading", checked_total(targets));
    watch.tell();
    Loads(in_stored_order(targets), work.threads, watch).run();
    require_unchanged(targets);
    watch.tell();
}

}  // namespace safemap::SAFEMAP_ABI
