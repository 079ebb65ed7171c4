// Adds the structure document of a checkpoint to what is written.
#include "write/add_structure.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/structure.hpp>

#include "base/text.hpp"
#include "checkpoint/origin.hpp"
#include "state/fingerprint.hpp"
#include "state/structure.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

LazyTensor tensor_of(const std::string& document) {
    const auto bytes = std::as_bytes(std::span(document));
    const auto source = memory_source("the structure document", std::vector<std::byte>(bytes.begin(), bytes.end()));
    return {std::string(state::structure_tensor), stored_run(Dtype::u8, {document.size()}, source, 0)};
}

/// Returns true if the opened file lists the tensors in the order of its tree. Files list tensors in an order of their
/// own, whatever their document says.
bool lists_in_order(const Checkpoint& opened, const FlatState& flat) {
    return std::equal(flat.tensors.begin(), flat.tensors.end(), opened.begin(), opened.end(),
                      [](const LazyTensor& a, const LazyTensor& b) { return a.stored() == b.stored(); });
}

/// Adds notes on what is lost without a document. Asks for a note on the order of the tensors if the files may change
/// it, and it has a meaning: in the state of an optimizer, places are numbers of parameters. In a flat state dict, a
/// tensor is found by its name alone.
void note_losses(const Checkpoint& checkpoint, Input& input) {
    std::vector<std::string> lost = checkpoint::Origin::lost_without_structure(checkpoint);
    if (checkpoint::Origin::has_tree(checkpoint)) {
        input.note_order = !checkpoint::Origin::is_flat(checkpoint);
        if (checkpoint.format() != Format::torch) {
            FlatState flat = flatten(*checkpoint.tree());
            lost = std::move(flat.lost_without_structure);
            const bool in_order = lists_in_order(checkpoint::Origin::of(checkpoint), flat);
            if (input.note_order && !in_order) lost.emplace_back(order_is_lost);
            input.note_order = input.note_order && in_order;
        }
    }
    input.notes.insert(input.notes.end(), lost.begin(), lost.end());
}

/// Adds a note on the other names of tied tensors that the metadata does not have.
void note_lost_ties(const Checkpoint& checkpoint, Input& input) {
    std::uint64_t lost = 0;
    std::string first;
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) {
            const auto pair = input.metadata.find(group[i]);
            if (pair != input.metadata.end() && pair->second == group.front()) continue;
            if (++lost == 1) first = safemap::quoted(group[i]) + " of " + safemap::quoted(group.front());
        }
    if (lost == 0) return;
    input.notes.push_back((lost == 1 ? "the exact metadata lacks another name of a tied tensor: "
                                     : "the exact metadata lacks " + std::to_string(lost) +
                                           " other names of tied tensors, the first is ") +
                          first);
}

/// Puts the fingerprint of a torch file into the metadata if `wanted`, else removes it: plain files are the same
/// wherever their tensors come from.
void put_source(const Checkpoint& checkpoint, bool wanted, Metadata& metadata) {
    const std::string key(state::source_key);
    if (!wanted) metadata.erase(key);
    else if (checkpoint.format() == Format::torch)
        if (auto fingerprint = checkpoint.fingerprint()) metadata[key] = std::move(*fingerprint);
}

/// Throws name_collision if another name of a tied tensor is a metadata key with a meaning of its own. A pair that the
/// opened file's metadata already has is not such a name.
void require_no_tie(const Checkpoint& checkpoint, const Metadata& metadata) {
    const Checkpoint opened = checkpoint::Origin::of(checkpoint);
    const auto& own = opened.metadata();
    const auto require = [&](const std::string& other, const std::string& stored) {
        if (other != "format" && !other.starts_with("safemap.")) return;
        const auto pair = metadata.find(other);
        if (pair == metadata.end() || pair->second != stored || (other == "format" && stored == "pt")) return;
        if (std::find(own.begin(), own.end(), std::pair(other, stored)) != own.end()) return;
        Error error(Errc::name_collision, "the other name " + safemap::quoted(other) + " of the tensor " +
                                              safemap::quoted(stored) + " is a metadata key with another value");
        throw std::move(error.with_hint("rename it, for example with --rename"));
    };
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) require(group[i], group.front());
}

/// Returns true if safetensors files have tensors whose dtypes only their document names.
bool has_named_dtypes(const Checkpoint& checkpoint) {
    const bool in_shards = checkpoint.layout() && checkpoint.layout()->kind == "hf_shards";
    return (checkpoint.format() == Format::safetensors || in_shards) &&
           std::any_of(checkpoint.begin(), checkpoint.end(),
                       [](const LazyTensor& tensor) { return !in_safetensors(tensor.dtype()); });
}

/// Returns the document, or nothing if none is wanted. If the document is too large and need not be kept, adds a note
/// and returns nothing.
std::optional<std::string> document_of(const Checkpoint& checkpoint, StructurePolicy policy, Input& input) {
    const bool plain = (!checkpoint::Origin::has_tree(checkpoint) || checkpoint::Origin::is_flat(checkpoint)) &&
                       !has_named_dtypes(checkpoint);
    if (policy == StructurePolicy::drop || (policy == StructurePolicy::automatic && plain)) return std::nullopt;
    try {
        return checkpoint::document_of(checkpoint, [&](const LazyTensor& tensor) {
            if (!in_safetensors(tensor.dtype())) input.as_raw.insert(tensor.name());
        });
    } catch (const Error& error) {
        input.as_raw.clear();
        if (error.code() != Errc::structure_too_large || policy == StructurePolicy::keep) throw;
        input.notes.push_back("no structure document is written: " + error.message());
        return std::nullopt;
    }
}

}  // namespace

std::optional<LazyTensor> add_structure(const Checkpoint& checkpoint, const SaveOptions& options, Input& input) {
    if (options.exact_metadata) {
        note_losses(checkpoint, input);
        note_lost_ties(checkpoint, input);
        return std::nullopt;
    }
    require_no_tie(checkpoint, input.metadata);
    std::optional<std::string> document = document_of(checkpoint, options.structure, input);
    put_source(checkpoint, document || options.checksums, input.metadata);
    if (document && checkpoint::Origin::has_final_names(checkpoint))
        input.metadata.insert_or_assign(std::string(state::root_key), checkpoint.root());
    if (!document) {
        note_losses(checkpoint, input);
        return std::nullopt;
    }
    std::string& says = input.metadata[std::string(state::structure_key)];
    // If a tensor already has the document's name, the document stays in the metadata.
    if (document->size() <= state::longest_inline_structure || checkpoint.find(state::structure_tensor) != nullptr) {
        says = std::move(*document);
        return std::nullopt;
    }
    says = state::structure_apart(xxh3(std::as_bytes(std::span(*document))));
    return tensor_of(*document);
}

}  // namespace safemap::SAFEMAP_ABI::write
