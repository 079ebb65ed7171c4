// Recognises names that OLMo wrote and builds the tree that they spell. Tested by tests/open/olmo_test.cpp and, with
// names that Python wrote, by tests/interop/structure.py.
#include "open/olmo.hpp"

#include "base/base64.hpp"
#include "base/text.hpp"
#include "open/read_torch.hpp"
#include "pickle/pickle.hpp"
#include "state/walk.hpp"
#include "torch/plain.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using NodeId = StateTree::NodeId;
using Key = std::variant<std::int64_t, std::string>;

/// The first characters of a pickle of protocols 2 to 5, in base64.
constexpr std::string_view pickle_start = "gA";
constexpr std::size_t longest_name = 8192;
constexpr std::uint64_t longest_value = std::uint64_t{256} << 20;

struct Name {
    std::vector<Key> keys;
    bool pickled = false;
};

std::optional<Name> parsed(std::string_view bytes) {
    const PickleGraph pickle = read_pickle(bytes, {.max_bytes = longest_name, .max_memory = 1 << 20});
    const auto pair = pickle.items(pickle.root());
    if (pair.size() != 2 || pickle.kind(pair[0]) != PickleGraph::Kind::tuple ||
        pickle.kind(pair[1]) != PickleGraph::Kind::boolean)
        return std::nullopt;
    for (PickleGraph::Id id = 0; id < pickle.size(); ++id)
        if (pickle.kind(id) == PickleGraph::Kind::global) return std::nullopt;
    Name name{.keys = {}, .pickled = pickle.boolean(pair[1])};
    for (const PickleGraph::Id key : pickle.items(pair[0])) {
        if (pickle.kind(key) == PickleGraph::Kind::integer) name.keys.emplace_back(pickle.integer(key));
        else if (pickle.kind(key) == PickleGraph::Kind::text) name.keys.emplace_back(std::string(pickle.text(key)));
        else return std::nullopt;
    }
    return name.keys.empty() ? std::nullopt : std::optional(std::move(name));
}

std::optional<Name> parsed_name(std::string_view text) {
    if (!text.starts_with(pickle_start) || text.size() > longest_name) return std::nullopt;
    std::string standard(text);
    std::replace(standard.begin(), standard.end(), '-', '+');
    std::replace(standard.begin(), standard.end(), '_', '/');
    const auto bytes = from_base64(standard);
    if (!bytes) return std::nullopt;
    try {
        return parsed(*bytes);
    } catch (const Error&) {
        return std::nullopt;
    }
}

/// Returns the parsed names of all tensors, or nothing if one was not written by OLMo.
std::optional<std::vector<Name>> parsed_names(const std::vector<LazyTensor>& tensors) {
    std::vector<Name> names;
    for (const LazyTensor& tensor : tensors) {
        auto name = parsed_name(tensor.name());
        if (!name) return std::nullopt;
        names.push_back(std::move(*name));
    }
    return names.empty() ? std::nullopt : std::optional(std::move(names));
}

/// The tree of dictionaries that keys lead through.
class Tree {
public:
    Tree() { tree_.set_root(tree_.add(StateTree::Dict{})); }

    /// Adds the path of a name and returns the node of its value. Returns nothing if another name ends at a node of the
    /// path, or leads through its last node.
    std::optional<NodeId> place(const Name& name) {
        NodeId at = tree_.root();
        for (std::size_t i = 0; i < name.keys.size(); ++i) {
            const bool last = i + 1 == name.keys.size();
            const auto [entry, fresh] = places_.try_emplace({at, name.keys[i]}, StateTree::no_node);
            if (!fresh && (last || !std::holds_alternative<StateTree::Dict>(tree_[entry->second]))) return std::nullopt;
            if (fresh) entry->second = add(at, name.keys[i], last);
            at = entry->second;
        }
        return at;
    }

    void put(NodeId at, StateTree::Node node) { tree_[at] = std::move(node); }
    void graft(NodeId at, StateTree part) {
        std::vector<NodeId> numbers(part.size());
        for (NodeId id = 0; id < part.size(); ++id) numbers[id] = id == part.root() ? at : tree_.add(StateTree::None{});
        for (NodeId id = 0; id < part.size(); ++id) {
            state::for_each_child(part[id], [&](NodeId& child) { child = numbers[child]; });
            tree_[numbers[id]] = std::move(part[id]);
        }
    }
    StateTree take() { return std::move(tree_); }

private:
    NodeId add(NodeId parent, const Key& key, bool last) {
        const NodeId name = std::visit([this](const auto& value) { return tree_.add(value); }, key);
        const NodeId value = tree_.add(last ? StateTree::Node(StateTree::None{}) : StateTree::Dict{});
        std::get<StateTree::Dict>(tree_[parent]).items.emplace_back(name, value);
        return value;
    }

    StateTree tree_;
    std::map<std::pair<NodeId, Key>, NodeId> places_;
};

StateTree unpickled(const LazyTensor& tensor, const OpenOptions& options, Contents& contents) {
    if (tensor.dtype() != Dtype::u8) throw Error(Errc::bad_tensor, "a pickled value is not U8");
    if (tensor.nbytes() > longest_value) throw Error(Errc::bad_tensor, "a pickled value is larger than 256 MiB");
    const TensorView loaded = tensor.load();
    const auto source = memory_source("a pickled value", {loaded.bytes().begin(), loaded.bytes().end()});
    ThrowFirst faults;
    torch::NamedGlobals globals(options.strict_globals);
    torch::Archive archive = torch::read_plain(source, faults, &globals);
    const std::string value = "the value of " + safemap::quoted(tensor.name());
    for (const std::string& note : archive.notes) contents.notes.push_back(value + ": " + note);
    add_globals(globals, value + ": ", contents);
    return std::move(archive.tree);
}

}  // namespace

void take_olmo_names(Contents& contents, const OpenOptions& options) {
    const auto names = parsed_names(contents.tensors);
    if (!names) return;
    Tree tree;
    std::vector<NodeId> places;
    for (const Name& name : *names) {
        const auto place = tree.place(name);
        if (!place) return;
        places.push_back(*place);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        const LazyTensor& tensor = contents.tensors[i];
        if (!(*names)[i].pickled) {
            tree.put(places[i], StateTree::Tensor{.tensor = tensor.renamed({})});
            continue;
        }
        try {
            tree.graft(places[i], unpickled(tensor, options, contents));
        } catch (Error& error) {
            if (error.code() == Errc::unknown_global || remedy(error.code()) != Remedy::reject_data)
                throw std::move(error.with_tensor(tensor.name()));
            contents.notes.push_back("names look like OLMo's but are not decoded: the value of " +
                                     safemap::quoted(tensor.name()) + " cannot be read: " + error.message());
            return;
        }
    }
    // From here on, the tensors have the names that a `.pt` with this tree gives them.
    state::set_tree(contents, tree.take());
    contents.notes.emplace_back("names are base64 pickles, as OLMo writes; they were decoded to paths");
}

}  // namespace safemap::SAFEMAP_ABI::open
