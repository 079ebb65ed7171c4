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

}  // namespace

Calls calls = {
    .openat = open_with_mode,
    .fstat = ::fstat,
    .fstatat = ::fstatat,
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
};

}  // namespace safemap::io
