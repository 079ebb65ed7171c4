// Copies small files beside the tensors, in the commit of a save.
#pragma once

#include "io/replace.hpp"
#include "write/layout.hpp"

#include <safemap/save.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

struct PlannedExtras {
    std::vector<const ExtraFile*> files = {};  ///< those to copy, of the options
    std::vector<std::string> notes = {};       ///< those that cannot be copied, and why

    void report(SaveReport& report) const;
};

/// Decides which extras of `options` are copied to `out`. Reads the files of `out` that may stay.
/// Throws invalid_argument, and what reading throws. `options` have to outlive the result.
PlannedExtras plan_extras(const std::filesystem::path& out, const SaveOptions& options, const Layout& layout);

/// Writes them into `staging`, and brings each to the disk. To be called before the files of the layout are added: the
/// index has to be the last file. Throws file_changed if an extra was changed since it was opened.
void copy_extras(const PlannedExtras& extras, io::Staging& staging);

}  // namespace safemap::SAFEMAP_ABI::write
