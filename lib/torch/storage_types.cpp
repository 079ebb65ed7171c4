// The table of storage classes. The reference is torch/storage.py and torch/_tensor.py, 2.13.
#include "torch/storage_types.hpp"

#include "torch/globals.hpp"

namespace safemap::SAFEMAP_ABI::torch {

namespace {

struct NamedStorage {
    std::string_view name;
    StorageType type;
};

constexpr NamedStorage named_storages[]{
    NamedStorage{"FloatStorage", {Dtype::f32}},         NamedStorage{"HalfStorage", {Dtype::f16}},
    NamedStorage{"BFloat16Storage", {Dtype::bf16}},     NamedStorage{"DoubleStorage", {Dtype::f64}},
    NamedStorage{"LongStorage", {Dtype::i64}},          NamedStorage{"IntStorage", {Dtype::i32}},
    NamedStorage{"ShortStorage", {Dtype::i16}},         NamedStorage{"CharStorage", {Dtype::i8}},
    NamedStorage{"ByteStorage", {Dtype::u8}},           NamedStorage{"BoolStorage", {Dtype::boolean}},
    NamedStorage{"ComplexFloatStorage", {Dtype::c64}},  NamedStorage{"ComplexDoubleStorage", {Dtype::c128}},
    NamedStorage{"QInt8Storage", {Dtype::qint8}},       NamedStorage{"QUInt8Storage", {Dtype::quint8}},
    NamedStorage{"QInt32Storage", {Dtype::qint32}},     NamedStorage{"QUInt4x2Storage", {Dtype::quint4x2}},
    NamedStorage{"QUInt2x4Storage", {Dtype::quint2x4}}, NamedStorage{"UntypedStorage", {Dtype::u8, true}},
    NamedStorage{"_UntypedStorage", {Dtype::u8, true}},
};

}  // namespace

std::optional<StorageType> storage_type(std::string_view class_name) noexcept {
    const NamedStorage* const row = row_of(named_storages, class_name);
    return row == nullptr ? std::nullopt : std::optional(row->type);
}

std::optional<Dtype> tensor_class_dtype(std::string_view class_name) noexcept {
    constexpr std::string_view ending = "Tensor";
    if (!class_name.ends_with(ending)) return std::nullopt;
    class_name.remove_suffix(ending.size());
    for (const NamedStorage& row : named_storages) {
        const std::string_view stem = row.name.substr(0, row.name.size() - std::string_view("Storage").size());
        if (stem == class_name && !row.type.untyped) return row.type.dtype;
    }
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::torch
