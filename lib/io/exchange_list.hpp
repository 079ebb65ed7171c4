// What an exchange of two files or folders is about to swap, on the disk before it happens: whoever clears away what it
// leaves knows from the list what may be deleted.
#pragma once

#include <safemap/api.hpp>

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

inline constexpr const char* exchange_list_name = "exchange";
inline constexpr const char* new_exchange_list_name = "exchange.new";

/// A list of stamps (see stamp.hpp), by paths in the two folders. A file with a stamp of the list is the save's to
/// delete from the content of its sibling, be that the new model or, after the exchange, the old one. Every other file
/// is somebody else's. A folder of the list is the save's to delete when nothing is in it any more.
class ExchangeList {
public:
    enum class Role : char {
        fresh = '+',  ///< new, in the content
        goes = '-',   ///< at the target, and part of what is replaced
        stays = '=',  ///< at the target, with a hard link in the content
    };

    /// Adds what the content or the target is as a whole.
    void add_whole(Role role, const struct stat& status);
    /// Adds a file or folder in one of the two folders.
    void add(Role role, const std::string& path, const std::string& stamp);

    /// Returns whether this is the content or the target, as they were. A folder that is somewhere else now, where
    /// inodes say nothing, passes.
    bool knows_whole(const struct stat& status) const;
    bool knows(const std::string& path, const std::string& stamp) const;
    bool stays(const std::string& path, const std::string& stamp) const;

    /// Puts the list into the open `sibling`, and on the disk if it is `durable`.
    void write(int sibling, bool durable = true) const;
    /// Reads the list in the open `sibling`; none where no exchange has been prepared. A damaged list knows nothing.
    static std::optional<ExchangeList> read(int sibling);

private:
    struct Entry {
        Role role;
        std::string stamp;
    };
    std::multimap<std::string, Entry> entries_;  ///< by path; the whole has an empty one
    bool inodes_last_ = true;
};

}  // namespace safemap::SAFEMAP_ABI::io
