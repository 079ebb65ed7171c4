// Owned file descriptors, errors from error numbers of the system, and the kinds of file systems.
#pragma once

#include <safemap/api.hpp>
#include <safemap/error.hpp>

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

/// Returns an error that says "cannot DOING: meaning of the number", with the Errc that a caller can act upon.
Error system_error(int number, std::string_view doing);

/// Returns true if the number means that the file does not exist, or cannot exist: a name too long, a loop of links.
bool means_absent(int number) noexcept;

/// Returns true if the number means that a folder has files.
bool means_not_empty(int number) noexcept;

/// Returns true if a link or an exchange with this error will always fail at this place, while a plain rename may work.
bool never_possible(int number) noexcept;
/// Returns true if the file system does not support the flags of the call.
bool flags_unsupported(int number) noexcept;

/// Repeats `call` while a signal interrupts it.
template <class Call> auto uninterrupted(Call&& call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

/// A file descriptor that is closed by its owner.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int number) noexcept : number_(number) {}
    ~Descriptor() { reset(); }
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    explicit operator bool() const noexcept { return number_ >= 0; }
    int number() const noexcept { return number_; }
    void reset() noexcept;
    /// Returns the descriptor and gives up its ownership.
    int release() noexcept { return std::exchange(number_, -1); }

private:
    int number_ = -1;
};

/// Opens as openat() does, with O_CLOEXEC. Returns an empty object and sets errno if that fails. If the process is out
/// of descriptors, evicts cached ones (see descriptor_cache.hpp) one by one and tries again.
Descriptor open_at(int folder, const char* name, int flags, mode_t mode = 0) noexcept;

/// Opens a folder in the open folder `home` without following a link. Returns an empty object and sets errno if that
/// fails.
Descriptor open_inner(int home, const std::string& name) noexcept;

/// Returns the status of an open file or folder. Throws an error that says "cannot examine WHAT".
struct stat examine(int descriptor, std::string_view what = "it");
/// Returns true if both are the status of one file or folder.
bool same_inode(const struct stat& one, const struct stat& other) noexcept;

/// Returns `path`. Throws path_not_found if it has a NUL byte, where the system would cut it off.
const std::string& without_nul(const std::string& path);

/// Returns the name of the network, cluster or FUSE file system with this magic number (statfs, f_type); empty for any
/// other file system.
std::string_view remote_file_system(std::uint32_t magic) noexcept;

constexpr std::uint32_t overlay_magic = 0x794c'7630;

}  // namespace safemap::SAFEMAP_ABI::io
