// Walks the objects of compiled modules. The reference is torch/csrc/jit/serialization/pickler.cpp. Tested by
// tests/torch/script_test.cpp and fixtures_test.cpp.
#include "torch/script.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

/// Longest dotted name, in bytes; nested modules make names long.
constexpr std::size_t max_name_bytes = 1024;
/// Memory, in bytes, of a name in the lists and sets that it passes through, beside the name's own bytes.
constexpr std::uint64_t name_cost = 256;
/// Charge for each attribute that is visited: a module that is in many others is visited many times.
constexpr std::uint64_t item_cost = 16;

bool is_global(const PickleGraph& pickle, Id id) { return pickle.kind(id) == Kind::global; }

/// Returns true if a node is an object of a compiled class, such as "__torch__.my_model.Net"; the archive holds the
/// code of these classes.
bool is_module(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) != Kind::call || !is_global(pickle, pickle.call(id).callee)) return false;
    const std::string_view module = pickle.global(pickle.call(id).callee).module;
    return module == "__torch__" || module.starts_with("__torch__.");
}

bool may_hold_tensors(const PickleGraph& pickle, Id id) {
    const auto items = pickle.items(id);
    return std::any_of(items.begin(), items.end(),
                       [&](Id item) { return pickle.kind(item) == Kind::call || !pickle.items(item).empty(); });
}

/// A walk over the modules, depth first.
class Walk {
public:
    explicit Walk(const PickleGraph& pickle) : pickle_(pickle), allowance_(pickle.allowance()) {}

    std::vector<NamedValue> run() {
        modules_.push_back({{}, pickle_.root()});
        while (!modules_.empty()) {
            const NamedValue module = std::move(modules_.back());
            modules_.pop_back();
            const std::size_t above = modules_.size();
            for (const Id state : pickle_.call(module.value).states) add_state(module.name, state);
            std::reverse(modules_.begin() + static_cast<std::ptrdiff_t>(above), modules_.end());
        }
        return std::move(out_);
    }

private:
    void add_state(const std::string& prefix, Id state) {
        const auto items = pickle_.items(state);
        allowance_.spend(item_cost * items.size());
        if (pickle_.kind(state) == Kind::dict) {
            for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
                if (pickle_.kind(items[i]) == Kind::text) add(prefix, pickle_.text(items[i]), items[i + 1]);
            }
            return;
        }
        for (std::size_t i = 0; i < items.size(); ++i) add(prefix, std::to_string(i), items[i]);
    }

    void add(const std::string& prefix, std::string_view name, Id value) {
        value = untagged(value);
        const bool module = is_module(pickle_, value);
        if (!module && pickle_.kind(value) != Kind::call && !may_hold_tensors(pickle_, value)) return;
        const std::size_t bytes = prefix.size() + 1 + name.size();
        if (bytes > max_name_bytes) {
            throw Error(Errc::pickle_too_large, "the full name of an attribute has " + bytes_text(bytes) +
                                                    ", the limit is " + bytes_text(max_name_bytes));
        }
        allowance_.spend(name_cost + 2 * bytes);
        std::string whole = prefix.empty() ? std::string(name) : prefix + "." + std::string(name);
        if (module) {
            modules_.push_back({std::move(whole), value});
            return;
        }
        if (!names_.insert(whole).second)
            throw Error(Errc::bad_tensor, "two attributes are named " + safemap::quoted(whole));
        out_.push_back({std::move(whole), value});
    }

    /// Returns the value inside a type tag, else the node itself. TorchScript wraps lists and dictionaries in calls
    /// that give their types.
    Id untagged(Id id) const {
        if (pickle_.kind(id) != Kind::call || !is_global(pickle_, pickle_.call(id).callee)) return id;
        const auto global = pickle_.global(pickle_.call(id).callee);
        const auto arguments = pickle_.items(pickle_.call(id).arguments);
        return global.module == "torch.jit._pickle" && !arguments.empty() ? arguments[0] : id;
    }

    const PickleGraph& pickle_;
    Allowance allowance_;
    std::vector<NamedValue> modules_;  ///< still to visit
    std::vector<NamedValue> out_;
    std::unordered_set<std::string, NameHash> names_;
};

}  // namespace

bool is_script(const PickleGraph& pickle) { return is_module(pickle, pickle.root()); }

std::vector<NamedValue> script_state(const PickleGraph& pickle) { return Walk(pickle).run(); }

}  // namespace safemap::SAFEMAP_ABI::torch
