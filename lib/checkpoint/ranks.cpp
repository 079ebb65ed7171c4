// Cuts tensors for one rank. From top to bottom:
//
// - check_rule(): contradictions in a rule
// - expert_in(): the number of the expert in a name
// - Cut: the ranges of one dimension that a rank gets
// - Joiner: makes one tensor of several ranges, once for equal tensors
// - RankTensors: finds the rule of each tensor, and applies it
#include <safemap/ranks.hpp>

#include "base/checked.hpp"
#include "base/chunks.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "lazy/narrow.hpp"
#include "lazy/same_tensor.hpp"
#include "lazy/whole.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/error.hpp>
#include <safemap/selection.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using Split = RankRule::Split;
using Section = RankRule::Section;

Error invalid(std::string message) { return Error(Errc::invalid_argument, std::move(message)); }

/// Returns the contradiction in a rule, or nothing.
std::optional<std::string> fault_of(const RankRule& rule) {
    const bool shared = rule.split == Split::column || rule.split == Split::row;
    const bool experts = rule.split == Split::experts;
    if (rule.names.empty()) return "it has no pattern of names";
    if (!shared && (!rule.sections.empty() || rule.groups != 1 || rule.padded_size != 0))
        return "sections, groups and padded_size are for Split::column and Split::row";
    if (!shared && !experts && (rule.uneven || rule.dimension)) return "a tensor that is replicated is not cut";
    if (experts != (rule.experts != 0)) return "Split::experts needs the number of experts, and no other split has one";
    if (rule.groups == 0 || (rule.groups > 1 && rule.sections.empty())) return "groups consist of sections";
    if (!rule.sections.empty() && (rule.uneven || rule.padded_size != 0))
        return "sections are shared evenly and have no padding";
    if (rule.uneven && rule.padded_size != 0) return "uneven and padded_size exclude each other";
    const auto repeats_nothing = [](const Section& section) { return section.repeat && section.heads == 0; };
    if (std::any_of(rule.sections.begin(), rule.sections.end(), repeats_nothing))
        return "a section repeats heads, but has none";
    return std::nullopt;
}

void check_rule(const RankRule& rule) {
    if (const auto fault = fault_of(rule))
        throw invalid("the rule for " + safemap::quoted(rule.names) + " contradicts itself: " + *fault);
}

void check_rank(Rank rank) {
    if (rank.number >= rank.of)
        throw invalid("rank " + std::to_string(rank.number) + " of " + std::to_string(rank.of) +
                      "; expected a number below that of ranks");
}

/// Returns the number at the beginning of `text`, if it is a whole segment of a name.
std::optional<std::uint64_t> number_in(std::string_view text) {
    std::uint64_t number = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (fault != std::errc() && fault != std::errc::result_out_of_range) return std::nullopt;
    if (end != text.data() + text.size() && *end != '.' && *end != '/') return std::nullopt;
    return fault == std::errc() ? number : std::numeric_limits<std::uint64_t>::max();
}

/// Returns the number of the expert in a name: the last one that follows "experts." or "expert_".
std::optional<std::uint64_t> expert_in(std::string_view name) {
    constexpr std::string_view word = "expert";
    for (std::size_t at = name.rfind(word); at != std::string_view::npos;
         at = at == 0 ? name.npos : name.rfind(word, at - 1)) {
        std::string_view rest = name.substr(at + word.size());
        if (rest.starts_with('s')) rest.remove_prefix(1);
        if (rest.empty() || (rest[0] != '.' && rest[0] != '/' && rest[0] != '_')) continue;
        if (const auto number = number_in(rest.substr(1))) return number;
    }
    return std::nullopt;
}

/// Indices [first, first + count) of a dimension.
struct Range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;

    friend bool operator==(const Range&, const Range&) = default;
};
using Ranges = std::vector<Range>;

/// Works out which indices of a dimension a rank gets.
class Cut {
public:
    Cut(const RankRule& rule, std::size_t dimension, std::uint64_t size, Rank rank)
        : rule_(rule), size_(size), rank_(rank), what_("dimension " + std::to_string(dimension)) {}

    /// Returns the indices in ascending order. Ranges that are neighbours are joined.
    Ranges ranges() && {
        if (rule_.split == Split::experts)
            chunk("the model has " + std::to_string(rule_.experts) + " experts", rule_.experts, "set RankRule::uneven");
        else if (rule_.padded_size != 0) padded();
        else if (rule_.sections.empty())
            chunk(size_text("size", size_), size_, "set RankRule::uneven, or RankRule::padded_size");
        else grouped();
        return std::move(ranges_);
    }

private:
    [[noreturn]] static void refuse(const std::string& what, Rank rank, const char* hint) {
        throw invalid(what + ", which " + std::to_string(rank.of) + " ranks cannot share evenly").with_hint(hint);
    }
    std::string size_text(const char* size, std::uint64_t value) const {
        return what_ + " has " + size + ' ' + std::to_string(value);
    }

    void add(Range range) {
        if (range.count == 0 && !ranges_.empty()) return;
        if (!ranges_.empty() && ranges_.back().first + ranges_.back().count == range.first)
            ranges_.back().count += range.count;
        else ranges_.push_back(range);
    }

    void chunk(const std::string& what, std::uint64_t size, const char* hint) {
        if (size % rank_.of != 0 && !rule_.uneven) refuse(what, rank_, hint);
        const std::uint64_t first = chunk_start(size, rank_.of, rank_.number);
        add({first, chunk_start(size, rank_.of, rank_.number + 1) - first});
    }

    void padded() {
        const std::uint64_t padded = rule_.padded_size;
        if (padded < size_)
            throw invalid(size_text("size", size_) + ", which is more than the padded size of " +
                          std::to_string(padded));
        if (padded % rank_.of != 0) refuse(size_text("the padded size", padded), rank_, "");
        const std::uint64_t length = padded / rank_.of;
        const std::uint64_t first = std::min(size_, rank_.number * length);
        add({first, std::min(length, size_ - first)});
    }

    void grouped() {
        const std::uint64_t groups = rule_.groups;
        if (size_ % groups != 0)
            throw invalid(size_text("size", size_) + ", which is not a multiple of its " + std::to_string(groups) +
                          " groups");
        const std::uint64_t length = size_ / groups;
        const std::uint64_t unit = unit_of_sections(length);
        if (groups > 1 && groups % rank_.of == 0) {
            const std::uint64_t share = groups / rank_.of * length;
            return add({rank_.number * share, share});
        }
        if (rank_.of % groups != 0) refuse(what_ + " has " + std::to_string(groups) + " groups", rank_, "");
        const Rank in_group = {rank_.number % (rank_.of / groups), rank_.of / groups};
        std::uint64_t first = rank_.number / in_group.of * length;
        for (std::size_t i = 0; i < rule_.sections.size(); ++i) {
            const std::uint64_t count = unit * size_of(rule_.sections[i]);
            share(i, {first, count}, in_group);
            first += count;
        }
    }

    /// Returns the indices that a section of size 1 has, if all sections together have `length` indices.
    std::uint64_t unit_of_sections(std::uint64_t length) const {
        std::uint64_t total = 0;
        for (const Section& section : rule_.sections) {
            const auto sum = checked_add(total, size_of(section));
            if (!sum) throw invalid("the sizes of the sections do not fit in 64 bits");
            total = *sum;
        }
        if (length % total == 0) return length / total;
        const std::string each = rule_.groups == 1 ? "" : " in each of its " + std::to_string(rule_.groups) + " groups";
        throw invalid(size_text("size", length) + each + ", which is not a multiple of the " + std::to_string(total) +
                      " that its sections have together");
    }

    static std::uint64_t size_of(const Section& section) {
        if (section.size != 0) return section.size;
        return section.heads != 0 ? section.heads : 1;
    }
    std::string section_text(std::size_t i) const {
        return rule_.sections.size() == 1 && rule_.groups == 1 ? what_
                                                               : "section " + std::to_string(i) + " of " + what_;
    }

    /// Adds the part of `rank` in section `i`.
    void share(std::size_t i, Range range, Rank rank) {
        const Section& section = rule_.sections[i];
        const std::uint64_t heads = section.heads != 0 ? section.heads : range.count;
        if (heads != 0 && range.count % heads != 0)
            throw invalid(section_text(i) + " has size " + std::to_string(range.count) +
                          ", which is not a multiple of its " + std::to_string(heads) + " heads");
        if (heads % rank.of == 0) {
            const std::uint64_t length = range.count / rank.of;
            return add({range.first + rank.number * length, length});
        }
        if (section.repeat && rank.of % heads == 0) {
            const std::uint64_t length = range.count / heads;
            return add({range.first + rank.number / (rank.of / heads) * length, length});
        }
        const bool repeatable = section.heads != 0 && rank.of % heads == 0;
        refuse(section_text(i) + " has " +
                   (section.heads != 0 ? std::to_string(heads) + " heads" : "size " + std::to_string(heads)),
               rank, repeatable ? "set Section::repeat if several ranks may have the same head" : "");
    }

    const RankRule& rule_;
    std::uint64_t size_;
    Rank rank_;
    std::string what_;
    Ranges ranges_ = {};
};

/// Returns the tensor that the ranges of a dimension make up, one after the other.
LazyTensor joined(const LazyTensor& tensor, std::size_t dimension, const Ranges& ranges) {
    // Parts are not cast: the whole is.
    const LazyTensor stored(tensor.name(), tensor.stored(), tensor.strided_view(), tensor.decoding());
    Shape shape = tensor.shape();
    shape[dimension] = 0;
    std::vector<Part> parts;
    for (const Range range : ranges) {
        Shape start(shape.size(), 0);
        start[dimension] = shape[dimension];
        parts.push_back({std::move(start), narrow(stored, dimension, range.first, range.count)});
        shape[dimension] += range.count;
    }
    return whole(tensor.name(), stored.dtype(), shape, parts).cast(tensor.dtype());
}

/// Makes tensors of several ranges. Equal tensors that are cut alike give one stored tensor, so that they stay tied.
class Joiner {
public:
    LazyTensor join(const LazyTensor& tensor, std::size_t dimension, const Ranges& ranges) {
        std::vector<Joined>& known = made_[&tensor];
        for (const Joined& each : known)
            if (each.dimension == dimension && each.ranges == ranges) return each.tensor.renamed(tensor.name());
        known.push_back({dimension, ranges, joined(tensor, dimension, ranges)});
        return known.back().tensor;
    }

private:
    struct Joined {
        std::size_t dimension;
        Ranges ranges;
        LazyTensor tensor;
    };
    TensorTable<std::vector<Joined>> made_;
};

/// Finds the rule of each tensor, and applies it.
class RankTensors {
public:
    RankTensors(std::span<const RankRule> rules, Rank rank) : rules_(rules), rank_(rank) {
        check_rank(rank);
        for (const RankRule& rule : rules) {
            check_rule(rule);
            patterns_.push_back(Selection::glob(rule.names));
        }
    }

    /// Returns the part of the rank, or nothing for an expert of another rank.
    std::optional<LazyTensor> part_of(const LazyTensor& tensor) {
        const RankRule& rule = rule_of(tensor.name());
        if (rule.split == Split::experts)
            if (const auto expert = expert_in(tensor.name()))
                return has(rule, *expert) ? std::optional(tensor) : std::nullopt;
        const auto dimension = dimension_of(rule, tensor.shape());
        if (!dimension) return tensor;
        const std::uint64_t size = size_of(rule, *dimension, tensor.shape());
        const Ranges ranges = Cut(rule, *dimension, size, rank_).ranges();
        if (ranges.size() > 1) return joins_.join(tensor, *dimension, ranges);
        return narrow(tensor, *dimension, ranges.front().first, ranges.front().count);
    }

private:
    const RankRule& rule_of(std::string_view name) const {
        for (std::size_t i = 0; i < rules_.size(); ++i)
            if (patterns_[i].matches(name)) return rules_[i];
        throw invalid("no rule matches the tensor")
            .with_hint("end the table with a rule for \"*\" to replicate all other tensors");
    }

    bool has(const RankRule& rule, std::uint64_t expert) const {
        if (expert >= rule.experts)
            throw invalid("the name has expert " + std::to_string(expert) + ", but the rule has " +
                          std::to_string(rule.experts) + " experts");
        const Range mine = Cut(rule, 0, rule.experts, rank_).ranges().front();
        return expert >= mine.first && expert - mine.first < mine.count;
    }

    /// Returns the dimension to cut, or nothing for a tensor that is replicated.
    static std::optional<std::size_t> dimension_of(const RankRule& rule, const Shape& shape) {
        if (rule.split == Split::replicated) return std::nullopt;
        const std::size_t dimension = rule.dimension.value_or(rule.split == Split::row ? 1 : 0);
        if (dimension < shape.size()) return dimension;
        if (!rule.dimension && rule.split != Split::experts) return std::nullopt;
        throw invalid("no dimension " + std::to_string(dimension) + " in shape " + to_string(shape));
    }

    static std::uint64_t size_of(const RankRule& rule, std::size_t dimension, const Shape& shape) {
        const std::uint64_t size = shape[dimension];
        // Slices count in 64 bits with a sign.
        if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
            throw invalid("dimension " + std::to_string(dimension) + " of shape " + to_string(shape) +
                          " is too large to be cut");
        if (rule.split == Split::experts && size != rule.experts)
            throw invalid("dimension " + std::to_string(dimension) + " of shape " + to_string(shape) +
                          " does not have the " + std::to_string(rule.experts) +
                          " experts of the rule, and the name has no number of an expert");
        return size;
    }

    std::span<const RankRule> rules_;
    Rank rank_;
    std::vector<Selection> patterns_ = {};
    Joiner joins_ = {};
};

}  // namespace

std::vector<LazyTensor> tensors_of_rank(std::span<const LazyTensor> tensors, std::span<const RankRule> rules,
                                        Rank rank) {
    RankTensors made(rules, rank);
    std::vector<LazyTensor> parts;
    for (const LazyTensor& tensor : tensors)
        about_tensor(tensor.name(), [&] {
            if (auto part = made.part_of(tensor)) parts.push_back(*std::move(part));
        });
    return parts;
}

std::vector<LazyTensor> tensors_of_rank(const Checkpoint& checkpoint, std::span<const RankRule> rules, Rank rank) {
    std::vector<LazyTensor> tensors;
    for (const NamedTensor& named : all_names(checkpoint))
        tensors.push_back(checkpoint.tensor(named.tensor).renamed(std::string(named.name)));
    return tensors_of_rank(tensors, rules, rank);
}

}  // namespace safemap::SAFEMAP_ABI
