// The interface for a set of files, for readers of checkpoints with several files.
#pragma once

#include <safemap/source.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A set of files. All members may be called from several threads at once.
class Folder {
public:
    virtual ~Folder() = default;
    Folder() = default;
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    /// Returns the name for error messages.
    virtual const std::string& name() const noexcept = 0;
    /// Returns the sorted names of its files, without files in inner folders.
    virtual std::vector<std::string> list() const = 0;
    /// Returns the sorted names of its inner folders. Default: an empty list.
    virtual std::vector<std::string> folders() const { return {}; }
    /// Opens one of folders(). Returns null if there is no folder of that name. Throws shard_outside_folder if `name`
    /// is not the name of a folder directly in it. Default: null.
    virtual std::shared_ptr<const Folder> folder(std::string_view name) const;
    /// Opens a file by its name in the folder; relative paths below it are allowed. Returns null if nothing has that
    /// name. Throws shard_missing if it is not a file but, for example, a folder or a pipe; shard_outside_folder if the
    /// name is absolute or has a `..`.
    virtual std::shared_ptr<const Source> open(std::string_view file) const = 0;
    /// Returns the name of the folder in it to which a symbolic link of this name leads. Returns an empty text if it is
    /// no such link. Default: an empty text.
    virtual std::string link_to_folder(const std::string& name) const;
    /// Returns the path of the file to which a symbolic link of this name leads, if that file is outside of the folder.
    /// The files of a snapshot in the cache of a model hub are links to `blobs/` beside `snapshots/`; those count as
    /// inside. Default: an empty text.
    virtual std::string link_out(const std::string& name) const;
    /// Returns the sorted names of what is neither a file nor a folder: pipes, sockets, devices, broken links. Default:
    /// an empty list.
    virtual std::vector<std::string> others() const { return {}; }
    /// Returns what has a name that is not in list(): "a folder", "a pipe", "a broken link". Returns an empty text if
    /// nothing has it. Default: an empty text.
    virtual std::string other_kind(const std::string& name) const;
    /// Returns true if its content was replaced after it was opened. Then files that were opened from it may belong to
    /// two models.
    virtual bool changed() const { return false; }
};

}  // namespace safemap::SAFEMAP_ABI
