// The table of system calls that io makes. A test can replace any entry: so each call can be made to fail, to be
// interrupted or to do half of the work.
#pragma once

#include <safemap/bytes.hpp>

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// The alignment that O_DIRECT demands of a read, in bytes: powers of two.
struct DirectAlignment {
    std::uint32_t memory;  ///< the address is a multiple of this
    std::uint32_t offset;  ///< the offset and the size are multiples of this
};

/// Function pointers with the signatures and the meaning of the Linux manual, section 2.
struct Calls {
    int (*openat)(int folder, const char* name, int flags, mode_t mode);
    int (*fstat)(int descriptor, struct stat* status);
    int (*fstatat)(int folder, const char* name, struct stat* status, int flags);
    int (*fstatfs)(int descriptor, struct statfs* status);
    int (*faccessat)(int folder, const char* name, int mode, int flags);
    int (*fstatvfs)(int descriptor, struct statvfs* status);
    int (*fchmod)(int descriptor, mode_t mode);
    int (*fchmodat)(int folder, const char* name, mode_t mode, int flags);
    int (*fchownat)(int folder, const char* name, uid_t owner, gid_t group, int flags);
    int (*futimens)(int descriptor, const timespec times[2]);
    ssize_t (*pread)(int descriptor, void* into, std::size_t size, off_t offset);
    ssize_t (*preadv)(int descriptor, const iovec* into, int count, off_t offset);
    ssize_t (*pwrite)(int descriptor, const void* from, std::size_t size, off_t offset);
    int (*fallocate)(int descriptor, int mode, off_t offset, off_t size);
    int (*ftruncate)(int descriptor, off_t size);
    int (*fsync)(int descriptor);
    int (*close)(int descriptor);
    int (*flock)(int descriptor, int operation);
    int (*mkdirat)(int folder, const char* name, mode_t mode);
    int (*unlinkat)(int folder, const char* name, int flags);
    int (*linkat)(int from_folder, const char* from, int to_folder, const char* to, int flags);
    int (*renameat2)(int from_folder, const char* from, int to_folder, const char* to, unsigned flags);
    bool (*is_mount_root)(int folder);  ///< false where the kernel cannot tell (before Linux 5.8)
    int (*madvise)(void* address, std::size_t size, int advice);
    int (*mincore)(void* address, std::size_t size, unsigned char* pages);
    int (*cachestat)(int descriptor, Extent extent, std::uint64_t* pages);  ///< cached pages (since Linux 6.5)
    int (*fadvise)(int descriptor, off_t offset, off_t size, int advice);   ///< returns the error number
    int (*direct_alignment)(int descriptor, DirectAlignment* alignment);    ///< zeros: impossible (since Linux 6.1)
    std::uint64_t (*descriptor_limit)();                                    ///< the soft limit of the process
    std::uint64_t (*physical_memory)();                                     ///< in bytes
    void (*sleep)(std::chrono::milliseconds time);
    std::string (*boot_id)();  ///< changes at each boot; empty if it is unknown
};

/// The table in use. It holds the system's own calls. Only tests assign to it, and only while no other thread runs.
extern Calls calls;

}  // namespace safemap::SAFEMAP_ABI::io
