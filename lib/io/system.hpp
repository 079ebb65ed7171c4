// A file descriptor with an owner, and what the system's error numbers mean here.
#pragma once

#include <safemap/error.hpp>

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

/// "cannot DOING: what the number means", with the Errc that a caller can act upon.
Error system_error(int number, std::string_view doing);

/// Whether the number says that no such file is there (nor could be: a name too long, a loop of links).
bool means_absent(int number) noexcept;

/// Whether a link or an exchange that fails so will never succeed there, while plain renames may.
bool never_possible(int number) noexcept;
/// Whether a call fails so because the file system does not know its flags.
bool flags_unsupported(int number) noexcept;

/// Calls `call` again as long as a signal interrupts it.
template <class Call> auto uninterrupted(Call&& call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

/// Closes its descriptor.
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
    /// Gives the descriptor away.
    int release() noexcept { return std::exchange(number_, -1); }

private:
    int number_ = -1;
};

/// Opens as openat does, O_CLOEXEC added; empty with errno set where that fails. Where there are no descriptors left,
/// those that are kept for later are closed one after the other.
Descriptor open_at(int folder, const char* name, int flags, mode_t mode = 0) noexcept;

/// Opens a folder in the open folder `home`, and follows no link. Empty with errno set where that fails.
Descriptor open_inner(int home, const std::string& name) noexcept;

/// A path that cannot be cut short by a NUL inside it on its way to the system. Throws path_not_found.
const std::string& without_nul(const std::string& path);

}  // namespace safemap::SAFEMAP_ABI::io
