// Where the small files of a model are: the folders that Checkpoint::extras() and Checkpoint::training() look into.
#pragma once

#include "state/contents.hpp"

#include <memory>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// A folder that may hold small files of the model.
struct SmallFilesPlace {
    std::shared_ptr<const Folder> folder;
    bool of_model = false;  ///< true for the folder of a finished model: everything small in it belongs to the model
};

/// Returns the folders in which small files of the model may be, the nearest first. Skips folders that cannot be
/// opened.
std::vector<SmallFilesPlace> places_of_small_files(const state::Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
