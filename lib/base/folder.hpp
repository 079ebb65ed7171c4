// A set of named Sources: what readers of several files work through.
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

    /// What an error message calls it.
    virtual const std::string& name() const noexcept = 0;
    /// The names of the files in it, sorted, without those in folders below it.
    virtual std::vector<std::string> list() const = 0;
    /// Returns the names of the folders in it, sorted. Default: none.
    virtual std::vector<std::string> folders() const { return {}; }
    /// Opens one of folders(). Returns null if there is no folder of that name. Throws shard_outside_folder if `name`
    /// is not the name of a folder directly in it. Default: null.
    virtual std::shared_ptr<const Folder> folder(std::string_view name) const;
    /// Opens a file by its name in the folder; relative paths below it are allowed. Nothing where nothing has that
    /// name; throws shard_missing where it is no file but, say, a folder or a pipe, and shard_outside_folder for
    /// absolute names and for names with a `..` in them.
    virtual std::shared_ptr<const Source> open(std::string_view file) const = 0;
    /// Whether what it holds was replaced since it was opened: by then, what was opened from it may be of two models.
    virtual bool changed() const { return false; }
};

}  // namespace safemap::SAFEMAP_ABI
