// Opens and closes descriptors, and maps error numbers to error codes. No other file does that.
// The magic numbers of file systems are from linux/magic.h, or else the source code of the file system.
#include "io/system.hpp"

#include "io/calls.hpp"
#include "io/descriptor_cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <system_error>

namespace safemap::SAFEMAP_ABI::io {

namespace {

Errc code_of(int number) noexcept {
    if (means_absent(number)) return Errc::path_not_found;
    switch (number) {
        case EACCES:
        case EPERM:
        case EROFS: return Errc::permission_denied;
        case ENOSPC:
        case EDQUOT:
        case EFBIG: return Errc::no_space;
        case EMFILE:
        case ENFILE: return Errc::too_many_open_files;
        case ENOMEM: return Errc::out_of_memory;
        case ESTALE: return Errc::file_changed;  // gone or replaced on its server
        default: return Errc::io_error;
    }
}

}  // namespace

bool means_absent(int number) noexcept {
    return number == ENOENT || number == ENOTDIR || number == ENAMETOOLONG || number == ELOOP;
}

bool means_not_empty(int number) noexcept { return number == ENOTEMPTY || number == EEXIST; }

Error system_error(int number, std::string_view doing) {
    return Error(code_of(number), "cannot " + std::string(doing) + ": " + std::generic_category().message(number));
}

bool flags_unsupported(int number) noexcept { return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP; }

bool never_possible(int number) noexcept {
    return flags_unsupported(number) || number == EPERM || number == EACCES || number == EXDEV || number == EBUSY ||
           number == EMLINK;
}

void Descriptor::reset() noexcept {
    // An error of close() loses nothing here: fsync has flushed the data, or the data is not needed.
    // OutputFile::finish() itself closes files without fsync.
    if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Descriptor open_at(int folder, const char* name, int flags, mode_t mode) noexcept {
    for (;;) {
        const int number = uninterrupted([&] { return calls.openat(folder, name, flags | O_CLOEXEC, mode); });
        const int error = errno;
        if (number >= 0 || (error != EMFILE && error != ENFILE) || !close_one_kept()) {
            errno = error;
            return Descriptor(number);
        }
    }
}

Descriptor open_inner(int home, const std::string& name) noexcept {
    return open_at(home, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

struct stat examine(int descriptor, std::string_view what) {
    struct stat status = {};
    if (calls.fstat(descriptor, &status) != 0) throw system_error(errno, "examine " + std::string(what));
    return status;
}

bool same_inode(const struct stat& one, const struct stat& other) noexcept {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

const std::string& without_nul(const std::string& path) {
    if (path.find('\0') != std::string::npos)
        throw Error(Errc::path_not_found, "the path has a NUL byte").with_path(path);
    return path;
}

namespace {

struct FileSystem {
    std::uint32_t magic;
    std::string_view name;
};

constexpr FileSystem remote[] = {
    {0x0000'6969, "NFS"},      {0xff53'4d42, "SMB"},  // mounted as cifs
    {0xfe53'4d42, "SMB"},      {0x0000'517b, "SMB"},  // smbfs, before Linux 2.6.37
    {0x6573'5546, "FUSE"},                            // virtiofs and all user-space file systems, also for buckets
    {0x0102'1997, "9p"},                              // virtual machines, WSL, gVisor
    {0x00c3'6400, "Ceph"},     {0x0bd0'0bd0, "Lustre"}, {0x4750'4653, "GPFS"},  // now IBM Storage Scale
    {0x1983'0326, "BeeGFS"},   {0x1803'1977, "WekaFS"}, {0xaad7'aaea, "PanFS"},     {0x2003'0528, "OrangeFS"},
    {0x5346'414f, "AFS"},  // OpenAFS
    {0x6b41'4653, "AFS"},  // the kernel's own
    {0x7375'7245, "Coda"},     {0x0000'564c, "NCP"},    {0x7461'636f, "OCFS2"},     {0x0116'1970, "GFS2"},
    {0xbeef'dead, "StorNext"}, {0x786f'4256, "vboxsf"}, {0x7c7c'6673, "Parallels"},
};

}  // namespace

std::string_view remote_file_system(std::uint32_t magic) noexcept {
    for (const FileSystem& system : remote)
        if (system.magic == magic) return system.name;
    return {};
}

}  // namespace safemap::SAFEMAP_ABI::io
