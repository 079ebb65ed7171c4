// Reads notes, and replaces them atomically. Makes and compares stamps: words separated by one space, the inode first.
#include "io/note.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/file.hpp"
#include "io/output.hpp"
#include "io/system.hpp"

#include <fcntl.h>

#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr off_t largest_note = 256 << 20;

}  // namespace

std::string read_note(int note, std::string_view what) {
    const struct stat status = examine(note, std::string(what));
    if (!S_ISREG(status.st_mode) || status.st_size > largest_note) return {};
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t count = uninterrupted(
            [&] { return calls.pread(note, text.data() + done, text.size() - done, static_cast<off_t>(done)); });
        if (count < 0) throw system_error(errno, "read " + std::string(what));
        if (count == 0) break;
        done += static_cast<std::size_t>(count);
    }
    text.resize(done);
    return text;
}

void put_note(int sibling, const char* name, const char* unfinished, std::optional<mode_t> mode, std::string_view what,
              bool durable, const std::function<std::string(int note)>& text) {
    const auto failed = [what](const char* doing, const char* how = "") {
        return system_error(errno, doing + std::string(what) + how);
    };
    // A save that died may have left an unfinished note.
    if (calls.unlinkat(sibling, unfinished, 0) != 0 && errno != ENOENT) throw failed("remove an unfinished ");
    OutputFile file = OutputFile::create(sibling, unfinished, durable);
    if (mode && calls.fchmod(file.descriptor(), *mode) != 0) throw failed("set the permissions of ");
    const std::string said = text(file.descriptor());
    file.write_at(0, std::as_bytes(std::span(said)));
    file.finish();
    if (calls.renameat2(sibling, unfinished, sibling, name, 0) != 0) throw failed("rename ", " into place");
    if (durable) sync_folder(sibling);
}

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
    const struct stat status = examine(descriptor, "the list of the save");
    return std::to_string(status.st_ino);
}

}  // namespace safemap::SAFEMAP_ABI::io
