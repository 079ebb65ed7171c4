// How tensors are read when they are saved, and what they see of the storages that they stand in.
#pragma once

#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// Fills in what is copied and gathered, views, unreferenced bytes, and unsupported.
void report_reading(const Input& input, const Layout& layout, SaveReport& report);

struct StorageUse {
    SaveReport::Count views;
    std::uint64_t unreferenced = 0;  ///< bytes of storages that no tensor sees
};
/// Of storages that overlap, which are one, and of those that the tensors stand in. n log n of both together, however
/// many elements they have: where a storage has several tensors that leave gaps, these are looked at run by run, up to
/// 2^18 runs in all; from then on no gap in a tensor is unreferenced.
StorageUse storage_use(std::span<const LazyTensor* const> tensors, std::span<const StoragePlace> storages);

}  // namespace safemap::SAFEMAP_ABI::write
