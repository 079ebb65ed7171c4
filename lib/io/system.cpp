// Opens and closes descriptors, and maps error numbers to error codes. No other file does that.
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

const std::string& without_nul(const std::string& path) {
    if (path.find('\0') != std::string::npos)
        throw Error(Errc::path_not_found, "the path has a NUL byte").with_path(path);
    return path;
}

}  // namespace safemap::SAFEMAP_ABI::io
