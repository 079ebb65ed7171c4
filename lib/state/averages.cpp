// Finds exponential moving averages (EMA) of weights among the tensors of a checkpoint, and puts them in the places of
// the weights. Works by names, whatever the format. Tested by tests/checkpoint/averages_test.cpp. From the top:
//
//   sets          average_prefix(): the names that begin alike are one set of averages
//   candidates    where the weights of a set may be, and how the names of both sides may differ
//   fits          by equal names, by names without dots (LitEma), or by the order of a list
//   replace       tensors, ties, metadata and tree without the names of the averages
#include "base/text.hpp"
#include "state/flat_dict.hpp"
#include "state/names.hpp"
#include "state/parts.hpp"
#include "state/structure.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::state {

using NodeId = StateTree::NodeId;

namespace {

using AverageNames = std::unordered_map<std::string_view, std::size_t>;  // name: number of the tensor

/// A tensor of a set: its number, and its name behind the prefix of the set.
struct Average {
    std::string name = {};
    std::string rest = {};
    std::size_t number = 0;
};

/// Averages whose names begin alike: "ema_state_dict/", or "state_dict/model_ema.".
struct AverageSet {
    std::string prefix = {};
    std::vector<Average> averages = {};
};

/// Names of parts with the weights that are averaged. An empty name is the container of the averages itself.
constexpr std::array<std::string_view, 13> weight_parts{
    "state_dict", "model", "model_state_dict", "params", "net", "network", "module", "online_model", "unet",
    "g",          "G",     "generator",        ""};
/// Prefixes of names that wrappers add on one side only.
constexpr std::array<std::string_view, 4> wrappers{"", "module.", "model.", "ema_model."};
/// Numbers that the classes keep beside the averages.
constexpr std::array<std::string_view, 8> not_averages{"decay", "num_updates", "n_averaged", "initted",
                                                       "step",  "steps",       "updates",    "optimization_step"};

bool is_average_part(std::string_view segment) {
    std::string lower(segment);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    return lower == "ema" || lower == "shadow_params" || lower.starts_with("ema_") || lower.ends_with("_ema");
}

/// Returns the longest beginning of a name that says that it is an average; empty if none does.
std::string_view average_prefix(std::string_view name) {
    std::size_t begin = 0;
    std::size_t end = 0;
    for (std::size_t slash; (slash = name.find('/', begin)) != name.npos; begin = slash + 1)
        if (is_average_part(name.substr(begin, slash - begin))) end = slash + 1;
    if (end > 0) return name.substr(0, end);
    const std::string_view key = name.substr(begin);
    for (const std::string_view word : {"model_ema.", "ema_model.", "ema."})
        if (key.starts_with(word)) return name.substr(0, begin + word.size());
    constexpr std::string_view inner = ".model_ema.";
    const std::size_t place = key.find(inner);
    return place == key.npos ? std::string_view() : name.substr(0, begin + place + inner.size());
}

bool is_number(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string without_dots(std::string_view name) {
    std::string text(name);
    std::erase(text, '.');
    return text;
}

[[noreturn]] void refuse_average(const std::string& what) {
    throw Error(Errc::model_mismatch, what).with_hint("--root PART (OpenOptions::root) gives one part as it is");
}

class Averages {
public:
    explicit Averages(Contents& contents) : contents_(contents) {
        for (std::size_t i = 0; i < contents.tensors.size(); ++i) numbers_.emplace(contents.tensors[i].name(), i);
        for (const AliasGroup& group : contents.aliases)
            for (const std::string& name : group) numbers_.emplace(name, numbers_.at(group.front()));
        for (const auto& [other, stored] : contents.metadata)
            if (const auto found = numbers_.find(stored); found != numbers_.end() && other != "format")
                numbers_.emplace(other, found->second);
        find_sets();
    }

    bool found() const noexcept { return !sets_.empty(); }
    /// Returns true if there are averages and nothing else, so that they are in the places of weights already.
    bool alone() const { return sets_.size() == 1 && weights_.empty() && !is_list(sets_.begin()->second); }

    void replace_all() {
        for (const auto& [prefix, set] : sets_) {
            if (is_list(set)) fit_list(set);
            else fit_names(set);
        }
        apply();
        contents_.notes.push_back("averages replace " + counted(replacements_.size(), "weight") + " of " +
                                  std::to_string(contents_.tensors.size()) + " (" + prefixes() + ")");
    }

    /// Replaces the weights by tensors of the same names.
    void replace_by(const Contents& averages) {
        for (const LazyTensor& average : averages.tensors) {
            const auto found = numbers_.find(average.name());
            if (found == numbers_.end())
                refuse_average("the average " + safemap::quoted(average.name()) + " shadows no weight");
            put(found->second, average, average.name());
        }
        apply();
        contents_.notes.push_back("averages replace " + counted(replacements_.size(), "weight") + " of " +
                                  std::to_string(contents_.tensors.size()) + " (" +
                                  safemap::names_text(averages.files, 2) + ")");
    }

private:
    void find_sets() {
        for (const auto& [name, number] : numbers_) {
            const std::string_view prefix = average_prefix(name);
            if (prefix.empty()) {
                weights_.emplace(name, number);
                continue;
            }
            dropped_.insert(std::string(name));
            AverageSet& set = sets_[std::string(prefix)];
            set.prefix = prefix;
            const std::string_view rest = name.substr(prefix.size());
            const std::string_view last = rest.substr(rest.find_last_of("./") + 1);
            const bool is_weight = !rest.starts_with("collected_params/") &&
                                   (std::find(not_averages.begin(), not_averages.end(), last) == not_averages.end() ||
                                    contents_.tensors[number].element_count() != 1);
            if (is_weight) set.averages.push_back({std::string(name), std::string(rest), number});
        }
        for (auto& [prefix, set] : sets_)
            std::sort(set.averages.begin(), set.averages.end(), [](const Average& a, const Average& b) {
                return std::pair(a.number, a.rest) < std::pair(b.number, b.rest);
            });
        std::erase_if(sets_, [](const auto& set) { return set.second.averages.empty(); });
    }

    std::string prefixes() const {
        std::vector<std::string> names;
        for (const auto& [prefix, set] : sets_) names.push_back(prefix);
        return safemap::names_text(names, 3);
    }

    static bool is_list(const AverageSet& set) {
        return std::all_of(set.averages.begin(), set.averages.end(),
                           [](const auto& each) { return is_number(each.rest); });
    }

    /// Returns the beginnings of the names that the weights of a set may have, the most likely ones first.
    static std::vector<std::string> places_of(const AverageSet& set) {
        std::vector<std::string> places;
        const char separator = set.prefix.back();
        std::string_view above = std::string_view(set.prefix).substr(0, set.prefix.size() - 1);
        const std::size_t begin = above.find_last_of(separator == '.' ? "./" : "/") + 1;
        const std::string_view own = above.substr(begin);
        for (const std::string_view name : {own.ends_with("_ema") ? own.substr(0, own.size() - 4) : own,
                                            own.starts_with("ema_") ? own.substr(4) : own})
            if (name != own) places.push_back(std::string(above.substr(0, begin)).append(name) + separator);
        above = above.substr(0, begin);
        for (;;) {
            for (const std::string_view part : weight_parts)
                places.push_back(std::string(above).append(part) + (part.empty() ? "" : std::string(1, separator)));
            if (above.empty()) return places;
            above.remove_suffix(1);
            above = above.substr(0, above.find_last_of("/") + 1);
        }
    }

    /// A way to find the weights of a set: their names begin with `place` and `wrapper`, those of averages with
    /// `own_wrapper`, and the rest is equal, perhaps without dots.
    struct Way {
        std::string place = {};
        std::string_view own_wrapper = {};
        std::string_view wrapper = {};
        bool dots = true;
    };

    void fit_names(const AverageSet& set) {
        std::vector<std::optional<std::size_t>> best;
        std::size_t most = 0;
        const auto look = [&](const Way& way) {
            if (most == set.averages.size()) return;
            std::vector<std::optional<std::size_t>> found;
            const auto count = static_cast<std::size_t>(match(set, way, found));
            if (count <= most) return;
            most = count;
            best = std::move(found);
        };
        const bool undotted = std::none_of(set.averages.begin(), set.averages.end(),
                                           [](const Average& each) { return each.rest.find('.') != each.rest.npos; });
        for (const std::string& place : places_of(set)) {
            for (const std::string_view own : wrappers)
                for (const std::string_view other : wrappers) look({place, own, other, true});
            if (undotted) look({place, {}, {}, false});
        }
        for (std::size_t i = 0; i < set.averages.size(); ++i) {
            const Average& average = set.averages[i];
            if (most == 0 || !best[i])
                refuse_average("the average " + safemap::quoted(average.name) + " shadows no weight" +
                               (most == 0 ? "; none of the averages in " + safemap::quoted(set.prefix) + " does" : ""));
            if (*best[i] == skipped) continue;
            put(*best[i], contents_.tensors[average.number], average.name);
        }
    }

    /// Finds the weight of each average of a set. Returns how many have one.
    std::size_t match(const AverageSet& set, const Way& way, std::vector<std::optional<std::size_t>>& found) const {
        AverageNames undotted;
        std::vector<std::string> texts;
        if (!way.dots) {
            texts.reserve(weights_.size());
            for (const auto& [name, number] : weights_) {
                if (!name.starts_with(way.place)) continue;
                texts.push_back(without_dots(name.substr(way.place.size())));
                const auto [same, fresh] = undotted.emplace(texts.back(), number);
                if (!fresh && same->second != number) same->second = skipped;  // ambiguous
            }
        }
        std::size_t count = 0;
        const bool leaves_out = way.own_wrapper == "ema_model.";  // beside online_model.
        for (const Average& average : set.averages) {
            found.emplace_back();
            std::string_view rest = average.rest;
            if (!rest.starts_with(way.own_wrapper)) {
                if (leaves_out && rest.starts_with("online_model.")) {
                    found.back() = skipped;
                    ++count;
                }
                continue;
            }
            rest.remove_prefix(way.own_wrapper.size());
            const auto at =
                way.dots ? weights_.find(std::string(way.place).append(way.wrapper).append(rest)) : undotted.find(rest);
            if (at == (way.dots ? weights_.end() : undotted.end()) || at->second == skipped) continue;
            found.back() = at->second;
            ++count;
        }
        return count;
    }

    /// Returns the weights below a place, in order; without what is not a parameter if `parameters` is set.
    std::vector<std::size_t> weights_below(std::string_view place, bool parameters) const {
        std::set<std::size_t> numbers;
        for (const auto& [name, number] : weights_) {
            if (!name.starts_with(place)) continue;
            const bool is_buffer = name.ends_with("running_mean") || name.ends_with("running_var") ||
                                   name.ends_with("num_batches_tracked") ||
                                   !can_cast(contents_.tensors[number].dtype(), Dtype::f32);
            if (!parameters || !is_buffer) numbers.insert(number);
        }
        return {numbers.begin(), numbers.end()};
    }

    void fit_list(const AverageSet& set) {
        std::vector<Average> averages = set.averages;
        std::sort(averages.begin(), averages.end(), [](const Average& a, const Average& b) {
            return std::pair(a.rest.size(), a.rest) < std::pair(b.rest.size(), b.rest);
        });
        std::string why = "there are no weights beside " + safemap::quoted(set.prefix);
        for (const std::string& place : places_of(set)) {
            if (place.empty()) continue;  // the whole checkpoint has other tensors, too
            for (const bool parameters : {false, true}) {
                const std::vector<std::size_t> weights = weights_below(place, parameters);
                if (weights.empty()) continue;
                const std::string misfit = misfit_of(averages, weights);
                if (misfit.empty()) {
                    for (std::size_t i = 0; i < weights.size(); ++i)
                        put(weights[i], contents_.tensors[averages[i].number], averages[i].name);
                    return;
                }
                why = safemap::quoted(set.prefix) + " does not fit the parameters in " + safemap::quoted(place) + ": " +
                      misfit;
            }
        }
        refuse_average(why);
    }

    std::string misfit_of(const std::vector<Average>& averages, const std::vector<std::size_t>& weights) const {
        if (averages.size() != weights.size())
            return counted(averages.size(), "average") + " for " + counted(weights.size(), "parameter");
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const LazyTensor& weight = contents_.tensors[weights[i]];
            const LazyTensor& average = contents_.tensors[averages[i].number];
            if (average.shape() != weight.shape())
                return safemap::quoted(averages[i].name) + " has the shape " + to_string(average.shape()) + ", " +
                       safemap::quoted(weight.name()) + " has " + to_string(weight.shape());
        }
        return {};
    }

    void put(std::size_t weight, const LazyTensor& average, std::string_view name) {
        const LazyTensor& shadowed = contents_.tensors[weight];
        if (average.shape() != shadowed.shape())
            refuse_average("the average " + safemap::quoted(name) + " has the shape " + to_string(average.shape()) +
                           ", but the weight " + safemap::quoted(shadowed.name()) + " has " +
                           to_string(shadowed.shape()));
        const auto [first, fresh] = replacements_.emplace(weight, std::pair(average, std::string(name)));
        if (fresh || first->second.first.stored() == average.stored()) return;
        // Averages of tied weights may be apart. Two sets of averages are a choice of the caller.
        if (average_prefix(first->second.second) != average_prefix(name))
            refuse_average(safemap::quoted(first->second.second) + " and " + safemap::quoted(name) +
                           " are both averages of " + safemap::quoted(shadowed.name()));
    }

    void apply() {
        replace_in_tree();
        std::map<std::string, std::string, std::less<>> kept;  // another first name of a tensor that stays
        std::vector<AliasGroup> aliases;
        for (AliasGroup& group : contents_.aliases) {
            const std::string stored = group.front();
            std::erase_if(group, [this](const std::string& name) { return dropped_.contains(name); });
            if (!group.empty() && group.front() != stored) kept.emplace(stored, group.front());
            if (group.size() > 1) aliases.push_back(std::move(group));
        }
        contents_.aliases = std::move(aliases);
        std::erase_if(contents_.metadata, [this](const auto& pair) { return dropped_.contains(pair.first); });
        std::vector<LazyTensor> tensors;
        for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
            const LazyTensor& tensor = contents_.tensors[i];
            const auto other = kept.find(tensor.name());
            if (other == kept.end() && dropped_.contains(tensor.name())) continue;
            const auto average = replacements_.find(i);
            const LazyTensor& value = average == replacements_.end() ? tensor : average->second.first;
            tensors.push_back(value.renamed(other == kept.end() ? tensor.name() : other->second));
        }
        contents_.tensors = std::move(tensors);
    }

    void replace_in_tree() {
        if (!contents_.tree && !contents_.tree.late) return;
        StateTree tree = contents_.tree.late ? contents_.tree.late->tree(contents_.tensors) : *contents_.tree;
        std::set<NodeId> gone;
        for (const auto& [id, name] : names_of_tensors(tree)) {
            LazyTensor& tensor = std::get<StateTree::Tensor>(tree[id]).tensor;
            if (dropped_.contains(name)) {
                gone.insert(id);
                continue;
            }
            const auto number = numbers_.find(name);
            const auto average = number == numbers_.end() ? replacements_.end() : replacements_.find(number->second);
            if (average != replacements_.end()) tensor = average->second.first.renamed(tensor.name());
        }
        for (NodeId id = 0; id < tree.size(); ++id)
            if (auto* const dict = std::get_if<StateTree::Dict>(&tree[id]))
                std::erase_if(dict->items, [&](const auto& item) { return gone.contains(item.second); });
        for (const NodeId id : gone) tree[id] = unstored_tensor();
        contents_.tree = std::make_shared<const StateTree>(tree.subtree(tree.root()));
    }

    static constexpr std::size_t skipped = SIZE_MAX;

    Contents& contents_;
    AverageNames numbers_ = {};
    AverageNames weights_ = {};
    std::map<std::string, AverageSet> sets_ = {};
    std::set<std::string, std::less<>> dropped_ = {};
    std::map<std::size_t, std::pair<LazyTensor, std::string>> replacements_ = {};
};

}  // namespace

void take_averages(Contents& contents, const Contents* averages) {
    Averages found(contents);
    if (averages != nullptr) return found.replace_by(*averages);
    if (!found.found())
        throw Error(Errc::tensor_not_found,
                    "no averages of weights (EMA) are among the " + counted(contents.tensors.size(), "tensor"))
            .with_hint(
                "averages are in parts called ema, ema_state_dict or params_ema, or have names that begin with "
                "model_ema.; docs/format.md lists them");
    if (found.alone()) {
        contents.notes.emplace_back("all weights are averages already");
        return;
    }
    if (contents.tree && contents.tree->find("message_hub") && contents.tree->find("ema_state_dict"))
        throw Error(Errc::model_mismatch,
                    "MMEngine saves the averages as state_dict already; ema_state_dict has the "
                    "weights that were not averaged")
            .with_hint("leave out --ema (OpenOptions::ema)");
    found.replace_all();
}

void note_averages(Contents& contents) {
    const auto may_be_one = [](std::string_view name) {
        constexpr std::string_view words[] = {"ema", "EMA", "Ema", "shadow_params"};
        return std::any_of(std::begin(words), std::end(words),
                           [name](std::string_view word) { return name.find(word) != name.npos; });
    };
    std::size_t count = 0;
    std::string_view first;
    for (const LazyTensor& tensor : contents.tensors) {
        const auto prefix = may_be_one(tensor.name()) ? average_prefix(tensor.name()) : std::string_view();
        const std::string_view rest = std::string_view(tensor.name()).substr(prefix.size());
        const bool is_counter = std::find(not_averages.begin(), not_averages.end(), rest) != not_averages.end();
        if (prefix.empty() || is_counter) continue;
        if (count++ == 0) first = prefix;
    }
    if (count == 0 || count == contents.tensors.size()) return;
    contents.notes.push_back(counted(count, "tensor is an average", "tensors are averages") +
                             " of weights (EMA): names begin with " + excerpt(first) +
                             "; --ema (OpenOptions::ema) puts averages in the places of the weights");
}

}  // namespace safemap::SAFEMAP_ABI::state
