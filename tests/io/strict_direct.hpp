// O_DIRECT on any file system, as strict as a disk can be.
#pragma once

#include "io/calls.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

/// Emulates O_DIRECT with usual reads, and refuses each that is not aligned. Only one instance at a time.
class StrictDirect {
public:
    StrictDirect(std::uint32_t of_memory, std::uint32_t of_offset);
    ~StrictDirect();
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
    int open(int folder, const char* name, int flags, mode_t mode);
    ssize_t read(int descriptor, void* into, std::size_t size, off_t offset);
    int error_of(void* into, std::size_t size, off_t offset);

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
