// Reads the files of many ranks side by side.
#pragma once

#include "base/folder.hpp"

#include <safemap/progress.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

/// Calls read(i, source) for every file files[i] below the folder, on several threads at once: once, or once more when
/// no other call runs if its pickle needs more memory than the share of a thread (pickle/memory_share.hpp). At most
/// `work.threads` calls run at a time, and never more than 8: what a call holds of its file is in memory. Errors get
/// the path of their file.
///
/// Rethrows the exception of the first file, in the order of `files`, whose call throws or that cannot be opened;
/// files after it may or may not be read. Throws rank_missing if there is no such file or if it is something else, such
/// as a folder; cancelled if `work.monitor` asks for a stop, which is looked for before each file. Reports no progress.
void for_each_file(const Folder& folder, std::span<const std::string> files, const Work& work,
                   const std::function<void(std::size_t, const std::shared_ptr<const Source>&)>& read);

}  // namespace safemap::SAFEMAP_ABI::distributed
