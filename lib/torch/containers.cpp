// Builds Python's containers: a table of the container classes, and how to read a call of each. Tested by
// tests/torch/rebuild_test.cpp.
#include "torch/containers.hpp"

#include "pickle/literals.hpp"
#include "torch/globals.hpp"
#include "torch/object_parts.hpp"
#include "torch/storage_id.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using NodeId = StateTree::NodeId;
using Node = StateTree::Node;
using Sequence = StateTree::Sequence;
using Dict = StateTree::Dict;

/// Longest big integer, in bytes, that is compared as a key: printing an integer costs the square of its length.
constexpr std::size_t longest_integer = 64;
/// Longest key, in bytes, that is hashed in every dictionary. A longer key is looked up by its node first, because many
/// dictionaries may share it.
constexpr std::size_t short_text = 128;
/// Most tuples in each other that are compared by value, because each level is a call. A deeper one is an object.
constexpr int deepest_tuple = 8;

/// The keys of one dictionary or the members of one set, compared as Python compares them: 1, 1.0 and True are the same
/// key. A tuple is equal if its items are. An object is equal to itself only.
class SeenKeys {
public:
    explicit SeenKeys(TreeDraft& draft, int level = 0) : draft_(draft), pickle_(draft.pickle()), level_(level) {}

    /// Returns the place where an equal key was added before. A new key is added at `place`.
    std::size_t place_of(Id key, std::size_t place) {
        switch (pickle_.kind(key)) {
            case Kind::text: return text(texts_, key, place);
            case Kind::bytes: return text(bytes_, key, place);
            case Kind::boolean: return integer(pickle_.boolean(key) ? 1 : 0, place);
            case Kind::integer: return integer(pickle_.integer(key), place);
            case Kind::big_integer: return big_integer(key, place);
            case Kind::real: return real(key, place);
            case Kind::none: return none_ ? *none_ : none_.emplace(place);
            case Kind::tuple: return tuple(key, place);
            default: return objects_.try_emplace(key, place).first->second;
        }
    }

private:
    using Texts = std::unordered_map<std::string_view, std::size_t, NameHash>;

    std::size_t text(Texts& texts, Id key, std::size_t place) {
        const std::string_view text = pickle_.text(key);
        std::size_t* by_node = nullptr;
        if (text.size() > short_text) {
            const auto [known, fresh] = nodes_.try_emplace(key, place);
            if (!fresh) return known->second;
            by_node = &known->second;
        }
        const auto [known, fresh] = texts.try_emplace(text, place);
        if (fresh || by_node != nullptr) draft_.spend(entry_cost + text.size());
        if (by_node != nullptr) *by_node = known->second;
        return known->second;
    }
    std::size_t integer(std::int64_t value, std::size_t place) {
        return integers_.try_emplace(value, place).first->second;
    }
    /// Returns the place of a big integer. It may fit in 64 bits: a pickle may spell an integer with more bytes than it
    /// needs.
    std::size_t big_integer(Id key, std::size_t place) {
        if (pickle_.text(key).size() > longest_integer) return place;
        const std::string decimal = pickle_.decimal(key);
        if (const auto value = number_in<std::int64_t>(decimal)) return integer(*value, place);
        return longs_.try_emplace(decimal, place).first->second;
    }
    std::size_t real(Id key, std::size_t place) {
        const double value = pickle_.real(key);
        constexpr double limit = 9223372036854775808.0;  // 2^63
        const bool whole = value >= -limit && value < limit && std::trunc(value) == value;
        if (whole) return integer(static_cast<std::int64_t>(value), place);
        // A NaN is equal to the same object only.
        if (std::isnan(value)) return objects_.try_emplace(key, place).first->second;
        return reals_.try_emplace(value, place).first->second;
    }
    /// Numbers the items of a tuple as keys of their own: tuples with the same numbers are equal.
    std::size_t tuple(Id key, std::size_t place) {
        if (level_ == deepest_tuple) return objects_.try_emplace(key, place).first->second;
        const auto items = pickle_.items(key);
        draft_.spend(entry_cost * (1 + items.size()));
        if (!items_) items_ = std::make_unique<SeenKeys>(draft_, level_ + 1);
        std::vector<std::size_t> numbers;
        numbers.reserve(items.size());
        for (const Id item : items) {
            numbers.push_back(items_->place_of(item, item_count_));
            if (numbers.back() == item_count_) ++item_count_;
        }
        return tuples_.try_emplace(std::move(numbers), place).first->second;
    }

    TreeDraft& draft_;
    const PickleGraph& pickle_;
    int level_;                                  ///< 0, or in how many tuples the keys are
    std::unordered_map<Id, std::size_t> nodes_;  ///< places of long texts and bytes, by node
    Texts texts_;
    Texts bytes_;
    std::unordered_map<std::string, std::size_t, NameHash> longs_;  ///< integers of more than 64 bits, in decimal
    std::map<std::int64_t, std::size_t> integers_;  ///< ordered: hashes of integers can be made to collide
    std::map<double, std::size_t> reals_;           ///< without those that are equal to an integer of 64 bits, and NaN
    std::map<Id, std::size_t> objects_;
    std::map<std::vector<std::size_t>, std::size_t> tuples_;  ///< by the numbers of their items
    std::unique_ptr<SeenKeys> items_;                         ///< items of tuples, by number
    std::size_t item_count_ = 0;                              ///< number of the next new item
    std::optional<std::size_t> none_;
};

/// The builder of one container from a call of its class.
class ContainerCall {
public:
    ContainerCall(TreeDraft& draft, const PickleGraph::Call& said, NodeId self)
        : draft_(draft), pickle_(draft.pickle()), said_(said), arguments_(pickle_.items(said.arguments)), self_(self) {}

    /// Builds a dictionary from its argument (none, a dictionary or a list of pairs), then from the call's items, then
    /// sets its attributes.
    template <bool ordered> std::optional<Node> mapping() {
        std::vector<Id> items;
        if (arguments_.size() > 1 || (arguments_.size() == 1 && !take_pairs(arguments_[0], items))) return std::nullopt;
        items.insert(items.end(), said_.items.begin(), said_.items.end());
        return with_attributes(items, ordered);
    }
    std::optional<Node> counter() {
        auto out = mapping<false>();
        if (out) add_class(std::get<Dict>(*out));
        return out;
    }
    std::optional<Node> default_dict() {
        if (arguments_.size() > 1) return std::nullopt;
        Dict out = with_attributes(said_.items, false);
        add_class(out);
        if (!arguments_.empty()) set_attribute(out, "default_factory", arguments_[0]);
        return out;
    }
    /// Builds a sequence from no argument, or from a list, tuple or set.
    template <Sequence::Kind kind> std::optional<Node> members() {
        if (!said_.states.empty() || !said_.items.empty() || !said_.appends.empty()) return std::nullopt;
        if (arguments_.empty()) return Sequence{.kind = kind};
        if (arguments_.size() > 1) return std::nullopt;
        const Kind given = pickle_.kind(arguments_[0]);
        if (given != Kind::list && given != Kind::tuple && given != Kind::set) return std::nullopt;
        return sequence(draft_, kind, pickle_.items(arguments_[0]), self_);
    }

private:
    bool take_pairs(Id id, std::vector<Id>& items) {
        const auto members = pickle_.items(id);
        draft_.spend(link_cost * members.size());
        if (pickle_.kind(id) == Kind::dict) {
            items.assign(members.begin(), members.end());
            return true;
        }
        if (pickle_.kind(id) != Kind::list) return false;
        for (const Id member : members) {
            const auto pair = pickle_.items(member);
            const Kind kind = pickle_.kind(member);
            if ((kind != Kind::list && kind != Kind::tuple) || pair.size() != 2) return false;
            items.insert(items.end(), pair.begin(), pair.end());
        }
        return true;
    }
    Dict with_attributes(std::span<const Id> items, bool ordered) {
        Dict out = dictionary(draft_, items, self_);
        out.ordered = ordered;
        for (const Id state : said_.states) {
            if (pickle_.kind(state) != Kind::dict) continue;
            const auto attributes = pickle_.items(state);
            draft_.spend(link_cost * attributes.size());
            for (std::size_t i = 0; i + 1 < attributes.size(); i += 2)
                if (pickle_.kind(attributes[i]) == Kind::text)
                    set_attribute(out, attribute_name(pickle_, attributes[i], i / 2), attributes[i + 1]);
        }
        return out;
    }
    void add_class(Dict& dict) { set_attribute(dict, "__class__", class_of(pickle_, said_.callee)); }
    /// Sets an attribute as Python does: an attribute that exists gets the new value.
    void set_attribute(Dict& dict, std::string name, Id id) {
        const NodeId value = draft_.refer(id, {self_});
        draft_.spend(child_cost + 2 * name.size());
        const auto [known, fresh] = attributes_.try_emplace(name, dict.attributes.size());
        if (fresh) dict.attributes.emplace_back(std::move(name), value);
        else dict.attributes[known->second].second = value;
    }

    TreeDraft& draft_;
    const PickleGraph& pickle_;
    const PickleGraph::Call& said_;
    std::span<const Id> arguments_;
    NodeId self_;
    std::unordered_map<std::string, std::size_t, NameHash> attributes_;
};

struct Row {
    std::string_view name;
    std::optional<Node> (ContainerCall::*make)();
};
constexpr Row containers[]{
    {"collections.OrderedDict", &ContainerCall::mapping<true>},
    {"collections.Counter", &ContainerCall::counter},
    {"collections.defaultdict", &ContainerCall::default_dict},
    {"builtins.dict", &ContainerCall::mapping<false>},
    {"builtins.list", &ContainerCall::members<Sequence::Kind::list>},
    {"builtins.tuple", &ContainerCall::members<Sequence::Kind::tuple>},
    {"builtins.set", &ContainerCall::members<Sequence::Kind::set>},
    {"builtins.frozenset", &ContainerCall::members<Sequence::Kind::frozenset>},
    {"torch.Size", &ContainerCall::members<Sequence::Kind::size>},
};

}  // namespace

Sequence sequence(TreeDraft& draft, Sequence::Kind kind, std::span<const Id> items, NodeId self) {
    const bool is_set = kind == Sequence::Kind::set || kind == Sequence::Kind::frozenset;
    draft.spend((is_set ? entry_cost : link_cost) * items.size());
    Sequence out{.kind = kind};
    out.items.reserve(items.size());
    SeenKeys seen(draft);
    for (const Id item : items) {
        const std::size_t place = out.items.size();
        if (!is_set || seen.place_of(item, place) == place) out.items.push_back(draft.refer(item, {self, place}));
    }
    return out;
}

Dict dictionary(TreeDraft& draft, std::span<const Id> items, NodeId self) {
    draft.spend(entry_cost * (items.size() / 2));
    Dict out;
    SeenKeys seen(draft);
    out.items.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        const std::size_t place = seen.place_of(items[i], out.items.size());
        // The key comes before the value: the path of a faulty value is made of keys.
        if (place == out.items.size()) out.items.emplace_back(draft.refer(items[i], {self, place}), StateTree::no_node);
        out.items[place].second = draft.refer(items[i + 1], {self, place});
    }
    return out;
}

std::optional<Node> container_call(TreeDraft& draft, std::string_view function, const PickleGraph::Call& said,
                                   NodeId self) {
    const Row* const row = row_of(containers, function);
    return row == nullptr ? std::nullopt : (ContainerCall(draft, said, self).*row->make)();
}

bool is_container(std::string_view function) noexcept { return row_of(containers, function) != nullptr; }

}  // namespace safemap::SAFEMAP_ABI::torch
