// The storage classes of torch by name. A table, so that what is known can be read off.
#pragma once

#include <safemap/dtype.hpp>

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// What a storage class holds.
struct StorageType {
    Dtype dtype;
    bool untyped = false;  ///< bytes: the tensor says what they are, and numel counts bytes
};

/// By the class alone, whatever its module: torch.FloatStorage, torch.cuda.FloatStorage.
std::optional<StorageType> storage_type(std::string_view class_name) noexcept;
/// The dtype of the elements of "torch.FloatTensor" and its kind, which old files name.
std::optional<Dtype> tensor_class_dtype(std::string_view class_name) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
