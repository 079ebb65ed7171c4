// Helpers for the readers of several formats: metadata, totals, trees, and files that are joined to one checkpoint.
#include "state/contents.hpp"

#include <safemap/advanced/flatten.hpp>

#include "base/checked.hpp"
#include "state/findings.hpp"
#include "state/structure.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::state {

Contents::Contents() = default;
Contents::Contents(const Contents&) = default;
Contents::Contents(Contents&&) noexcept = default;
Contents& Contents::operator=(const Contents&) = default;
Contents& Contents::operator=(Contents&&) noexcept = default;
Contents::~Contents() = default;

const std::string* find_value(const Metadata& metadata, std::string_view key) {
    const auto entry =
        std::find_if(metadata.begin(), metadata.end(), [=](const auto& pair) { return pair.first == key; });
    return entry == metadata.end() ? nullptr : &entry->second;
}

std::uint64_t total_bytes(const Contents& contents) {
    std::uint64_t total = 0;
    for (const LazyTensor& tensor : contents.tensors) {
        const auto sum = checked_add(total, tensor.nbytes());
        if (!sum) {
            Error error(Errc::shape_overflow, "the total size of all tensors does not fit in 64 bits");
            if (!contents.sources.empty()) error.with_path(contents.sources.front()->name());
            throw error;
        }
        total = *sum;
    }
    return total;
}

namespace {

void set_flat_state(Contents& contents, StateTree tree, FlatState flat) {
    contents.tensors = std::move(flat.tensors);
    contents.aliases = std::move(flat.aliases);
    contents.skipped = std::move(flat.skipped);
    contents.lost_without_structure = std::move(flat.lost_without_structure);
    contents.tree = std::make_shared<const StateTree>(std::move(tree));
    move_to_end(flat.notes, contents.notes);
}

}  // namespace

void set_tree(Contents& contents, StateTree tree) {
    FlatState flat = flatten(tree);
    set_flat_state(contents, std::move(tree), std::move(flat));
}

void set_named_tree(Contents& contents, StateTree tree, const NodeNames& names) {
    FlatState flat = flatten_named(tree, names);
    set_flat_state(contents, std::move(tree), std::move(flat));
}

void Joined::add(Contents& one, const std::string& name) {
    const auto unknown_to_one = [&](const auto& pair) {
        return !std::binary_search(one.metadata.begin(), one.metadata.end(), pair);
    };
    if (!std::exchange(any_, true)) contents.metadata = one.metadata;
    else std::erase_if(contents.metadata, unknown_to_one);
    contents.has_metadata = contents.has_metadata || one.has_metadata;
    if (one.format == Format::torch) contents.format = Format::torch;
    for (const std::string& note : one.notes) contents.notes.push_back(name + ": " + note);
    for (const std::string& text : one.lost_without_structure)
        contents.notes.push_back(name + ": only tensors are read; " + text);
    contents.files.push_back(name);
    for (SkippedObject& object : one.skipped) object.quantized = false;
    move_to_end(one.skipped, contents.skipped);
    move_to_end(one.stored.checksums, contents.stored.checksums);
    move_to_end(one.stored.storages, contents.stored.storages);
    for (NamedGlobal& global : one.globals) global.record.insert(0, name + ": ");
    move_to_end(one.globals, contents.globals);
    add_findings(one.findings, contents.findings, name + ": ");
    contents.asks_for_code = contents.asks_for_code || one.asks_for_code;
    move_to_end(one.sources, contents.sources);
}

}  // namespace safemap::SAFEMAP_ABI::state
