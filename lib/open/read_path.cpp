// Opens files, indexes and folders of the file system.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/folder.hpp"
#include "open/formats.hpp"
#include "open/stale_copy.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// An exception for a save that has replaced the contents of a folder while they were read.
struct Replaced {};

/// A sink that passes faults on. If the folder is being replaced, it throws Replaced instead.
class SettledSink final : public FaultSink {
public:
    SettledSink(FaultSink& next, const Folder& folder, const Located& found)
        : next_(next), folder_(folder), found_(found) {}

    void fault(Error error) override {
        if (changed()) throw Replaced();
        next_.fault(std::move(error));
    }
    bool changed() const { return folder_.changed() || (found_.folder && found_.folder->changed()); }

private:
    FaultSink& next_;
    const Folder& folder_;
    const Located& found_;  ///< the folder inside `folder_` that is read, once it is found
};

/// Reads a folder. If the folder is replaced meanwhile, reads it again: the contents may be of two models, or gone.
Contents read_settled(const std::filesystem::path& path, Mapping mapping, const OpenOptions& options,
                      FaultSink& faults) {
    constexpr int most_attempts = 20;
    for (int attempt = 1;; ++attempt) {
        const auto folder = open_folder(path, mapping);
        if (attempt == most_attempts) return read_located(locate(folder), options, faults);
        Located found;
        SettledSink settled(faults, *folder, found);
        try {
            found = locate(folder);
            Contents contents = read_located(found, options, settled);
            if (!settled.changed()) return contents;
        } catch (const Replaced&) {
            continue;
        } catch (const Error&) {
            if (!settled.changed()) throw;
        }
    }
}

/// Adds a note if the file is one of several that are one checkpoint.
void note_rank(const std::filesystem::path& path, Contents& contents) {
    const std::string name = path.filename().native();
    if (auto note = note_of_deepspeed_file(name)) return contents.notes.push_back(std::move(*note));
    if (auto note = note_of_shard(contents, name)) return contents.notes.push_back(std::move(*note));
    const auto one = state::rank_file(name);
    if (!one) return;
    std::uint64_t ranks = 0;
    try {
        const auto parent = path.parent_path();
        ranks = state::ranks_in_set(*one, open_folder(parent.empty() ? "." : parent, Mapping::never)->list());
    } catch (const Error&) {  // the folder cannot be listed
    }
    if (ranks < 2) return;
    contents.notes.push_back("this is rank " + std::to_string(one->rank) + " of " + std::to_string(ranks) +
                             "; the whole checkpoint is in the files " + excerpt(one->set));
}

}  // namespace

Mapping mapping_of(Access access) {
    switch (access) {
        case Access::automatic: return Mapping::automatic;
        case Access::mapped: return Mapping::allowed;
        case Access::copied: return Mapping::never;
        case Access::private_copy: return Mapping::private_copy;
    }
    throw Error(Errc::invalid_argument, "unknown access mode");
}

Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults) {
    const Mapping mapping = mapping_of(options.access);
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return read_settled(path, mapping, options, faults);

    const auto source = open_file(path, mapping);
    if (!is_index(*source)) {
        Contents contents = read_file(source, options, faults);
        note_stale_copy(path, contents);
        note_rank(path, contents);
        return contents;
    }
    const auto parent = path.parent_path();
    return read_shards(*open_folder(parent.empty() ? "." : parent, mapping), source, options, faults);
}

bool has_optimizer(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::filesystem::path inner = path / state::optimizer_folder;
    // A link leads to a folder of some other checkpoint, and a save refuses to write to it.
    if (!std::filesystem::is_directory(std::filesystem::symlink_status(inner, ignored))) return false;
    try {
        const std::vector<std::string> files = open_folder(inner, Mapping::never)->list();
        const auto is_shard = [](const std::string& file) { return state::shard_file(file).has_value(); };
        return !state::safetensors_heads(files).empty() || std::any_of(files.begin(), files.end(), is_shard);
    } catch (const Error& error) {
        if (error.code() != Errc::permission_denied) throw;
        return false;
    }
}

}  // namespace safemap::SAFEMAP_ABI::open
