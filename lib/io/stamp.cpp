// Makes and compares stamps: words separated by one space, the inode first.
#include "io/stamp.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/file.hpp"
#include "io/system.hpp"

#include <fcntl.h>

#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

std::string_view without_inode(std::string_view stamp) {
    const std::size_t space = stamp.find(' ');
    return space == stamp.npos ? stamp : stamp.substr(space);
}

}  // namespace

std::string stamp_of(const struct stat& status) {
    if (S_ISDIR(status.st_mode)) return std::to_string(status.st_ino) + " folder";
    return lasting_text_of(identity_of(status));
}

std::string stamp_in(int folder, const std::string& name) {
    struct stat status = {};
    if (calls.fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return stamp_of(status);
    if (means_absent(errno)) return {};
    throw system_error(errno, "examine " + safemap::quoted(name));
}

bool same_stamp(const std::string& before, const std::string& now, bool inodes_last) {
    return inodes_last ? before == now : without_inode(before) == without_inode(now);
}

bool inode_lasted(int descriptor, const std::string& was) { return inode_text(descriptor) == was; }

std::string inode_text(int descriptor) {
    struct stat status = {};
    if (calls.fstat(descriptor, &status) != 0) throw system_error(errno, "examine the list of the save");
    return std::to_string(status.st_ino);
}

}  // namespace safemap::SAFEMAP_ABI::io
