// Prints a tree for people to read. Tested by tests/state/state_tree_test.cpp.
#include "base/json.hpp"
#include "base/text.hpp"
#include "state/names.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/state_tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

using NodeId = StateTree::NodeId;

constexpr std::size_t deepest = 64;
constexpr std::size_t longest_name = 200;
constexpr std::size_t longest_value = 80;
/// Limit of all lines with their paths: hostile trees are nested deep below long keys.
constexpr std::size_t most_bytes = std::size_t{64} << 20;

/// The text of a value in one line. For a sequence or dictionary, it is the text of an empty one.
struct Value {
    const StateTree& tree;

    std::string operator()(StateTree::None) const { return "None"; }
    std::string operator()(bool value) const { return value ? "True" : "False"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(const StateTree::BigInt& value) const { return printable(value.decimal, longest_value); }
    std::string operator()(double value) const {
        if (value != value) return "nan";
        if (value - value != 0) return value > 0 ? "inf" : "-inf";
        std::string text;
        json::append_real(text, value);
        return text;
    }
    std::string operator()(const StateTree::Complex& value) const {
        return "(" + (*this)(value.real) + ", " + (*this)(value.imag) + "j)";
    }
    std::string operator()(const std::string& value) const { return "'" + printable(value, longest_value) + "'"; }
    std::string operator()(const StateTree::Bytes& value) const { return bytes_text(value.bytes.size()); }
    std::string operator()(const StateTree::Constant& value) const { return printable(value.text, longest_value); }
    std::string operator()(const StateTree::NumpyScalar& value) const {
        return printable(value.dtype, longest_value) + " " + std::visit(*this, tree[value.value]);
    }
    std::string operator()(const StateTree::Tensor& value) const {
        return (value.numpy ? "NumPy " : "") + std::string(name(value.tensor.dtype())) + " " +
               to_string(value.tensor.shape());
    }
    std::string operator()(const StateTree::Sequence& value) const {
        constexpr const char* empty[]{"[]", "()", "set()", "frozenset()", "torch.Size([])"};
        return empty[static_cast<std::size_t>(value.kind)];
    }
    std::string operator()(const StateTree::Dict&) const { return "{}"; }
    std::string operator()(const StateTree::Opaque& value) const {
        constexpr const char* kinds[]{"", "quantized ", "sparse ", "nested "};
        return kinds[static_cast<std::size_t>(value.form)] + printable(value.type, longest_value);
    }
};

/// The lines of all values, in order, each with its path.
class Leaves {
public:
    explicit Leaves(const StateTree& tree) : tree_(tree) {}

    std::vector<Foldable> run() {
        if (tree_.size() > 0) visit(tree_.root(), 0);
        return std::move(lines_);
    }

private:
    void visit(NodeId id, std::size_t depth) {
        if (full_) return;
        const StateTree::Node& node = tree_[id];
        const auto* sequence = std::get_if<StateTree::Sequence>(&node);
        const auto* dict = std::get_if<StateTree::Dict>(&node);
        const auto* opaque = std::get_if<StateTree::Opaque>(&node);
        const std::size_t size = sequence != nullptr ? sequence->items.size()
                                 : dict != nullptr   ? dict->items.size()
                                 : opaque != nullptr ? opaque->children.size()
                                                     : 0;
        if (size == 0) return line(std::visit(Value{tree_}, node));
        if (sequence != nullptr && is_plain(id, *sequence)) return line(in_line(*sequence));
        if (const auto [first, fresh] = first_.try_emplace(id, path_); !fresh)
            return line("the same as " + safemap::quoted(first->second.empty() ? state::root_name : first->second));
        spend(path_.size());
        if (depth == deepest) return line("...");
        if (opaque != nullptr) line(Value{tree_}(*opaque));
        for (std::size_t i = 0; i < size && !full_; ++i) {
            if (sequence != nullptr) below(state::item_segment(sequence->kind, i), sequence->items[i], depth);
            if (dict != nullptr) entry(*dict, i, depth);
            if (opaque != nullptr && opaque->children[i].first.empty()) visit(opaque->children[i].second, depth + 1);
            else if (opaque != nullptr)
                below(state::child_segment(opaque->children[i].first), opaque->children[i].second, depth);
        }
        if (dict == nullptr) return;
        for (const auto& [name, attribute] : dict->attributes) below("~attrs/" + name, attribute, depth);
    }

    void entry(const StateTree::Dict& dict, std::size_t i, std::size_t depth) {
        const auto& [key, value] = dict.items[i];
        const std::string segment = state::key_segment(tree_[key], i);
        below(segment, value, depth);
        if (segment == state::ordinal_segment(i))
            below(segment + "/" + std::string(state::key_segment_below), key, depth);
    }

    bool is_plain(NodeId sequence_id, const StateTree::Sequence& sequence) {
        const auto [known, fresh] = plain_.try_emplace(sequence_id, false);
        if (!fresh) return known->second;
        return known->second = std::all_of(sequence.items.begin(), sequence.items.end(), [this](NodeId id) {
                   const StateTree::Node& item = tree_[id];
                   return !std::holds_alternative<StateTree::Sequence>(item) &&
                          !std::holds_alternative<StateTree::Dict>(item) &&
                          !std::holds_alternative<StateTree::Opaque>(item) &&
                          !std::holds_alternative<StateTree::Tensor>(item);
               });
    }
    /// Returns a sequence in one line, such as "(0.9, 0.95)". Of many items, returns the first ones and the count.
    std::string in_line(const StateTree::Sequence& sequence) const {
        constexpr std::array<std::pair<const char*, const char*>, 5> brackets{
            {{"[", "]"}, {"(", ")"}, {"{", "}"}, {"frozenset({", "})"}, {"torch.Size([", "])"}}};
        const auto& [open, close] = brackets[static_cast<std::size_t>(sequence.kind)];
        std::string text = open;
        for (std::size_t i = 0; i < sequence.items.size(); ++i) {
            if (i > 0) text += ", ";
            if (text.size() >= longest_value) {
                text += "... " + std::to_string(sequence.items.size()) + " in all";
                break;
            }
            text += std::visit(Value{tree_}, tree_[sequence.items[i]]);
        }
        return text + close;
    }

    void below(const std::string& segment, NodeId child, std::size_t depth) {
        const std::size_t before = path_.size();
        state::append_segment(path_, printable(segment, longest_name));
        visit(child, depth + 1);
        path_.resize(before);
    }

    /// Adds a line. If there are too many lines, adds a last line that says so, and ignores later lines.
    void line(std::string value) {
        if (full_) return;
        full_ = !spend(path_.size() + value.size() + sizeof(Foldable));
        lines_.push_back({.name = full_ ? "..." : path_, .kind = full_ ? "more than is shown" : std::move(value)});
    }
    bool spend(std::size_t bytes) {
        bytes_ += bytes;
        return bytes_ <= most_bytes;
    }

    const StateTree& tree_;
    std::string path_;
    std::vector<Foldable> lines_;
    std::unordered_map<NodeId, std::string> first_;
    std::unordered_map<NodeId, bool> plain_;  ///< by sequence
    std::size_t bytes_ = 0;
    bool full_ = false;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const StateTree& tree) {
    NameParts before;
    for (const Folded& folded : fold(Leaves(tree).run())) {
        const NameParts& parts = folded.parts;
        std::size_t known = 0;  // levels that are printed above
        while (known + 1 < parts.size() && known < before.size() && parts[known] == before[known]) ++known;
        for (std::size_t level = known; level < parts.size(); ++level) {
            out << std::string(2 * level, ' ') << parts[level].substr(level == 0 ? 0 : 1);
            if (level + 1 < parts.size()) out << '\n';
        }
        const std::string times = folded.times();
        out << (parts.empty() || parts.back().empty() ? "" : "  ") << folded.kind << (times.empty() ? "" : "  ")
            << times << '\n';
        before = parts;
    }
    return out;
}

}  // namespace safemap::SAFEMAP_ABI
