// System calls that fail, are interrupted, or do half of the work, as a test demands.
#pragma once

#include "io/calls.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

/// Counts the system calls of io and lets chosen ones fail. Only one instance at a time.
class ScriptedCalls {
public:
    ScriptedCalls() : system_(safemap::io::calls) {
        current_ = this;
        install();
    }
    ~ScriptedCalls() {
        safemap::io::calls = system_;
        current_ = nullptr;
    }
    ScriptedCalls(const ScriptedCalls&) = delete;
    ScriptedCalls& operator=(const ScriptedCalls&) = delete;

    /// Makes the nth call from now on fail with `error`; with `and_later`, all calls after it too.
    void fail_nth(int nth, int error, bool and_later = false) {
        count_ = 0;
        nth_ = nth;
        error_ = error;
        and_later_ = and_later;
    }
    /// Ends the process at the nth call from now on.
    void die_at(int nth) {
        count_ = 0;
        dies_at_ = nth;
    }
    /// Runs `what` before the nth call from now on.
    void before_nth(int nth, std::function<void()> what) {
        count_ = 0;
        acts_at_ = nth;
        act_ = std::move(what);
    }
    /// Makes every call of that name fail.
    void fail_all(std::string name, int error) {
        named_ = std::move(name);
        named_error_ = error;
    }
    /// Interrupts every second read and write, and limits each to `bytes`.
    void stutter(std::size_t bytes) { most_ = bytes; }

    /// Records the names of all calls from now on. Single-threaded.
    void remember() { remembers_ = true; }
    const std::vector<std::string>& names() const { return names_; }

    /// Returns the number of calls since fail_nth().
    int count() const { return count_; }
    /// failed(): true if the nth call was reached. which(): its name.
    bool failed() const { return !failed_.empty(); }
    const std::string& which() const { return failed_; }

private:
    static bool fails(const char* name) {
        ScriptedCalls& self = *current_;
        const int number = ++self.count_;
        if (self.remembers_) self.names_.emplace_back(name);
        if (number == self.acts_at_) self.act_();
        if (number == self.dies_at_) ::raise(SIGKILL);
        if (self.nth_ > 0 && (number == self.nth_ || (self.and_later_ && number > self.nth_))) {
            if (number == self.nth_) self.failed_ = name;
            errno = self.error_;
            return true;
        }
        if (self.named_ == name) {
            errno = self.named_error_;
            return true;
        }
        return false;
    }
    static bool interrupted() {
        if (current_->most_ == 0 || current_->beat_++ % 2 != 0) return false;
        errno = EINTR;
        return true;
    }
    static std::size_t shortened(std::size_t size) {
        const std::size_t most = current_->most_;
        return most != 0 && most < size ? most : size;
    }

    static void install() {
        auto& calls = safemap::io::calls;
        calls.openat = [](int folder, const char* name, int flags, mode_t mode) {
            return fails("openat") ? -1 : current_->system_.openat(folder, name, flags, mode);
        };
        calls.fstat = [](int descriptor, struct stat* status) {
            return fails("fstat") ? -1 : current_->system_.fstat(descriptor, status);
        };
        calls.fstatat = [](int folder, const char* name, struct stat* status, int flags) {
            return fails("fstatat") ? -1 : current_->system_.fstatat(folder, name, status, flags);
        };
        calls.fstatfs = [](int descriptor, struct statfs* status) {
            return fails("fstatfs") || interrupted() ? -1 : current_->system_.fstatfs(descriptor, status);
        };
        calls.faccessat = [](int folder, const char* name, int mode, int flags) {
            return fails("faccessat") ? -1 : current_->system_.faccessat(folder, name, mode, flags);
        };
        calls.madvise = [](void* address, std::size_t size, int advice) {
            return fails("madvise") || interrupted() ? -1 : current_->system_.madvise(address, size, advice);
        };
        calls.mincore = [](void* address, std::size_t size, unsigned char* pages) {
            return fails("mincore") ? -1 : current_->system_.mincore(address, size, pages);
        };
        calls.cachestat = [](int descriptor, safemap::Extent extent, std::uint64_t* pages) {
            return fails("cachestat") ? -1 : current_->system_.cachestat(descriptor, extent, pages);
        };
        calls.fadvise = [](int descriptor, off_t offset, off_t size, int advice) {
            return fails("fadvise") ? errno : current_->system_.fadvise(descriptor, offset, size, advice);
        };
        calls.direct_alignment = [](int descriptor, safemap::io::DirectAlignment* alignment) {
            return fails("direct_alignment") ? -1 : current_->system_.direct_alignment(descriptor, alignment);
        };
        calls.fstatvfs = [](int descriptor, struct statvfs* status) {
            return fails("fstatvfs") ? -1 : current_->system_.fstatvfs(descriptor, status);
        };
        calls.fchmod = [](int descriptor, mode_t mode) {
            return fails("fchmod") ? -1 : current_->system_.fchmod(descriptor, mode);
        };
        calls.fchmodat = [](int folder, const char* name, mode_t mode, int flags) {
            return fails("fchmodat") ? -1 : current_->system_.fchmodat(folder, name, mode, flags);
        };
        calls.fchownat = [](int folder, const char* name, uid_t owner, gid_t group, int flags) {
            return fails("fchownat") ? -1 : current_->system_.fchownat(folder, name, owner, group, flags);
        };
        calls.futimens = [](int descriptor, const timespec* times) {
            return fails("futimens") ? -1 : current_->system_.futimens(descriptor, times);
        };
        calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) -> ssize_t {
            if (fails("pread") || interrupted()) return -1;
            return current_->system_.pread(descriptor, into, shortened(size), offset);
        };
        calls.preadv = [](int descriptor, const iovec* into, int count, off_t offset) -> ssize_t {
            if (fails("preadv") || interrupted()) return -1;
            const std::size_t most = current_->most_;
            if (most == 0) return current_->system_.preadv(descriptor, into, count, offset);
            std::vector<iovec> places;
            for (std::size_t left = most; left > 0 && count > 0; --count, ++into) {
                places.push_back({into->iov_base, std::min(left, into->iov_len)});
                left -= places.back().iov_len;
            }
            return current_->system_.preadv(descriptor, places.data(), static_cast<int>(places.size()), offset);
        };
        calls.pwrite = [](int descriptor, const void* from, std::size_t size, off_t offset) -> ssize_t {
            if (fails("pwrite") || interrupted()) return -1;
            return current_->system_.pwrite(descriptor, from, shortened(size), offset);
        };
        calls.fallocate = [](int descriptor, int mode, off_t offset, off_t size) {
            return fails("fallocate") || interrupted() ? -1
                                                       : current_->system_.fallocate(descriptor, mode, offset, size);
        };
        calls.ftruncate = [](int descriptor, off_t size) {
            return fails("ftruncate") || interrupted() ? -1 : current_->system_.ftruncate(descriptor, size);
        };
        calls.fsync = [](int descriptor) {
            return fails("fsync") || interrupted() ? -1 : current_->system_.fsync(descriptor);
        };
        calls.close = [](int descriptor) {
            const bool failed = fails("close");
            const int error = errno;
            current_->system_.close(descriptor);
            errno = error;
            return failed ? -1 : 0;
        };
        calls.flock = [](int descriptor, int operation) {
            return fails("flock") || interrupted() ? -1 : current_->system_.flock(descriptor, operation);
        };
        calls.mkdirat = [](int folder, const char* name, mode_t mode) {
            return fails("mkdirat") ? -1 : current_->system_.mkdirat(folder, name, mode);
        };
        calls.unlinkat = [](int folder, const char* name, int flags) {
            return fails("unlinkat") ? -1 : current_->system_.unlinkat(folder, name, flags);
        };
        calls.linkat = [](int from_folder, const char* from, int to_folder, const char* to, int flags) {
            return fails("linkat") ? -1 : current_->system_.linkat(from_folder, from, to_folder, to, flags);
        };
        calls.renameat2 = [](int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
            return fails("renameat2") ? -1 : current_->system_.renameat2(from_folder, from, to_folder, to, flags);
        };
    }

    static inline ScriptedCalls* current_ = nullptr;
    safemap::io::Calls system_;
    std::atomic<int> count_ = 0;
    std::atomic<int> beat_ = 0;
    int nth_ = 0;
    int error_ = 0;
    int dies_at_ = 0;
    int acts_at_ = 0;
    std::function<void()> act_;
    bool and_later_ = false;
    std::size_t most_ = 0;
    bool remembers_ = false;
    std::vector<std::string> names_;
    std::string failed_;
    std::string named_;
    int named_error_ = 0;
};

/// A process with a limit of `limit` descriptors, as far as safemap knows.
class FewDescriptors {
public:
    explicit FewDescriptors(std::uint64_t limit) {
        limit_ = limit;
        safemap::io::calls.descriptor_limit = [] { return limit_; };
    }
    ~FewDescriptors() { safemap::io::calls.descriptor_limit = real_; }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

private:
    static inline std::uint64_t limit_ = 0;
    std::uint64_t (*real_)() = safemap::io::calls.descriptor_limit;
};

/// A machine where all files are on a file system with this magic number.
class EverythingOn {
public:
    explicit EverythingOn(std::uint32_t magic) {
        magic_ = magic;
        safemap::io::calls.fstatfs = [](int descriptor, struct statfs* status) {
            const int result = ::fstatfs(descriptor, status);
            status->f_type = magic_;
            return result;
        };
    }
    ~EverythingOn() { safemap::io::calls.fstatfs = real_; }
    EverythingOn(const EverythingOn&) = delete;
    EverythingOn& operator=(const EverythingOn&) = delete;

private:
    static inline std::uint32_t magic_ = 0;
    int (*real_)(int, struct statfs*) = safemap::io::calls.fstatfs;
};

/// A machine where every folder is the root of a mount, so that no folder can be exchanged.
class NoExchange {
public:
    /// Changes nothing unless `wanted`.
    explicit NoExchange(bool wanted = true) {
        if (wanted) safemap::io::calls.is_mount_root = [](int) { return true; };
    }
    ~NoExchange() { safemap::io::calls.is_mount_root = real_; }
    NoExchange(const NoExchange&) = delete;
    NoExchange& operator=(const NoExchange&) = delete;

private:
    decltype(safemap::io::calls.is_mount_root) real_ = safemap::io::calls.is_mount_root;
};

/// Counts the bytes read. Single-threaded.
class CountedReads {
public:
    CountedReads() {
        bytes_ = 0;
        safemap::io::calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
            const auto count = ::pread(descriptor, into, size, offset);
            if (count > 0) bytes_ += static_cast<std::size_t>(count);
            return count;
        };
        safemap::io::calls.preadv = [](int descriptor, const iovec* into, int places, off_t offset) {
            const auto count = ::preadv(descriptor, into, places, offset);
            if (count > 0) bytes_ += static_cast<std::size_t>(count);
            return count;
        };
    }
    ~CountedReads() {
        safemap::io::calls.pread = real_;
        safemap::io::calls.preadv = real_scattered_;
    }
    CountedReads(const CountedReads&) = delete;
    CountedReads& operator=(const CountedReads&) = delete;

    std::size_t bytes() const noexcept { return bytes_; }

private:
    static inline std::size_t bytes_ = 0;
    decltype(safemap::io::calls.pread) real_ = safemap::io::calls.pread;
    decltype(safemap::io::calls.preadv) real_scattered_ = safemap::io::calls.preadv;
};

/// A machine with so little memory that every file bypasses the page cache.
class ShrunkMemory {
public:
    ShrunkMemory() {
        safemap::io::calls.physical_memory = []() -> std::uint64_t { return 0; };
    }
    ~ShrunkMemory() { safemap::io::calls.physical_memory = real_; }
    ShrunkMemory(const ShrunkMemory&) = delete;
    ShrunkMemory& operator=(const ShrunkMemory&) = delete;

private:
    std::uint64_t (*real_)() = safemap::io::calls.physical_memory;
};
