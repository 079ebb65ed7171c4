// Notes: small files in a sibling that record what a save is doing. If the process dies, the next one reads them. In
// notes, stamps identify one state of a file.
#pragma once

#include <safemap/api.hpp>

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

/// Reads the open note. Returns an empty text if it is not a regular file, or larger than 256 MiB. Errors call it
/// `what`.
std::string read_note(int note, std::string_view what);
/// Puts a note into the open `sibling`; the note appears complete or not at all. Flushes it to the disk if `durable`.
/// The note is first written under the name `unfinished`, with `mode` if that is given. `text` is called with the open
/// note and returns the note's text.
void put_note(int sibling, const char* name, const char* unfinished, std::optional<mode_t> mode, std::string_view what,
              bool durable, const std::function<std::string(int note)>& text);

/// Returns "INODE SIZE NANOSECONDS": inode, size and modification time. Without the device, whose number changes at a
/// reboot. Returns "INODE folder" for a folder: its size and time change with every file in it. An empty stamp means
/// that there is no file.
std::string stamp_of(const struct stat& status);
/// Returns the stamp of `name` in the open `folder`, and does not follow a link. Throws if the file cannot be examined.
std::string stamp_in(int folder, const std::string& name);
/// Returns true if `now` is the same state as `before`. Ignores the inodes unless `inodes_last`; see inode_lasted().
bool same_stamp(const std::string& before, const std::string& now, bool inodes_last);

/// Returns true if the open file still has the inode `was`. The inode of an unchanged file changes if its folder is
/// copied to another disk or restored from a backup, and at each mount on file systems that renumber their files. Then
/// no inode that was recorded in that folder can be compared.
bool inode_lasted(int descriptor, const std::string& was);
/// Returns the inode of an open file, for inode_lasted().
std::string inode_text(int descriptor);

}  // namespace safemap::SAFEMAP_ABI::io
