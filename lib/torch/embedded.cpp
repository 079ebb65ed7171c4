// Reads storages that are embedded in pickles. The reference is torch/storage.py, _load_from_bytes. Tested by
// tests/torch/legacy_test.cpp.
#include "torch/embedded.hpp"

#include "pickle/memory_share.hpp"
#include "torch/globals.hpp"
#include "torch/legacy.hpp"
#include "torch/named_globals.hpp"
#include "torch/python_values.hpp"
#include "torch/storage_id.hpp"

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

/// Memory, in bytes, to read a file of one storage, beyond the storage itself.
constexpr std::uint64_t file_cost = 4096;

RecordData in_memory(std::string_view bytes) {
    std::vector<std::byte> copy(bytes.size());
    if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
    return {memory_source("a storage in a pickle", std::move(copy)), {0, bytes.size()}};
}

/// Returns the place of `bytes` in the pickle's file. If the file does not hold them unchanged, copies them to memory.
RecordData place_of(std::string_view bytes, const Storages& storages, Allowance& allowance) {
    const std::string_view all(storages.bytes.data(), storages.bytes.size());
    const bool inside = std::less_equal<>()(all.data(), bytes.data()) &&
                        std::less_equal<>()(bytes.data() + bytes.size(), all.data() + all.size());
    if (storages.file && inside) {
        return {storages.file, {static_cast<std::uint64_t>(bytes.data() - all.data()), bytes.size()}};
    }
    allowance.spend(bytes.size());
    return in_memory(bytes);
}

}  // namespace

RecordData embedded_bytes(const PickleGraph& pickle, Id id, const Storages& storages, Allowance& allowance) {
    const Kind kind = pickle.kind(id);
    if (kind == Kind::bytes || kind == Kind::bytearray || kind == Kind::text)
        return place_of(pickle.text(id), storages, allowance);
    if (is_call_of(pickle, id, "_codecs.encode")) {
        if (const auto bytes = encoded_text(pickle, pickle.items(pickle.call(id).arguments), allowance))
            return in_memory(*bytes);
    }
    // Protocol 2 spells empty bytes as bytes().
    if (is_call_of(pickle, id, "builtins.bytes") && pickle.items(pickle.call(id).arguments).empty())
        return in_memory({});
    throw Error(Errc::bad_tensor, "the elements are not bytes");
}

bool is_embedded(const PickleGraph& pickle, Id id) { return is_call_of(pickle, id, load_from_bytes); }

EmbeddedStorage embedded_storage(const PickleGraph& pickle, Id id, const Storages& storages, Allowance& allowance) {
    const auto arguments = pickle.items(pickle.call(id).arguments);
    if (arguments.size() != 1 || pickle.kind(arguments[0]) == Kind::text)
        throw Error(Errc::bad_tensor, "invalid arguments of torch.storage._load_from_bytes; expected one bytes value");
    const RecordData bytes = embedded_bytes(pickle, arguments[0], storages, allowance);
    allowance.spend(file_cost + bytes.extent.size);
    const MemoryShare rest(allowance.left(), allowance.left());
    const LegacyFile file(bytes.source, bytes.extent,
                          collecting(storages.globals, std::string(storages.record) + ", a storage in it: "));
    const StorageId storage = storage_id(file.object(), file.object().root());
    if (storage.first != 0 || storage.count != storage.elements) {
        throw Error(Errc::bad_tensor,
                    "the bytes for torch.storage._load_from_bytes hold a view of a storage; expected a whole storage");
    }
    return {.type = storage.type, .elements = storage.elements, .data = file.storage(storage.key)};
}

}  // namespace safemap::SAFEMAP_ABI::torch
