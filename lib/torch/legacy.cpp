// Reads the legacy format. The reference is torch/serialization.py, _legacy_save and _legacy_load. Tested by
// tests/torch/legacy_test.cpp and fixtures_test.cpp.
#include "torch/legacy.hpp"

#include "base/text.hpp"
#include "torch/rebuild.hpp"
#include "torch/storage_id.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Kind = PickleGraph::Kind;

/// 0x1950a86a20f9469cfc6c in decimal.
constexpr std::string_view magic = "119547037146038801333356";
constexpr std::int64_t version = 1001;
constexpr std::string_view object_record = "the object";

void check_version(const PickleGraph& pickle) {
    if (pickle.kind(pickle.root()) == Kind::integer && pickle.integer(pickle.root()) == version) return;
    throw Error(Errc::unknown_format, "unknown version of torch.save; expected " + std::to_string(version));
}

Error bad_storage(std::string_view key, const std::string& what) {
    return {Errc::bad_tensor, "storage " + safemap::quoted(key) + what};
}

}  // namespace

bool is_magic_number(const PickleGraph& pickle) {
    return pickle.kind(pickle.root()) == Kind::big_integer && pickle.text(pickle.root()).size() <= magic.size() &&
           pickle.decimal(pickle.root()) == magic;
}

bool is_legacy(std::string_view head) {
    if (!head.starts_with('\x80') && !head.starts_with('L')) return false;
    try {
        return is_magic_number(read_pickle(head));
    } catch (const Error&) {
        return false;
    }
}

LegacyFile::LegacyFile(const std::shared_ptr<const Source>& source, Extent part, PickleStream::Seen seen)
    : source_(source) {
    PickleStream stream(source, part, std::move(seen));
    if (!is_magic_number(stream.pickle("the magic number").graph)) {
        throw Error(Errc::unknown_format, "not a file of torch.save: its magic number is wrong");
    }
    check_version(stream.pickle("the version").graph);
    // The description of the machine is ignored: storages are little-endian on every machine.
    static_cast<void>(stream.pickle("the description of the machine"));
    object_ = stream.pickle(object_record);
    list_storages();
    const HeldPickle keys = stream.pickle("the list of storages");
    place_storages(stream, keys.graph);
    trailing_ = stream.left();
}

/// Lists the storages that the object names. The first persistent id of a storage in the file gives its dtype and size.
/// Skips an invalid persistent id: its tensor reports the fault.
void LegacyFile::list_storages() {
    const PickleGraph& pickle = object_.graph;
    for (PickleGraph::Id id = 0; id < pickle.size(); ++id) {
        const auto stated = stated_storage(pickle, id);
        if (stated) storages_.try_emplace(stated->key, Stored{.type = stated->type, .elements = stated->elements});
    }
}

void LegacyFile::place_storages(PickleStream& stream, const PickleGraph& keys) {
    if (keys.kind(keys.root()) != Kind::list) throw Error(Errc::bad_tensor, "the list of storages is not a list");
    for (const PickleGraph::Id key : keys.items(keys.root())) {
        if (keys.kind(key) != Kind::text && keys.kind(key) != Kind::bytes) {
            throw Error(Errc::bad_tensor, "the list of storages has a key that is not text");
        }
        place_storage(stream, keys.text(key));
    }
}

void LegacyFile::place_storage(PickleStream& stream, std::string_view key) {
    const auto known = storages_.find(key);
    if (known == storages_.end()) throw bad_storage(key, " belongs to no tensor, so its length is unknown");
    Stored& stored = known->second;
    if (stored.found) throw bad_storage(key, " is listed twice");
    const std::string what = "storage " + safemap::quoted(key);
    const std::int64_t count = stream.number(what);
    if (count < 0) throw bad_storage(key, " has " + std::to_string(count) + " elements");
    const auto elements = static_cast<std::uint64_t>(count);
    const auto size = byte_size(stored.type.dtype, elements);
    if (!size) throw Error(Errc::file_truncated, what + " has " + std::to_string(elements) + " elements");
    stored.place = stream.skip(*size, what);
    stored.found = true;
    if (elements == stored.elements) return;
    throw bad_storage(key, " has " + std::to_string(elements) + " elements, but " + std::to_string(stored.elements) +
                               " in the pickle");
}

RecordData LegacyFile::storage(std::string_view key) const {
    const auto known = storages_.find(key);
    if (known == storages_.end() || !known->second.found) throw bad_storage(key, " is not in the file");
    return {source_, known->second.place};
}

std::vector<StoragePlace> LegacyFile::storages() const {
    std::vector<StoragePlace> all;
    for (const auto& each : storages_)
        if (each.second.found) all.push_back({source_, each.second.place});
    return all;
}

Archive read_legacy(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals) {
    const auto whole = [](const PickleGraph& pickle, const Storages& storages, FaultSink& to) {
        return rebuild(pickle, storages, to);
    };
    return read_legacy_with(whole, source, faults, globals);
}

Archive read_legacy_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                         NamedGlobals* globals) {
    Archive out;
    reporting(faults, [&] {
        const LegacyFile file(source, {0, source->size()}, collecting(globals));
        if (file.trailing() > 0) {
            out.notes.push_back(bytes_text(file.trailing()) + " after the last storage are ignored");
            if (globals != nullptr)
                globals->examine(source, {source->size() - file.trailing(), file.trailing()}, "after the storages");
        }
        const Storages storages{.find = [&](std::string_view key) { return file.storage(key); },
                                .globals = globals,
                                .record = object_record};
        out.take(interpret(file.object(), storages, faults));
        out.storages = file.storages();
    });
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::torch
