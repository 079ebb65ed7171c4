// Opens and reads files. A file that ends earlier than it did when it was opened is an error, never garbage.
#include "io/file.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/mapping.hpp"

#include <safemap/file.hpp>

#include <fcntl.h>

#include <memory>
#include <mutex>
#include <optional>

namespace safemap {

namespace io {

namespace {

std::string_view kind_of(mode_t mode) noexcept {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

struct stat status_of(int descriptor, const std::string& path) {
    struct stat status = {};
    if (calls.fstat(descriptor, &status) != 0) throw system_error(errno, "examine it").with_path(path);
    return status;
}

}  // namespace

File File::open(int folder, const std::string& name, std::string path) {
    // O_NONBLOCK: opening a pipe would wait for its other end. It means nothing to a regular file.
    Descriptor descriptor = open_at(folder, without_nul(name).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!descriptor && errno == ENXIO)
        throw Error(Errc::invalid_argument, "a socket, wanted a regular file").with_path(path);
    if (!descriptor) throw system_error(errno, "open it").with_path(path);
    const struct stat status = status_of(descriptor.number(), path);
    if (!S_ISREG(status.st_mode))
        throw Error(Errc::invalid_argument, std::string(kind_of(status.st_mode)) + ", wanted a regular file")
            .with_path(path);
    return File(std::move(descriptor), status, std::move(path));
}

File::File(Descriptor descriptor, const struct stat& status, std::string path)
    : descriptor_(std::move(descriptor)),
      identity_{.device = status.st_dev,
                .inode = status.st_ino,
                .size = static_cast<std::uint64_t>(status.st_size),
                .modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec},
      path_(std::move(path)) {}

void File::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    require_inside({offset, into.size()});
    while (!into.empty()) {
        const ssize_t count = uninterrupted(
            [&] { return calls.pread(descriptor(), into.data(), into.size(), static_cast<off_t>(offset)); });
        if (count < 0) throw system_error(errno, "read it").with_path(path_);
        if (count == 0) throw shrunk(offset);
        into = into.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::uint64_t>(count);
    }
}

void File::require_inside(Extent extent) const {
    if (extent.inside(size())) return;
    throw Error(Errc::file_truncated, bytes_text(size()) + ", wanted " + bytes_text(extent.size) + " from offset " +
                                          std::to_string(extent.offset) + " on")
        .with_path(path_);
}

void File::require_not_shorter() const {
    const auto now = static_cast<std::uint64_t>(status_of(descriptor(), path_).st_size);
    if (now < size()) throw shrunk(now);
}

Error File::shrunk(std::uint64_t size_now) const {
    Error error(Errc::file_changed,
                "ends after " + bytes_text(size_now) + ", had " + bytes_text(size()) + " when it was opened");
    error.with_path(path_);
    return error;
}

namespace {

/// A file as a Source. The mapping is made when the first view asks for it, and lives as long as the source or any
/// of the views.
class FileSource final : public Source {
public:
    FileSource(File file, Mapping mapping) : file_(std::move(file)), allowed_(mapping) {}

    const std::string& name() const noexcept override { return file_.path(); }
    std::uint64_t size() const noexcept override { return file_.size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override { file_.read_at(offset, into); }
    int descriptor() const noexcept override { return file_.descriptor(); }

    std::optional<SharedBytes> map(Extent extent) const override {
        if (allowed_ == Mapping::never) return std::nullopt;
        file_.require_inside(extent);
        file_.require_not_shorter();
        const SharedBytes whole = mapping();
        return SharedBytes{whole.bytes.subspan(extent.offset, extent.size), whole.owner, whole.writable};
    }

private:
    SharedBytes mapping() const {
        const std::lock_guard lock(mutex_);
        if (!mapping_) mapping_ = map_whole(file_, allowed_);
        return *mapping_;
    }

    File file_;
    Mapping allowed_;
    mutable std::mutex mutex_;
    mutable std::optional<SharedBytes> mapping_;
};

}  // namespace

std::shared_ptr<const Source> file_source(File file, Mapping mapping) {
    return std::make_shared<FileSource>(std::move(file), mapping);
}

}  // namespace io

std::shared_ptr<const Source> open_file(const std::filesystem::path& path, Mapping mapping) {
    return io::file_source(io::File::open(AT_FDCWD, path.native(), path.native()), mapping);
}

}  // namespace safemap
