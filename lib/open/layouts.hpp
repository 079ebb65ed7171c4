// Layouts of files that safemap recognises and does not read yet, and what to say about each.
#pragma once

#include "state/folder_shape.hpp"

#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

/// Throws for every shape that is not read: unsupported_layout, several_models, not_a_checkpoint and the other codes of
/// training folders. `folder` is what messages call the folder.
[[noreturn]] void refuse(const state::FolderShape& shape, const state::FolderNames& names, std::string_view folder);

/// Throws unsupported_layout if `file` is by its name a part of a layout that means nothing alone.
void refuse_part(std::string_view file);

/// "a, b and 3 more".
std::string listed(const state::FileNames& names);

}  // namespace safemap::SAFEMAP_ABI::open
