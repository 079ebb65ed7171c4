// System calls that fail, are interrupted, or do half of the work, as a test demands.
#pragma once

#include "io/calls.hpp"

#include <safemap/error.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Counts the system calls of io and lets chosen ones fail. Only one instance at a time.
class ScriptedCalls {
public:
    ScriptedCalls();
    ~ScriptedCalls();
    ScriptedCalls(const ScriptedCalls&) = delete;
    ScriptedCalls& operator=(const ScriptedCalls&) = delete;

    /// Makes the nth call from now on fail with `error`; with `and_later`, all calls after it too.
    void fail_nth(int nth, int error, bool and_later = false);
    /// Ends the process at the nth call from now on.
    void die_at(int nth) {
        count_ = 0;
        dies_at_ = nth;
    }
    /// Runs `what` before the nth call from now on.
    void before_nth(int nth, std::function<void()> what);
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
    static bool fails(const char* name);
    static bool interrupted();
    static std::size_t shortened(std::size_t size);

    static void install();

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
    explicit FewDescriptors(std::uint64_t limit);
    ~FewDescriptors();
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

private:
    static inline std::uint64_t limit_ = 0;
    std::uint64_t (*real_)() = safemap::io::calls.descriptor_limit;
};

/// A machine where all files are on a file system with this magic number.
class EverythingOn {
public:
    explicit EverythingOn(std::uint32_t magic);
    ~EverythingOn();
    EverythingOn(const EverythingOn&) = delete;
    EverythingOn& operator=(const EverythingOn&) = delete;

private:
    static inline std::uint32_t magic_ = 0;
    int (*real_)(int, struct statfs*) = safemap::io::calls.fstatfs;
};

/// The outcome of work in which one system call failed.
struct CallFailure {
    std::optional<safemap::Error> error = {};
    std::string which = {};  ///< the call that failed; empty if the work made fewer
};

/// Runs the work, whose nth system call fails with `error`.
CallFailure fail_at(int nth, int error, const std::function<void()>& work);

/// A machine where every folder is the root of a mount, so that no folder can be exchanged.
class NoExchange {
public:
    /// Changes nothing unless `wanted`.
    explicit NoExchange(bool wanted = true);
    ~NoExchange();
    NoExchange(const NoExchange&) = delete;
    NoExchange& operator=(const NoExchange&) = delete;

private:
    decltype(safemap::io::calls.is_mount_root) real_ = safemap::io::calls.is_mount_root;
};

/// Counts the bytes read. Single-threaded.
class CountedReads {
public:
    CountedReads();
    ~CountedReads();
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
    ShrunkMemory();
    ~ShrunkMemory();
    ShrunkMemory(const ShrunkMemory&) = delete;
    ShrunkMemory& operator=(const ShrunkMemory&) = delete;

private:
    std::uint64_t (*real_)() = safemap::io::calls.physical_memory;
};

/// A machine that sleeps no time, and adds up how long it would have slept. Only one instance at a time.
class SkippedSleeps {
public:
    SkippedSleeps();
    ~SkippedSleeps();
    SkippedSleeps(const SkippedSleeps&) = delete;
    SkippedSleeps& operator=(const SkippedSleeps&) = delete;

    std::chrono::milliseconds total() const { return std::chrono::milliseconds(total_); }

private:
    static inline std::atomic<std::int64_t> total_ = 0;
    decltype(safemap::io::calls.sleep) real_ = safemap::io::calls.sleep;
};
