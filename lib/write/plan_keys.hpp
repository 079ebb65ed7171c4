// Keys of a plan: of a save that an interrupted one can be resumed by, and of processes that must have the same plan.
#pragma once

#include "write/file_layout.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

/// Returns 32 hex digits that are equal for equal files, with equal bytes, from the same places of the same sources.
/// Returns an empty string if a source does not know its own identity, such as memory.
std::string resume_key_of(std::span<const LazyTensor> tensors, const Layout& layout);

/// The parts of a plan as digests: texts that are equal for equal parts.
struct PlanDigest {
    std::string tensors;  ///< names, dtypes and shapes
    std::string files;    ///< names, headers and places of tensors
    std::string options;  ///< how files are written
    std::string sources;  ///< the places that tensors are read from

    /// Adds a checkpoint of the save. `tensors` are those that its files hold.
    void add(std::span<const LazyTensor> tensors, const Layout& layout);
    void add(const SaveOptions& options);

    std::string text() const;
    /// Throws invalid_argument if the plan of `rank` differs from this one, which is that of rank 0.
    void require_equal(std::string_view other, unsigned rank) const;
};

}  // namespace safemap::SAFEMAP_ABI::write
