// Opens and reads files. A file that changed after it was opened is an error, never garbage.
#include "io/file.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"

#include <fcntl.h>

#include <array>
#include <filesystem>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

std::string_view kind_of(mode_t mode) noexcept {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

/// Returns an absolute path, which stays valid if the process changes its working directory.
std::string lasting(const std::string& name, const Handle& folder) {
    if (folder || name.empty() || name.starts_with('/')) return name;
    std::error_code failed;
    const auto absolute = std::filesystem::absolute(name, failed);
    return failed ? name : absolute.native();
}

constexpr std::size_t most_places = 1024;  // IOV_MAX of Linux

/// Lists the spans for preadv, without the first `done` bytes and without empty spans. Returns how many it listed.
int list_places(std::span<const std::span<std::byte>> into, std::size_t done, std::span<iovec, most_places> places) {
    int count = 0;
    for (std::span<std::byte> place : into) {
        place = place.subspan(std::exchange(done, 0));
        if (place.empty()) continue;
        places[static_cast<std::size_t>(count++)] = {place.data(), place.size()};
        if (count == most_places) break;
    }
    return count;
}

}  // namespace

Identity identity_of(const struct stat& status) noexcept {
    return {.device = status.st_dev,
            .inode = status.st_ino,
            .size = static_cast<std::uint64_t>(status.st_size),
            .modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

std::string text_of(const Identity& identity) {
    return std::to_string(identity.device) + ' ' + lasting_text_of(identity);
}

std::string lasting_text_of(const Identity& identity) {
    return std::to_string(identity.inode) + ' ' + std::to_string(identity.size) + ' ' +
           std::to_string(identity.modified_ns);
}

File::File(Handle folder, const std::string& name, std::string path)
    : folder_(std::move(folder)), name_(lasting(name, folder_)), path_(std::move(path)) {
    Handle handle = open();
    identify(handle);
    descriptor_.keep(std::move(handle));
}

File::File(Handle opened, std::string path) : path_(std::move(path)), given_(std::move(opened)) { identify(given_); }

void File::identify(const Handle& handle) {
    const struct stat status = status_of(handle);
    if (!S_ISREG(status.st_mode))
        throw Error(Errc::invalid_argument, "expected a regular file, found " + std::string(kind_of(status.st_mode)))
            .with_path(path_);
    identity_ = identity_of(status);
}

Handle File::open() const {
    const int folder = folder_ ? folder_->number() : AT_FDCWD;
    // O_NONBLOCK: without it, opening a pipe waits for the other end. It has no effect on a regular file.
    Descriptor descriptor = open_at(folder, without_nul(name_).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!descriptor && errno == ENXIO)
        throw Error(Errc::invalid_argument, "expected a regular file, found a socket").with_path(path_);
    if (!descriptor) throw not_opened(errno, folder);
    return std::make_shared<const Descriptor>(std::move(descriptor));
}

Error File::not_opened(int number, int folder) const {
    struct stat link = {};
    const bool is_link = means_absent(number) &&
                         calls.fstatat(folder, name_.c_str(), &link, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(link.st_mode);
    if (!is_link) return std::move(system_error(number, "open it").with_path(path_));
    return std::move(Error(Errc::path_not_found, number == ELOOP ? "it is a link that leads back to itself"
                                                                 : "it is a link, and the file it leads to is missing")
                         .with_path(path_)
                         .with_hint("restore the file that the link leads to, or download it again"));
}

struct stat File::status_of(const Handle& handle) const {
    struct stat status = {};
    if (calls.fstat(handle->number(), &status) != 0) throw system_error(errno, "examine it").with_path(path_);
    return status;
}

Handle File::descriptor() const {
    if (given_) return given_;
    if (Handle kept = descriptor_.get()) return kept;
    Handle opened = open_again();
    descriptor_.keep(opened);
    return opened;
}

Handle File::open_again() const {
    try {
        Handle opened = open();
        require_same(identity_of(status_of(opened)));
        return opened;
    } catch (const Error& error) {
        if (error.code() != Errc::path_not_found) throw;
        throw Error(Errc::file_changed, "it is gone; it had been closed to save file descriptors").with_path(path_);
    }
}

void File::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    require_inside({offset, into.size()});
    if (into.empty()) return;
    const Handle handle = descriptor();
    while (!into.empty()) {
        const ssize_t count = uninterrupted(
            [&] { return calls.pread(handle->number(), into.data(), into.size(), static_cast<off_t>(offset)); });
        if (count < 0) throw system_error(errno, "read it").with_path(path_);
        if (count == 0) throw resized(identity_of(status_of(handle)).size);
        into = into.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::uint64_t>(count);
    }
}

void File::read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const {
    std::uint64_t left = 0;
    for (const std::span<std::byte> place : into) left += place.size();
    require_inside({offset, left});
    if (left == 0) return;
    const Handle handle = descriptor();
    std::array<iovec, most_places> places;
    for (std::size_t done = 0; left > 0;) {  // `done` bytes of the first span are read
        const int listed = list_places(into, done, places);
        const ssize_t count = uninterrupted(
            [&] { return calls.preadv(handle->number(), places.data(), listed, static_cast<off_t>(offset)); });
        if (count < 0) throw system_error(errno, "read it").with_path(path_);
        if (count == 0) throw resized(identity_of(status_of(handle)).size);
        left -= static_cast<std::uint64_t>(count);
        offset += static_cast<std::uint64_t>(count);
        done += static_cast<std::size_t>(count);
        for (; !into.empty() && done >= into.front().size(); into = into.subspan(1)) done -= into.front().size();
    }
}

void File::require_inside(Extent extent) const {
    if (extent.inside(size())) return;
    throw Error(Errc::file_truncated, "it has " + bytes_text(size()) + ", but " + bytes_text(extent.size) +
                                          " are requested at offset " + std::to_string(extent.offset))
        .with_path(path_);
}

void File::require_unchanged() const { require_same(identity_of(status_of(descriptor()))); }

void File::require_same(const Identity& now) const {
    if (now == identity_) return;
    if (now.device != identity_.device || now.inode != identity_.inode)
        throw Error(Errc::file_changed, "another file has replaced it; it had been closed to save file descriptors")
            .with_path(path_);
    if (now.size != size()) throw resized(now.size);
    throw Error(Errc::file_changed, "it was changed after it was opened").with_path(path_);
}

Error File::resized(std::uint64_t size_now) const {
    Error error(Errc::file_changed,
                "it has " + bytes_text(size_now) + ", but had " + bytes_text(size()) + " when it was opened");
    error.with_path(path_);
    return error;
}

}  // namespace safemap::SAFEMAP_ABI::io
