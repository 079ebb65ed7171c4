// Layouts that safemap recognises and does not read yet, and the error for each.
#pragma once

#include "base/folder.hpp"
#include "names/folder_shape.hpp"

#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

/// Throws the error of a shape that is not read: unsupported_layout, several_models, not_a_checkpoint, or another code
/// for training folders. If there is nothing, looks into folders of `folder` for the hint.
[[noreturn]] void refuse(const names::FolderShape& shape, const names::FolderNames& names, const Folder& folder);

/// Throws unsupported_layout if the name of `file` says that it is a part of a layout, useless without the other parts;
/// unfinished_checkpoint if it is what an interrupted save leaves.
void refuse_part(std::string_view file);

/// Says in hints how files of ranks are found.
inline constexpr std::string_view names_of_ranks =
    "files of ranks are recognised by names such as rank_0.pt and rank_1.pt: rename or link ";

/// Returns the names of indexes and files of weights that cannot be read because they are no regular files, and what
/// they are: "model.safetensors (a broken link)".
names::FileNames models_that_are_no_files(const Folder& folder);

/// Returns "a, b and 3 more".
std::string listed(const names::FileNames& names);

}  // namespace safemap::SAFEMAP_ABI::open
