// Replaces the table of system calls by one that counts, fails, interrupts and shortens them.
#include "io/scripted_calls.hpp"

#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

ScriptedCalls::ScriptedCalls() : system_(safemap::io::calls) {
    current_ = this;
    install();
}

ScriptedCalls::~ScriptedCalls() {
    safemap::io::calls = system_;
    current_ = nullptr;
}

void ScriptedCalls::fail_nth(int nth, int error, bool and_later) {
    count_ = 0;
    nth_ = nth;
    error_ = error;
    and_later_ = and_later;
}

void ScriptedCalls::before_nth(int nth, std::function<void()> what) {
    count_ = 0;
    acts_at_ = nth;
    act_ = std::move(what);
}

bool ScriptedCalls::fails(const char* name) {
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

bool ScriptedCalls::interrupted() {
    if (current_->most_ == 0 || current_->beat_++ % 2 != 0) return false;
    errno = EINTR;
    return true;
}

std::size_t ScriptedCalls::shortened(std::size_t size) {
    const std::size_t most = current_->most_;
    return most != 0 && most < size ? most : size;
}

void ScriptedCalls::install() {
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
        return fails("fallocate") || interrupted() ? -1 : current_->system_.fallocate(descriptor, mode, offset, size);
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

FewDescriptors::FewDescriptors(std::uint64_t limit) {
    limit_ = limit;
    safemap::io::calls.descriptor_limit = [] { return limit_; };
}

FewDescriptors::~FewDescriptors() { safemap::io::calls.descriptor_limit = real_; }

EverythingOn::EverythingOn(std::uint32_t magic) {
    magic_ = magic;
    safemap::io::calls.fstatfs = [](int descriptor, struct statfs* status) {
        const int result = ::fstatfs(descriptor, status);
        status->f_type = magic_;
        return result;
    };
}

EverythingOn::~EverythingOn() { safemap::io::calls.fstatfs = real_; }

CallFailure fail_at(int nth, int error, const std::function<void()>& work) {
    ScriptedCalls calls;
    calls.fail_nth(nth, error);
    CallFailure failure;
    try {
        work();
    } catch (const safemap::Error& found) {
        failure.error = found;
    }
    failure.which = calls.which();
    return failure;
}

NoExchange::NoExchange(bool wanted) {
    if (wanted) safemap::io::calls.is_mount_root = [](int) { return true; };
}

NoExchange::~NoExchange() { safemap::io::calls.is_mount_root = real_; }

CountedReads::CountedReads() {
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

CountedReads::~CountedReads() {
    safemap::io::calls.pread = real_;
    safemap::io::calls.preadv = real_scattered_;
}

ShrunkMemory::ShrunkMemory() {
    safemap::io::calls.physical_memory = []() -> std::uint64_t { return 0; };
}

ShrunkMemory::~ShrunkMemory() { safemap::io::calls.physical_memory = real_; }

SkippedSleeps::SkippedSleeps() {
    total_ = 0;
    safemap::io::calls.sleep = [](std::chrono::milliseconds time) { total_ += time.count(); };
}

SkippedSleeps::~SkippedSleeps() { safemap::io::calls.sleep = real_; }
