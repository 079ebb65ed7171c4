// Finishes, resumes or removes what dead saves have left. Removes the content of a sibling that a save no longer needs,
// or has replaced.
#pragma once

#include <safemap/api.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

struct PendingSave;

/// Takes the folder at the target if a dead process has put it there as the content of this job: then its journal is
/// still in the sibling, without the content. Otherwise leaves everything as it is, and returns false.
bool take_published(PendingSave& save);
/// Does what the dead process did not come to.
void finish_published(PendingSave& save);
/// Claims the sibling, in the place that suits the target. Takes the content of a dead process if this save resumes its
/// job; removes what other dead saves have left there.
void claim_sibling(PendingSave& save);
/// Removes the files of the content that are not finished.
void remove_unfinished(const PendingSave& save);

/// Removes the content of the sibling `name` in the open folder `home`; the sibling is open as `sibling`.
///
/// If the content was prepared for an exchange, a file that the exchange list does not know belongs to another program,
/// which wrote it to the target just before the exchange. Such a file moves
/// 1. to the target, under its name
/// 2. to the target under a new name, if the name is taken
/// 3. beside the target with the rest of the content, if its folder does not exist
/// Appends a sentence to `notes` for each file or content that was renamed. Throws if something can be neither removed
/// nor moved.
void clear_content(int home, const std::string& name, int sibling, std::vector<std::string>& notes);

/// Removes a file, or a folder with everything in it, from the open `folder`, if it exists. Only for files that a save
/// alone has written. Throws if that fails.
void remove_all(int folder, const std::string& name);

}  // namespace safemap::SAFEMAP_ABI::io
