// Finds the values of a pickle's root dictionary that are asked for, and rebuilds these alone. Tested by
// tests/torch/parts_test.cpp.
#include "torch/parts.hpp"

#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "pickle/zip.hpp"
#include "torch/archive.hpp"
#include "torch/globals.hpp"
#include "torch/legacy.hpp"
#include "torch/plain.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

/// Bytes from which a format is recognised. A legacy file whose magic number is longer is found by read_plain().
constexpr std::uint64_t first_bytes = 512;

/// Returns the keys and values of the dictionary that is the root.
std::span<const Id> root_items(const PickleGraph& pickle) {
    const Id root = pickle.root();
    if (pickle.kind(root) == Kind::dict) return pickle.items(root);
    if (is_call_of(pickle, root, "collections.OrderedDict")) {
        const PickleGraph::Call made = pickle.call(root);
        if (pickle.items(made.arguments).empty() && made.keywords == PickleGraph::nothing) return made.items;
    }
    throw Error(Errc::field_missing, "the file holds no dictionary");
}

/// The values to rebuild.
struct Found {
    std::vector<NamedValue> values = {};
    std::size_t unnamed = 0;  ///< number of keys that are not texts
};

/// Returns the values under the keys. A repeated key keeps its place and gets the new value, as in Python.
Found find_values(const PickleGraph& pickle, std::span<const std::string_view> keys) {
    Found found;
    // By node first: many entries may share a long text, which then is hashed once.
    std::unordered_map<Id, std::size_t> by_node;
    std::unordered_map<std::string_view, std::size_t, NameHash> by_text;
    const std::span<const Id> items = root_items(pickle);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        if (pickle.kind(items[i]) != Kind::text) {
            ++found.unnamed;
            continue;
        }
        const std::string_view key = pickle.text(items[i]);
        if (!keys.empty() && std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
        const auto [place, unmet] = by_node.try_emplace(items[i], found.values.size());
        if (unmet) place->second = by_text.try_emplace(key, found.values.size()).first->second;
        if (place->second == found.values.size()) found.values.push_back({std::string(key), items[i + 1]});
        else found.values[place->second].value = items[i + 1];
    }
    return found;
}

Rebuilt rebuild_values(const PickleGraph& pickle, std::span<const std::string_view> keys, const Storages& storages,
                       FaultSink& faults) {
    const Found found = find_values(pickle, keys);
    Rebuilt out = rebuild(pickle, found.values, storages, faults, is_known);
    if (keys.empty() && found.unnamed > 0)
        out.notes.push_back(std::to_string(found.unnamed) +
                            " keys of the file's dictionary are not texts, and are left out");
    return out;
}

std::string first_of(const Source& source) {
    std::string head(std::min(first_bytes, source.size()), '\0');
    source.read_at(0, std::as_writable_bytes(std::span(head.data(), head.size())));
    return head;
}

Archive read_file(const Interpret& interpret, const std::shared_ptr<const Source>& source, NamedGlobals& globals,
                  ListReader* lists) {
    ThrowFirst faults;
    const auto read_zip = [&] {
        ArchiveRecords records(source, faults);
        records.take_lists(lists);
        return read_archive_with(interpret, std::move(records), faults, &globals);
    };
    const std::string head = first_of(*source);
    if (head.starts_with("PK")) return read_zip();
    if (is_legacy(head)) return read_legacy_with(interpret, source, faults, &globals);
    if (head.starts_with('\x80')) return read_plain_with(interpret, source, faults, &globals);
    if (ends_as_zip(*source)) return read_zip();
    if (head.empty()) throw Error(Errc::file_truncated, "the file is empty; expected a file of torch.save");
    throw Error(Errc::unknown_format, "expected a file of torch.save");
}

/// Reads a file with `interpret`, and refuses calls that run code.
Parts read_safe(const Interpret& interpret, const std::shared_ptr<const Source>& source, NamedGlobals* globals,
                ListReader* lists = nullptr) {
    return about_file(source->name(), [&] {
        const auto refusing = [&](const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
            Storages safe = storages;
            safe.refuses_code = true;
            return interpret(pickle, safe, faults);
        };
        NamedGlobals unasked(false);
        Archive archive = read_file(refusing, source, globals == nullptr ? unasked : *globals, lists);
        return Parts{.tree = std::move(archive.tree),
                     .notes = std::move(archive.notes),
                     .saved_as = std::move(archive.saved_as),
                     .taken_lists = std::move(archive.taken_lists)};
    });
}

}  // namespace

Parts read_parts(const std::shared_ptr<const Source>& source, std::span<const std::string_view> keys,
                 NamedGlobals* globals) {
    const auto some = [keys](const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
        return rebuild_values(pickle, keys, storages, faults);
    };
    return read_safe(some, source, globals);
}

Parts read_whole(const std::shared_ptr<const Source>& source, NamedGlobals* globals, ListReader* lists) {
    const auto all = [](const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
        return rebuild(pickle, storages, faults);
    };
    return read_safe(all, source, globals, lists);
}

}  // namespace safemap::SAFEMAP_ABI::torch
