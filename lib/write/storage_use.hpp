// Reports how tensors are read when they are saved, and how much of their storages they reference.
#pragma once

#include "write/file_layout.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Fills in the counts of copied and gathered tensors and of views, the unreferenced bytes, and the unsupported dtypes.
void report_reading(const Input& input, const Layout& layout, SaveReport& report);

/// The use of storages by tensors.
struct StorageUse {
    SaveReport::Count views;
    std::uint64_t unreferenced = 0;  ///< bytes of storages that no tensor references
};
/// Returns the use of `storages` and of the storages that the tensors are in. Storages that overlap count as one. Takes
/// n log n time for n tensors and storages, however many elements they have. If several tensors with gaps share a
/// storage, their runs are compared one by one, up to 2^18 runs in all. After that, gaps inside a tensor do not count
/// as unreferenced.
StorageUse storage_use(std::span<const LazyTensor* const> tensors, std::span<const StoragePlace> storages);

}  // namespace safemap::SAFEMAP_ABI::write
