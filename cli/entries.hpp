// The tensors of a checkpoint that the user selected, under all of their selected names.
#pragma once

#include <safemap/checkpoint.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::cli {

/// One stored tensor.
struct Entry {
    LazyTensor tensor;               ///< under its first selected name
    std::vector<std::string> names;  ///< at least one: the stored name first, where that is selected
    std::string stored_name;

    bool tied() const noexcept { return names.size() > 1; }
};

/// In the order of the checkpoint. A tensor is there when any of its names is selected.
std::vector<Entry> select_entries(const Checkpoint& checkpoint, const Selection& selection);

/// Bytes of values, tied tensors once.
std::uint64_t total_bytes(const std::vector<Entry>& entries);

}  // namespace safemap::cli
