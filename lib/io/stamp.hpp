// Text on the disk that tells a file from an earlier state of it.
#pragma once

#include <safemap/api.hpp>

#include <sys/stat.h>

#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// "INODE SIZE NANOSECONDS": inode, size and time of modification. The device is not in it: its number changes at a
/// reboot. "INODE folder" for a folder, whose size and time change with every file in it. Empty stands for no file.
std::string stamp_of(const struct stat& status);
/// The stamp of what `name` stands for in the open `folder`, without following a link. Throws where that cannot be
/// found out.
std::string stamp_in(int folder, const std::string& name);
/// Returns whether `now` is what `before` was. Inodes are not compared where they do not last: see inode_lasted().
bool same_stamp(const std::string& before, const std::string& now, bool inodes_last);

/// Returns whether the file open as `descriptor` still has the inode `was`. A file that is not touched changes its
/// inode where the folder was copied to another disk or restored from a backup, and on file systems that number their
/// files anew at each mount. Then no inode that was written down there counts.
bool inode_lasted(int descriptor, const std::string& was);
/// The inode of an open file, for inode_lasted().
std::string inode_text(int descriptor);

}  // namespace safemap::SAFEMAP_ABI::io
