// Checks the numbers that a pickle gives for a tensor, in 64-bit integers as torch does, and describes the tensor.
// Tested by tests/torch/rebuild_test.cpp.
#include "torch/tensors.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/checked.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;

Error overflow(const std::string& what) { return {Errc::shape_overflow, what + " does not fit in 64 bits"}; }

/// Most entries in the dictionary with the lazy bits. It is read for each tensor that has it; torch writes two.
constexpr std::size_t max_metadata = 64;

/// Returns one past the last element of the storage that the view reaches. The view must have elements.
std::uint64_t reach(const StridedView& view) {
    std::uint64_t last = static_cast<std::uint64_t>(view.offset);
    for (std::size_t i = 0; i < view.shape.size(); ++i) {
        const auto span = checked_mul(view.shape[i] - 1, static_cast<std::uint64_t>(view.strides[i]));
        const auto sum = span ? checked_add(last, *span) : std::nullopt;
        if (!sum || *sum >= max_int64) throw overflow("the extent of shape " + to_string(view.shape));
        last = *sum;
    }
    if (last >= max_int64) throw overflow("the offset " + std::to_string(last));
    return last + 1;
}

template <class T> void append_bytes(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// Returns true if elements can be negated by changing their bits. Not: FNUZ floats, which have no negative zero; E8M0,
/// which has no sign; F4 and F6, which are packed.
bool negatable(Dtype dtype) {
    if (kind(dtype) == DtypeKind::boolean || kind(dtype) == DtypeKind::opaque) return false;
    return whole_bytes(dtype) && dtype != Dtype::f8_e4m3fnuz && dtype != Dtype::f8_e5m2fnuz && dtype != Dtype::f8_e8m0;
}

/// Returns the number of elements of `dtype` in a storage of `bytes` bytes.
std::uint64_t elements_in(std::uint64_t bytes, Dtype dtype) {
    if (whole_bytes(dtype)) return bytes / element_size(dtype);
    const auto pairs = checked_mul(bytes, 2);
    if (dtype != Dtype::f4 || !pairs)
        throw bad_tensor("a storage cannot have elements of " + std::string(torch_name(dtype)));
    return *pairs;
}

/// Doubles the last dimension: torch counts pairs of float4, safetensors counts single ones.
void double_last(Geometry& geometry) {
    StridedView& view = geometry.view;
    if (view.shape.empty()) throw bad_tensor("a float4 tensor without dimensions");
    const bool adjacent = view.strides.back() == 1 || view.shape.back() <= 1;
    if (geometry.elements > 0 && !adjacent) throw bad_tensor("a float4 tensor whose last dimension is strided");
    for (std::int64_t& stride : view.strides) {
        if (__builtin_mul_overflow(stride, std::int64_t{2}, &stride)) throw overflow("a stride");
    }
    view.strides.back() = 1;
    if (__builtin_mul_overflow(view.offset, std::int64_t{2}, &view.offset)) throw overflow("an offset");
    const auto last = checked_mul(view.shape.back(), 2);
    const auto elements = checked_mul(geometry.elements, 2);
    if (!last || !elements) throw overflow("a shape of float4");
    view.shape.back() = *last;
    geometry.elements = *elements;
}

}  // namespace

Geometry geometry_of(const Dims<std::int64_t>& sizes, Dims<std::int64_t> strides, std::int64_t offset) {
    if (offset < 0) throw bad_tensor("the offset is negative: " + std::to_string(offset));
    if (sizes.size() != strides.size()) {
        throw bad_tensor(std::to_string(sizes.size()) + " dimensions, but " + std::to_string(strides.size()) +
                         " strides");
    }
    const auto negative = [](std::int64_t value) { return value < 0; };
    if (std::any_of(sizes.begin(), sizes.end(), negative)) throw bad_tensor("a dimension is negative");
    if (std::any_of(strides.begin(), strides.end(), negative)) throw bad_tensor("a stride is negative");
    Geometry geometry{.view = {.strides = std::move(strides), .offset = offset}, .elements = 0};
    Shape& shape = geometry.view.shape;
    for (const std::int64_t size : sizes) shape.push_back(static_cast<std::uint64_t>(size));
    const auto elements = element_count(shape);
    if (!elements || *elements > max_int64) throw overflow("the element count of shape " + to_string(shape));
    geometry.elements = *elements;
    return geometry;
}

void require_inside(const Geometry& geometry, std::uint64_t elements) {
    if (geometry.elements == 0) return;
    const StridedView& view = geometry.view;
    if (const std::uint64_t end = reach(view); end > elements)
        throw Error(Errc::storage_too_short, "shape " + to_string(view.shape) + " reaches element " +
                                                 std::to_string(end) + ", but the storage has " +
                                                 std::to_string(elements));
}

TwoTypes storages_of_two_types(const PickleGraph& pickle) {
    std::vector<std::pair<std::string_view, Id>> firsts;  // key and node of the first persistent id of each storage
    NameIndex by_key;
    const NamesOf keys(firsts);
    TwoTypes found;
    for (Id id = 0; id < pickle.size(); ++id) {
        const auto stated = stated_storage(pickle, id);
        if (!stated || stated->meta || stated->elements == 0) continue;
        const auto number = static_cast<std::uint32_t>(firsts.size());
        const std::uint32_t first = by_key.add(stated->key, number, keys);
        if (first == number) firsts.emplace_back(stated->key, id);
        else if (stated_storage(pickle, firsts[first].second)->type.dtype != stated->type.dtype)
            found.try_emplace(stated->key, *storage_class(pickle, firsts[first].second), *storage_class(pickle, id));
    }
    return found;
}

std::optional<Dtype> TensorReader::dtype(Id id) const {
    if (id == PickleGraph::nothing || pickle_.kind(id) != Kind::global) return std::nullopt;
    const auto global = pickle_.global(id);
    return global.module == "torch" ? dtype_from_torch(global.name) : std::nullopt;
}

/// Reads a tuple, a list, or a torch.Size of one of them.
Dims<std::int64_t> TensorReader::integers(Id id, std::string_view what) const {
    if (pickle_.kind(id) == Kind::call) {
        const auto arguments = pickle_.items(pickle_.call(id).arguments);
        if (arguments.size() == 1) id = arguments[0];
    }
    if (pickle_.kind(id) != Kind::tuple && pickle_.kind(id) != Kind::list) {
        throw bad_tensor("the " + std::string(what) + " is not a tuple of integers");
    }
    const auto items = pickle_.items(id);
    if (items.size() > max_dimensions) {
        throw bad_tensor(std::to_string(items.size()) + " dimensions; the limit is " + std::to_string(max_dimensions));
    }
    Dims<std::int64_t> values;
    for (const Id item : items) values.push_back(integer_of(pickle_, item, what));
    return values;
}

Geometry TensorReader::geometry(const Parts& parts) const {
    const auto sizes = integers(parts.size, "dimension");
    return geometry_of(sizes, integers(parts.stride, "stride"), integer_of(pickle_, parts.offset, "offset"));
}

Decoding TensorReader::decoding(Dtype dtype, Id metadata) const {
    Decoding decoding{.byte_swap = storages_.big_endian && swap_size(dtype) > 1};
    if (metadata == PickleGraph::nothing || pickle_.kind(metadata) != Kind::dict) return decoding;
    const auto items = pickle_.items(metadata);
    if (items.size() > 2 * max_metadata) {
        throw bad_tensor(std::to_string(items.size() / 2) + " lazy bits; the limit is " + std::to_string(max_metadata));
    }
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        const Id value = items[i + 1];
        if (pickle_.kind(items[i]) != Kind::text || pickle_.kind(value) != Kind::boolean) continue;
        if (pickle_.text(items[i]) == "conj") decoding.conj = pickle_.boolean(value);
        if (pickle_.text(items[i]) == "neg") decoding.neg = pickle_.boolean(value);
    }
    if (decoding.conj && kind(dtype) != DtypeKind::complex) throw bad_tensor("a conjugated tensor that is not complex");
    if (decoding.neg && !negatable(dtype)) {
        throw bad_tensor("a negated tensor of " + std::string(torch_name(dtype)));
    }
    return decoding;
}

StorageId TensorReader::storage(Id id) {
    if (!is_embedded(pickle_, id)) return storage_id(pickle_, id);
    auto known = embedded_.find(id);
    if (known == embedded_.end()) {
        known = embedded_.emplace(id, embedded_storage(pickle_, id, storages_, allowance_)).first;
    }
    const EmbeddedStorage& found = known->second;
    return {.key = {}, .type = found.type, .elements = found.elements, .count = found.elements};
}

RecordData TensorReader::bytes_of(Id id, const StorageId& storage) const {
    const auto embedded = embedded_.find(id);
    return embedded == embedded_.end() ? storages_.find(storage.key) : embedded->second.data;
}

/// Returns the key of a store: dtype in a byte, element count in eight, then the storage's key or node. With torch's
/// short keys it needs no allocation. The type of the storage is not in it, because a storage has one.
std::string TensorReader::key_of_store(Id id, const StorageId& storage, Dtype dtype, std::uint64_t elements) const {
    constexpr std::uint8_t is_embedded = 0x80;  // above all dtypes
    const bool embedded = embedded_.contains(id);
    std::string key;
    append_bytes(key, static_cast<std::uint8_t>(static_cast<unsigned>(dtype) | (embedded ? is_embedded : 0U)));
    append_bytes(key, elements);
    if (embedded) append_bytes(key, id);
    else key += storage.key;
    return key;
}

std::shared_ptr<const StoredTensor> TensorReader::stored(Id id, const StorageId& storage, Dtype dtype,
                                                         const Shape& shape, std::uint64_t elements) {
    std::string key = key_of_store(id, storage, dtype, elements);
    const auto key_of = [this](std::uint32_t i) -> std::string_view { return stores_[i].key; };
    if (const auto known = by_key_.find(key, key_of)) return stores_[*known].stored;
    if (!embedded_.contains(id) && storage.elements > 0) require_one_type(storage);
    const RecordData data = bytes_of(id, storage);
    const std::uint64_t stated = *byte_size(storage.type.dtype, storage.elements);  // storage_id() has checked it
    const auto wanted = byte_size(dtype, elements);
    if (!wanted || std::max(*wanted, stated) > data.extent.size) {
        throw Error(Errc::storage_too_short, "storage " + safemap::quoted(storage.key) + " has " +
                                                 bytes_text(data.extent.size) + ", but " +
                                                 std::to_string(storage.elements) + " elements of " +
                                                 std::string(torch_name(storage.type.dtype)) + " are needed");
    }
    if (stated < data.extent.size) add_longer(storage.key, data.extent.size, stated);
    const auto number = static_cast<std::uint32_t>(stores_.size());
    stores_.push_back({std::move(key), runs_.add(dtype, shape, data.source, data.extent.offset)});
    by_key_.add(stores_[number].key, number, key_of);
    return stores_[number].stored;
}

/// Throws if another persistent id gives the storage another type: torch.load takes the first type for every tensor of
/// the storage, so the values would not be those that torch reads.
void TensorReader::require_one_type(const StorageId& storage) {
    if (!two_types_) two_types_ = storages_of_two_types(pickle_);
    const auto found = two_types_->find(storage.key);
    if (found == two_types_->end()) return;
    Error error =
        bad_tensor("storage " + safemap::quoted(storage.key) + " has two types, " + std::string(found->second.first) +
                   " and " + std::string(found->second.second) + "; expected one type for all of its tensors");
    throw std::move(error).with_hint(
        "torch.save refuses to write such a file, and torch.load takes the first type for all of its tensors");
}

void TensorReader::add_longer(std::string_view key, std::uint64_t size, std::uint64_t stated) {
    if (!longer_.emplace(key).second || longer_.size() > 1) return;
    first_longer_ = "storage " + safemap::quoted(key) + " has " + bytes_text(size) + ", but the pickle says " +
                    bytes_text(stated) + "; the rest is not read";
}

std::optional<std::string> TensorReader::note() const {
    if (longer_.empty()) return std::nullopt;
    if (longer_.size() == 1) return first_longer_;
    return first_longer_ + " (" + std::to_string(longer_.size()) + " storages are longer than the pickle says)";
}

std::optional<LazyTensor> TensorReader::whole(Id id) {
    const StorageId storage = this->storage(id);
    if (storage.meta) return std::nullopt;
    const Dtype dtype = storage.type.dtype;
    auto store = stored(id, storage, dtype, Shape{storage.elements}, storage.elements);
    if (storage.count == storage.elements) return LazyTensor({}, std::move(store));
    StridedView view{.shape = {storage.count}, .strides = {1}, .offset = static_cast<std::int64_t>(storage.first)};
    return LazyTensor({}, std::move(store), std::move(view));
}

std::optional<LazyTensor> TensorReader::describe(const Parts& parts) {
    const StorageId storage = this->storage(parts.storage);
    Geometry geometry = this->geometry(parts);
    const Dtype dtype = parts.dtype.value_or(storage.type.dtype);
    if (!storage.type.untyped && dtype != storage.type.dtype) {
        throw bad_tensor("elements of " + std::string(torch_name(dtype)) + " in a storage of " +
                         std::string(torch_name(storage.type.dtype)));
    }
    if (storage.type.untyped && storage.count != storage.elements) throw bad_tensor("a view of an untyped storage");
    if (dtype == Dtype::f4) double_last(geometry);
    StridedView& view = geometry.view;
    if (!byte_size(dtype, geometry.elements)) throw overflow("the size of shape " + to_string(view.shape));
    const auto in_dtype = [&](std::uint64_t count) { return storage.type.untyped ? elements_in(count, dtype) : count; };

    require_inside(geometry, in_dtype(storage.count));
    if (geometry.elements > 0) view.offset += static_cast<std::int64_t>(storage.first);
    const Decoding decoding = this->decoding(dtype, parts.metadata);
    if (storage.meta) return std::nullopt;
    const std::uint64_t elements = in_dtype(storage.elements);
    const bool whole = geometry.elements == elements && view.offset == 0 && view.strides == row_major(view.shape);
    auto store = stored(parts.storage, storage, dtype, whole ? view.shape : Shape{elements}, elements);
    LazyTensor all({}, store, decoding);
    if (whole && all.shape() == view.shape) return all;
    return LazyTensor({}, std::move(store), std::move(view), decoding);
}

}  // namespace safemap::SAFEMAP_ABI::torch
