// Refuses reads with EINVAL unless memory, size and offset are aligned, and counts them.
#include "io/strict_direct.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

StrictDirect::StrictDirect(std::uint32_t of_memory, std::uint32_t of_offset) : alignment_{of_memory, of_offset} {
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

StrictDirect::~StrictDirect() {
    safemap::io::calls = system_;
    current_ = nullptr;
}

int StrictDirect::open(int folder, const char* name, int flags, mode_t mode) {
    const int number = ::openat(folder, name, flags & ~O_DIRECT, mode);
    const std::lock_guard lock(mutex_);
    if ((flags & O_DIRECT) == 0) direct_.erase(number);  // the number of a file that was closed
    else direct_.insert(number), ++opened_;
    return number;
}

ssize_t StrictDirect::read(int descriptor, void* into, std::size_t size, off_t offset) {
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

int StrictDirect::error_of(void* into, std::size_t size, off_t offset) {
    if (most_ != 0 && beat_++ % 2 == 0) return EINTR;
    const bool aligned = reinterpret_cast<std::uintptr_t>(into) % alignment_.memory == 0 &&
                         size % alignment_.offset == 0 && static_cast<std::uint64_t>(offset) % alignment_.offset == 0;
    return aligned ? 0 : EINVAL;
}
