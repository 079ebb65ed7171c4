// The table of storage classes. The reference is torch/storage.py and torch/_tensor.py, 2.13.
#include "torch/storage_types.hpp"

#include "torch/globals.hpp"

namespace safemap::SAFEMAP_ABI::torch {

namespace {

struct Named {
    std::string_view name;
    StorageType type;
};

constexpr Named storages[]{
    Named{"FloatStorage", {Dtype::f32}},         Named{"HalfStorage", {Dtype::f16}},
    Named{"BFloat16Storage", {Dtype::bf16}},     Named{"DoubleStorage", {Dtype::f64}},
    Named{"LongStorage", {Dtype::i64}},          Named{"IntStorage", {Dtype::i32}},
    Named{"ShortStorage", {Dtype::i16}},         Named{"CharStorage", {Dtype::i8}},
    Named{"ByteStorage", {Dtype::u8}},           Named{"BoolStorage", {Dtype::boolean}},
    Named{"ComplexFloatStorage", {Dtype::c64}},  Named{"ComplexDoubleStorage", {Dtype::c128}},
    Named{"QInt8Storage", {Dtype::qint8}},       Named{"QUInt8Storage", {Dtype::quint8}},
    Named{"QInt32Storage", {Dtype::qint32}},     Named{"QUInt4x2Storage", {Dtype::quint4x2}},
    Named{"QUInt2x4Storage", {Dtype::quint2x4}}, Named{"UntypedStorage", {Dtype::u8, true}},
    Named{"_UntypedStorage", {Dtype::u8, true}},
};

}  // namespace

std::optional<StorageType> storage_type(std::string_view class_name) noexcept {
    const Named* const row = row_of(storages, class_name);
    return row == nullptr ? std::nullopt : std::optional(row->type);
}

std::optional<Dtype> tensor_class_dtype(std::string_view class_name) noexcept {
    constexpr std::string_view ending = "Tensor";
    if (!class_name.ends_with(ending)) return std::nullopt;
    class_name.remove_suffix(ending.size());
    for (const Named& row : storages) {
        const std::string_view stem = row.name.substr(0, row.name.size() - std::string_view("Storage").size());
        if (stem == class_name && !row.type.untyped) return row.type.dtype;
    }
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::torch
