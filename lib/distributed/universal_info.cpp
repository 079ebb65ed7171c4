// Reads `universal_checkpoint_info` of every version: 0.1 to 0.3 are lists of patterns, 0.4 adds the widths of several
// parameters in one, and the affine maps say where each element is.
#include "distributed/universal_info.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;
using Numbers = std::vector<std::uint64_t>;

/// Reads values of the tree; every function returns nothing for a node of another kind. A tree may have a container in
/// many places, so that all visits together are bounded.
class Fields {
public:
    explicit Fields(const StateTree& tree) : tree_(tree) {}

    const StateTree::Dict* dict(NodeId node) const {
        const auto* const dict = std::get_if<StateTree::Dict>(&tree_[node]);
        return dict != nullptr && spend(dict->items.size()) ? dict : nullptr;
    }
    const std::string* text(NodeId node) const { return std::get_if<std::string>(&tree_[node]); }
    const std::vector<NodeId>* items(NodeId node) const {
        const auto* const sequence = std::get_if<StateTree::Sequence>(&tree_[node]);
        return sequence != nullptr && spend(sequence->items.size()) ? &sequence->items : nullptr;
    }
    std::optional<std::int64_t> integer(NodeId node) const {
        if (const auto* const number = std::get_if<std::int64_t>(&tree_[node])) return *number;
        return std::nullopt;
    }
    std::optional<double> real(NodeId node) const {
        if (const auto* const number = std::get_if<double>(&tree_[node])) return *number;
        if (const auto number = integer(node)) return static_cast<double>(*number);
        return std::nullopt;
    }
    std::optional<std::uint64_t> count(NodeId node) const {
        const auto number = integer(node);
        if (!number || *number < 0) return std::nullopt;
        return static_cast<std::uint64_t>(*number);
    }
    std::optional<Numbers> counts(NodeId node) const {
        const auto* const all = items(node);
        if (all == nullptr) return std::nullopt;
        Numbers numbers;
        for (const NodeId item : *all) {
            const auto number = count(item);
            if (!number) return std::nullopt;
            numbers.push_back(*number);
        }
        return numbers;
    }
    /// Returns the value of a key of a dictionary, or no_node. None counts as missing.
    NodeId value(NodeId node, std::string_view key) const {
        const auto* const fields = dict(node);
        if (fields == nullptr) return StateTree::no_node;
        for (const auto& [name, value] : fields->items) {
            const std::string* const spelled = text(name);
            if (spelled != nullptr && *spelled == key)
                return std::holds_alternative<StateTree::None>(tree_[value]) ? StateTree::no_node : value;
        }
        return StateTree::no_node;
    }

private:
    bool spend(std::size_t items) const {
        if (items >= left_) return false;
        left_ -= items;
        return true;
    }

    const StateTree& tree_;
    mutable std::size_t left_ = std::size_t{1} << 23;
};

Shape to_shape(const Numbers& numbers) { return Shape(std::span<const std::uint64_t>(numbers)); }

/// Returns the index of a row-major element number. The shape must not be empty of elements.
Shape index_of(std::uint64_t number, const Shape& shape) {
    Shape index(shape.size(), 0);
    for (std::size_t d = shape.size(); d-- > 0;) {
        index[d] = number % shape[d];
        number /= shape[d];
    }
    return index;
}

/// Reads one affine map.
class PlacementReader {
public:
    explicit PlacementReader(const Fields& fields) : fields_(fields) {}

    Placement read(NodeId node) {
        if (!read_map(node) && placed_.fault.empty()) placed_.fault = "its affine map is malformed";
        return std::move(placed_);
    }

private:
    bool read_map(NodeId node) {
        const NodeId shape = fields_.value(node, "logical_shape");
        const NodeId ranks = fields_.value(node, "ranks");
        const auto* const by_rank = ranks == StateTree::no_node ? nullptr : fields_.dict(ranks);
        if (shape == StateTree::no_node || by_rank == nullptr) return false;
        const auto numbers = fields_.counts(shape);
        if (!numbers || !element_count(to_shape(*numbers))) return false;
        placed_.shape = to_shape(*numbers);
        const auto& all = by_rank->items;
        placed_.slices.resize(all.size());
        std::vector<bool> seen(all.size(), false);
        for (const auto& [key, value] : all) {
            const auto rank = rank_of(key);
            if (!rank || *rank >= all.size() || seen[*rank]) return false;
            seen[*rank] = true;
            if (!read_rank(static_cast<std::size_t>(*rank), value)) return false;
        }
        return true;
    }

    /// Returns a rank, which JSON makes a string.
    std::optional<std::uint64_t> rank_of(NodeId key) const {
        if (const auto number = fields_.count(key)) return number;
        const std::string* const text = fields_.text(key);
        if (text == nullptr || text->empty() || text->size() > 9) return std::nullopt;
        std::uint64_t number = 0;
        for (const char c : *text) {
            if (c < '0' || c > '9') return std::nullopt;
            number = number * 10 + static_cast<std::uint64_t>(c - '0');
        }
        return number;
    }

    bool read_rank(std::size_t rank, NodeId node) {
        const NodeId shape = fields_.value(node, "shard_shape");
        const NodeId pieces = fields_.value(node, "pieces");
        const auto* const list = pieces == StateTree::no_node ? nullptr : fields_.items(pieces);
        if (shape == StateTree::no_node || list == nullptr) return false;
        const auto numbers = fields_.counts(shape);
        if (!numbers || !element_count(to_shape(*numbers))) return false;
        placed_.slices[rank] = to_shape(*numbers);
        for (const NodeId piece : *list)
            if (!read_piece(rank, piece)) return false;
        return true;
    }

    bool read_piece(std::size_t rank, NodeId node) {
        const NodeId shape = fields_.value(node, "shape");
        if (shape == StateTree::no_node) return false;
        const auto numbers = fields_.counts(shape);
        if (!numbers || !element_count(to_shape(*numbers))) return false;
        if (const NodeId scale = fields_.value(node, "scale");
            scale != StateTree::no_node && fields_.real(scale).value_or(0) != 1.0) {
            placed_.fault = "its ranks hold scaled values";
            return false;
        }
        const Shape extent = to_shape(*numbers);
        if (*element_count(extent) == 0) return true;
        const auto start = place(fields_.value(node, "source"), extent, placed_.shape);
        const auto from = place(fields_.value(node, "dest"), extent, placed_.slices[rank]);
        if (!start || !from) return false;
        placed_.pieces.push_back({rank, *start, extent, *from});
        return true;
    }

    /// Returns where a box of `extent` begins in a tensor of `shape`; nothing if the piece is no box inside it.
    std::optional<Shape> place(NodeId node, const Shape& extent, const Shape& shape) {
        const auto* const pair = node == StateTree::no_node ? nullptr : fields_.items(node);
        if (pair == nullptr || pair->size() != 2) return std::nullopt;
        const auto offset = fields_.count(pair->front());
        const auto strides = fields_.counts(pair->back());
        if (!offset || !strides || extent.size() != shape.size() || strides->size() != shape.size())
            return std::nullopt;
        if (*offset >= *element_count(shape)) return std::nullopt;
        const Strides expected = row_major(shape);
        const Shape start = index_of(*offset, shape);
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const bool box = extent[d] == 1 || (*strides)[d] == static_cast<std::uint64_t>(expected[d]);
            if (!box || !Extent{start[d], extent[d]}.inside(shape[d])) {
                placed_.fault = "its affine map consists of more than boxes";
                return std::nullopt;
            }
        }
        return start;
    }

    const Fields& fields_;
    Placement placed_ = {};
};

/// Reads all keys into an UniversalInfo. Functions return false for a form that DeepSpeed does not write.
class InfoReader {
public:
    explicit InfoReader(const StateTree& tree) : fields_(tree) {}

    UniversalInfo read(NodeId node) {
        if (fields_.dict(node) == nullptr) info_.fault = "universal_checkpoint_info is not a dictionary";
        else if (!read_keys(node) && info_.fault.empty())
            info_.fault = key_ + " of universal_checkpoint_info is malformed";
        return std::move(info_);
    }

private:
    bool read_keys(NodeId node) {
        return number(node, "universal_checkpoint_version") && vocabulary(node) &&
               list(node, "vocabulary_parameter_patterns", info_.vocabulary_names) &&
               list(node, "tp_replicated_parameter_patterns", info_.replicated) &&
               list(node, "parameter_with_row_parallelism_patterns", info_.rows) &&
               list(node, "parameter_to_average_patterns", info_.averaged) &&
               list(node, "parameter_with_2_sub_params_cat_dim_0", info_.halves) &&
               list(node, "autotp_unsupported_parameter_patterns", info_.unsupported) && several(node) &&
               widths(node) && maps(node);
    }

    /// Sets `key_`, which errors name, and returns the value of the key.
    NodeId find(NodeId node, const char* key) {
        key_ = key;
        return fields_.value(node, key);
    }

    bool number(NodeId node, const char* key) {
        const NodeId value = find(node, key);
        if (value == StateTree::no_node) return true;
        const auto version = fields_.real(value);
        info_.version = version.value_or(0);
        return version.has_value();
    }

    bool vocabulary(NodeId node) {
        const NodeId value = find(node, "original_vocab_size");
        if (value == StateTree::no_node) return true;
        info_.vocabulary = fields_.count(value);
        return info_.vocabulary.has_value();
    }

    /// Reads a list of patterns, or a dictionary whose keys are patterns.
    bool list(NodeId node, const char* key, PatternList& patterns) {
        const NodeId value = find(node, key);
        if (value == StateTree::no_node) return true;
        if (const auto* const dict = fields_.dict(value)) {
            return std::all_of(dict->items.begin(), dict->items.end(),
                               [&](const auto& item) { return pattern(item.first, patterns) != nullptr; });
        }
        const auto* const items = fields_.items(value);
        return items != nullptr && std::all_of(items->begin(), items->end(),
                                               [&](NodeId item) { return pattern(item, patterns) != nullptr; });
    }

    const std::string* pattern(NodeId node, PatternList& patterns) {
        const std::string* const text = fields_.text(node);
        if (text == nullptr) return nullptr;
        if (patterns.add(*text)) return text;
        info_.fault = "the pattern " + excerpt(*text) + " of " + key_ + " is not understood";
        return nullptr;
    }

    bool several(NodeId node) {
        const NodeId value = find(node, "parameter_with_sub_params");
        if (value == StateTree::no_node) return true;
        const auto* const items = fields_.items(value);
        return items != nullptr &&
               std::all_of(items->begin(), items->end(), [&](NodeId item) { return one_of_several(item); });
    }

    bool one_of_several(NodeId node) {
        const NodeId patterns = fields_.value(node, "patterns");
        const NodeId shape = fields_.value(node, "shape");
        const NodeId dimension = fields_.value(node, "partition_dim");
        if (patterns == StateTree::no_node || shape == StateTree::no_node || dimension == StateTree::no_node)
            return false;
        auto parts = sub_parameters(shape, fields_.count(dimension));
        const auto* const items = fields_.items(patterns);
        if (!parts || items == nullptr) return false;
        const auto shared = std::make_shared<const SubParameters>(std::move(*parts));
        for (const NodeId item : *items) {
            if (pattern(item, info_.several) == nullptr) return false;
            if (info_.several_parts.size() < info_.several.size()) info_.several_parts.push_back(shared);
        }
        return true;
    }

    std::optional<SubParameters> sub_parameters(NodeId shape, std::optional<std::uint64_t> dimension) const {
        const auto* const sizes = fields_.items(shape);
        if (sizes == nullptr || !dimension || *dimension >= sizes->size()) return std::nullopt;
        SubParameters parts;
        parts.dimension = static_cast<std::size_t>(*dimension);
        for (std::size_t d = 0; d < sizes->size(); ++d) {
            const NodeId size = (*sizes)[d];
            const auto list = fields_.counts(size);
            if (d == parts.dimension) {
                parts.shape.emplace_back();
                if (list) parts.sizes = *list;
                else if (const auto count = fields_.count(size)) parts.count = *count;
                else return std::nullopt;
            } else if (list) {
                std::uint64_t sum = 0;
                for (const std::uint64_t part : *list) {
                    const auto more = checked_add(sum, part);
                    if (!more) return std::nullopt;
                    sum = *more;
                }
                parts.shape.emplace_back(sum);
            } else {
                const auto number = fields_.integer(size);
                if (!number) return std::nullopt;
                parts.shape.push_back(*number < 0 ? std::nullopt : fields_.count(size));
            }
        }
        return parts;
    }

    bool widths(NodeId node) {
        const NodeId value = find(node, "sub_param_shard_widths");
        if (value == StateTree::no_node) return true;
        const auto* const dict = fields_.dict(value);
        if (dict == nullptr) return false;
        for (const auto& [key, list] : dict->items) {
            const std::string* const text = fields_.text(key);
            const auto* const rows = fields_.items(list);
            if (text == nullptr || rows == nullptr) return false;
            ShardWidths all;
            for (const NodeId row : *rows) {
                auto numbers = fields_.counts(row);
                if (!numbers) return false;
                all.push_back(std::move(*numbers));
            }
            info_.widths.emplace(*text, std::move(all));
        }
        return true;
    }

    bool maps(NodeId node) {
        const NodeId value = find(node, "affine_map");
        if (value == StateTree::no_node) return true;
        if (const NodeId version = fields_.value(value, "version");
            version != StateTree::no_node && fields_.real(version).value_or(2) > 1) {
            info_.fault = "affine_map of universal_checkpoint_info is of an unknown version";
            return false;
        }
        const NodeId params = fields_.value(value, "params");
        if (params == StateTree::no_node) return true;
        const auto* const dict = fields_.dict(params);
        if (dict == nullptr) return false;
        for (const auto& [key, map] : dict->items) {
            if (pattern(key, info_.placed) == nullptr) return false;
            if (info_.placements.size() < info_.placed.size())
                info_.placements.push_back(PlacementReader(fields_).read(map));
        }
        return true;
    }

    Fields fields_;
    UniversalInfo info_ = {};
    std::string key_ = {};
};

Rule unknown(std::string why) {
    Rule rule;
    rule.how = Rule::How::unknown;
    rule.said = true;
    rule.why = std::move(why);
    return rule;
}

bool is_printable(const std::string& name) {
    return std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c < '\x7f'; });
}

/// Sets the rule of several parameters in one.
Rule rule_of_several(const UniversalInfo& info, std::size_t pattern) {
    Rule rule;
    rule.how = Rule::How::several;
    rule.parts = info.several_parts[pattern].get();
    rule.dimension = rule.parts->dimension;
    if (info.version >= 0.4) {
        const auto widths = info.widths.find(info.several.text(pattern));
        if (widths == info.widths.end()) return unknown("sub_param_shard_widths does not have their pattern");
        rule.widths = &widths->second;
    }
    return rule;
}

}  // namespace

UniversalInfo read_universal_info(const StateTree& tree, StateTree::NodeId node) { return InfoReader(tree).read(node); }

namespace {

/// Returns the rule without that of the vocabulary, in the order of DeepSpeed.
Rule main_rule(const UniversalInfo& info, const std::string& name, std::uint64_t& steps) {
    if (const auto found = info.unsupported.find(name, steps); found.count > 0)
        return unknown("autotp_unsupported_parameter_patterns has them");
    if (const auto found = info.placed.find(name, steps); found.count > 0) {
        const Placement& placement = info.placements[found.first];
        if (found.count > 1) return unknown("several patterns of affine_map match");
        if (!placement.fault.empty()) return unknown(placement.fault);
        Rule rule;
        rule.how = Rule::How::placed;
        rule.placement = &placement;
        return rule;
    }
    const struct {
        const PatternList& list;
        Rule::How how;
    } kinds[] = {{info.replicated, Rule::How::replicated},
                 {info.averaged, Rule::How::averaged},
                 {info.halves, Rule::How::halves}};
    for (const auto& kind : kinds) {
        const auto found = kind.list.find(name, steps);
        if (found.count > 1) return unknown("several patterns of one list match");
        if (found.count == 0) continue;
        Rule rule;
        rule.how = kind.how;
        return rule;
    }
    if (const auto found = info.several.find(name, steps); found.count > 0) return rule_of_several(info, found.first);
    const auto rows = info.rows.find(name, steps);
    if (rows.count > 1) return unknown("several patterns of one list match");
    Rule rule;
    rule.dimension = rows.count;
    rule.said = rows.count > 0;
    return rule;
}

}  // namespace

Rule rule_of(const UniversalInfo& info, const std::string& name, std::uint64_t& steps) {
    if (!info.fault.empty()) return unknown(info.fault);
    if (!is_printable(name)) return unknown("their names are not printable ASCII");
    Rule rule = main_rule(info, name, steps);
    if (rule.how == Rule::How::unknown) return rule;
    rule.said = rule.said || rule.how != Rule::How::joined;
    if (info.vocabulary_names.find(name, steps).count == 0) return rule;
    if (!info.vocabulary) return unknown("universal_checkpoint_info has no original_vocab_size");
    rule.vocabulary = true;
    rule.said = true;
    return rule;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
