// Takes the structure document out of what was read.
#include "checkpoint/structure.hpp"

#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"

#include <safemap/structure.hpp>

#include <algorithm>
#include <unordered_map>

namespace safemap::checkpoint {
namespace {

/// As long as a header can be.
constexpr std::uint64_t longest_document = 100'000'000;
constexpr std::string_view apart_head = R"({"v":1,"tensor":)";

auto find_structure_tensor(Contents& contents) {
    return std::find_if(contents.tensors.begin(), contents.tensors.end(),
                        [](const LazyTensor& tensor) { return tensor.name() == structure_tensor; });
}

std::string load_document(const LazyTensor& tensor, const std::string& says) {
    const json::Value apart = json::parse(says, Errc::bad_structure);
    if (tensor.nbytes() > longest_document)
        throw Error(Errc::bad_structure, "a structure document of " + bytes_text(tensor.nbytes()) + ", at most " +
                                             bytes_text(longest_document) + " are read")
            .with_tensor(structure_tensor);
    const json::Value* const digest = apart.find("xxh3_128");
    const TensorView loaded = tensor.load();
    const std::string found = hex(xxh3(loaded.bytes()));
    if (digest == nullptr || digest->string() == nullptr || *digest->string() != found) {
        Error error(Errc::checksum_mismatch,
                    "the structure document has the digest " + found + ", which is not the one in the metadata");
        throw error.with_tensor(structure_tensor);
    }
    return {reinterpret_cast<const char*>(loaded.bytes().data()), loaded.bytes().size()};
}

/// The document, which is not among the tensors afterwards.
std::string take_document(Contents& contents, std::string says) {
    if (!is_structure_apart(says)) return says;
    const auto tensor = find_structure_tensor(contents);
    if (tensor == contents.tensors.end() || tensor->dtype() != Dtype::u8)
        throw Error(Errc::bad_structure, "the structure document is to be in the U8 tensor " +
                                             safemap::quoted(structure_tensor) + ", which is not there");
    std::string document = load_document(*tensor, says);
    contents.tensors.erase(tensor);
    return document;
}

std::shared_ptr<const StateTree> tree_of(const std::string& document, const Contents& contents) {
    std::unordered_map<std::string_view, const LazyTensor*, NameHash> by_name;
    by_name.reserve(contents.tensors.size());
    for (const LazyTensor& tensor : contents.tensors) by_name.emplace(tensor.name(), &tensor);
    const auto find = [&](const std::string& name) -> const LazyTensor* {
        const auto found = by_name.find(name);
        return found == by_name.end() ? nullptr : found->second;
    };
    return std::make_shared<const StateTree>(unflatten(document, find));
}

}  // namespace

std::string structure_apart(const Digest& document) {
    return std::string(apart_head) + '"' + std::string(structure_tensor) + R"(","xxh3_128":")" + hex(document) + "\"}";
}

bool is_structure_apart(std::string_view metadata) noexcept { return metadata.starts_with(apart_head); }

void take_structure(Contents& contents, Policy policy, FaultSink& faults) {
    const auto entry = std::find_if(contents.metadata.begin(), contents.metadata.end(),
                                    [](const auto& pair) { return pair.first == structure_key; });
    if (entry == contents.metadata.end()) return;
    std::string says = std::move(entry->second);
    contents.metadata.erase(entry);
    reporting(faults, [&] {
        try {
            contents.tree = tree_of(take_document(contents, std::move(says)), contents);
        } catch (Error& error) {
            if (error.code() != Errc::bad_structure) throw;
            if (policy != Policy::lenient)
                throw std::move(error.with_hint("the lenient policy reads the tensors without it"));
            contents.notes.push_back("read without its structure document, which does not fit: " + error.message());
        }
    });
}

}  // namespace safemap::checkpoint
