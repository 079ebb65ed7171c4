// The default table: the calls of the operating system.
#include "io/calls.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

namespace safemap::SAFEMAP_ABI::io {

namespace {

// Wraps openat, which is variadic in C: its address does not have the type that the table needs.
int open_with_mode(int folder, const char* name, int flags, mode_t mode) { return ::openat(folder, name, flags, mode); }

// Makes the system call by its number, which is the same on every architecture. Headers and C libraries older than
// Linux 6.5 have neither the number nor the structures.
int cachestat(int descriptor, Extent extent, std::uint64_t* pages) {
    constexpr long number = 451;
    struct {
        std::uint64_t offset, size;
    } range = {extent.offset, extent.size};
    struct {
        std::uint64_t cached, dirty, written_back, evicted, recently_evicted;
    } counts = {};
    const long result = ::syscall(number, descriptor, &range, &counts, 0U);
    *pages = counts.cached;
    return static_cast<int>(result);
}

// Reads the members of struct statx by their offsets: C libraries older than Linux 6.1 do not name them. Fails with
// EOPNOTSUPP if the kernel or the file system does not tell.
int read_direct_alignment(int descriptor, DirectAlignment* alignment) {
    constexpr unsigned wanted = 0x2000;  // STATX_DIOALIGN
    constexpr std::size_t place = 152;   // stx_dio_mem_align; stx_dio_offset_align follows
    struct statx status = {};
    static_assert(sizeof status == 256);
    if (::statx(descriptor, "", AT_EMPTY_PATH, wanted, &status) != 0) return -1;
    if ((status.stx_mask & wanted) == 0) {
        errno = EOPNOTSUPP;
        return -1;
    }
    std::memcpy(alignment, reinterpret_cast<const std::byte*>(&status) + place, sizeof *alignment);
    return 0;
}

bool is_mount_root(int folder) {
    struct statx status = {};
    return ::statx(folder, "", AT_EMPTY_PATH, 0, &status) == 0 && (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

std::uint64_t descriptor_limit() {
    rlimit limit = {};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

std::uint64_t physical_memory() {
    return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void sleep(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

std::string boot_id() {
    std::string id;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
    return id;
}

}  // namespace

Calls calls = {
    .openat = open_with_mode,
    .fstat = ::fstat,
    .fstatat = ::fstatat,
    .fstatfs = ::fstatfs,
    .faccessat = ::faccessat,
    .fstatvfs = ::fstatvfs,
    .fchmod = ::fchmod,
    .fchmodat = ::fchmodat,
    .fchownat = ::fchownat,
    .futimens = ::futimens,
    .pread = ::pread,
    .preadv = ::preadv,
    .pwrite = ::pwrite,
    .fallocate = ::fallocate,
    .ftruncate = ::ftruncate,
    .fsync = ::fsync,
    .close = ::close,
    .flock = ::flock,
    .mkdirat = ::mkdirat,
    .unlinkat = ::unlinkat,
    .linkat = ::linkat,
    .renameat2 = ::renameat2,
    .is_mount_root = is_mount_root,
    .madvise = ::madvise,
    .mincore = ::mincore,
    .cachestat = cachestat,
    .fadvise = ::posix_fadvise,
    .direct_alignment = read_direct_alignment,
    .descriptor_limit = descriptor_limit,
    .physical_memory = physical_memory,
    .sleep = sleep,
    .boot_id = boot_id,
};

}  // namespace safemap::SAFEMAP_ABI::io
