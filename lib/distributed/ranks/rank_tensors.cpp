// Puts the parts of all ranks together. From the top:
//
//   checks         of all files together: ranks, meshes, the ways in which _StridedShard can be read
//   groups         which ranks together hold a tensor; the first group is listed, and the others are replicas of it
//   wholes         the parts of a group become a tensor
//   replicas       pairs that should be equal, made one at a time
//
// Tested by tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/rank_tensors.hpp"

#include "base/faults.hpp"
#include "base/pool.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "distributed/ranks/tree_values.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// The most boxes of the local value of a rank.
constexpr std::size_t most_boxes = 1 << 20;

}  // namespace

// Checks.

RankTensors::RankTensors(std::shared_ptr<RankFileSet> set) : set_(std::move(set)) {
    check_ranks();
    index_meshes();
    const std::size_t count = set_->skeleton->tensors().size();
    for (std::uint32_t i = 0; i < count; ++i)
        if (described(i).role == TensorRole::dtensor) about_tensor(described(i).name, [&] { check_meshes(i); });
    choose_orders();
    check_world();
    check_values();
    std::uint64_t bytes = 0;
    for (const RankShare& share : set_->shares) {
        sources_.add(share.source);
        for (const OddValue& odd : share.values) sources_.add(odd.value);
        bytes += share.source->size();
    }
    static_cast<void>(sources_.table());  // made before threads share it
    constexpr std::uint64_t least = std::uint64_t{1} << 18;
    constexpr std::uint64_t smallest_piece = 64;
    pieces_left_ = least + bytes / smallest_piece;
}

void RankTensors::check_ranks() const {
    for (std::size_t i = 0; i < set_->shares.size(); ++i) {
        const RankShare& share = set_->shares[i];
        if (!share.foreign) continue;
        const auto other = set_->names.find(*share.foreign);
        if (other && !set_->shares[*other].foreign)
            throw Error(Errc::rank_repeated, "the file says that it is of rank " + std::to_string(*share.foreign) +
                                                 ", and so does " + excerpt(file(*other)))
                .with_path(share.source->name())
                .with_hint("one file was copied over the other: copy the files of all ranks again");
        throw Error(Errc::ranks_differ, "the file says that it is of rank " + std::to_string(*share.foreign) +
                                            "; its name says rank " + std::to_string(share.rank))
            .with_path(share.source->name())
            .with_hint("give each file the name that it was saved under");
    }
}

void RankTensors::index_meshes() {
    for (const RankShare& share : set_->shares)
        for (std::size_t i = 0; i < share.parts.size(); ++i) {
            if (described(i).role != TensorRole::dtensor) continue;
            const std::uint32_t mesh = share.parts[i].place;
            if (mesh >= places_.size()) places_.resize(mesh + 1);
            if (!places_[mesh].empty()) continue;
            const Mesh& grid = set_->meshes[mesh];
            places_[mesh].reserve(grid.ranks.size());
            for (std::size_t place = 0; place < grid.ranks.size(); ++place)
                places_[mesh].emplace(grid.ranks[place], place);
        }
}

/// Throws if a rank of a tensor's mesh states another mesh for it.
void RankTensors::check_meshes(std::uint32_t number) const {
    std::unordered_set<std::uint32_t> checked;
    for (std::size_t s = 0; s < set_->shares.size(); ++s) {
        const std::uint32_t mesh = part(s, number).place;
        if (!checked.insert(mesh).second) continue;
        for (const std::uint64_t rank : set_->meshes[mesh].ranks) {
            const auto found = set_->names.find(rank);
            if (!found) continue;  // one file by itself
            const std::size_t other = *found;
            if (part(other, number).place == mesh) continue;
            throw Error(Errc::ranks_differ, "the meshes differ between ranks: " + excerpt(file(s)) + " has rank " +
                                                std::to_string(rank) + " in its mesh " + to_string(set_->meshes[mesh]) +
                                                ", but the file of that rank has another mesh")
                .with_path(set_->shares[other].source->name());
        }
    }
}

/// Decides in which of two ways tensors are cut: the first one, unless only the second one fits all ranks.
void RankTensors::choose_orders() {
    struct Verdict {
        bool first = true;
        bool other = true;
        const RankShare* misfit = nullptr;
    };
    std::unordered_map<std::uint32_t, Verdict> verdicts;
    for (const RankShare& share : set_->shares)
        for (const RankShare::Fits& fits : share.fits) {
            Verdict& one = verdicts[fits.tensor];
            if (!fits.first && one.misfit == nullptr) one.misfit = &share;
            one.first = one.first && fits.first;
            one.other = one.other && fits.other;
        }
    second_order_.resize(set_->skeleton->tensors().size());
    for (const auto& [number, verdict] : verdicts) {
        if (verdict.first) continue;
        if (!verdict.other)
            throw Error(Errc::piece_mismatch, "the shapes of the local values fit the placements " +
                                                  to_string(described(number).said.placements) +
                                                  " in some ranks only, in whichever order they cut the tensor")
                .with_path(verdict.misfit->source->name())
                .with_tensor(described(number).name);
        second_order_[number] = true;
    }
}

/// Throws if a rank has no part of any distributed tensor because it is in no mesh.
void RankTensors::check_world() const {
    const auto& tensors = set_->skeleton->tensors();
    const auto is_dtensor = [](const SkeletonTensor& one) { return one.role == TensorRole::dtensor; };
    const auto is_sharded = [](const SkeletonTensor& one) { return one.role == TensorRole::sharded; };
    if (std::none_of(tensors.begin(), tensors.end(), is_dtensor)) return;
    if (std::any_of(tensors.begin(), tensors.end(), is_sharded)) return;
    for (const RankShare& share : set_->shares) {
        bool found = false;
        std::uint32_t mesh = 0;
        for (std::size_t i = 0; i < tensors.size() && !found; ++i) {
            if (!is_dtensor(tensors[i])) continue;
            mesh = share.parts[i].place;
            found = places_[mesh].contains(share.rank);
        }
        if (found) continue;
        throw Error(Errc::world_mismatch, "rank " + std::to_string(share.rank) + " is in no mesh; the last one is " +
                                              to_string(set_->meshes[mesh]) + " of " +
                                              std::to_string(set_->meshes[mesh].ranks.size()) + " ranks")
            .with_path(share.source->name());
    }
}

/// Throws if no tensor is distributed and the ranks have different values: they are local parts, and nothing says of
/// what.
void RankTensors::check_values() const {
    if (set_->skeleton->has_parts()) return;
    for (const RankShare& share : set_->shares) {
        if (!share.other_value) continue;
        throw Error(Errc::ranks_differ,
                    "no tensor in the files is distributed, and the values of this one are not "
                    "those in " +
                        excerpt(file(0)))
            .with_path(share.source->name())
            .with_tensor(described(*share.other_value).name)
            .with_hint(
                "the files hold local parts of tensors, such as the optimizer of FSDP1, and do not say how they go "
                "together, or they are different checkpoints; give one of them");
    }
}

// Groups.

std::vector<RankTensors::Group> RankTensors::groups(std::size_t i) const {
    return described(i).role == TensorRole::dtensor ? groups_of_mesh(i) : groups_of_shards(i);
}

std::vector<RankTensors::Group> RankTensors::groups_of_mesh(std::size_t i) const {
    const SkeletonTensor& tensor = described(i);
    std::vector<Group> out;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> numbers;
    for (std::size_t s = 0; s < set_->shares.size(); ++s) {
        const LocalPart& one = part(s, i);
        const auto place = places_[one.place].find(set_->shares[s].rank);
        if (place == places_[one.place].end()) continue;
        const std::uint64_t replica =
            tensor.sharding->replica_of(coordinates_of(tensor.sharding->mesh(), place->second));
        const auto [group, fresh] = numbers.try_emplace({one.place, replica}, out.size());
        if (fresh) out.emplace_back();
        out[group->second].push_back({s, place->second, one.first});
    }
    return out;
}

/// The ranks that have a shard for the first time come first; those that have it again, second; and so on.
std::vector<RankTensors::Group> RankTensors::groups_of_shards(std::size_t i) const {
    const auto& shards = described(i).said.shards;
    std::vector<std::size_t> holders(shards.size(), 0);
    std::vector<Group> out(1);
    const auto add = [&](std::size_t share, std::uint32_t shard, std::uint32_t value) {
        const std::size_t group = holders[shard]++;
        if (group == out.size()) out.emplace_back();
        out[group].push_back({share, shard, value});
    };
    for (std::size_t s = 0; s < set_->shares.size(); ++s) {
        const LocalPart& one = part(s, i);
        if (one.state == LocalPart::State::run) add(s, one.place, 0);
        if (one.state != LocalPart::State::values) continue;
        for (std::uint32_t v = one.first; v < one.first + one.count; ++v) add(s, set_->shares[s].values[v].shard, v);
    }
    for (std::size_t n = 0; n < shards.size(); ++n) {
        if (holders[n] > 0 || element_count(shards[n].extent) == 0) continue;
        const auto same = [&](const StatedShard& one) {
            return one.start == shards[n].start && one.extent == shards[n].extent;
        };
        if (std::find_if(shards.begin(), shards.end(), same) != shards.begin() + static_cast<std::ptrdiff_t>(n))
            throw Error(Errc::pieces_overlap, "element " + to_string(shards[n].start) +
                                                  " is in two shards: the metadata list one of them twice");
        const std::string rank = shards[n].rank ? " to rank " + std::to_string(*shards[n].rank) : std::string();
        throw Error(Errc::piece_missing, "the shard " + to_string(shards[n].start) + " + " +
                                             to_string(shards[n].extent) + ", which the metadata give" + rank +
                                             ", is in no file");
    }
    return out;
}

// Wholes.

LazyTensor RankTensors::value_of(std::size_t i, const Member& member, const Shape& shape) const {
    const SkeletonTensor& tensor = described(i);
    const RankShare& share = set_->shares[member.share];
    const LocalPart& one = share.parts[i];
    if (one.state == LocalPart::State::values) return share.values[member.value].value;
    return {{}, stored_run(tensor.said.dtype, shape, share.source, one.offset), tensor.decoding};
}

std::vector<Part> RankTensors::parts_of(std::size_t i, const Group& group) const {
    const SkeletonTensor& tensor = described(i);
    std::vector<Part> parts;
    parts.reserve(group.size());
    for (const Member& member : group) {
        const LocalPart& one = part(member.share, i);
        if (one.state == LocalPart::State::empty || one.state == LocalPart::State::absent) continue;
        if (tensor.role == TensorRole::sharded) {
            const StatedShard& shard = tensor.said.shards[member.place];
            parts.push_back({shard.start, value_of(i, member, shard.extent)});
            continue;
        }
        const Sharding& sharding = second_order_[i] ? *tensor.other : *tensor.sharding;
        const auto at = coordinates_of(sharding.mesh(), member.place);
        const LazyTensor value = value_of(i, member, sharding.local_shape(at));
        const std::vector<LocalBox> boxes = boxes_of(sharding, at, most_boxes);
        if (boxes.size() > 1 && pieces_left_.fetch_sub(boxes.size()) < boxes.size()) {
            pieces_left_ = 0;
            throw Error(Errc::pickle_too_large, "the placements cut the tensors into more pieces than the files hold");
        }
        for (const LocalBox& box : boxes) {
            std::vector<Slice> slices;
            for (std::size_t d = 0; d < box.extent.size(); ++d)
                slices.push_back({.start = static_cast<std::int64_t>(box.local_start[d]),
                                  .stop = static_cast<std::int64_t>(box.local_start[d] + box.extent[d])});
            parts.push_back({box.whole_start, boxes.size() == 1 ? value : value.slice(slices)});
        }
    }
    return parts;
}

LazyTensor RankTensors::whole_of(std::size_t i, const Group& group) const {
    const SkeletonTensor& tensor = described(i);
    const Shape& shape = tensor.said.shape;
    const std::vector<Part> parts = parts_of(i, group);
    if (parts.size() == 1 && parts.front().value.shape() == shape) return parts.front().value.renamed(tensor.name);
    return whole(tensor.name, tensor.said.dtype, shape, parts, sources_);
}

/// Finds tensors whose parts are the same in all files: several names of one tensor, in one storage.
void RankTensors::find_ties() {
    const std::size_t count = set_->skeleton->tensors().size();
    std::unordered_multimap<std::uint64_t, std::size_t> by_digest;
    const auto ties = [&](std::size_t a, std::size_t b) {
        const StatedTensor& x = described(a).said;
        const StatedTensor& y = described(b).said;
        if (x.kind != y.kind || x.dtype != y.dtype || x.shape != y.shape || x.placements != y.placements ||
            x.orders != y.orders)
            return false;
        for (const RankShare& share : set_->shares)
            if (!(share.parts[a] == share.parts[b])) return false;
        return true;
    };
    same_as_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        same_as_[i] = i;
        const TensorRole role = described(i).role;
        if (role != TensorRole::dtensor && role != TensorRole::sharded) continue;
        if (element_count(described(i).said.shape).value_or(0) == 0) continue;
        std::uint64_t digest = 0;
        for (const RankShare& share : set_->shares) digest = (digest ^ share.parts[i].offset) * 0x9E37'79B9'7F4A'7C15U;
        const auto [begin, end] = by_digest.equal_range(digest);
        const auto first = std::find_if(begin, end, [&](const auto& one) { return ties(one.second, i); });
        if (first != end) same_as_[i] = first->second;
        else by_digest.emplace(digest, i);
    }
}

void RankTensors::make(const Work& work) {
    find_ties();
    const auto& tensors = set_->skeleton->tensors();
    std::vector<std::optional<LazyTensor>> made(tensors.size());
    const Watch watch(work.monitor, "opening", 0);
    const auto make_one = [&](std::size_t i) {
        if (tensors[i].role != TensorRole::dtensor && tensors[i].role != TensorRole::sharded) {
            made[i] = std::get<StateTree::Tensor>(set_->skeleton->tree()[tensors[i].node]).tensor;
            return;
        }
        about_tensor(tensors[i].name, [&] {
            const std::vector<Group> all = groups(i);
            made[i] = whole_of(i, all.front());
            compare_meshes(i, all);
        });
    };
    parallel_for(tensors.size(), thread_count(work.threads, bulk_threads), [&](std::size_t i, unsigned) {
        if (same_as_[i] != i) return;
        if (i % 64 == 0) watch.check_stop();
        make_one(i);
    });
    pieces_left_ = UINT64_MAX;  // replicas have no more pieces
    made_.reserve(made.size());
    for (std::size_t i = 0; i < made.size(); ++i) made_.push_back(*made[same_as_[i]]);
}

// Replicas.

/// Ranks of different meshes should hold the same tensor. Compares the first bytes of the first parts.
void RankTensors::compare_meshes(std::size_t i, const std::vector<Group>& all) const {
    constexpr std::uint64_t sample = 512;
    constexpr int most_meshes = 8;
    int compared = 0;
    if (described(i).role != TensorRole::dtensor) return;
    const std::uint32_t mesh = part(all.front().front().share, i).place;
    std::uint32_t last = mesh;
    for (const Group& group : all) {
        const std::uint32_t own = part(group.front().share, i).place;
        if (own == mesh || own == last || compared++ == most_meshes) continue;
        last = own;
        const std::vector<Part> first = parts_of(i, {all.front().begin(), all.front().begin() + 1});
        const std::vector<Part> other = parts_of(i, {group.begin(), group.begin() + 1});
        if (first.empty() || other.empty() || first.front().start != other.front().start ||
            first.front().value.shape() != other.front().value.shape() ||
            have_equal_bytes(first.front().value, other.front().value, sample))
            continue;
        throw Error(Errc::ranks_differ,
                    "ranks of different meshes have different values: " + excerpt(file(all.front().front().share)) +
                        " and " + excerpt(file(group.front().share)) +
                        "; the files do not say that they are parts of one tensor")
            .with_path(set_->shares[group.front().share].source->name())
            .with_hint("give one file to read the part of its rank");
    }
}

void RankTensors::each_replica_of(std::size_t i, const std::function<void(const state::Replica&)>& visit) const {
    const SkeletonTensor& tensor = described(i);
    if (tensor.role == TensorRole::replica) {
        for (std::size_t s = 1; s < set_->shares.size(); ++s) {
            const RankShare& share = set_->shares[s];
            const LocalPart& one = share.parts[i];
            if (one.state == LocalPart::State::empty || one.state == LocalPart::State::absent) continue;
            const LazyTensor other =
                one.state == LocalPart::State::values
                    ? share.values[one.first].value
                    : LazyTensor({}, stored_run(tensor.dtype, tensor.shape, share.source, one.offset), tensor.decoding);
            visit({tensor.name, made_[i], other, file(0), file(s)});
        }
        return;
    }
    const std::vector<Group> all = groups(i);
    for (std::size_t g = 1; g < all.size(); ++g) {
        // If only some shards are held again, these are compared one by one.
        const bool complete = all[g].size() == all.front().size();
        if (complete) {
            visit({tensor.name, made_[i], whole_of(i, all[g]), file(all.front().front().share),
                   file(all[g].front().share)});
            continue;
        }
        for (const Member& member : all[g]) {
            const auto same = std::find_if(all.front().begin(), all.front().end(),
                                           [&](const Member& one) { return one.place == member.place; });
            const Shape& shape = tensor.said.shards[member.place].extent;
            visit({tensor.name, value_of(i, *same, shape), value_of(i, member, shape), file(same->share),
                   file(member.share)});
        }
    }
}

void RankTensors::each_replica(const std::function<void(const state::Replica&)>& visit) const {
    for (std::size_t i = 0; i < made_.size(); ++i) {
        const TensorRole role = described(i).role;
        if (same_as_[i] == i && role != TensorRole::piece && role != TensorRole::ignored) each_replica_of(i, visit);
    }
}

std::vector<LazyTensor> RankTensors::pieces(std::size_t i) const {
    std::vector<LazyTensor> out;
    for (const RankShare& share : set_->shares) out.push_back(share.values.at(share.parts[i].first).value);
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
