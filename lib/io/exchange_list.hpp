// The exchange list: what an exchange of two files or folders is about to swap. It is on the disk before the exchange.
// The process that cleans up after the exchange learns from the list which files it may delete.
#pragma once

#include <safemap/api.hpp>

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

inline constexpr const char* exchange_list_name = "exchange";
inline constexpr const char* new_exchange_list_name = "exchange.new";

/// Stamps (see stamp.hpp) by their paths in the two folders. A file whose stamp is in the list belongs to the save,
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
    bool knows(const std::string& path, const std::string& stamp) const;
    bool stays(const std::string& path, const std::string& stamp) const;

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
