// Merges the slices of tensor parallelism by the rules of universal_checkpoint_info, or lists them by rank.
#include "distributed/parallel/merge.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "distributed/parallel/mean.hpp"
#include "lazy/narrow.hpp"
#include "lazy/whole.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

constexpr std::uint64_t compared_tensor = 64 << 10;  // bytes of one tensor that is compared while opening
constexpr std::uint64_t compared_in_all = 8 << 20;
constexpr std::uint64_t pattern_steps = 1ULL << 30;
constexpr std::size_t named_in_a_note = 8;
constexpr std::uint64_t most_parts = 4096;  // parts that one parameter may consist of

using WeightKind = ModelWeights::Weight::Kind;

/// A part of a weight that two ranks hold.
struct SharedPiece {
    LazyTensor first;
    LazyTensor other;
    std::size_t first_rank = 0;
    std::size_t other_rank = 0;
};

/// The tensors of all ranks for one name; the value is the whole, or the reason why it cannot be made.
struct Merged {
    std::optional<LazyTensor> tensor = {};
    std::string why = {};
    std::vector<SharedPiece> shared = {};

    static Merged none(std::string why) { return {std::nullopt, std::move(why), {}}; }
};

using Slices = std::vector<const LazyTensor*>;

/// Returns why slices cannot be joined along a dimension; empty if they can. Slices without elements fit anywhere.
std::string misfit(const Slices& slices, std::size_t dimension) {
    const Shape* first = nullptr;
    for (const LazyTensor* slice : slices) {
        const Shape& shape = slice->shape();
        if (slice->element_count() == 0) continue;
        if (shape.size() <= dimension) return "their shapes have no dimension " + std::to_string(dimension);
        if (first == nullptr) first = &shape;
        bool fits = first->size() == shape.size();
        for (std::size_t d = 0; fits && d < shape.size(); ++d) fits = d == dimension || shape[d] == (*first)[d];
        if (!fits) return "their shapes differ in other dimensions than " + std::to_string(dimension);
    }
    return {};
}

/// Collects parts that follow each other along one dimension, and makes the whole of them.
class Joiner {
public:
    Joiner(const LazyTensor& like, std::size_t dimension)
        : dtype_(like.dtype()), shape_(like.shape()), dimension_(dimension) {
        shape_[dimension] = 0;
    }

    void add(const LazyTensor& value) {
        if (value.element_count() == 0) return;
        Shape start(shape_.size(), 0);
        start[dimension_] = shape_[dimension_];
        const auto end = checked_add(shape_[dimension_], value.shape()[dimension_]);
        if (!end) throw Error(Errc::shape_overflow, "the slices together are longer than 64 bits can count");
        shape_[dimension_] = *end;
        parts_.push_back({start, value});
    }

    LazyTensor made(const std::string& name) const { return whole(name, dtype_, shape_, parts_); }

private:
    Dtype dtype_;
    Shape shape_;
    std::size_t dimension_;
    std::vector<Part> parts_ = {};
};

Merged join(const std::string& name, const Slices& slices, std::size_t dimension) {
    if (auto why = misfit(slices, dimension); !why.empty()) return Merged::none(std::move(why));
    const auto filled = std::find_if(slices.begin(), slices.end(), [](auto* s) { return s->element_count() > 0; });
    if (filled == slices.end()) {
        if (slices.front()->shape().size() <= dimension) return Merged::none("they have no elements");
        return {slices.front()->renamed(name), {}};
    }
    Joiner joiner(**filled, dimension);
    for (const LazyTensor* slice : slices) joiner.add(*slice);
    return {joiner.made(name), {}};
}

/// Joins parts of the slices: first the first part of all ranks, then the second of all ranks, and so on. widths[i][r]
/// is the size of part i on rank r.
Merged join_parts(const std::string& name, const Slices& slices, std::size_t dimension, const ShardWidths& widths) {
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        std::uint64_t sum = 0;
        for (const auto& part : widths) {
            if (part.size() != slices.size())
                return Merged::none("sub_param_shard_widths is of another number of ranks");
            const auto more = checked_add(sum, part[rank]);
            if (!more) return Merged::none("sub_param_shard_widths does not fit their shapes");
            sum = *more;
        }
        const Shape& shape = slices[rank]->shape();
        if (sum == 0 && slices[rank]->element_count() == 0) continue;
        if (shape.size() <= dimension || shape[dimension] != sum)
            return Merged::none("the sizes of their parts do not fit their shapes");
    }
    if (auto why = misfit(slices, dimension); !why.empty()) return Merged::none(std::move(why));
    const auto filled = std::find_if(slices.begin(), slices.end(), [](auto* s) { return s->element_count() > 0; });
    if (filled == slices.end()) return Merged::none("they have no elements");
    Joiner joiner(**filled, dimension);
    std::vector<std::uint64_t> done(slices.size(), 0);
    for (const auto& part : widths)
        for (std::size_t rank = 0; rank < slices.size(); ++rank) {
            if (part[rank] == 0 || slices[rank]->element_count() == 0) continue;
            joiner.add(narrow(*slices[rank], dimension, done[rank], part[rank]));
            done[rank] += part[rank];
        }
    return {joiner.made(name), {}};
}

/// Returns the sum of the sizes of all slices along a dimension; nothing if it overflows.
std::optional<std::uint64_t> total(const Slices& slices, std::size_t dimension) {
    std::uint64_t sum = 0;
    for (const LazyTensor* slice : slices) {
        if (slice->element_count() == 0) continue;
        if (slice->shape().size() <= dimension) return std::nullopt;
        const auto more = checked_add(sum, slice->shape()[dimension]);
        if (!more) return std::nullopt;
        sum = *more;
    }
    return sum;
}

Merged join_halves(const std::string& name, const Slices& slices) {
    ShardWidths widths(2, std::vector<std::uint64_t>(slices.size(), 0));
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        const Shape& shape = slices[rank]->shape();
        if (shape.empty() || shape[0] % 2 != 0) return Merged::none("they cannot be halved along dimension 0");
        widths[0][rank] = widths[1][rank] = shape[0] / 2;
    }
    return join_parts(name, slices, 0, widths);
}

/// Returns true if the shape of a slice is as the rule says, but for its own dimension. A bias has one dimension less.
bool is_as_said(const Shape& shape, const SubParameters& parts) {
    if (shape.size() == 1 && parts.dimension == 0) return true;
    if (shape.size() != parts.shape.size()) return false;
    for (std::size_t d = 0; d < shape.size(); ++d)
        if (parts.shape[d] && shape[d] != *parts.shape[d]) return false;
    return true;
}

/// Returns the sums of the widths of each part; a sum that does not fit in 64 bits is 0.
std::vector<std::uint64_t> sums_of(const ShardWidths& widths) {
    std::vector<std::uint64_t> sums;
    for (const auto& part : widths) {
        std::uint64_t sum = 0;
        for (const std::uint64_t width : part) sum = checked_add(sum, width).value_or(0);
        sums.push_back(sum);
    }
    return sums;
}

Merged join_several(const std::string& name, const Slices& slices, const Rule& rule) {
    const SubParameters& parts = *rule.parts;
    for (const LazyTensor* slice : slices)
        if (slice->element_count() > 0 && !is_as_said(slice->shape(), parts))
            return Merged::none("their shapes are not those of parameter_with_sub_params");
    std::vector<std::uint64_t> sizes = parts.sizes;
    if (sizes.empty()) {
        const auto sum = total(slices, parts.dimension);
        if (!sum || parts.count == 0 || parts.count > most_parts || *sum % parts.count != 0)
            return Merged::none("their sizes are no multiple of the number of their parts");
        sizes.assign(static_cast<std::size_t>(parts.count), *sum / parts.count);
    }
    ShardWidths even;
    if (rule.widths == nullptr) {
        for (const std::uint64_t size : sizes) {
            if (size % slices.size() != 0) return Merged::none("their parts are not cut evenly");
            even.emplace_back(slices.size(), size / slices.size());
        }
    } else if (rule.widths->size() != sizes.size()) {
        return Merged::none("sub_param_shard_widths is of another number of parts");
    } else if (!parts.sizes.empty() && sums_of(*rule.widths) != parts.sizes) {
        return Merged::none("sub_param_shard_widths contradicts the sizes of their parts");
    }
    return join_parts(name, slices, parts.dimension, rule.widths == nullptr ? even : *rule.widths);
}

using Numbers = std::vector<std::uint64_t>;

Numbers numbers_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// Joins boxes. A box that several ranks hold is taken from the first, and Merged::shared has the others.
Merged join_placed(const std::string& name, const Slices& slices, const Placement& placement) {
    if (placement.slices.size() != slices.size()) return Merged::none("affine_map is of another number of ranks");
    const LazyTensor* filled = nullptr;
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        const LazyTensor& slice = *slices[rank];
        if (slice.element_count() == 0 && element_count(placement.slices[rank]) == 0) continue;
        if (!(slice.shape() == placement.slices[rank])) return Merged::none("affine_map has other shapes");
        filled = &slice;
    }
    if (filled == nullptr) return Merged::none("they have no elements");
    Merged merged;
    std::vector<Part> parts;
    std::map<std::pair<Numbers, Numbers>, std::pair<std::size_t, std::size_t>> seen;  // by box: part, rank
    for (const Placement::Piece& piece : placement.pieces) {
        LazyTensor value = *slices[piece.rank];
        for (std::size_t d = 0; d < piece.from.size(); ++d) value = narrow(value, d, piece.from[d], piece.extent[d]);
        const auto [place, is_new] =
            seen.try_emplace({numbers_of(piece.start), numbers_of(piece.extent)}, parts.size(), piece.rank);
        const auto [part, rank] = place->second;
        if (is_new) parts.push_back({piece.start, std::move(value)});
        else merged.shared.push_back({parts[part].value, std::move(value), rank, piece.rank});
    }
    merged.tensor = whole(name, filled->dtype(), placement.shape, parts);
    return merged;
}

bool have_one_shape(const Slices& slices) {
    return std::all_of(slices.begin(), slices.end(), [&](auto* s) { return s->shape() == slices.front()->shape(); });
}

/// Returns the first of slices that should be equal.
Merged first_of(const std::string& name, const Slices& slices) {
    if (!have_one_shape(slices)) return Merged::none("all ranks should hold them alike, but their shapes differ");
    return {slices.front()->renamed(name), {}};
}

/// Returns true if the mean of tensors of this dtype can be computed: masters and moments are F32.
bool has_mean(const LazyTensor& tensor) { return tensor.dtype() == Dtype::f32; }

Merged average(const std::string& name, const Slices& slices) {
    if (!have_one_shape(slices) || !has_mean(*slices.front())) return first_of(name, slices);
    return {mean_of(name, slices), {}};
}

Merged merge_by(const Rule& rule, const std::string& name, const Slices& slices) {
    Merged merged;
    switch (rule.how) {
        case Rule::How::joined: merged = join(name, slices, rule.dimension); break;
        case Rule::How::averaged: merged = average(name, slices); break;
        case Rule::How::equal:
        case Rule::How::replicated: merged = first_of(name, slices); break;
        case Rule::How::halves: merged = join_halves(name, slices); break;
        case Rule::How::several: merged = join_several(name, slices, rule); break;
        case Rule::How::placed: merged = join_placed(name, slices, *rule.placement); break;
        case Rule::How::unknown: return Merged::none(rule.why);
    }
    return merged;
}

/// Returns the tensor without the rows that pad the vocabulary.
LazyTensor without_padding(const LazyTensor& tensor, std::uint64_t rows) {
    if (tensor.shape().empty() || tensor.shape()[0] <= rows) return tensor;
    return narrow(tensor, 0, 0, rows);
}

/// Merges all weights.
class Merger {
public:
    Merger(std::vector<ModelRank> ranks, const UniversalInfo* info) : ranks_(std::move(ranks)), info_(info) {}

    ModelWeights merged() {
        take_common();
        if (info_ == nullptr || !info_->fault.empty()) {
            list_all();
            return std::move(whole_);
        }
        drop_aliases();
        for (const ModelRank& rank : ranks_) places_.push_back(places_of(rank.joined));
        check_names();
        for (const auto& weight : ranks_.front().joined.weights) merge_weight(weight.name);
        list_aliases(false);
        add_notes();
        return std::move(whole_);
    }

private:
    using Weight = ModelWeights::Weight;
    using Places = std::unordered_map<std::string_view, std::size_t>;

    static Places places_of(const ModelWeights& joined) {
        Places places;
        for (std::size_t i = 0; i < joined.weights.size(); ++i) places.emplace(joined.weights[i].name, i);
        return places;
    }

    void take_common() {
        whole_.state_names = ranks_.front().joined.state_names;
        std::set<std::string> said;
        for (ModelRank& rank : ranks_) {
            for (std::string& note : rank.joined.notes)
                if (said.insert(note).second) whole_.notes.push_back(note);
            for (Replica& replica : rank.joined.replicas) whole_.replicas.push_back(std::move(replica));
        }
    }

    /// Second names of tied weights are recorded by the first rank alone; others may list them as weights of their own.
    void drop_aliases() {
        std::unordered_set<std::string> second;
        for (const AliasGroup& group : ranks_.front().joined.aliases)
            second.insert(group.begin() + (group.empty() ? 0 : 1), group.end());
        if (second.empty()) return;
        for (std::size_t rank = 1; rank < ranks_.size(); ++rank)
            std::erase_if(ranks_[rank].joined.weights, [&](const Weight& weight) {
                return weight.kind != WeightKind::master && second.contains(weight.name);
            });
    }

    [[noreturn]] void differ(const ModelRank& has, const ModelRank& lacks, const std::string& name) const {
        throw Error(Errc::ranks_differ, has.file + " has " + excerpt(name) + ", which " + lacks.file + " lacks")
            .with_path(lacks.file)
            .with_tensor(name);
    }

    void check_names() const {
        const ModelRank& first = ranks_.front();
        for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
            for (const Weight& weight : first.joined.weights)
                if (!places_[rank].contains(weight.name)) differ(first, ranks_[rank], weight.name);
            for (const Weight& weight : ranks_[rank].joined.weights)
                if (!places_.front().contains(weight.name)) differ(ranks_[rank], first, weight.name);
        }
    }

    std::vector<const Weight*> weights_of(const std::string& name) const {
        std::vector<const Weight*> weights;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            weights.push_back(&ranks_[rank].joined.weights[places_[rank].at(name)]);
        return weights;
    }

    /// Throws if dtypes differ. Slices without elements are not masters, and may have the dtype of the model.
    void check_dtypes(const std::vector<const Weight*>& weights) const {
        std::size_t first = 0;
        while (first + 1 < weights.size() && weights[first]->tensor.element_count() == 0) ++first;
        for (std::size_t rank = first + 1; rank < weights.size(); ++rank) {
            const LazyTensor& one = weights[first]->tensor;
            const LazyTensor& other = weights[rank]->tensor;
            if (other.element_count() == 0) continue;
            about_tensor(weights[first]->name, [&] {
                Agreement(ranks_[first].file, ranks_[rank].file)("the dtype", one.dtype(), other.dtype());
            });
        }
    }

    Rule rule_for(const Weight& weight, const Slices& slices) {
        Rule rule = rule_of(*info_, weight.name, steps_);
        // The patterns are about parameters. Buffers are equal on all ranks, or nobody knows.
        if (weight.kind == WeightKind::buffer && !rule.said) rule.how = Rule::How::equal;
        if (must_be_equal(rule, weight.tensor) && have_one_shape(slices) && !are_equal(slices)) {
            rule.why = rule.how == Rule::How::equal
                           ? "no rule describes these buffers, and the ranks differ"
                           : "their whole is the mean of the ranks, which is computed for F32 only";
            rule.how = Rule::How::unknown;
        }
        return rule;
    }
    static bool must_be_equal(const Rule& rule, const LazyTensor& tensor) {
        return rule.how == Rule::How::equal || (rule.how == Rule::How::averaged && !has_mean(tensor));
    }

    void merge_weight(const std::string& name) {
        const std::vector<const Weight*> weights = weights_of(name);
        check_dtypes(weights);
        Slices slices;
        for (const Weight* weight : weights) slices.push_back(&weight->tensor);
        const auto filled = std::find_if(weights.begin(), weights.end(),
                                         [](const Weight* weight) { return weight->tensor.element_count() > 0; });
        const Weight& model = filled == weights.end() ? *weights.front() : **filled;
        const Rule rule = rule_for(model, slices);
        Merged merged = merge_by(rule, name, slices);
        if (!merged.tensor) return list(weights, merged.why);
        Weight made = {.name = name, .tensor = trimmed(rule, *merged.tensor), .kind = model.kind};
        if (auto why = merge_states(rule, weights, model, made); !why.empty()) return list(weights, why);
        if (rule.how == Rule::How::replicated) add_replicas(name, slices);
        add_shared(name, std::move(merged.shared));
        merged_.insert(name);
        whole_.weights.push_back(std::move(made));
    }

    LazyTensor trimmed(const Rule& rule, const LazyTensor& tensor) const {
        return rule.vocabulary ? without_padding(tensor, *info_->vocabulary) : tensor;
    }

    /// Merges the state as the weight. Returns why that is not possible, or an empty text.
    std::string merge_states(const Rule& rule, const std::vector<const Weight*>& weights, const Weight& model,
                             Weight& made) const {
        for (const auto& [state, tensor] : model.state) {
            Slices slices;
            for (std::size_t rank = 0; rank < weights.size(); ++rank) {
                const LazyTensor* const slice = find_state(*weights[rank], state);
                if (slice == nullptr && weights[rank]->tensor.element_count() > 0)
                    differ(ranks_[rank_of(&model, weights)], ranks_[rank], model.name + '/' + state);
                slices.push_back(slice != nullptr ? slice : &weights[rank]->tensor);
            }
            const std::string name = model.name + '/' + state;
            if (tensor.shape().empty() && !model.tensor.shape().empty()) {
                made.state.emplace_back(state, tensor.renamed(name));  // a step
                continue;
            }
            if (must_be_equal(rule, tensor) && !are_equal(slices))
                return "the state of a parameter that is averaged differs, and is not F32";
            Merged merged = merge_by(rule, name, slices);
            if (!merged.tensor) return merged.why;
            made.state.emplace_back(state, trimmed(rule, *merged.tensor));
        }
        return {};
    }

    static std::size_t rank_of(const Weight* model, const std::vector<const Weight*>& weights) {
        return static_cast<std::size_t>(std::find(weights.begin(), weights.end(), model) - weights.begin());
    }

    static const LazyTensor* find_state(const Weight& weight, const std::string& state) {
        for (const auto& [name, tensor] : weight.state)
            if (name == state) return &tensor;
        return nullptr;
    }

    /// Returns true if all are small, were compared and are equal. Memory holds two of them.
    bool are_equal(const Slices& slices) const {
        if (slices.front()->nbytes() > compared_tensor || !have_one_shape(slices)) return false;
        const TensorView first = slices.front()->load();
        return std::all_of(slices.begin() + 1, slices.end(), [&](const LazyTensor* slice) {
            return slice->nbytes() == first.bytes().size() && equal_bytes(first, slice->load());
        });
    }
    static bool equal_bytes(const TensorView& a, const TensorView& b) {
        return a.bytes().empty() || std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
    }

    void add_replicas(const std::string& name, const Slices& slices) {
        for (std::size_t rank = 1; rank < slices.size(); ++rank)
            whole_.replicas.push_back({name, *slices.front(), *slices[rank], ranks_.front().file, ranks_[rank].file});
        compare(name, slices);
    }

    void add_shared(const std::string& name, std::vector<SharedPiece> pieces) {
        for (SharedPiece& piece : pieces) {
            if (unequal_.empty() || unequal_.back() != name) compare(name, {&piece.first, &piece.other});
            whole_.replicas.push_back({name, std::move(piece.first), std::move(piece.other),
                                       ranks_[piece.first_rank].file, ranks_[piece.other_rank].file});
        }
    }

    /// Compares small tensors, and remembers the name of those that differ.
    void compare(const std::string& name, const Slices& slices) {
        const std::uint64_t bytes = slices.front()->nbytes();
        if (bytes > compared_tensor || bytes * slices.size() > compare_left_) return;
        compare_left_ -= bytes * slices.size();
        if (!are_equal(slices)) unequal_.push_back(name);
    }

    void list(const std::vector<const Weight*>& weights, const std::string& why) {
        listed_[why].push_back(weights.front()->name);
        for (std::size_t rank = 0; rank < weights.size(); ++rank) list_one(*weights[rank], ranks_[rank].number);
    }

    void list_one(const Weight& weight, std::uint64_t number) {
        Weight one = weight;
        one.name = rank_prefix(number) + weight.name;
        one.tensor = weight.tensor.renamed(one.name);
        for (auto& [state, tensor] : one.state) tensor = tensor.renamed(one.name + '/' + state);
        whole_.weights.push_back(std::move(one));
    }

    void list_all() {
        for (const ModelRank& rank : ranks_)
            for (const Weight& weight : rank.joined.weights) list_one(weight, rank.number);
        list_aliases(true);
        const std::string why = info_ == nullptr ? "the folder has no universal_checkpoint_info, which would say how "
                                                   "their slices fit together"
                                                 : info_->fault;
        whole_.notes.push_back(std::to_string(ranks_.size()) +
                               " ranks of tensor parallelism are listed one by one, as mp_rank_00/NAME, and not "
                               "merged: " +
                               why);
    }

    /// Adds ties of merged weights once, those of others for each rank.
    void list_aliases(bool all) {
        std::set<AliasGroup> known;
        for (const ModelRank& rank : ranks_)
            for (const AliasGroup& group : rank.joined.aliases) {
                if (group.empty()) continue;
                AliasGroup named = group;
                if (all || !merged_.contains(group.front()))
                    for (std::string& name : named) name.insert(0, rank_prefix(rank.number));
                if (known.insert(named).second) whole_.aliases.push_back(std::move(named));
            }
    }

    void add_notes() {
        for (const auto& [why, names] : listed_)
            whole_.notes.push_back("listed by rank, as mp_rank_00/NAME, and not merged, because " + why + ": " +
                                   names_text(names, named_in_a_note));
        if (!unequal_.empty())
            whole_.notes.push_back("ranks differ in weights that they should hold alike; the first rank's are given: " +
                                   names_text(unequal_, named_in_a_note));
    }

    std::vector<ModelRank> ranks_;
    const UniversalInfo* info_;
    std::vector<Places> places_ = {};
    ModelWeights whole_ = {};
    std::unordered_set<std::string> merged_ = {};
    std::map<std::string, std::vector<std::string>> listed_ = {};  ///< names, by why
    std::vector<std::string> unequal_ = {};
    std::uint64_t steps_ = pattern_steps;
    std::uint64_t compare_left_ = compared_in_all;
};

}  // namespace

std::string rank_prefix(std::uint64_t number) {
    return (number < 10 ? "mp_rank_0" : "mp_rank_") + std::to_string(number) + '/';
}

ModelWeights merge(std::vector<ModelRank> ranks, const UniversalInfo* info) {
    if (ranks.empty()) return {};
    if (ranks.size() == 1) return std::move(ranks.front().joined);
    return Merger(std::move(ranks), info).merged();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
