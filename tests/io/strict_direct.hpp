// O_DIRECT on any file system, as strict as a disk can be.
#pragma once

#include "io/calls.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

/// Emulates O_DIRECT with usual reads, and refuses each that is not aligned. Only one instance at a time.
class StrictDirect {
public:
    StrictDirect(std::uint32_t of_memory, std::uint32_t of_offset) : alignment_{of_memory, of_offset} {
        current_ = this;
        auto& calls = safemap::io::calls;
        calls.openat = [](int folder, const char* name, int flags, mode_t mode) {
            return current_->open(folder, name, flags, mode);
        };
        calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
            return current_->read(descriptor, into, size, offset);
        };
        calls.direct_alignment = [](int, safemap::io::DirectAlignment* alignment) {
            *alignment = current_->alignment_;
            return 0;
        };
    }
    ~StrictDirect() {
        safemap::io::calls = system_;
        current_ = nullptr;
    }
    StrictDirect(const StrictDirect&) = delete;
    StrictDirect& operator=(const StrictDirect&) = delete;

    /// Makes each read return at most that many blocks, and interrupts every second one.
    void stutter(std::size_t blocks) { most_ = blocks * alignment_.offset; }
    /// Makes the nth read from now on fail with `error`.
    void fail_nth(int nth, int error) {
        fails_at_ = reads_ + nth;
        error_ = error;
    }

    /// Number of times that a file was opened for it, reads of such files, and reads of others.
    int opened() const { return opened_; }
    int reads() const { return reads_; }
    int usual_reads() const { return usual_reads_; }
    /// Bytes that reads of such files were asked for, and brought.
    std::uint64_t bytes() const { return bytes_; }

private:
    int open(int folder, const char* name, int flags, mode_t mode) {
        const int number = ::openat(folder, name, flags & ~O_DIRECT, mode);
        const std::lock_guard lock(mutex_);
        if ((flags & O_DIRECT) == 0) direct_.erase(number);  // the number of a file that was closed
        else direct_.insert(number), ++opened_;
        return number;
    }
    ssize_t read(int descriptor, void* into, std::size_t size, off_t offset) {
        const std::lock_guard lock(mutex_);
        if (!direct_.contains(descriptor)) {
            ++usual_reads_;
            return ::pread(descriptor, into, size, offset);
        }
        const int error = reads_ + 1 == fails_at_ ? error_ : error_of(into, size, offset);
        ++reads_;
        if (error != 0) {
            errno = error;
            return -1;
        }
        const ssize_t count = ::pread(descriptor, into, most_ == 0 ? size : std::min(size, most_), offset);
        bytes_ += static_cast<std::uint64_t>(std::max<ssize_t>(count, 0));
        return count;
    }
    int error_of(void* into, std::size_t size, off_t offset) {
        if (most_ != 0 && beat_++ % 2 == 0) return EINTR;
        const bool aligned = reinterpret_cast<std::uintptr_t>(into) % alignment_.memory == 0 &&
                             size % alignment_.offset == 0 &&
                             static_cast<std::uint64_t>(offset) % alignment_.offset == 0;
        return aligned ? 0 : EINVAL;
    }

    static inline StrictDirect* current_ = nullptr;
    const safemap::io::Calls system_ = safemap::io::calls;
    const safemap::io::DirectAlignment alignment_;
    std::mutex mutex_;
    std::set<int> direct_;
    std::size_t most_ = 0;
    int beat_ = 0;
    int fails_at_ = 0;
    int error_ = 0;
    int opened_ = 0;
    int reads_ = 0;
    int usual_reads_ = 0;
    std::uint64_t bytes_ = 0;
};
