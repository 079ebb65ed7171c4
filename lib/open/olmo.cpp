// Recognises names that OLMo wrote (olmo/safetensors_util.py, 2024) and builds the tree that they spell. Each name is a
// pickle in base64, and each value that is not a tensor is a pickle in a U8 tensor. Both are read inertly: nothing is
// ever unpickled. Tested by tests/open/olmo_test.cpp and, with names that Python wrote, by tests/interop/structure.py.
#include "open/read.hpp"

#include "base/encodings.hpp"
#include "base/text.hpp"
#include "open/read_torch.hpp"
#include "pickle/pickle.hpp"
#include "state/path_tree.hpp"
#include "torch/plain.hpp"

#include <algorithm>
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

/// Adds the path of a name to a tree and returns the node of its value. Returns no_node if another name ends at a node
/// of the path, or leads through its last node.
NodeId place_of(const Name& name, state::PathTree& tree) {
    NodeId at = tree.root();
    for (std::size_t i = 0; i < name.keys.size(); ++i) {
        const NodeId key = std::visit([&](const auto& value) { return tree.key(value); }, name.keys[i]);
        if (i + 1 == name.keys.size()) {
            const NodeId value = tree.add(StateTree::None{});
            return tree.put(at, key, value) ? value : StateTree::no_node;
        }
        at = tree.dict_below(at, key);
        if (!std::holds_alternative<StateTree::Dict>(tree.tree()[at])) break;
    }
    return StateTree::no_node;
}

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
    state::PathTree tree;
    std::vector<NodeId> places;
    for (const Name& name : *names) {
        places.push_back(place_of(name, tree));
        if (places.back() == StateTree::no_node) return;
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        const LazyTensor& tensor = contents.tensors[i];
        if (!(*names)[i].pickled) {
            tree.tree()[places[i]] = StateTree::Tensor{.tensor = tensor.renamed({})};
            continue;
        }
        try {
            StateTree value = unpickled(tensor, options, contents);
            const NodeId root = value.root();
            const NodeId moved = root + tree.graft(std::move(value));
            tree.tree()[places[i]] = StateTree::Node(tree.tree()[moved]);
        } catch (Error& error) {
            if (error.code() == Errc::unknown_global || remedy(error.code()) != Remedy::reject_data)
                throw std::move(error.with_tensor(tensor.name()));
            contents.notes.push_back("names look like OLMo's but are not decoded: the value of " +
                                     safemap::quoted(tensor.name()) + " cannot be read: " + error.message());
            return;
        }
    }
    // From here on, the tensors have the names that a `.pt` with this tree gives them.
    const StateTree all = tree.take();
    state::set_tree(contents, all.subtree(all.root()));
    contents.notes.emplace_back("names are base64 pickles, as OLMo writes; they were decoded to paths");
}

}  // namespace safemap::SAFEMAP_ABI::open
