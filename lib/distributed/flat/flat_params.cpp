// Cuts flat tensors into parameters. From the top:
//
//   recognition   flat parameters by their keys, chunks by their form
//   FSDP1         a flat tensor, from the shards of all ranks, is cut at the offsets that the manifest gives
//   chunks        element e of all parameters of a layer is in chunk e / size, at e % size
//
// Tested by tests/distributed/flat_params_test.cpp.
#include "distributed/flat/flat_params.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/model_weights.hpp"
#include "lazy/whole.hpp"
#include "state/names.hpp"
#include "state/path_tree.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;

constexpr std::string_view flat_key = "_flat_param";

[[noreturn]] void fail(const Manifest& manifest, std::string message) {
    throw Error(Errc::manifest_mismatch, std::move(message)).with_path(manifest.path);
}

/// Returns the key that ends a path.
std::string key_in(std::string_view path) {
    const auto key = state::key_of(path.substr(path.rfind('/') + 1));  // npos + 1 is 0
    const auto* const text = key ? std::get_if<std::string>(&*key) : nullptr;
    return text == nullptr ? std::string() : *text;
}

bool is_flat_tensor(const StateTree& tree, NodeId node) {
    return std::holds_alternative<StateTree::Tensor>(tree[node]) || distributed_kind(tree[node]).has_value();
}

bool is_chunk(const StateTree& tree, NodeId node) {
    const auto* const leaf = std::get_if<StateTree::Tensor>(&tree[node]);
    return leaf != nullptr && !leaf->numpy && leaf->tensor.shape().size() == 1;
}

const StateTree::Sequence* list_at(const StateTree& tree, NodeId node) {
    const auto* const list = std::get_if<StateTree::Sequence>(&tree[node]);
    using SequenceKind = StateTree::Sequence::Kind;
    return list != nullptr && (list->kind == SequenceKind::list || list->kind == SequenceKind::tuple) ? list : nullptr;
}

/// Cuts `flat` into the parameters of a group.
Named parameters_in(const FlatGroup& group, const LazyTensor& flat, const PartSources& sources) {
    Named out;
    for (const FlatParameter& one : group.parameters) {
        const std::vector<FlatPart> parts(1, {0, one.numel, &flat, one.offset});
        out.emplace_back(one.name, whole(one.name, flat.dtype(), one.shape, parts, sources));
    }
    return out;
}

void check_flat(const Manifest& manifest, const FlatGroup& group, Dtype dtype, std::uint64_t numel) {
    if (numel != group.numel)
        fail(manifest, "the numel of " + safemap::quoted(group.key) + " is " + std::to_string(group.numel) +
                           "; the files of all ranks have " + std::to_string(numel) + " elements");
    if (group.dtype && *group.dtype != dtype)
        fail(manifest, "the dtype of " + safemap::quoted(group.key) + " is " + std::string(name(*group.dtype)) +
                           "; the files have " + std::string(name(dtype)));
}

/// Joins the pieces of a flat tensor that the ranks hold as plain tensors: chunks, of which the last may be padded.
LazyTensor joined_pieces(const Manifest& manifest, const FlatGroup& group, const std::vector<LazyTensor>& pieces,
                         const PartSources& sources) {
    const std::uint64_t size = group.numel / pieces.size() + (group.numel % pieces.size() != 0 ? 1 : 0);
    std::vector<FlatPart> parts;
    std::uint64_t first = 0;
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
        const std::uint64_t count = std::min(size, group.numel - first);
        if (pieces[rank].element_count() < count || pieces[rank].element_count() > size)
            fail(manifest, safemap::quoted(group.key) + " has " + std::to_string(group.numel) +
                               " elements, so that rank " + std::to_string(rank) + " has " + std::to_string(count) +
                               "; its file has " + std::to_string(pieces[rank].element_count()));
        parts.push_back({first, count, &pieces[rank], 0});
        first += count;
    }
    check_flat(manifest, group, pieces.front().dtype(), group.numel);
    return whole(group.key, pieces.front().dtype(), Shape{group.numel}, parts, sources);
}

/// Returns how many elements all ranks have of a tensor that repeats a part of a flat one.
std::uint64_t ignored_elements(const RankFileSet& set, std::size_t i) {
    std::uint64_t count = 0;
    for (const RankShare& share : set.shares) count += share.parts[i].offset;
    return count;
}

/// The parameters of FSDP1 that take the places of the tensors in the files.
class Replacement {
public:
    Replacement(const RankFileSet& set, const RankTensors& tensors, const Manifest& manifest) : manifest_(manifest) {
        std::unordered_map<std::string_view, const FlatGroup*> groups;
        for (const FlatGroup& group : manifest.groups) groups.emplace(group.key, &group);
        const auto& all = set.skeleton->tensors();
        for (std::size_t i = 0; i < all.size(); ++i)
            if (all[i].role == TensorRole::ignored) repeated_.emplace(key_in(all[i].name), ignored_elements(set, i));
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::string key = key_in(all[i].name);
            if (!is_flat_key(key)) continue;
            const auto group = groups.find(key);
            if (group == groups.end()) fail(manifest, "the manifest lacks the key " + safemap::quoted(key));
            add(*group->second, set, tensors, i);
            groups.erase(group);
        }
        if (!groups.empty())
            fail(manifest,
                 "the files have no " + safemap::quoted(groups.begin()->second->key) + ", which the manifest lists");
    }

    /// Replaces the entries of all dictionaries of the tree.
    void apply(StateTree& tree) {
        const std::size_t size = tree.size();
        for (NodeId id = 0; id < size; ++id) {
            const auto* const dict = std::get_if<StateTree::Dict>(&tree[id]);
            if (dict == nullptr || !holds_flat(tree, *dict)) continue;
            auto items = replaced(tree, StateTree::Dict(*dict));
            std::get<StateTree::Dict>(tree[id]).items = std::move(items);
        }
    }

private:
    using Items = std::vector<std::pair<NodeId, NodeId>>;

    void add(const FlatGroup& group, const RankFileSet& set, const RankTensors& tensors, std::size_t i) {
        const SkeletonTensor& described = set.skeleton->tensors()[i];
        LazyTensor flat = tensors.tensor(i);
        if (described.role == TensorRole::piece)
            flat = joined_pieces(manifest_, group, tensors.pieces(i), tensors.sources());
        if (flat.shape().size() != 1)
            fail(manifest_, safemap::quoted(group.key) + " has the shape " + to_string(flat.shape()) +
                                " in the files; expected one dimension");
        check_flat(manifest_, group, flat.dtype(), flat.element_count());
        for (const FlatParameter& one : group.parameters) {
            const auto repeated = repeated_.find(one.name);
            if (repeated == repeated_.end() || repeated->second == one.numel) continue;
            fail(manifest_, "the numel of " + safemap::quoted(one.name) + " is " + std::to_string(one.numel) +
                                "; the files of all ranks have " + std::to_string(repeated->second) +
                                " elements of it");
        }
        by_node_.emplace(described.node, parameters_in(group, flat, tensors.sources()));
    }

    bool holds_flat(const StateTree& tree, const StateTree::Dict& dict) const {
        return std::any_of(dict.items.begin(), dict.items.end(), [&](const auto& item) {
            return std::holds_alternative<std::string>(tree[item.first]) && by_node_.contains(item.second);
        });
    }

    /// A parameter takes the place of the tensor that repeats a part of it, if there is one, or that of the flat one.
    Items replaced(StateTree& tree, const StateTree::Dict& dict) const {
        std::unordered_map<std::string, const LazyTensor*> parameters;
        std::unordered_set<std::string> own;
        for (const auto& [key, value] : dict.items) {
            if (const auto* const text = std::get_if<std::string>(&tree[key])) own.insert(*text);
            if (const auto flat = by_node_.find(value); flat != by_node_.end())
                for (const auto& [name, tensor] : flat->second) parameters.emplace(name, &tensor);
        }
        Items out;
        for (const auto& [key, value] : dict.items) {
            const auto* const text = std::get_if<std::string>(&tree[key]);
            const auto flat = by_node_.find(value);
            if (flat != by_node_.end()) {
                for (const auto& [name, tensor] : flat->second)
                    if (!own.contains(name)) out.emplace_back(tree.add(name), tree.add(leaf(tensor)));
                continue;
            }
            const auto parameter = text == nullptr ? parameters.end() : parameters.find(*text);
            if (parameter == parameters.end()) out.emplace_back(key, value);
            else out.emplace_back(key, tree.add(leaf(*parameter->second)));
        }
        return out;
    }

    static StateTree::Tensor leaf(const LazyTensor& tensor) { return {.tensor = tensor.renamed({})}; }

    const Manifest& manifest_;
    std::unordered_map<NodeId, Named> by_node_ = {};
    /// The numbers of elements, in all files, of tensors that repeat a part of a flat one.
    std::unordered_map<std::string, std::uint64_t> repeated_ = {};
};

// Chunks.

/// A chunk of one rank: elements [from, from + size) of a tensor.
struct StoredChunk {
    const LazyTensor* value;
    std::uint64_t from;
};

/// Adds the parameters of one kind of a layer.
void add_chunked(const Manifest& manifest, const ChunkedLayer::Chunk& said, const std::vector<StoredChunk>& chunks,
                 const PartSources& sources, Named& out) {
    const std::uint64_t numel = said.numel();
    if (said.size < numel / chunks.size() + (numel % chunks.size() != 0 ? 1 : 0))
        fail(manifest, "chunks of " + std::to_string(said.size) + " elements from " + std::to_string(chunks.size()) +
                           " ranks are too few for the " + std::to_string(numel) + " elements up to the end of " +
                           safemap::quoted(said.parameters.back().name));
    for (const FlatParameter& one : said.parameters) {
        std::vector<FlatPart> parts;
        for (std::uint64_t done = 0; done < one.numel;) {
            const std::uint64_t at = one.offset + done;
            const std::uint64_t within = at % said.size;
            const std::uint64_t count = std::min(said.size - within, one.numel - done);
            const StoredChunk& chunk = chunks[static_cast<std::size_t>(at / said.size)];
            parts.push_back({done, count, chunk.value, chunk.from + within});
            done += count;
        }
        const Dtype dtype = chunks.front().value->dtype();
        out.emplace_back(one.name, whole(one.name, dtype, one.shape, parts, sources));
    }
}

void check_sizes(const Manifest& manifest, std::size_t layer, std::string_view kind, std::uint64_t wanted,
                 const std::vector<LazyTensor>& values) {
    for (std::size_t rank = 0; rank < values.size(); ++rank)
        if (values[rank].element_count() != wanted)
            fail(manifest, "the " + std::string(kind) + " of layer " + std::to_string(layer) + " has " +
                               std::to_string(wanted) + " elements for each rank; the file of rank " +
                               std::to_string(rank) + " has " + std::to_string(values[rank].element_count()));
}

std::vector<StoredChunk> chunks_in(const std::vector<LazyTensor>& values, std::uint64_t from) {
    std::vector<StoredChunk> out;
    for (const LazyTensor& value : values) out.push_back({&value, from});
    return out;
}

}  // namespace

bool is_flat_key(std::string_view key) {
    return key == flat_key || (key.ends_with(flat_key) && key[key.size() - flat_key.size() - 1] == '.');
}

bool has_flat_parameters(const StateTree& tree) {
    for (NodeId id = 0; id < tree.size(); ++id) {
        const auto* const dict = std::get_if<StateTree::Dict>(&tree[id]);
        if (dict == nullptr) continue;
        for (const auto& [key, value] : dict->items) {
            const auto* const text = std::get_if<std::string>(&tree[key]);
            if (text != nullptr && is_flat_key(*text) && is_flat_tensor(tree, value)) return true;
        }
    }
    return false;
}

bool is_list_of_chunks(const StateTree& tree) {
    const auto* const layers = tree.size() == 0 ? nullptr : list_at(tree, tree.root());
    if (layers == nullptr || layers->items.empty()) return false;
    return std::all_of(layers->items.begin(), layers->items.end(), [&](NodeId item) {
        if (is_chunk(tree, item)) return true;
        const auto* const pair = list_at(tree, item);
        return pair != nullptr && pair->items.size() == 2 && is_chunk(tree, pair->items[0]) &&
               is_chunk(tree, pair->items[1]);
    });
}

void check_flat_parameters(const Manifest& manifest, std::uint64_t ranks) {
    // A parameter begins at a multiple of 16 bytes, and the whole is a multiple of the number of ranks.
    constexpr std::uint64_t most = 16;
    if (manifest.groups.empty()) fail(manifest, "the files hold flat parameters, but the manifest has no flat_params");
    for (const FlatGroup& group : manifest.groups) {
        std::uint64_t end = 0;
        const auto check = [&](std::uint64_t next, std::uint64_t allowed) {
            if (next - end <= allowed) return;
            fail(manifest, "elements " + std::to_string(end) + " to " + std::to_string(next - 1) + " of " +
                               safemap::quoted(group.key) + " are in no parameter, and FSDP1 pads with at most " +
                               std::to_string(allowed));
        };
        for (const FlatParameter& one : group.parameters) {
            check(one.offset, most);
            end = one.offset + one.numel;
        }
        check(group.numel, most + ranks);
    }
}

Skeleton::RoleOf roles_beside_flat(const Manifest& manifest) {
    std::unordered_set<std::string> names;
    for (const FlatGroup& group : manifest.groups)
        for (const FlatParameter& one : group.parameters) names.insert(one.name);
    return [names = std::move(names)](std::string_view name, const LazyTensor&) {
        const std::string key = key_in(name);
        if (is_flat_key(key)) return TensorRole::piece;
        return names.contains(key) ? TensorRole::ignored : TensorRole::replica;
    };
}

void replace_flat_parameters(StateTree& tree, const RankFileSet& set, const RankTensors& tensors,
                             const Manifest& manifest) {
    Replacement(set, tensors, manifest).apply(tree);
}

StateTree parameters_of_chunks(const RankFileSet& set, const RankTensors& tensors, const Manifest& manifest) {
    const StateTree& tree = set.skeleton->tree();
    const auto& layers = list_at(tree, tree.root())->items;
    if (layers.size() != manifest.layers.size())
        fail(manifest, "the manifest has " + std::to_string(manifest.layers.size()) + " layers; the files have " +
                           std::to_string(layers.size()));
    const auto values_at = [&](NodeId node) { return tensors.pieces(*set.skeleton->tensor_at(node)); };
    Named named;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const ChunkedLayer& said = manifest.layers[layer];
        const auto* const pair = list_at(tree, layers[layer]);
        std::vector<LazyTensor> values = values_at(pair == nullptr ? layers[layer] : pair->items[0]);
        if (pair == nullptr) {
            check_sizes(manifest, layer, "chunk", said.trainable.size + said.frozen.size, values);
            add_chunked(manifest, said.trainable, chunks_in(values, 0), tensors.sources(), named);
            add_chunked(manifest, said.frozen, chunks_in(values, said.trainable.size), tensors.sources(), named);
            continue;
        }
        check_sizes(manifest, layer, "trainable chunk", said.trainable.size, values);
        add_chunked(manifest, said.trainable, chunks_in(values, 0), tensors.sources(), named);
        values = values_at(pair->items[1]);
        check_sizes(manifest, layer, "frozen chunk", said.frozen.size, values);
        add_chunked(manifest, said.frozen, chunks_in(values, 0), tensors.sources(), named);
    }
    state::PathTree out;
    for (const auto& [name, tensor] : named) out.put(out.root(), name, out.add_tensor(tensor));
    return out.take();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
