// Parses the persistent ids of storages. Tested by tests/torch/rebuild_test.cpp and legacy_test.cpp.
#include "torch/storage_id.hpp"

#include "base/text.hpp"

#include <safemap/bytes.hpp>

#include <string>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

/// Returns true if a node is a text. In files of Python 2, texts are bytes.
bool is_text(const PickleGraph& pickle, Id id) {
    return pickle.kind(id) == Kind::text || pickle.kind(id) == Kind::bytes;
}

std::uint64_t count_of(const PickleGraph& pickle, Id id, const char* what) {
    const std::int64_t count = integer_of(pickle, id, what);
    if (count < 0) throw bad_tensor("the " + std::string(what) + " is negative: " + std::to_string(count));
    return static_cast<std::uint64_t>(count);
}

/// Reads the view of a storage: (key, first element, element count), or None.
void read_view(const PickleGraph& pickle, Id id, StorageId& storage) {
    if (pickle.kind(id) == Kind::none) return;
    const auto parts = pickle.items(id);
    if (pickle.kind(id) != Kind::tuple || parts.size() != 3) throw bad_tensor("an invalid view of a storage");
    storage.first = count_of(pickle, parts[1], "first element of a storage's view");
    storage.count = count_of(pickle, parts[2], "size of a storage's view");
    if (Extent{storage.first, storage.count}.inside(storage.elements)) return;
    throw Error(Errc::storage_too_short, "a view of " + std::to_string(storage.count) + " elements from " +
                                             std::to_string(storage.first) + " is outside a storage of " +
                                             std::to_string(storage.elements));
}

/// Returns true if `said`, the value of a persistent id, begins like the id of a storage.
bool names_storage(const PickleGraph& pickle, Id said) {
    if (pickle.kind(said) != Kind::tuple) return false;
    const auto parts = pickle.items(said);
    return !parts.empty() && is_text(pickle, parts[0]) && pickle.text(parts[0]) == "storage";
}

}  // namespace

std::optional<std::string_view> storage_class(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) != Kind::persistent) return std::nullopt;
    const Id said = pickle.persistent(id);
    if (!names_storage(pickle, said)) return std::nullopt;
    const auto parts = pickle.items(said);
    if (parts.size() < 2 || pickle.kind(parts[1]) != Kind::global) return std::nullopt;
    return pickle.global(parts[1]).name;
}

StorageId storage_id(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) != Kind::persistent) throw bad_tensor("the tensor has no storage");
    const auto class_name = storage_class(pickle, id);
    if (!class_name) throw bad_tensor("a persistent id that is not a storage");
    const auto parts = pickle.items(pickle.persistent(id));
    const bool formed =
        (parts.size() == 5 || parts.size() == 6) && is_text(pickle, parts[2]) && is_text(pickle, parts[3]);
    if (!formed) throw bad_tensor("a persistent id that is not a storage");
    if (pickle.text(parts[2]).size() > max_storage_key) {
        throw bad_tensor("a storage key of " + bytes_text(pickle.text(parts[2]).size()) + " is too long");
    }
    const auto type = storage_type(*class_name);
    if (!type) throw bad_tensor("unknown storage class " + safemap::quoted(*class_name));
    StorageId storage{.key = pickle.text(parts[2]),
                      .type = *type,
                      .elements = count_of(pickle, parts[4], "storage size"),
                      .meta = pickle.text(parts[3]) == "meta"};
    if (const auto size = byte_size(type->dtype, storage.elements); !size || *size > max_int64) {
        throw Error(Errc::shape_overflow, "the size of a storage of " + std::to_string(storage.elements) +
                                              " elements does not fit in 64 bits");
    }
    storage.count = storage.elements;
    if (parts.size() == 6) read_view(pickle, parts[5], storage);
    return storage;
}

std::optional<StorageId> stated_storage(const PickleGraph& pickle, Id id) {
    const auto class_name = storage_class(pickle, id);
    const auto type = class_name ? storage_type(*class_name) : std::nullopt;
    const auto parts = type ? pickle.items(pickle.persistent(id)) : std::span<const Id>();
    if (parts.size() < 5 || pickle.kind(parts[4]) != Kind::integer || pickle.integer(parts[4]) < 0) return std::nullopt;
    if (!is_text(pickle, parts[2]) || pickle.text(parts[2]).size() > max_storage_key) return std::nullopt;
    return StorageId{.key = pickle.text(parts[2]),
                     .type = *type,
                     .elements = static_cast<std::uint64_t>(pickle.integer(parts[4])),
                     .meta = is_text(pickle, parts[3]) && pickle.text(parts[3]) == "meta"};
}

Id class_of(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) != Kind::persistent) return id;
    const auto parts = pickle.items(pickle.persistent(id));
    if (parts.size() == 4 && is_text(pickle, parts[0]) && pickle.text(parts[0]) == "module" &&
        pickle.kind(parts[1]) == Kind::global) {
        return parts[1];
    }
    return parts.size() == 3 && pickle.kind(parts[0]) == Kind::global ? parts[0] : id;
}

std::int64_t integer_of(const PickleGraph& pickle, Id id, std::string_view what) {
    if (pickle.kind(id) == Kind::integer) return pickle.integer(id);
    if (pickle.kind(id) == Kind::big_integer) {
        throw Error(Errc::shape_overflow, "the " + std::string(what) + " does not fit in 64 bits");
    }
    throw bad_tensor("the " + std::string(what) + " is not an integer");
}

}  // namespace safemap::SAFEMAP_ABI::torch
