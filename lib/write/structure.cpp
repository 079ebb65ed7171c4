// Puts the structure document of a checkpoint among what is written.
#include "checkpoint/structure.hpp"
#include "base/text.hpp"
#include "checkpoint/twin.hpp"
#include "write/layout.hpp"

#include <safemap/save.hpp>
#include <safemap/structure.hpp>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {

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

/// Files list tensors in an order of their own, whatever their document says.
bool lists_in_order(const Checkpoint& checkpoint, const FlatState& flat) {
    return std::equal(flat.tensors.begin(), flat.tensors.end(), checkpoint.begin(), checkpoint.end(),
                      [](const LazyTensor& a, const LazyTensor& b) { return a.stored() == b.stored(); });
}

/// What nobody knows any more where no document is written; the order of the tensors, where files change it.
std::vector<std::string> lost_without(const Checkpoint& checkpoint, SaveOptions& options) {
    if (checkpoint.tree() == nullptr) return checkpoint.only_in_tree();
    options.note_order = true;
    if (checkpoint.format() == Format::torch) return checkpoint.only_in_tree();
    FlatState flat = flatten(*checkpoint.tree());
    if (!lists_in_order(checkpoint, flat)) {
        options.note_order = false;
        flat.only_in_tree.emplace_back(write::order_is_lost);
    }
    return std::move(flat.only_in_tree);
}

/// Plain files say nothing of where they come from, so that they are the same wherever that is.
void put_source(const Checkpoint& checkpoint, bool wanted, std::map<std::string, std::string>& metadata) {
    const std::string key(checkpoint::source_key);
    if (!wanted) metadata.erase(key);
    else if (checkpoint.format() == Format::torch)
        if (auto fingerprint = checkpoint.fingerprint()) metadata[key] = std::move(*fingerprint);
}

AddedStructure without_document(const Checkpoint& checkpoint, SaveOptions& options) {
    put_source(checkpoint, options.checksums, options.metadata);
    return {.notes = lost_without(checkpoint, options)};
}

/// Other names of tied tensors stand among the metadata, where some keys mean something else. What the source's own
/// metadata says under these is no other name.
void require_no_tie(const Checkpoint& checkpoint, const StoredName& stored_name,
                    const std::map<std::string, std::string>& metadata) {
    const auto& own = checkpoint.metadata();
    for (const auto& [key, value] : metadata) {
        const bool taken = (key == "format" && value != "pt") || key.starts_with("safemap.");
        if (!taken || std::find(own.begin(), own.end(), std::pair(key, value)) != own.end()) continue;
        for (std::size_t i = 0; i < checkpoint.size(); ++i) {
            if (stored_name(checkpoint.tensor(i).name()) != value) continue;
            Error error(Errc::name_collision, "the other name " + safemap::quoted(key) + " of the tensor " +
                                                  safemap::quoted(value) +
                                                  " is a key that the metadata has for something else");
            throw std::move(error.with_hint("under another name it can be written"));
        }
    }
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
    require_no_tie(checkpoint, stored_name, options.metadata);
    if (!wanted) return without_document(checkpoint, options);
    std::string document;
    try {
        document = structure_of(checkpoint, stored_name);
    } catch (const Error& error) {
        if (error.code() != Errc::structure_too_large || options.structure == StructurePolicy::keep) throw;
        AddedStructure added = without_document(checkpoint, options);
        added.notes.insert(added.notes.begin(), "no structure document is written: " + error.message());
        return added;
    }
    put_source(checkpoint, true, options.metadata);
    AddedStructure added;
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

}  // namespace safemap::SAFEMAP_ABI
