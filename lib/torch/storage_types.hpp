// Looks up torch's storage classes by name, in a table that shows all known ones.
#pragma once

#include <safemap/dtype.hpp>

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// The elements of a storage class.
struct StorageType {
    Dtype dtype;
    bool untyped = false;  ///< bytes: the tensor gives the dtype of the elements, and numel counts bytes
};

/// Returns the elements of a storage class. The module does not matter: torch.FloatStorage, torch.cuda.FloatStorage.
std::optional<StorageType> storage_type(std::string_view class_name) noexcept;
/// Returns the dtype of the elements of a tensor class, such as "FloatTensor" for torch.FloatTensor; old files name
/// these classes.
std::optional<Dtype> tensor_class_dtype(std::string_view class_name) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
