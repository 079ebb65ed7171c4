// The slow reference for flatten: recursive, copies every path, finds ties by comparing with all earlier tensors. For
// small trees only.
#pragma once

#include <safemap/state_tree.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

class SlowFlatten {
public:
    struct Found {
        std::string name;
        const safemap::LazyTensor* tensor;
        safemap::StateTree::NodeId node;
    };
    std::vector<std::vector<Found>> groups;  ///< groups of ties; the first of each is stored
    std::vector<std::string> skipped;
    bool verbatim = false;

    explicit SlowFlatten(const safemap::StateTree& tree) : tree_(tree) {
        verbatim = flat();
        if (verbatim) {
            for (const auto& [key, value] : dict().items) take(text(key), value);
        } else {
            walk(tree.root(), "");
        }
    }

private:
    using Tree = safemap::StateTree;

    const Tree::Dict& dict() const { return std::get<Tree::Dict>(tree_[tree_.root()]); }
    std::string text(Tree::NodeId id) const { return std::get<std::string>(tree_[id]); }

    bool flat() const {
        if (!std::holds_alternative<Tree::Dict>(tree_[tree_.root()])) return false;
        return std::all_of(dict().items.begin(), dict().items.end(), [this](const auto& item) {
            if (!std::holds_alternative<std::string>(tree_[item.first])) return false;
            const std::string key = text(item.first);
            return key != "" && key != "__metadata__" && key.find("\xed\xa0\x80") == key.npos &&
                   key.find('\0') == key.npos && std::holds_alternative<Tree::Tensor>(tree_[item.second]);
        });
    }

    static std::string replaced(std::string text, const std::string& from, const std::string& to) {
        for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
            text.replace(at, from.size(), to);
        return text;
    }
    static bool integer_like(const std::string& text) {
        const std::string digits = text.substr(0, 1) == "-" ? text.substr(1) : text;
        return digits != "" && digits.find_first_not_of("0123456789") == digits.npos;
    }
    static std::string of_string(const std::string& key) {
        const std::string escaped = replaced(replaced(key, "~", "~0"), "/", "~1");
        return key == "" || key == "__metadata__" || integer_like(key) ? "~s" + escaped : escaped;
    }
    std::string of_key(Tree::NodeId id, std::size_t place) const {
        const auto& key = tree_[id];
        if (const auto* value = std::get_if<bool>(&key)) return *value ? "~true" : "~false";
        if (std::holds_alternative<Tree::None>(key)) return "~none";
        if (const auto* value = std::get_if<std::int64_t>(&key)) return std::to_string(*value);
        if (const auto* value = std::get_if<Tree::BigInt>(&key)) return value->decimal;
        const auto* value = std::get_if<std::string>(&key);
        const bool sayable =
            value != nullptr && value->find('\0') == value->npos && value->find("\xed\xa0\x80") == value->npos;
        return sayable ? of_string(*value) : "~k" + std::to_string(place);
    }
    static std::string below(const std::string& path, const std::string& segment) {
        return path == "" ? segment : path + "/" + segment;
    }

    void walk(Tree::NodeId id, const std::string& path) {
        const auto& node = tree_[id];
        if (std::holds_alternative<Tree::Tensor>(node)) return take(path == "" ? "~root" : path, id);
        const auto* sequence = std::get_if<Tree::Sequence>(&node);
        const auto* dict = std::get_if<Tree::Dict>(&node);
        const auto* opaque = std::get_if<Tree::Opaque>(&node);
        if (!sequence && !dict && !opaque) return;
        if (!walked_.insert(id).second) {
            if (opaque && opaque->type == "torch.Tensor") skipped.push_back(path == "" ? "~root" : path);
            return;
        }
        if (sequence) {
            const bool set =
                sequence->kind == Tree::Sequence::Kind::set || sequence->kind == Tree::Sequence::Kind::frozenset;
            for (std::size_t i = 0; i < sequence->items.size(); ++i) {
                walk(sequence->items[i], below(path, (set ? "~k" : "") + std::to_string(i)));
            }
        }
        if (dict) {
            for (std::size_t i = 0; i < dict->items.size(); ++i) {
                walk(dict->items[i].first, below(path, "~k" + std::to_string(i) + "/~key"));
                walk(dict->items[i].second, below(path, of_key(dict->items[i].first, i)));
            }
        }
        if (opaque) {
            skipped.push_back(path == "" ? "~root" : path);
            for (const auto& [name, child] : opaque->children) {
                const bool itself = name == "" && std::holds_alternative<Tree::Tensor>(tree_[child]);
                walk(child, itself ? path : below(path, integer_like(name) ? name : of_string(name)));
            }
        }
    }

    static bool tied(const Found& a, const Found& b) {
        if (a.node == b.node) return true;
        const auto& x = a.tensor->strided_view();
        const auto& y = b.tensor->strided_view();
        return a.tensor->element_count() > 0 && a.tensor->stored() == b.tensor->stored() && x.offset == y.offset &&
               x.shape == y.shape && x.strides == y.strides && a.tensor->decoding() == b.tensor->decoding();
    }
    void take(const std::string& name, Tree::NodeId id) {
        const Found found{name, &std::get<Tree::Tensor>(tree_[id]).tensor, id};
        for (auto& group : groups) {
            if (std::any_of(group.begin(), group.end(), [&](const Found& other) { return tied(found, other); })) {
                group.push_back(found);
                return;
            }
        }
        groups.push_back({found});
    }

    const Tree& tree_;
    std::set<Tree::NodeId> walked_;
};
