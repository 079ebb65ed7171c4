// Compares the bytes of a pickle with the one form that torch gives to a list of shards. What differs in an opcode is
// no such list: the machine reads it. From the top:
//
//   cursor     opcodes, numbers, entries of the memo
//   form       a list, a shard in it, the device of a shard
//   tree       where taken lists may be
//
// Tested by tests/distributed/shard_lists_test.cpp.
#include "distributed/ranks/shard_lists.hpp"

#include "state/walk.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

constexpr char newobj = '\x81';
constexpr char tuple_of_one = '\x85';
constexpr char tuple_of_two = '\x86';
constexpr char long1 = '\x8a';

}  // namespace

/// A comparison of the bytes at one place. All functions return false, or nothing, if the bytes are of another form.
class ShardLists::Form {
public:
    Form(ShardLists& lists, const Place& place)
        : lists_(lists),
          known_(lists.known_),
          words_(lists.words_),
          place_(place),
          of_shards_(place.key == "shards_metadata"),
          at_(place.bytes.data()),
          end_(at_ + place.bytes.size()),
          words_before_(words_.size()) {}

    bool list() {
        if (!first_put()) return false;
        // Picklers write a thousand items at a time.
        do {
            while (!byte('e'))
                if (!item() || memory() > place_.memory) return false;
        } while (byte('('));
        return next_ - 1 <= place_.last_entry;
    }

    Taken taken() const {
        return {.bytes = static_cast<std::size_t>(at_ - place_.bytes.data()),
                .first_entry = first_,
                .end_entry = next_,
                .memory = memory(),
                .nodes = lists_.nodes_};
    }
    /// Returns the memory of what is kept of the list. A vector that grows has its items twice.
    std::uint64_t memory() const noexcept {
        return sizeof(List) +
               2 * ((words_.size() - words_before_) * sizeof(std::uint64_t) + lists_.nodes_.size() * sizeof(Id));
    }
    std::size_t shards() const noexcept { return shards_; }
    std::size_t dimensions() const noexcept { return dimensions_ == unknown ? 0 : dimensions_; }
    bool of_shards() const noexcept { return of_shards_; }

private:
    static constexpr std::size_t unknown = SIZE_MAX;

    // Cursor.

    bool byte(char wanted) {
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }
    char peek() const noexcept { return at_ == end_ ? '\0' : *at_; }
    template <class T> std::optional<std::uint64_t> little() {
        if (static_cast<std::size_t>(end_ - at_) < sizeof(T)) return std::nullopt;
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        if (value < T{0}) return std::nullopt;
        return static_cast<std::uint64_t>(value);
    }
    /// Takes an entry of the memo that is set (with "qr") or got (with "hj").
    std::optional<std::uint64_t> entry(char small, char large) {
        if (byte(small)) return little<std::uint8_t>();
        return byte(large) ? little<std::uint32_t>() : std::nullopt;
    }
    bool first_put() {
        const auto index = entry('q', 'r');
        if (!index) return false;
        first_ = *index;
        next_ = first_ + 1;
        return byte('(');
    }
    /// Takes the next entry of the memo, as a pickler numbers them.
    bool put() { return entry('q', 'r') == next_ && ++next_ != 0; }
    /// Returns an entry of the memo. Entries that the list has set are taken values.
    Id get() {
        const auto index = entry('h', 'j');
        if (!index) return PickleGraph::nothing;
        return *index >= first_ && *index < next_ ? PickleGraph::taken : place_.memo.find(*index);
    }
    bool is_node(Id id) const noexcept { return id < PickleGraph::taken; }

    /// Takes a text that was written before. `known` keeps its node.
    bool get_text(Id& known, std::string_view text) {
        const Id id = get();
        if (id == known) return id != PickleGraph::nothing;
        if (!is_node(id) || place_.graph.kind(id) != Kind::text || place_.graph.text(id) != text) return false;
        known = id;
        return true;
    }
    /// Checks a class that was written before, and that something outside of lists calls. All lists name it by one
    /// node, so that its calls are searched once.
    bool is_class(Id id, Id& known, std::string_view module, std::string_view name) const {
        if (id == known) return id != PickleGraph::nothing;
        if (known != PickleGraph::nothing || !is_node(id) || place_.graph.kind(id) != Kind::global) return false;
        const PickleGraph::Global global = place_.graph.global(id);
        const bool fits = module.ends_with('.') ? global.module.starts_with(module) : global.module == module;
        if (!fits || global.name != name || !place_.graph.calls_any(id)) return false;
        known = id;
        return true;
    }
    /// Takes an integer from 0 to 2^63 - 1.
    std::optional<std::uint64_t> number() {
        if (byte('K')) return little<std::uint8_t>();
        if (byte('M')) return little<std::uint16_t>();
        if (byte('J')) return little<std::int32_t>();
        if (!byte(long1)) return std::nullopt;
        const auto size = little<std::uint8_t>();
        if (!size || *size == 0 || *size > 8 || static_cast<std::size_t>(end_ - at_) < *size) return std::nullopt;
        std::uint64_t value = 0;
        std::memcpy(&value, at_, *size);
        at_ += *size;
        const bool negative = (at_[-1] & 0x80) != 0;
        return negative ? std::nullopt : std::optional(value);
    }

    // Form.

    bool item() {
        const Id id = get();
        if (is_class(id, known_.shard, "torch.distributed.", "ShardMetadata")) return shard();
        if (id == PickleGraph::nothing || (id == PickleGraph::taken && of_shards_)) return false;
        if (is_node(id) && place_.graph.kind(id) == Kind::global) return false;
        ++shards_;
        if (of_shards_) words_.push_back(node);
        if (is_node(id)) lists_.nodes_.push_back(id);
        return true;
    }
    /// Takes an object from behind its class up to its attributes.
    bool object() { return byte(')') && byte(newobj) && put(); }
    bool attributes() { return byte('}') && put() && byte('('); }

    bool shard() {
        ++shards_;
        const std::size_t head = words_.size();
        words_.push_back(no_rank);
        if (!object()) return false;
        const bool slots = byte('N');
        if (!attributes() || !get_text(known_.offsets, "shard_offsets") || !sizes()) return false;
        if (!get_text(known_.sizes, "shard_sizes") || !sizes()) return false;
        if (!get_text(known_.placement, "placement") || !remote_device(head) || !byte('u')) return false;
        if (slots && !(byte(tuple_of_two) && put())) return false;
        return byte('b');
    }
    /// Takes a list of as many numbers as all others have.
    bool sizes() {
        if (!byte(']') || !put()) return false;
        std::size_t count = 0;
        const auto add = [&] {
            const auto size = number();
            if (size) words_.push_back(*size);
            ++count;
            return size.has_value();
        };
        if (byte('(')) {
            do {
                if (!add()) return false;
            } while (!byte('e') && count < Shape::in_place);
            if (at_[-1] != 'e') return false;
        } else if (const char next = peek(); next == 'K' || next == 'M' || next == 'J' || next == long1) {
            if (!add() || !byte('a')) return false;
        }
        if (dimensions_ == unknown) dimensions_ = count;
        return dimensions_ == count;
    }
    bool remote_device(std::size_t head) {
        if (!is_class(get(), known_.remote, "torch.distributed.", "_remote_device")) return false;
        if (!object() || !attributes()) return false;
        bool ranked = false;
        while (!byte('u')) {
            const Id name = get();
            if (!is_node(name) || !(name == known_.rank || name == known_.worker || name == known_.device_name))
                if (!learn(name)) return false;
            if (name != known_.rank) {
                if (!device()) return false;
                continue;
            }
            if (std::exchange(ranked, true)) return false;
            if (byte('N')) continue;
            const auto rank = number();
            if (!rank) return false;
            words_[head] = *rank;
        }
        return byte('b');
    }
    /// Keeps the name of an attribute of a _remote_device. Returns false if it is another one.
    bool learn(Id name) {
        if (is_text(name, "_rank")) known_.rank = name;
        else if (is_text(name, "_device")) known_.device_name = name;
        else if (is_text(name, "_worker_name") || is_text(name, "_remote_worker_name")) known_.worker = name;
        else return false;
        return true;
    }
    bool is_text(Id id, std::string_view text) const {
        return is_node(id) && place_.graph.kind(id) == Kind::text && place_.graph.text(id) == text;
    }
    /// Takes None, a text, or a torch.device, which nothing reads.
    bool device() {
        if (byte('N')) return true;
        if (peek() == 'X') return word();
        const Id id = get();
        if (!is_class(id, known_.device, "torch", "device")) return is_plain(id);
        if (!(peek() == 'X' ? word() : is_plain(get()))) return false;
        if (byte(tuple_of_one)) return put() && byte('R') && put();
        return number() && byte(tuple_of_two) && put() && byte('R') && put();
    }
    bool is_plain(Id id) const { return is_node(id) && place_.graph.kind(id) == Kind::text; }
    /// Takes a short text of small letters.
    bool word() {
        if (!byte('X')) return false;
        const auto size = little<std::uint32_t>();
        constexpr std::size_t most = 16;
        if (!size || *size > most || static_cast<std::size_t>(end_ - at_) < *size) return false;
        const std::string_view text(at_, *size);
        at_ += *size;
        return std::all_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; }) && put();
    }

    ShardLists& lists_;
    Known& known_;
    std::vector<std::uint64_t>& words_;
    const Place& place_;
    bool of_shards_;
    const char* at_;
    const char* end_;
    std::size_t words_before_;
    std::uint64_t first_ = 0;
    std::uint64_t next_ = 0;
    std::size_t shards_ = 0;
    std::size_t dimensions_ = unknown;
};

std::optional<ListReader::Taken> ShardLists::take(const Place& place) {
    // A list of another form is compared in vain: a few of them are enough to know that more will come.
    constexpr std::size_t most_others = 16;
    if (others_ == most_others) return std::nullopt;
    if (place.key != "shards_metadata" && place.key != "placements" && place.key != "shards") return std::nullopt;
    const std::size_t begin = words_.size();
    nodes_.clear();
    Form form(*this, place);
    const bool fits = form.list();
    const Taken taken = form.taken();
    if (!fits || !form.of_shards()) words_.resize(begin);
    if (!fits) {
        ++others_;
        return std::nullopt;
    }
    lists_.push_back({begin, form.shards(), form.dimensions(), form.of_shards()});
    shards_ += form.shards();
    return taken;
}

void ShardLists::place_in(const StateTree& tree, const std::vector<NodeId>& nodes) {
    numbers_.clear();
    for (std::size_t i = 0; i < nodes.size(); ++i)
        if (nodes[i] != StateTree::no_node) numbers_.emplace(nodes[i], i);
    if (tree.size() == 0) return;

    std::vector<bool> met(tree.size());
    std::vector<NodeId> open;
    std::vector<NodeId> keys;
    const auto add = [&](NodeId id) {
        if (has(id)) throw TakenValue();
        if (met[id]) return;
        met[id] = true;
        open.push_back(id);
    };
    const auto is_sharded = [&](NodeId id) { return distributed_kind(tree[id]) == StatedTensor::Kind::sharded; };
    const auto walk = [&](auto&& enter) {
        while (!open.empty()) {
            const NodeId id = open.back();
            open.pop_back();
            enter(id);
        }
    };
    add(tree.root());
    walk([&](NodeId id) {
        if (is_sharded(id)) return;
        if (const auto* const dict = std::get_if<StateTree::Dict>(&tree[id])) {
            for (const auto& [key, value] : dict->items) {
                keys.push_back(key);
                add(value);
            }
            for (const auto& attribute : dict->attributes) add(attribute.second);
        } else {
            state::for_each_child(tree[id], add);
        }
    });
    // Keys are compared and copied whole.
    met.assign(tree.size(), false);
    for (const NodeId key : keys) add(key);
    walk([&](NodeId id) {
        if (is_sharded(id)) throw TakenValue();
        state::for_each_child(tree[id], add);
    });
}

}  // namespace safemap::SAFEMAP_ABI::distributed
