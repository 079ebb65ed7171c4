// Puts the structure document of a checkpoint among what is written.
#include "checkpoint/structure.hpp"
#include "checkpoint/twin.hpp"

#include <safemap/save.hpp>
#include <safemap/structure.hpp>

#include <map>
#include <span>
#include <string>
#include <utility>

namespace safemap {

namespace {

/// What unflatten() would have to give for a file of tensors without a document.
StateTree flat_tree(const Checkpoint& checkpoint) {
    StateTree tree;
    StateTree::Dict dict;
    for (const NamedTensor& named : all_names(checkpoint)) {
        const StateTree::NodeId key = tree.add(std::string(named.name));
        dict.items.emplace_back(key, tree.add(StateTree::Tensor{.tensor = checkpoint.tensor(named.tensor)}));
    }
    tree.set_root(tree.add(std::move(dict)));
    return tree;
}

LazyTensor tensor_of(const std::string& document) {
    const auto bytes = std::as_bytes(std::span(document));
    const auto source = memory_source("the structure document", std::vector<std::byte>(bytes.begin(), bytes.end()));
    return {std::string(structure_tensor), stored_run(Dtype::u8, {document.size()}, source, 0)};
}

/// Plain files say nothing of where they come from, so that they are the same wherever that is.
void put_source(const Checkpoint& checkpoint, bool wanted, std::map<std::string, std::string>& metadata) {
    const std::string key(checkpoint::source_key);
    if (!wanted) metadata.erase(key);
    else if (checkpoint.format() == Format::torch)
        if (auto fingerprint = checkpoint.fingerprint()) metadata[key] = std::move(*fingerprint);
}

}  // namespace

std::string structure_of(const Checkpoint& checkpoint, const StoredName& stored_name) {
    const StateTree* const tree = checkpoint.tree();
    return structure_of(tree == nullptr ? flat_tree(checkpoint) : *tree, stored_name);
}

AddedStructure add_structure(const Checkpoint& checkpoint, const StoredName& stored_name, SaveOptions& options) {
    const StateTree* const tree = checkpoint.tree();
    const bool plain = tree == nullptr || is_flat(*tree);
    const bool wanted =
        options.structure == StructurePolicy::keep || (options.structure == StructurePolicy::automatic && !plain);
    AddedStructure added{.notes = checkpoint.only_in_tree()};
    put_source(checkpoint, wanted || options.checksums, options.metadata);
    if (!wanted) return added;
    std::string document;
    try {
        document = structure_of(checkpoint, stored_name);
    } catch (const Error& error) {
        if (error.code() != Errc::structure_too_large || options.structure == StructurePolicy::keep) throw;
        added.notes.insert(added.notes.begin(), "no structure document is written: " + error.message());
        return added;
    }
    added.notes.clear();
    std::string& says = options.metadata[std::string(structure_key)];
    // A tensor may have that name already.
    if (document.size() <= longest_inline_structure || checkpoint.find(structure_tensor) != nullptr) {
        says = std::move(document);
        return added;
    }
    says = checkpoint::structure_apart(xxh3(std::as_bytes(std::span(document))));
    added.tensor = tensor_of(document);
    return added;
}

}  // namespace safemap
