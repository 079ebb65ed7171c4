// The table of system calls as the system provides them.
#include "io/calls.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>

namespace safemap::io {

namespace {

// Variadic in C, so it needs a signature of its own.
int open_with_mode(int folder, const char* name, int flags, mode_t mode) { return ::openat(folder, name, flags, mode); }

std::uint64_t physical_memory() {
    return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Calls calls = {
    .openat = open_with_mode,
    .fstat = ::fstat,
    .fstatat = ::fstatat,
    .fstatvfs = ::fstatvfs,
    .fchmod = ::fchmod,
    .fchmodat = ::fchmodat,
    .pread = ::pread,
    .pwrite = ::pwrite,
    .fallocate = ::fallocate,
    .ftruncate = ::ftruncate,
    .fsync = ::fsync,
    .flock = ::flock,
    .mkdirat = ::mkdirat,
    .unlinkat = ::unlinkat,
    .linkat = ::linkat,
    .renameat2 = ::renameat2,
    .physical_memory = physical_memory,
};

}  // namespace safemap::io
