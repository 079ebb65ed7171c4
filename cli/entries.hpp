// The tensors of a checkpoint that the user selected, under all of their selected names.
#pragma once

#include "options.hpp"

#include <safemap/checkpoint.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// One stored tensor. Refers to the checkpoint.
struct Entry {
    const LazyTensor* stored;              ///< under its stored name, selected or not
    std::string_view name;                 ///< its first selected name: the stored one, where that is selected
    std::vector<std::string_view> others;  ///< its other selected names

    const LazyTensor& tensor() const noexcept { return *stored; }
    const std::string& stored_name() const noexcept { return stored->name(); }
    /// Under its first selected name.
    LazyTensor named() const { return name == stored_name() ? *stored : stored->renamed(std::string(name)); }
    bool tied() const noexcept { return !others.empty(); }
    /// All selected names.
    std::vector<std::string> names() const;
};

/// In the order of the checkpoint, which has to outlive them. A tensor is there when any of its names is selected.
std::vector<Entry> select_entries(const Checkpoint& checkpoint, const Selection& selection);

/// What a selection is made from: one checkpoint, or the two that are compared.
using Checkpoints = std::initializer_list<Checkpoint>;

/// Where `common` selects none of the tensors that there are: which globs are to blame. Else empty.
std::string empty_selection(Checkpoints checkpoints, const CommonOptions& common);

/// For work that would come to nothing: throws tensor_not_found there.
void require_selection(Checkpoints checkpoints, const CommonOptions& common);

/// Bytes of values, tied tensors once.
std::uint64_t total_bytes(const std::vector<Entry>& entries);

}  // namespace safemap::cli
