// Writes files. With blocks allocated beforehand, writing 4 GB is three to eight times as fast as with a growing file,
// and the fsync at the end is nearly free, as long as the kernel does not throttle writers. A file that is large for
// the machine bypasses the page cache (ext4, measured).
#include "io/output.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace safemap::SAFEMAP_ABI::io {

OutputFile OutputFile::create(int folder, const std::string& name, bool durable) {
    Descriptor descriptor = open_at(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!descriptor) throw system_error(errno, "create it");
    return OutputFile(std::move(descriptor), durable);
}

namespace {

/// Adds which limit the file would exceed.
Error too_large(const Error& error) {
    rlimit limit = {};
    const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    const std::string why = limited ? "; this process may write files of at most " +
                                          bytes_text(std::uint64_t{limit.rlim_cur}) + " (ulimit -f)"
                                    : "; the file system does not allow files that large";
    return Error(error.code(), error.message() + why)
        .with_hint(limited ? "raise the limit, or write a folder of smaller shards"
                           : "write a folder of smaller shards");
}

}  // namespace

/// Returns the error of system_error(). For a full disk, adds how much is free; `given_back` bytes of a failed
/// allocation count as free.
Error OutputFile::failed(int number, const std::string& doing, std::uint64_t given_back) const {
    Error error = system_error(number, doing);
    if (number == EFBIG) return too_large(error);
    struct statvfs disk = {};
    // A file system that does not know its free space reports 0 blocks.
    if (number != ENOSPC || calls.fstatvfs(descriptor(), &disk) != 0 || disk.f_blocks == 0) return error;
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize + given_back;
    return Error(error.code(), error.message() + "; free: " + bytes_text(free));
}

void OutputFile::allocate(std::uint64_t size) const {
    if (size == 0) return;
    if (size > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
        throw Error(Errc::no_space, "cannot allocate " + bytes_text(size) + ": no file can be that large");
    const auto length = static_cast<off_t>(size);
    const int file = descriptor_.number();
    // Not posix_fallocate(): where a file system cannot allocate, glibc writes into every block instead.
    if (uninterrupted([&] { return calls.fallocate(file, 0, 0, length); }) == 0) return;
    if (!flags_unsupported(errno)) {
        const int number = errno;
        // Some file systems keep the part that they could allocate.
        struct stat status = {};
        const bool known = calls.fstat(file, &status) == 0;
        throw failed(number, "allocate " + bytes_text(size),
                     known ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0);
    }
    if (uninterrupted([&] { return calls.ftruncate(file, length); }) != 0)
        throw failed(errno, "set its size to " + bytes_text(size));
}

/// Opens the file once more. Through /proc, because others may have taken the name.
Descriptor OutputFile::opened_again(int flags) const {
    const std::string self = "/proc/self/fd/" + std::to_string(descriptor_.number());
    return open_at(AT_FDCWD, self.c_str(), flags);
}

// Writes of less than a page still go through the cache.
void OutputFile::bypass_cache() { around_ = opened_again(O_WRONLY | O_DIRECT); }

File OutputFile::reader(std::string path) const {
    Descriptor descriptor = opened_again(O_RDONLY);
    if (!descriptor) {
        // A missing /proc is not the caller's fault; path_not_found would say that it is.
        const int number = errno == ENOENT ? EIO : errno;
        throw system_error(number, "read back the output through /proc/self/fd").with_path(path);
    }
    return File(std::make_shared<const Descriptor>(std::move(descriptor)), std::move(path));
}

// Writes the whole pages at the beginning of `bytes` past the cache, if `offset` is at the start of a page. `bytes`
// must then be at an aligned address. Returns the number of bytes written. An error (EINVAL, if the device needs a
// larger alignment) counts as 0: the write through the cache that follows reports a real error.
std::size_t OutputFile::write_around(std::uint64_t offset, std::span<const std::byte> bytes) const {
    if (offset % direct_alignment != 0) return 0;
    const std::size_t whole = bytes.size() / direct_alignment * direct_alignment;
    if (whole == 0) return 0;
    const ssize_t count =
        uninterrupted([&] { return calls.pwrite(around_.number(), bytes.data(), whole, static_cast<off_t>(offset)); });
    return count < 0 ? 0 : static_cast<std::size_t>(count);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
    const auto through_cache = [&](std::size_t most) {
        const std::size_t size = std::min(bytes.size(), most);
        const ssize_t count = uninterrupted(
            [&] { return calls.pwrite(descriptor_.number(), bytes.data(), size, static_cast<off_t>(offset)); });
        if (count < 0) throw failed(errno, "write " + bytes_text(size) + " at offset " + std::to_string(offset));
        if (count == 0) throw Error(Errc::io_error, "cannot write it: the system wrote 0 bytes");
        return static_cast<std::size_t>(count);
    };
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    const bool in_step = around_ && (address - offset) % direct_alignment == 0;
    while (!bytes.empty()) {
        // Through the cache up to the next page, whole pages past it, the rest through the cache again.
        const std::size_t into_page = offset % direct_alignment;
        std::size_t count = in_step ? write_around(offset, bytes) : 0;
        if (count == 0) count = through_cache(in_step && into_page != 0 ? direct_alignment - into_page : bytes.size());
        bytes = bytes.subspan(count);
        offset += count;
    }
}

bool prefers_direct_io(std::uint64_t bytes) {
    constexpr std::uint64_t much = std::uint64_t{512} << 20;
    return bytes > std::min(much, calls.physical_memory() / 16);
}

void OutputFile::finish() {
    if (durable_ && uninterrupted([&] { return calls.fsync(descriptor_.number()); }) != 0)
        throw system_error(errno, "flush it to disk");
    around_.reset();
    // Without fsync, data may still be on its way to a server. The server reports a failure at close() or never.
    if (!durable_ && calls.close(descriptor_.release()) != 0 && errno != EINTR) throw system_error(errno, "close it");
    descriptor_.reset();
}

void give_owner(int folder, const char* name, const struct stat& wanted) {
    if (calls.fchownat(folder, name, wanted.st_uid, wanted.st_gid, AT_SYMLINK_NOFOLLOW) == 0) return;
    static_cast<void>(calls.fchownat(folder, name, static_cast<uid_t>(-1), wanted.st_gid, AT_SYMLINK_NOFOLLOW));
}

void sync_folder(int folder) {
    if (uninterrupted([&] { return calls.fsync(folder); }) == 0) return;
    // EINVAL: some network file systems cannot sync directories.
    if (errno != EINVAL && errno != EOPNOTSUPP) throw system_error(errno, "flush it to disk");
}

}  // namespace safemap::SAFEMAP_ABI::io
