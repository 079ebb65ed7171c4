// The Source that reads a file of the file system: by mapping it or by copying.
#include "io/cached_pages.hpp"
#include "io/calls.hpp"
#include "io/direct_file.hpp"
#include "io/mapping.hpp"
#include "io/system.hpp"

#include <safemap/advanced/file.hpp>

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

namespace safemap::SAFEMAP_ABI {

namespace io {

namespace {

using namespace literals;

/// A file as a Source. The mapping, or the copy in its place, is made on first use. It lives until the source and all
/// its views are gone.
class FileSource final : public Source {
public:
    FileSource(Handle folder, std::string name, std::string path, Mapping mapping)
        : file_(std::move(folder), std::move(name), std::move(path)), asked_(mapping) {}
    FileSource(Handle opened, std::string path, Mapping mapping)
        : file_(std::move(opened), std::move(path)), asked_(mapping) {}

    const std::string& name() const noexcept override { return file_.path(); }
    std::uint64_t size() const noexcept override { return file_.size(); }
    bool is_file() const noexcept override { return true; }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override { file_.read_at(offset, into); }
    void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const override {
        file_.read_scattered(offset, into);
    }
    bool read_direct(std::uint64_t offset, std::span<const std::span<std::byte>> into,
                     std::span<std::byte> scratch) const override {
        return direct_.read(offset, into, scratch);
    }
    void require_unchanged() const override { file_.require_unchanged(); }
    std::string identity() const override { return lasting_text_of(file_.identity()); }

    std::optional<SharedBytes> map(Extent extent) const override {
        const SharedBytes* const whole = mapping();
        if (whole == nullptr) return part_of_own_copy(extent);
        file_.require_inside(extent);
        return SharedBytes{whole->bytes.subspan(extent.offset, extent.size), whole->owner, whole->writable};
    }

    Residency residency(Extent extent) const override {
        file_.require_inside(extent);
        if (extent.size == 0) return {};
        const Handle handle = file_.descriptor();
        std::optional<std::uint64_t> resident;
        if (const SharedBytes* const whole = mapping())
            resident = resident_in(whole->bytes.subspan(extent.offset, extent.size), handle->number());
        // On an overlay the pages belong to the file below; cachestat counts those of the overlay's own file, which has
        // none.
        if (!resident && file_system() != overlay_magic) resident = resident_in(extent, handle->number());
        if (!resident) return {};
        return {*resident, extent.size};
    }

    void prefetch(Extent extent) const override {
        file_.require_inside(extent);
        if (extent.size == 0) return;
        const SharedBytes* const whole = mapping();
        if (whole != nullptr && populate(whole->bytes.subspan(extent.offset, extent.size))) return;
        // Reads the bytes and drops them: for old kernels and for files that are not mapped. If populate() failed, the
        // read also reports the reason.
        read_away(extent);
    }

    void evict(Extent extent) const override {
        file_.require_inside(extent);
        if (extent.size == 0) return;
        // Not for a private copy: unmapping would lose what was written to it.
        const SharedBytes* const whole = ready_.load(std::memory_order_acquire);
        if (whole != nullptr && !whole->writable) unmap_pages(whole->bytes.subspan(extent.offset, extent.size));
        drop_cache(extent, file_.descriptor()->number());
    }

private:
    /// Returns the mapping of the whole file; null if the file must not be mapped.
    const SharedBytes* mapping() const {
        // A checkpoint takes thousands of views: every call but the first takes no lock.
        if (const SharedBytes* const ready = ready_.load(std::memory_order_acquire)) return ready;
        const std::lock_guard lock(mutex_);
        if (!may_map()) return nullptr;
        if (!mapping_) {
            file_.require_unchanged();
            mapping_ = map_whole(file_, asked_);
            ready_.store(&*mapping_, std::memory_order_release);
        }
        return &*mapping_;
    }

    bool may_map() const {
        if (asked_ == Mapping::allowed || asked_ == Mapping::never) return asked_ == Mapping::allowed;
        return remote_file_system(find_file_system()).empty();
    }

    /// Returns a part of the private copy that replaces the mapping; nothing if no private copy was asked for.
    std::optional<SharedBytes> part_of_own_copy(Extent extent) const {
        if (asked_ != Mapping::private_copy) return std::nullopt;
        {
            const std::lock_guard lock(mutex_);
            if (!own_copy_) own_copy_.emplace(file_);
        }
        return own_copy_->part(extent);
    }

    std::uint32_t file_system() const {
        const std::lock_guard lock(mutex_);
        return find_file_system();
    }

    std::uint32_t find_file_system() const {
        if (!file_system_) {
            struct statfs status = {};
            if (uninterrupted([&] { return calls.fstatfs(file_.descriptor()->number(), &status); }) != 0)
                throw system_error(errno, "find out its file system").with_path(name());
            file_system_ = static_cast<std::uint32_t>(status.f_type);
        }
        return *file_system_;
    }

    void read_away(Extent extent) const {
        const std::uint64_t most = std::min<std::uint64_t>(extent.size, 1_MiB);
        const std::unique_ptr<std::byte[]> scratch(new std::byte[most]);
        for (std::uint64_t done = 0; done < extent.size; done += most)
            file_.read_at(extent.offset + done, {scratch.get(), std::min(most, extent.size - done)});
    }

    File file_;
    const DirectFile direct_{file_};
    const Mapping asked_;
    mutable std::mutex mutex_;  // guards the next two, and the creation of own_copy_
    mutable std::optional<std::uint32_t> file_system_;
    mutable std::optional<SharedBytes> mapping_;
    mutable std::optional<OwnCopy> own_copy_;                  // set once, never reset
    mutable std::atomic<const SharedBytes*> ready_ = nullptr;  // points to mapping_ once that is final
};

}  // namespace

std::shared_ptr<const Source> file_source(Handle folder, std::string name, std::string path, Mapping mapping) {
    return std::make_shared<FileSource>(std::move(folder), std::move(name), std::move(path), mapping);
}

}  // namespace io

std::shared_ptr<const Source> open_file(const std::filesystem::path& path, Mapping mapping) {
    return io::file_source(nullptr, path.native(), path.native(), mapping);
}

std::shared_ptr<const Source> open_descriptor(int descriptor, std::string name, Mapping mapping) {
    const auto wrong = [&](int number) {
        if (number != EBADF) return io::system_error(number, "duplicate its descriptor").with_path(name);
        return Error(Errc::invalid_argument, "the descriptor is not open for reading").with_path(name);
    };
    const int mode = ::fcntl(descriptor, F_GETFL);
    if (mode < 0) throw wrong(errno);
    if ((mode & O_ACCMODE) == O_WRONLY || (mode & O_PATH) != 0) throw wrong(EBADF);
    const int duplicate = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0) throw wrong(errno);
    auto opened = std::make_shared<const io::Descriptor>(duplicate);
    return std::make_shared<io::FileSource>(std::move(opened), std::move(name), mapping);
}

}  // namespace safemap::SAFEMAP_ABI
