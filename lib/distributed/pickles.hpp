// Reads the files of many ranks side by side, and collects the classes and functions that their pickles name.
#pragma once

#include "base/folder.hpp"
#include "state/contents.hpp"
#include "torch/named_globals.hpp"

#include <safemap/progress.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

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

/// Keys of globals, by which those of two files are compared.
using GlobalKeys = std::unordered_set<std::string>;

GlobalKeys keys_of(const torch::NamedGlobals& globals);

/// Collects the globals of all files. Ranks of a run name the same, so that most are listed with one file only.
class FoundGlobals {
public:
    /// If `strict`, readers refuse unknown globals. `prefix` begins the names of files in the list. What `also_known`
    /// knows is known, beside what torch::is_known() knows.
    explicit FoundGlobals(bool strict = false, std::string prefix = {},
                          torch::NamedGlobals::Known* also_known = nullptr)
        : strict_(strict), also_known_(also_known), prefix_(std::move(prefix)) {}

    bool strict() const noexcept { return strict_; }
    /// Returns an empty list for files of the same checkpoint.
    FoundGlobals another() const { return FoundGlobals(strict_, prefix_, also_known_); }
    /// Returns such a list with the globals of a file, but not those whose keys are in `listed`.
    FoundGlobals another(const torch::NamedGlobals& globals, const std::string& file, const GlobalKeys& listed) const;
    /// Returns an empty list for the globals of one file.
    torch::NamedGlobals of_file() const { return torch::NamedGlobals(strict_, also_known_); }

    /// Likewise, adds the globals of a file.
    void add(const torch::NamedGlobals& globals, const std::string& file, const GlobalKeys& listed = {});
    void add(FoundGlobals other);
    /// Adds the globals of `other` that no call of this function has added.
    void add_new(FoundGlobals other);
    /// Moves the list to the contents, with a note on the first file that would call unknown functions.
    void move_to(state::Contents& contents);

private:
    bool strict_;
    torch::NamedGlobals::Known* also_known_;
    std::string prefix_;
    std::vector<NamedGlobal> all_ = {};
    Findings findings_ = {};
    bool asks_for_code_ = false;
    std::optional<std::string> note_ = {};
    GlobalKeys new_ = {};  ///< keys that add_new() has added
};

/// Reads files as for_each_file() does, and adds the globals that they name to `found`, if it is not null: each with
/// the first file that names it, over all calls with the same `found`. The callback gets an empty list for its file,
/// which is strict if `found` is. The first file is read before the others.
void for_each_pickle(
    const Folder& folder, std::span<const std::string> files, const Work& work, FoundGlobals* found,
    const std::function<void(std::size_t, const std::shared_ptr<const Source>&, torch::NamedGlobals&)>& read);

/// Returns the tensors of the dictionary in each file, which it reads as for_each_pickle() does. Their names are the
/// keys, after the prefix of the file if there are any.
std::vector<std::pair<std::string, LazyTensor>> read_tensors(const Folder& folder, std::span<const std::string> files,
                                                             const Work& work, FoundGlobals* found,
                                                             std::span<const std::string> prefixes = {});

}  // namespace safemap::SAFEMAP_ABI::distributed
