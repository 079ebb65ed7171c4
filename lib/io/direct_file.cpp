// Reads past the page cache. A read with O_DIRECT must be aligned: its offset, its size and its address. So what is
// wanted is read in two ways:
// - the aligned middle of a long place, straight to where it belongs, if its address happens to be aligned as well
// - everything else into aligned memory, together with the bytes around it, and copied from there
#include "io/direct_file.hpp"

#include "io/system.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

// A shorter read costs more than the copy that it avoids.
constexpr std::uint64_t least_straight = std::uint64_t{64} << 10;

// If the system does not say what it needs: a page. No disk has larger logical blocks, unless the kernel is new enough
// to say so.
constexpr DirectAlignment usual_alignment = {4096, 4096};

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t to) noexcept { return value / to * to; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) noexcept {
    return round_down(value + to - 1, to);
}

/// The places that consecutive bytes go to, and how far they are filled.
class Places {
public:
    Places(std::uint64_t offset, std::span<const std::span<std::byte>> into) noexcept : offset_(offset), into_(into) {
        for (const std::span<std::byte> place : into) left_ += place.size();
        skip(0);
    }

    /// Returns the offset in the file of the next byte.
    std::uint64_t offset() const noexcept { return offset_; }
    std::uint64_t left() const noexcept { return left_; }
    std::span<std::byte> front() const noexcept { return into_.front().subspan(done_); }

    /// Returns where the next straight read can begin, at most `most` bytes from here on, or the end. Straight reads
    /// are of whole pages of memory, because other threads may write to the rest of a page: if the process forks
    /// meanwhile, the disk and the thread would write to different copies of the page.
    std::uint64_t next_straight(const DirectAlignment& alignment, std::uint64_t most) const noexcept {
        const std::uint64_t least = std::max<std::uint64_t>(least_straight, alignment.offset);
        const std::uint64_t aligned = std::max<std::uint64_t>(alignment.memory, usual_alignment.memory);
        std::uint64_t at = offset_;
        std::size_t done = done_;
        for (auto place = into_.begin(); place != into_.end() && at - offset_ < most; ++place) {
            const std::span<std::byte> here = place->subspan(std::exchange(done, 0));
            const std::uint64_t begin = round_up(at, alignment.offset);
            const auto address = reinterpret_cast<std::uintptr_t>(here.data()) + (begin - at);
            if (address % aligned == 0 && begin - at + least <= here.size()) return begin;
            at += here.size();
        }
        return at;
    }

    void copy(std::span<const std::byte> bytes) noexcept {
        while (!bytes.empty()) {
            const std::size_t size = std::min(bytes.size(), front().size());
            std::memcpy(front().data(), bytes.data(), size);
            bytes = bytes.subspan(size);
            skip(size);
        }
    }

    /// Goes on behind the next `size` bytes, which are at most those of front().
    void skip(std::size_t size) noexcept {
        offset_ += size;
        left_ -= size;
        done_ += size;
        for (; !into_.empty() && done_ == into_.front().size(); into_ = into_.subspan(1)) done_ = 0;
    }

private:
    std::uint64_t offset_;
    std::span<const std::span<std::byte>> into_;
    std::size_t done_ = 0;  // bytes of the first place
    std::uint64_t left_ = 0;
};

}  // namespace

bool DirectFile::read(std::uint64_t offset, std::span<const std::span<std::byte>> into,
                      std::span<std::byte> scratch) const {
    Places places(offset, into);
    file_.require_inside({offset, places.left()});
    const Opened file = opened();
    if (!file.handle) return false;
    const std::uint64_t block = file.alignment.offset;
    const std::uint64_t pages = std::max<std::uint64_t>(block, usual_alignment.memory);
    const std::uint64_t room = round_down(scratch.size(), block);
    if (room == 0 || reinterpret_cast<std::uintptr_t>(scratch.data()) % file.alignment.memory != 0) return false;

    while (places.left() > 0) {
        const std::uint64_t straight = places.next_straight(file.alignment, room);
        const bool copied = straight > places.offset();
        const std::uint64_t begin = round_down(places.offset(), block);
        const std::span<std::byte> target = copied ? scratch.first(std::min(round_up(straight, block) - begin, room))
                                                   : places.front().first(round_down(places.front().size(), pages));
        const ssize_t count = uninterrupted([&] {
            return calls.pread(file.handle->number(), target.data(), target.size(), static_cast<off_t>(begin));
        });
        if (count < 0) {
            // EFAULT: memory that a driver has mapped, which the disk cannot reach.
            if (flags_unsupported(errno) || errno == EFAULT) refuse();
            return false;  // the usual read says what is wrong, if it fails, too
        }
        // The file ends here now: the usual read says so.
        const std::uint64_t end = begin + static_cast<std::uint64_t>(count);
        if (end <= places.offset()) return false;
        const std::uint64_t size = std::min(end - places.offset(), places.left());
        if (copied) places.copy(target.subspan(places.offset() - begin, size));
        else places.skip(size);
    }
    return true;
}

/// Returns the descriptor, and opens it if it is not open. Throws as File::descriptor() does.
DirectFile::Opened DirectFile::opened() const {
    const std::lock_guard lock(mutex_);
    if (refused_) return {};
    Opened opened{descriptor_.get(), alignment_};
    if (opened.handle) return opened;
    if (!open(opened)) {
        refused_ = true;
        return {};
    }
    alignment_ = opened.alignment;
    descriptor_.keep(opened.handle);
    return opened;
}

/// Opens the file once more. Through /proc, because others may have taken the name. Returns false if the file should
/// not, or cannot, be read past the cache.
bool DirectFile::open(Opened& opened) const {
    const Handle file = file_.descriptor();
    struct statfs status = {};
    if (uninterrupted([&] { return calls.fstatfs(file->number(), &status); }) != 0) return false;
    if (!remote_file_system(static_cast<std::uint32_t>(status.f_type)).empty()) return false;
    const std::string self = "/proc/self/fd/" + std::to_string(file->number());
    Descriptor descriptor = open_at(AT_FDCWD, self.c_str(), O_RDONLY | O_DIRECT);
    if (!descriptor) return false;
    if (calls.direct_alignment(descriptor.number(), &opened.alignment) != 0) opened.alignment = usual_alignment;
    opened.handle = std::make_shared<const Descriptor>(std::move(descriptor));
    return opened.alignment.memory != 0 && opened.alignment.offset != 0;
}

void DirectFile::refuse() const {
    const std::lock_guard lock(mutex_);
    refused_ = true;
}

}  // namespace safemap::SAFEMAP_ABI::io
