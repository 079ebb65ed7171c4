// Computes the places of parameters: stages 1 and 2 cut a group flat, and stage 3 cuts each parameter.
#include "distributed/zero/partitions.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"
#include "distributed/parallel/experts.hpp"
#include "distributed/zero/keys.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

std::string elements_text(std::uint64_t count) { return counted(count, "element"); }

[[noreturn]] void fail(Errc code, const std::string& message, const OptimizerFile& file) {
    throw Error(code, message).with_path(file.file);
}

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
    const auto result = checked_add(a, b);
    if (!result) throw Error(Errc::shape_overflow, "the total size of the parameters does not fit in 64 bits");
    return *result;
}

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t step) {
    const std::uint64_t over = value % step;
    return over == 0 ? value : sum(value, step - over);
}

// Stages 1 and 2.

/// One group, cut flat over some ranks.
class FlatGroup {
public:
    FlatGroup(const ModelRankFiles& set, std::span<const std::uint64_t> ranks, std::uint32_t number, const Group& group)
        : set_(set), ranks_(ranks), number_(number), group_(group) {
        place_parameters();
        for (const std::uint64_t rank : ranks_) lengths_.push_back(file(rank).masters[number_].element_count());
        check_paddings();
        check_lengths();
        check_order();
    }

    void each(const VisitParameter& visit) const {
        std::vector<PartitionRun> runs;
        std::size_t slot = 0;
        std::uint64_t begin = 0;  // where the partition of the slot begins
        for (std::size_t i = 0; i < group_.size(); ++i) {
            runs.clear();
            for (std::uint64_t done = 0; done < group_[i].count;) {
                const std::uint64_t at = places_[i] + done;
                while (at >= begin + lengths_[slot]) begin += lengths_[slot++];
                const std::uint64_t count = std::min(group_[i].count - done, begin + lengths_[slot] - at);
                runs.push_back({.first = done,
                                .count = count,
                                .from = at - begin,
                                .rank = static_cast<std::uint32_t>(ranks_[slot]),
                                .group = number_});
                done += count;
            }
            visit(group_[i], runs);
        }
    }

private:
    const OptimizerFile& file(std::uint64_t rank) const { return set_.optimizers[rank]; }

    void place_parameters() {
        const OptimizerFile& first = file(ranks_.front());
        const bool has_gaps = number_ < first.gaps.size();
        if (has_gaps && first.gaps[number_].size() != group_.size())
            fail(Errc::ranks_differ,
                 "param_alignment_paddings lists " + std::to_string(first.gaps[number_].size()) +
                     " parameters of group " + std::to_string(number_) + ", param_shapes lists " +
                     std::to_string(group_.size()),
                 first);
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < group_.size(); ++i) {
            places_.push_back(at);
            at = sum(at, group_[i].count);
            needed_ = at;
            if (!has_gaps) continue;
            at = sum(at, first.gaps[number_][i]);
            gaps_ = gaps_ || first.gaps[number_][i] > 0;
        }
    }

    std::uint64_t total() const {
        std::uint64_t total = 0;
        for (const std::uint64_t length : lengths_) total = sum(total, length);
        return total;
    }

    /// All partitions have the same length, if padding is kept. Otherwise the last ones with elements are shorter, and
    /// those after them empty.
    void check_lengths() const {
        const std::uint64_t full = *std::max_element(lengths_.begin(), lengths_.end());
        bool padding = false;  // true from the first partition on that is not full
        for (std::size_t slot = 0; slot < lengths_.size(); ++slot) {
            const bool expected = padding ? lengths_[slot] == 0 : lengths_[slot] <= full;
            if (!expected) fail_length(slot - 1, full);
            padding = padding || lengths_[slot] < full;
        }
        const std::uint64_t held = total();
        if (held < needed_) fail_length(lengths_.size() - 1, full);
        if (const auto kept = kept_padding()) {
            if (held - needed_ != *kept) fail_padding(held, *kept);
            return;
        }
        if (!gaps_ && held != needed_ && held != rounded_up(needed_, lengths_.size()) &&
            held != rounded_up(needed_, 2 * lengths_.size()))
            fail_length(lengths_.size() - 1, full);
    }

    bool keeps_padding() const { return file(ranks_.front()).bf16_optimizer; }
    bool has_paddings() const {
        return std::all_of(ranks_.begin(), ranks_.end(),
                           [this](std::uint64_t rank) { return number_ < file(rank).group_paddings.size(); });
    }

    /// Returns the elements of padding that all partitions together hold, or nothing if the files do not say it. Old
    /// versions count the padding of several ranks at the last one, where it can be more than a partition.
    std::optional<std::uint64_t> kept_padding() const {
        if (!has_paddings()) return std::nullopt;
        std::uint64_t padding = 0;
        for (std::size_t slot = 0; slot < ranks_.size(); ++slot) {
            const std::uint64_t own = file(ranks_[slot]).group_paddings[number_];
            if (!keeps_padding() && own > sum(lengths_.front(), file(ranks_.front()).group_paddings[number_]))
                return std::nullopt;
            padding = sum(padding, own);
        }
        return keeps_padding() ? padding : 0;
    }

    /// A partition and its padding, or the partition if padding is kept, have the same length in all ranks. Old
    /// versions count the padding of several ranks at the last one, where it can be more than a partition.
    void check_paddings() const {
        if (!has_paddings()) return;
        const auto padding = [this](std::size_t slot) {
            return keeps_padding() ? 0 : file(ranks_[slot]).group_paddings[number_];
        };
        const std::uint64_t full = sum(lengths_.front(), padding(0));
        for (std::size_t slot = 1; slot < lengths_.size(); ++slot)
            if (padding(slot) <= full && sum(lengths_[slot], padding(slot)) != full) fail_length(slot, full);
    }

    /// Throws if a file lists the parameters of another rank's partition, or of none. With round_robin_gradients the
    /// list is not in the order of the buffer, unless parameters are aligned, and `param_shapes` holds.
    void check_order() const {
        const ModelFile& model = set_.models.front();
        if (!model.flat_order_is_listed && !gaps_) return;
        std::vector<std::uint64_t> wanted;
        std::uint64_t begin = 0;
        for (const std::uint64_t length : lengths_) {
            wanted.push_back(digest(begin, begin + length));
            begin += length;
        }
        begin = 0;
        for (std::size_t slot = 0; slot < ranks_.size(); begin += lengths_[slot++]) {
            const auto& listed = file(ranks_[slot]).listed;
            if (number_ >= listed.size() || listed[number_] == wanted[slot]) continue;
            const auto other = std::find(wanted.begin(), wanted.end(), listed[number_]);
            if (other == wanted.end()) {
                if (!model.flat_order_is_listed || listed[number_] == digest(begin, begin + lengths_[slot], true))
                    continue;
                fail(Errc::ranks_differ,
                     "param_slice_mappings of group " + std::to_string(number_) +
                         " lists other parameters, or in another order, than param_shapes of " + excerpt(model.file) +
                         " gives this rank",
                     file(ranks_[slot]));
            }
            fail(Errc::ranks_differ,
                 "param_slice_mappings lists the parameters of rank " +
                     std::to_string(ranks_[static_cast<std::size_t>(other - wanted.begin())]) +
                     ", but the name of the file says rank " + std::to_string(ranks_[slot]),
                 file(ranks_[slot]));
        }
    }

    /// Returns the digest of the names of the parameters with elements in [begin, end) of the buffer; if `touching`,
    /// also of those that end at `begin`, which old versions list too. Experts are listed by their numbers in the rank.
    std::uint64_t digest(std::uint64_t begin, std::uint64_t end, bool touching = false) const {
        const Group& listed = set_.models.front().groups[number_];
        NameDigest names;
        auto first = touching ? std::lower_bound(places_.begin(), places_.end(), begin)
                              : std::upper_bound(places_.begin(), places_.end(), begin);
        if (first != places_.begin()) --first;
        for (auto i = static_cast<std::size_t>(first - places_.begin()); i < places_.size() && places_[i] < end; ++i)
            if (places_[i] + group_[i].count + (touching ? 1 : 0) > begin && group_[i].count > 0)
                names.add(listed[i].name);
        return names.value();
    }

    [[noreturn]] void fail_length(std::size_t slot, std::uint64_t full) const {
        const std::uint64_t held = total();
        fail(held < needed_ ? Errc::not_covered : Errc::piece_mismatch,
             "the partition of group " + std::to_string(number_) + " has " + elements_text(lengths_[slot]) +
                 "; the longest of another rank has " + std::to_string(full) + ", and all " +
                 std::to_string(lengths_.size()) + " together have " + elements_text(held) +
                 ", where the parameters of the group need " + std::to_string(needed_),
             file(ranks_[slot]));
    }

    [[noreturn]] void fail_padding(std::uint64_t held, std::uint64_t padding) const {
        const std::uint64_t wanted = sum(needed_, padding);
        fail(held < wanted ? Errc::not_covered : Errc::piece_mismatch,
             "the partitions of group " + std::to_string(number_) + " together have " + elements_text(held) +
                 "; expected " + std::to_string(wanted) + ": " + std::to_string(needed_) + " of the parameters and " +
                 std::to_string(padding) + " of padding",
             file(ranks_.front()));
    }

    const ModelRankFiles& set_;
    std::span<const std::uint64_t> ranks_;
    std::uint32_t number_;
    const Group& group_;
    std::vector<std::uint64_t> places_ = {};  ///< where each parameter begins in the flat buffer
    std::uint64_t needed_ = 0;                ///< end of the last parameter
    bool gaps_ = false;
    std::vector<std::uint64_t> lengths_ = {};  ///< elements of each partition
};

std::uint64_t partitions_of(const ModelRankFiles& set, std::size_t group) {
    const auto& counts = set.optimizers.front().partition_count;
    if (counts.empty()) return set.optimizers.size();
    return group < counts.size() ? counts[group] : counts.front();
}

std::vector<ExpertShare> shares_of_group(const ModelRankFiles& set, std::size_t group) {
    const ModelFile& model = set.models.front();
    return expert_shares(model.groups[group], set.optimizers.size(), partitions_of(set, group), set.data_first,
                         model.file);
}

void each_flat(const ModelRankFiles& set, const VisitParameter& visit) {
    for (std::uint32_t number = 0; number < set.models.front().groups.size(); ++number)
        for (const ExpertShare& share : shares_of_group(set, number))
            FlatGroup(set, share.ranks, number, share.parameters).each(visit);
}

// Stage 3.

std::uint64_t rounded_up_share(std::uint64_t count, std::uint64_t ranks) {
    return count / ranks + (count % ranks > 0 ? 1 : 0);
}

std::uint64_t wanted_elements(std::span<const Group> groups, std::uint64_t ranks) {
    std::uint64_t wanted = 0;
    for (const Group& group : groups)
        for (const Parameter& parameter : group) wanted = sum(wanted, rounded_up_share(parameter.count, ranks));
    return wanted;
}

void check_shares(const OptimizerFile& file, std::span<const LazyTensor> masters, std::span<const Group> groups,
                  std::uint64_t ranks, const std::string& of) {
    std::uint64_t held = 0;
    for (const LazyTensor& master : masters) held = sum(held, master.element_count());
    const std::uint64_t wanted = wanted_elements(groups, ranks);
    if (held != wanted)
        fail(held < wanted ? Errc::not_covered : Errc::piece_mismatch,
             of + elements_text(held) + "; the shares of the parameters need " + std::to_string(wanted), file);
}

/// Where `param_shapes` has a group for each sub-group, each is checked by itself. Old versions list the parameters of
/// several sub-groups as one group.
void check_shares(const OptimizerFile& file, std::span<const Group> groups, std::uint64_t ranks) {
    const std::span<const LazyTensor> masters = file.masters;
    if (masters.size() == groups.size())
        for (std::size_t i = 0; i < groups.size(); ++i)
            check_shares(file, masters.subspan(i, 1), groups.subspan(i, 1), ranks,
                         "sub-group " + std::to_string(i) + " has ");
    else check_shares(file, masters, groups, ranks, "the sub-groups have ");
}

/// Walks through the buffers of a rank. They are one after the other, wherever the parameters of a group begin.
void each_split(const ModelRankFiles& set, const VisitParameter& visit) {
    const ModelFile& model = set.models.front();
    const OptimizerFile& first = set.optimizers.front();
    const std::uint64_t ranks = set.optimizers.size();
    check_shares(first, model.groups, ranks);
    std::uint32_t buffer = 0;
    std::uint64_t at = 0;  // in the buffer
    std::vector<PartitionRun> runs;
    for (const Group& group : model.groups) {
        for (const Parameter& parameter : group) {
            runs.clear();
            const std::uint64_t share = rounded_up_share(parameter.count, ranks);
            for (std::uint64_t done = 0; done < share;) {
                while (at == first.masters[buffer].element_count()) {
                    ++buffer;
                    at = 0;
                }
                const std::uint64_t count = std::min(share - done, first.masters[buffer].element_count() - at);
                for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                    const std::uint64_t begin = rank * share + done;
                    if (begin >= parameter.count) break;
                    runs.push_back({.first = begin,
                                    .count = std::min(count, parameter.count - begin),
                                    .from = at,
                                    .rank = static_cast<std::uint32_t>(rank),
                                    .group = buffer});
                }
                done += count;
                at += count;
            }
            visit(parameter, runs);
        }
    }
}

}  // namespace

void each_parameter(const ModelRankFiles& ranks, const VisitParameter& visit) {
    if (ranks.stage() == 3) each_split(ranks, visit);
    else each_flat(ranks, visit);
}

std::vector<std::string> names_of_group(const ModelRankFiles& ranks, std::size_t group) {
    std::vector<std::string> names;
    const auto add = [&names](const Group& parameters) {
        for (const Parameter& parameter : parameters) names.push_back(parameter.name);
    };
    if (ranks.stage() == 3) {
        add(ranks.models.front().groups[group]);
        return names;
    }
    for (const ExpertShare& share : shares_of_group(ranks, group)) add(share.parameters);
    return names;
}

std::vector<PartitionRun> shares_of(std::uint64_t count, std::size_t ranks) {
    std::vector<PartitionRun> runs;
    const std::uint64_t share = rounded_up_share(count, ranks);
    for (std::uint64_t rank = 0; rank < ranks && rank * share < count; ++rank)
        runs.push_back({.first = rank * share,
                        .count = std::min(share, count - rank * share),
                        .from = 0,
                        .rank = static_cast<std::uint32_t>(rank),
                        .group = 0});
    return runs;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
