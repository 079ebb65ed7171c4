// Reads the oldest format. The reference is legacy_load in torch/serialization.py. Tested by tests/torch/tar_test.cpp
// and fixtures_test.cpp.
#include "torch/tar.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include "base/text.hpp"
#include "pickle/pickle_stream.hpp"
#include "pickle/tar_members.hpp"
#include "state/stored_places.hpp"
#include "torch/rebuild.hpp"
#include "torch/storage_id.hpp"
#include "torch/tensors.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

/// Most storages and most tensors in a file; each is held in memory.
constexpr std::int64_t max_entries = 1'000'000;

constexpr std::string_view tar_record = "member 'pickle'";

/// A storage, or a view of one.
struct Storage {
    std::shared_ptr<const StoredTensor> store;
    std::uint64_t first = 0;  ///< first element; 0 except in views
    std::uint64_t count = 0;
};
/// The numbers of a tensor, before they are checked.
struct TarEntry {
    std::int64_t storage = 0;
    Dims<std::int64_t> sizes = {};
    Dims<std::int64_t> strides = {};
    std::int64_t offset = 0;
};

class TarReader {
public:
    TarReader(const std::shared_ptr<const Source>& source, NamedGlobals* globals)
        : source_(source), globals_(globals), members_(tar_members(*source)) {}

    Rebuilt read(FaultSink& faults) {
        read_storages(member("storages"));
        read_tensors(member("tensors"));
        const HeldPickle object = member("pickle").pickle(tar_record);
        const Storages storages{.find = [](std::string_view key) -> RecordData {
                                    throw bad_tensor("storage " + safemap::quoted(key) + " cannot be in a tar archive");
                                },
                                .tensor = [this](std::int64_t key) { return tensor(key); },
                                .globals = globals_,
                                .record = tar_record};
        return rebuild(object.graph, storages, faults);
    }

    std::vector<StoragePlace> take_storages() { return std::move(places_); }

private:
    PickleStream member(std::string_view name) const {
        const auto found = members_.find(name);
        if (found != members_.end()) return {source_, found->second, collecting(globals_)};
        throw Error(Errc::unknown_format,
                    "the tar archive lacks the member " + safemap::quoted(name) + ", which torch 0.1 writes");
    }

    static std::int64_t count(PickleStream& stream, const std::string& what) {
        const HeldPickle held = stream.pickle(what);
        const std::int64_t count = integer_of(held.graph, held.graph.root(), "count of " + what);
        if (count >= 0 && count <= max_entries) return count;
        throw bad_tensor(std::to_string(count) + " " + what + "; the limit is " + std::to_string(max_entries));
    }
    /// Returns the members of a tuple with `count` members. Throws bad_tensor for another node.
    static std::span<const Id> parts(const PickleGraph& pickle, Id id, std::size_t count, const char* what) {
        const auto items = pickle.items(id);
        if (pickle.kind(id) == Kind::tuple && items.size() == count) return items;
        throw bad_tensor("the " + std::string(what) + " is not a tuple of " + std::to_string(count));
    }

    /// Reads the storages: each is (key, location, class), the element count and the elements. The views come last.
    void read_storages(PickleStream stream) {
        for (std::int64_t left = count(stream, "storages"); left > 0; --left) {
            const HeldPickle held = stream.pickle("a storage");
            const PickleGraph& pickle = held.graph;
            const auto said = parts(pickle, pickle.root(), 3, "storage");
            const std::int64_t key = integer_of(pickle, said[0], "key of a storage");
            const auto type =
                pickle.kind(said[2]) == Kind::global ? storage_type(pickle.global(said[2]).name) : std::nullopt;
            if (!type) throw bad_tensor("storage " + std::to_string(key) + " has an unknown class");
            const std::string what = "storage " + std::to_string(key);
            const std::int64_t number = stream.number(what);
            const auto elements = static_cast<std::uint64_t>(number);
            const auto size = byte_size(type->dtype, elements);
            if (number < 0 || !size) throw bad_tensor(what + " of " + std::to_string(number) + " elements");
            const Extent place = stream.skip(*size, what);
            places_.push_back({source_, place});
            add(key, {stored_run(type->dtype, Shape{elements}, source_, place.offset), 0, elements});
        }
        read_views(stream.pickle("the views of storages").graph);
    }

    /// Reads the views of storages: each is (key, key of the storage, first element, element count).
    void read_views(const PickleGraph& pickle) {
        for (const Id id : pickle.items(pickle.root())) {
            const auto said = parts(pickle, id, 4, "view of a storage");
            Storage view = storage(integer_of(pickle, said[1], "key of a storage"));
            const std::int64_t first = integer_of(pickle, said[2], "offset of a view");
            const std::int64_t count = integer_of(pickle, said[3], "size of a view");
            const Extent range{static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(count)};
            if (first < 0 || count < 0 || !range.inside(view.count)) {
                throw Error(Errc::storage_too_short, "a view of " + std::to_string(count) + " elements from " +
                                                         std::to_string(first) + " is outside a storage of " +
                                                         std::to_string(view.count));
            }
            view.first += range.offset;
            view.count = range.size;
            add(integer_of(pickle, said[0], "key of a view"), view);
        }
    }

    void add(std::int64_t key, const Storage& storage) {
        if (storages_.try_emplace(key, storage).second) return;
        throw bad_tensor("duplicate storage " + std::to_string(key));
    }
    const Storage& storage(std::int64_t key) const {
        const auto found = storages_.find(key);
        if (found != storages_.end()) return found->second;
        throw bad_tensor("storage " + std::to_string(key) + " is not in the file");
    }

    /// Reads the tensors: each is (key, key of the storage, class), the number of dimensions in the low four of eight
    /// bytes, sizes, strides and the offset.
    void read_tensors(PickleStream stream) {
        for (std::int64_t left = count(stream, "tensors"); left > 0; --left) {
            const HeldPickle held = stream.pickle("a tensor");
            const auto said = parts(held.graph, held.graph.root(), 3, "tensor");
            const std::int64_t key = integer_of(held.graph, said[0], "key of a tensor");
            const std::string what = "tensor " + std::to_string(key);
            TarEntry entry{.storage = integer_of(held.graph, said[1], "key of a storage")};
            const auto dimensions = static_cast<std::uint32_t>(stream.number(what) & 0xFFFF'FFFF);
            if (dimensions > max_dimensions)
                throw bad_tensor(what + " of " + std::to_string(dimensions) + " dimensions");
            for (std::uint32_t i = 0; i < dimensions; ++i) entry.sizes.push_back(stream.number(what));
            for (std::uint32_t i = 0; i < dimensions; ++i) entry.strides.push_back(stream.number(what));
            entry.offset = stream.number(what);
            if (!tensors_.try_emplace(key, std::move(entry)).second) throw bad_tensor("duplicate " + what);
        }
    }

    std::optional<LazyTensor> tensor(std::int64_t key) const {
        const auto found = tensors_.find(key);
        if (found == tensors_.end()) {
            storage(key);
            return std::nullopt;
        }
        const TarEntry& entry = found->second;
        const Storage& storage = this->storage(entry.storage);
        Geometry geometry = geometry_of(entry.sizes, entry.strides, entry.offset);
        require_inside(geometry, storage.count);
        if (geometry.elements > 0) geometry.view.offset += static_cast<std::int64_t>(storage.first);
        return LazyTensor({}, storage.store, std::move(geometry.view), {});
    }

    std::shared_ptr<const Source> source_;
    NamedGlobals* globals_;
    TarMembers members_;
    std::vector<StoragePlace> places_;  ///< places of storages
    std::map<std::int64_t, Storage> storages_;
    std::map<std::int64_t, TarEntry> tensors_;
};

}  // namespace

Archive read_tar(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals) {
    Archive out;
    reporting(faults, [&] {
        TarReader reader(source, globals);
        out.take(reader.read(faults));
        out.storages = reader.take_storages();
    });
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::torch
