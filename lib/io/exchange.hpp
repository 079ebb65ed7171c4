// Puts the content of a save at its target by one rename, or exchanges the two. What an exchange is about to swap is in
// a list on the disk, from which the process that cleans up after it learns which files it may delete.
#pragma once

#include <safemap/api.hpp>

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

struct PendingSave;

/// Renames the content into place if nothing is at the target.
void appear(PendingSave& save);
/// Replaces a file. An exchange can be taken back if flushing fails. If the file system has no exchange, a plain rename
/// replaces the file. Throws file_changed if the target has changed since the save began.
void exchange_file(PendingSave& save);
/// Replaces a folder by exchange, with links in the new one to the files that stay. Returns false if this folder cannot
/// be exchanged; then nothing has changed. Throws file_changed, likewise.
bool exchange_folder(PendingSave& save);
/// Takes the content back that is at the target, if it is only ours: for a caller that got an error. Leaves the sibling
/// to the next save if that fails.
void take_back(PendingSave& save) noexcept;

inline constexpr const char* exchange_list_name = "exchange";
inline constexpr const char* new_exchange_list_name = "exchange.new";

/// Stamps (see note.hpp) by their paths in the two folders. A file whose stamp is in the list belongs to the save,
/// which may delete it from the content of its sibling: the new model or, after the exchange, the old one. Every other
/// file belongs to another program. A folder in the list may be deleted once it is empty.
class ExchangeList {
public:
    enum class Role : char {
        fresh = '+',  ///< new, in the content
        goes = '-',   ///< at the target, replaced by the save
        stays = '=',  ///< at the target, kept, with a hard link in the content
    };

    /// Adds the stamp of the content or of the target itself.
    void add_whole(Role role, const struct stat& status);
    /// Adds a file or an inner folder of one of the two.
    void add(Role role, const std::string& path, const std::string& stamp);

    /// Returns true if `status` is the content or the target as it was listed. Always true for a folder if inodes are
    /// not comparable, for example after the folder was copied.
    bool knows_whole(const struct stat& status) const;
    bool knows(const std::string& path, const std::string& stamp, std::optional<Role> role = {}) const;

    /// Writes the list into the open `sibling`. Flushes it to the disk if `durable`.
    void write(int sibling, bool durable = true) const;
    /// Reads the list in the open `sibling`; returns nothing if no exchange was prepared. A damaged list is returned
    /// empty, so it knows no file.
    static std::optional<ExchangeList> read(int sibling);

private:
    struct Entry {
        Role role;
        std::string stamp;
    };
    std::multimap<std::string, Entry> entries_;  ///< by path; the content or target itself has the empty path
    bool inodes_last_ = true;
};

}  // namespace safemap::SAFEMAP_ABI::io
