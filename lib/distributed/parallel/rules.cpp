// Reads `universal_checkpoint_info` of every version: 0.1 to 0.3 are lists of patterns, 0.4 adds the widths of several
// parameters in one, and the affine maps say where each element is.
#include "distributed/parallel/rules.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Why rules, or a part of them, cannot be used: a sentence for a note.
struct Unusable {
    std::string why;
};

/// Runs `read`. Returns why what it reads cannot be used: what it says, or `malformed` if a value is of another form
/// than DeepSpeed gives it.
template <class Malformed, class Read> std::string reason_of(Malformed&& malformed, Read&& read) {
    try {
        read();
        return {};
    } catch (const Unusable& unusable) {
        return unusable.why;
    } catch (const Error&) {
        return malformed();
    }
}

[[noreturn]] void refuse_form() { throw Error(Errc::field_missing, "another form than DeepSpeed's"); }

bool is_sequence(const Value& value) { return value.is_list() || value.is_set(); }

/// Returns the items of a list or set.
std::vector<Value> items_of(const Value& value) {
    if (!is_sequence(value)) refuse_form();
    return value.parts();
}

/// Returns a number that is not a member of an enumeration.
std::uint64_t count_of(const Value& value) {
    if (!value.type().empty()) refuse_form();
    return value.count();
}

/// Returns a number that is not a member of an enumeration, or nothing.
std::optional<double> real_of(const Value& value) { return value.type().empty() ? value.real() : std::nullopt; }

/// Returns the value of a key of a dictionary, not of an object.
Value field_of(const Value& dict, std::string_view key) {
    if (!dict.is_dict()) refuse_form();
    return dict.at(key);
}

std::vector<std::uint64_t> counts_of(const Value& list) {
    std::vector<std::uint64_t> numbers;
    for (const Value& item : items_of(list)) numbers.push_back(count_of(item));
    return numbers;
}

Shape shape_of(const Value& value) {
    Shape shape{std::span<const std::uint64_t>(counts_of(value))};
    if (!element_count(shape)) refuse_form();
    return shape;
}

/// Returns the index of a row-major element number. The shape must not be empty of elements.
Shape index_of(std::uint64_t number, const Shape& shape) {
    Shape index(shape.size(), 0);
    for (std::size_t d = shape.size(); d-- > 0;) {
        index[d] = number % shape[d];
        number /= shape[d];
    }
    return index;
}

/// Returns where a box of `extent` begins in a tensor of `shape`. `view` is an offset and strides.
Shape place_of(const Value& view, const Shape& extent, const Shape& shape) {
    const std::vector<Value> pair = items_of(view);
    if (pair.size() != 2) refuse_form();
    const std::uint64_t offset = count_of(pair.front());
    const std::vector<std::uint64_t> strides = counts_of(pair.back());
    if (extent.size() != shape.size() || strides.size() != shape.size() || offset >= *element_count(shape))
        refuse_form();
    const Strides expected = row_major(shape);
    Shape start = index_of(offset, shape);
    for (std::size_t d = 0; d < shape.size(); ++d) {
        const bool box = extent[d] == 1 || strides[d] == static_cast<std::uint64_t>(expected[d]);
        if (!box || !Extent{start[d], extent[d]}.inside(shape[d]))
            throw Unusable{"its affine map consists of more than boxes"};
    }
    return start;
}

void read_piece(std::size_t rank, const Value& piece, Placement& placed) {
    const Shape extent = shape_of(field_of(piece, "shape"));
    if (const auto scale = piece.find("scale"); scale && real_of(*scale).value_or(0) != 1.0)
        throw Unusable{"its ranks hold scaled values"};
    if (*element_count(extent) == 0) return;
    placed.pieces.push_back({rank, place_of(field_of(piece, "source"), extent, placed.shape), extent,
                             place_of(field_of(piece, "dest"), extent, placed.slices[rank])});
}

/// Reads one affine map.
void read_map(const Value& map, Placement& placed) {
    placed.shape = shape_of(field_of(map, "logical_shape"));
    const Value ranks = field_of(map, "ranks");
    const auto by_rank = ranks.entries();
    if (by_rank.size() != ranks.size()) refuse_form();  // a key is neither a text nor an integer
    placed.slices.resize(by_rank.size());
    std::vector<bool> seen(by_rank.size(), false);
    for (const auto& [key, value] : by_rank) {
        const auto rank = decimal<std::size_t>(key);  // JSON makes it a text
        if (!rank || key.size() > 9 || *rank >= by_rank.size() || seen[*rank]) refuse_form();
        seen[*rank] = true;
        placed.slices[*rank] = shape_of(field_of(value, "shard_shape"));
        for (const Value& piece : items_of(field_of(value, "pieces"))) read_piece(*rank, piece, placed);
    }
}

Placement placement_of(const Value& map) {
    Placement placed;
    placed.fault = reason_of([] { return "its affine map is malformed"; }, [&] { read_map(map, placed); });
    return placed;
}

SubParameters sub_parameters(const Value& shape, std::uint64_t dimension) {
    const std::vector<Value> sizes = items_of(shape);
    if (dimension >= sizes.size()) refuse_form();
    SubParameters parts;
    parts.dimension = static_cast<std::size_t>(dimension);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        std::optional<std::uint64_t> size;
        if (d == parts.dimension) {
            if (is_sequence(sizes[d])) parts.sizes = counts_of(sizes[d]);
            else parts.count = count_of(sizes[d]);
        } else if (is_sequence(sizes[d])) {
            size = 0;
            for (const std::uint64_t part : counts_of(sizes[d])) size = size ? checked_add(*size, part) : std::nullopt;
            if (!size) refuse_form();
        } else if (!sizes[d].integer()) {
            refuse_form();
        } else if (*sizes[d].integer() >= 0) {
            size = count_of(sizes[d]);
        }
        parts.shape.push_back(size);
    }
    return parts;
}

/// Reads all keys into an UniversalInfo.
class InfoReader {
public:
    UniversalInfo read(const Value& info) {
        if (!info.is_dict()) info_.fault = "universal_checkpoint_info is not a dictionary";
        else
            info_.fault = reason_of([&] { return key_ + " of universal_checkpoint_info is malformed"; },
                                    [&] { read_keys(info); });
        return std::move(info_);
    }

private:
    void read_keys(const Value& info) {
        if (const auto version = find(info, "universal_checkpoint_version")) {
            const auto number = real_of(*version);
            if (!number) refuse_form();
            info_.version = *number;
        }
        if (const auto size = find(info, "original_vocab_size")) info_.vocabulary = count_of(*size);
        add_list(info, "vocabulary_parameter_patterns", info_.vocabulary_names);
        add_list(info, "tp_replicated_parameter_patterns", info_.replicated);
        add_list(info, "parameter_with_row_parallelism_patterns", info_.rows);
        add_list(info, "parameter_to_average_patterns", info_.averaged);
        add_list(info, "parameter_with_2_sub_params_cat_dim_0", info_.halves);
        add_list(info, "autotp_unsupported_parameter_patterns", info_.unsupported);
        if (const auto several = find(info, "parameter_with_sub_params"))
            for (const Value& one : items_of(*several)) add_several(one);
        if (const auto widths = find(info, "sub_param_shard_widths"))
            for (const auto& [pattern, rows] : widths->text_entries()) {
                ShardWidths all;
                for (const Value& row : items_of(rows)) all.push_back(counts_of(row));
                info_.widths.emplace(pattern, std::move(all));
            }
        if (const auto map = find(info, "affine_map")) add_maps(*map);
    }

    /// Sets `key_`, which notes name, and returns the value of the key.
    std::optional<Value> find(const Value& info, const char* key) {
        key_ = key;
        return info.find(key);
    }

    /// Reads a list of patterns, or a dictionary whose keys are patterns.
    void add_list(const Value& info, const char* key, PatternList& patterns) {
        const auto value = find(info, key);
        if (!value) return;
        if (value->is_dict())
            for (const auto& entry : value->text_entries()) add_pattern(entry.first, patterns);
        else
            for (const Value& item : items_of(*value)) add_pattern(item.text(), patterns);
    }

    void add_pattern(std::optional<std::string_view> text, PatternList& patterns) const {
        if (!text) refuse_form();
        if (!patterns.add(std::string(*text)))
            throw Unusable{"the pattern " + excerpt(*text) + " of " + key_ + " is not understood"};
    }

    void add_several(const Value& one) {
        const auto shared = std::make_shared<const SubParameters>(
            sub_parameters(field_of(one, "shape"), count_of(field_of(one, "partition_dim"))));
        for (const Value& pattern : items_of(field_of(one, "patterns"))) {
            add_pattern(pattern.text(), info_.several);
            if (info_.several_parts.size() < info_.several.size()) info_.several_parts.push_back(shared);
        }
    }

    void add_maps(const Value& map) {
        if (!map.is_dict()) return;
        if (const auto version = map.find("version"); version && real_of(*version).value_or(2) > 1)
            throw Unusable{"affine_map of universal_checkpoint_info is of an unknown version"};
        const auto params = map.find("params");
        if (!params) return;
        for (const auto& [pattern, placement] : params->text_entries()) {
            add_pattern(pattern, info_.placed);
            if (info_.placements.size() < info_.placed.size()) info_.placements.push_back(placement_of(placement));
        }
    }

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

UniversalInfo read_universal_info(const Value& info) { return InfoReader().read(info); }

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
