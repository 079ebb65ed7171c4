// The tensors of a checkpoint that the user selected, under all of their selected names.
#pragma once

#include "options.hpp"

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

/// The same for work that would come to nothing: throws tensor_not_found where `common` selects none of the tensors
/// that there are.
std::vector<Entry> require_entries(const Checkpoint& checkpoint, const CommonOptions& common);

/// Where `common` selected none of the tensors that there are: which globs are to blame. Else empty.
std::string empty_selection(const Checkpoint& checkpoint, const CommonOptions& common,
                            const std::vector<Entry>& entries);

/// Bytes of values, tied tensors once.
std::uint64_t total_bytes(const std::vector<Entry>& entries);

}  // namespace safemap::cli
