// The names of DeepSpeed's files: which rank a file belongs to, and which files are missing.
#pragma once

#include "base/folder.hpp"
#include "names/file_names.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

/// A file and what its name says.
struct ZeroFile {
    std::string file;
    RankedName name;
};

/// The files of a tag, in the order of model ranks, then ranks, layers and experts.
struct ZeroFiles {
    std::vector<ZeroFile> models = {};  ///< kinds zero_model and zero_ranked_model
    std::vector<ZeroFile> optimizers = {};
    std::vector<ZeroFile> experts = {};
    std::vector<ZeroFile> expert_optimizers = {};
    std::vector<ZeroFile> layers = {};
    std::uint64_t model_ranks = 0;  ///< number of model ranks
    std::uint64_t ranks = 0;        ///< ranks with optimizer files, of one model rank; 0 without such files
    bool ranked_models = false;     ///< true for stage 3: each rank has a file of model states
};

/// Sorts the names of a tag's folder. Throws rank_repeated if two files are of one rank, and rank_missing if the file
/// of a rank below the highest is missing, or files of model states are; the message lists the missing names. Throws
/// ranks_differ if names of optimizer files have several prefixes, and world_mismatch for a number above 2^24.
ZeroFiles zero_files(const FileNames& files);
/// Sorts the names of a tag's folder. The message also says what has the name of a missing file, such as a pipe.
ZeroFiles zero_files(const Folder& tag);

/// Returns "a, b and 3 more" of the optimizer files for the ranks from `first` to `world` - 1. `like` has the prefix
/// and the model rank.
std::string optimizer_names(const RankedName& like, std::uint64_t first, std::uint64_t world);
/// Likewise, all files of the model ranks from `first` to `end` - 1: each has as many as the model ranks that are
/// there.
std::string model_rank_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t end);
/// Likewise, the files of model states of the ranks from `first` to `world` - 1 of stage 3, for each model rank.
std::string ranked_model_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t world);

}  // namespace safemap::SAFEMAP_ABI::names
