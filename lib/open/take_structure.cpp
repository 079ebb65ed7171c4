// Takes the structure document of a checkpoint out of its metadata and tensors.
#include "open/read.hpp"

#include "base/faults.hpp"
#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "safetensors/digests.hpp"
#include "state/structure.hpp"

#include <safemap/advanced/dtypes.hpp>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::open {
namespace {

/// The same maximum as for a header.
constexpr std::uint64_t longest_document = 100'000'000;

auto find_structure_tensor(Contents& contents) {
    return std::find_if(contents.tensors.begin(), contents.tensors.end(),
                        [](const LazyTensor& tensor) { return tensor.name() == state::structure_tensor; });
}

/// Throws checksum_mismatch. If the digest is missing though it has to be there, `stored` is null.
void require_digest(const std::string& document, const std::string* stored) {
    const std::string found = state::digest_of_structure(document);
    if (stored != nullptr && *stored == found) return;
    if (stored == nullptr)
        throw Error(Errc::checksum_mismatch,
                    "the stored digest of the structure document is missing; the document has the digest " + found);
    throw Error(Errc::checksum_mismatch,
                "the structure document has the digest " + found + ", expected " + safemap::quoted(*stored));
}

std::string load_document(const LazyTensor& tensor, const std::string& says) {
    const json::Value apart = json::parse(says, Errc::bad_structure);
    if (tensor.nbytes() > longest_document)
        throw Error(Errc::bad_structure, "the structure document has " + bytes_text(tensor.nbytes()) +
                                             ", the limit is " + bytes_text(longest_document));
    const json::Value* const digest = apart.find("xxh3_128");
    const TensorView loaded = tensor.load();
    std::string document(reinterpret_cast<const char*>(loaded.bytes().data()), loaded.bytes().size());
    require_digest(document, digest == nullptr ? nullptr : digest->string());
    return document;
}

/// Returns the document that is stored as a tensor, and removes that tensor from the tensors.
std::string take_apart(Contents& contents, const std::string& says) {
    const auto found = find_structure_tensor(contents);
    if (found == contents.tensors.end() || found->dtype() != Dtype::u8)
        throw Error(Errc::bad_structure, "the structure document should be in the U8 tensor " +
                                             safemap::quoted(state::structure_tensor) + ", which is missing");
    const LazyTensor tensor = *found;
    contents.tensors.erase(found);
    return about_tensor(state::structure_tensor, [&] { return load_document(tensor, says); });
}

/// Removes a key from the metadata and returns its value.
std::optional<std::string> take(Contents& contents, std::string_view key) {
    const auto entry = std::find_if(contents.metadata.begin(), contents.metadata.end(),
                                    [=](const auto& pair) { return pair.first == key; });
    if (entry == contents.metadata.end()) return std::nullopt;
    std::string value = std::move(entry->second);
    contents.metadata.erase(entry);
    return value;
}

void note_unnamed(Contents& contents, const std::vector<bool>& named) {
    const auto unnamed = std::count(named.begin(), named.end(), false);
    if (unnamed == 0) return;
    const auto first = std::find(named.begin(), named.end(), false) - named.begin();
    contents.notes.push_back("the structure document does not name " +
                             counted(static_cast<std::uint64_t>(unnamed), "tensor") +
                             (unnamed == 1 ? ", " : "; the first is ") +
                             safemap::quoted(contents.tensors[static_cast<std::size_t>(first)].name()));
}

/// Calls `visit` with each tensor of a tree.
template <class Visit> void for_each_tensor(const StateTree& tree, Visit&& visit) {
    for (StateTree::NodeId id = 0; id < tree.size(); ++id)
        if (const auto* node = std::get_if<StateTree::Tensor>(&tree[id])) visit(node->tensor);
}

/// Gives tensors the dtypes that the document names; the tensors of the tree already have them. `number_of(name)`
/// returns the number of the tensor of `contents` with that name.
template <class NumberOf> void restore_dtypes(const StateTree& tree, Contents& contents, NumberOf&& number_of) {
    std::map<std::size_t, const LazyTensor*> restored;
    for_each_tensor(tree, [&](const LazyTensor& tensor) {
        if (!in_safetensors(tensor.dtype())) restored.emplace(number_of(tensor.name()), &tensor);
    });
    if (restored.empty()) return;
    for_each_tensor(tree, [&](const LazyTensor& tensor) {
        const auto other = restored.find(number_of(tensor.name()));
        if (other == restored.end() || other->second->dtype() == tensor.dtype()) return;
        throw Error(Errc::bad_structure, "the structure document names the tensor " + safemap::quoted(tensor.name()) +
                                             " as " + std::string(name(other->second->dtype())) + " and as " +
                                             std::string(name(tensor.dtype())));
    });
    for (const auto& [number, tensor] : restored) contents.tensors[number] = *tensor;
}

std::shared_ptr<const StateTree> tree_of(const std::string& document, Contents& contents) {
    std::unordered_map<std::string_view, std::size_t, NameHash> by_name;
    by_name.reserve(contents.tensors.size());
    for (std::size_t i = 0; i < contents.tensors.size(); ++i) by_name.emplace(contents.tensors[i].name(), i);
    std::vector<bool> named(contents.tensors.size());
    const auto find = [&](const std::string& name) -> const LazyTensor* {
        const auto found = by_name.find(name);
        if (found == by_name.end()) return nullptr;
        named[found->second] = true;
        return &contents.tensors[found->second];
    };
    auto tree = std::make_shared<const StateTree>(state::unflatten(document, find));
    note_unnamed(contents, named);
    restore_dtypes(*tree, contents, [&](const std::string& name) { return by_name.at(name); });
    return tree;
}

std::shared_ptr<const StateTree> read_structure(Contents& contents, std::string says) {
    const auto stored = take(contents, safetensors::structure_digest_key);
    const bool apart = state::is_structure_apart(says);
    contents.structure_unchecked = !stored && !apart;
    const std::string document = apart ? take_apart(contents, says) : std::move(says);
    if (stored) require_digest(document, &*stored);
    return tree_of(document, contents);
}

}  // namespace

void take_structure(Contents& contents, Policy policy, FaultSink& faults) {
    contents.final_names = take(contents, state::root_key).has_value();
    std::optional<std::string> says = take(contents, state::structure_key);
    if (!says) return;
    reporting(faults, [&] {
        try {
            contents.tree = read_structure(contents, std::move(*says));
        } catch (Error& error) {
            const bool damaged = error.code() == Errc::checksum_mismatch;
            if (error.code() != Errc::bad_structure && !damaged) throw;
            if (policy != Policy::lenient)
                throw std::move(error.with_hint("--policy lenient reads the tensors without it"));
            contents.notes.push_back("read without its structure document, which " +
                                     std::string(damaged ? "is damaged: " : "does not fit: ") + error.message());
            if (damaged) contents.structure_fault = std::move(error);
        }
    });
}

}  // namespace safemap::SAFEMAP_ABI::open
