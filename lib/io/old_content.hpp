// Clears away what a save has prepared and does not need any more, or what it has replaced.
#pragma once

#include <safemap/api.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Removes the content of the sibling called `name` in the open `home`, itself open as `sibling`.
///
/// If the content was prepared for an exchange, files that the exchange list does not know are somebody else's: written
/// to the target just before it was exchanged. They go to the target; where another file has that name by now, under a
/// new one; where there is no such folder, the content takes a place beside it. Adds a sentence to `notes` for each
/// that has another name afterwards. Throws where something can be neither removed nor moved.
void clear_content(int home, const std::string& name, int sibling, std::vector<std::string>& notes);

/// Removes a file or a folder with everything in it from the open `folder`, if it is there. For what a save alone has
/// written. Throws where that cannot be done.
void remove_all(int folder, const std::string& name);

}  // namespace safemap::SAFEMAP_ABI::io
