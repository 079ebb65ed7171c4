// Copies small files beside the tensors, as a part of the same commit.
#pragma once

#include "io/staging.hpp"
#include "write/file_layout.hpp"

#include <safemap/save.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The extra files of a save, as planned.
struct PlannedExtras {
    std::vector<const ExtraFile*> files = {};  ///< extras of the options to be copied
    std::vector<std::string> notes = {};       ///< extras that cannot be copied, and why

    void report(SaveReport& report) const;
};

/// Decides which extras of `options` are copied to `out`. Reads the files of `out` that may stay. Throws
/// invalid_argument, and what reading throws. `options` must outlive the result.
PlannedExtras plan_extras(const std::filesystem::path& out, const SaveOptions& options, const Layout& layout);

/// Writes the extras into `staging` and flushes each to disk. Called before the files of the layout are added, because
/// the index must be the last file. Throws file_changed if an extra has changed since it was opened.
void copy_extras(const PlannedExtras& extras, io::Staging& staging);

}  // namespace safemap::SAFEMAP_ABI::write
