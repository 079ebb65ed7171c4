// Calls mincore, cachestat, madvise and posix_fadvise.
#include "io/cached_pages.hpp"

#include "io/calls.hpp"
#include "io/system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace safemap::SAFEMAP_ABI::io {

namespace {

// Linux 5.14; C libraries define it since later versions.
constexpr int advice_populate_read = 22;

std::uint64_t page_size() noexcept {
    static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

/// Returns the whole pages that contain an extent or a range of addresses.
Extent whole_pages(Extent extent) noexcept {
    const std::uint64_t page = page_size();
    const std::uint64_t begin = extent.offset / page * page;
    return {begin, (extent.end() - begin + page - 1) / page * page};
}

struct Pages {
    void* address;
    std::uint64_t size;
};

Pages pages_of(std::span<const std::byte> mapped) noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(mapped.data());
    const Extent pages = whole_pages({first, mapped.size()});
    return {reinterpret_cast<void*>(pages.offset), pages.size};
}

/// Returns the bytes that are certainly in memory. Which bytes of the range a missing page holds is unknown, so each
/// missing page counts in full.
std::uint64_t known_resident(std::uint64_t size, std::uint64_t pages, std::uint64_t resident_pages) noexcept {
    const std::uint64_t missing = (pages - std::min(pages, resident_pages)) * page_size();
    return size - std::min(size, missing);
}

/// Returns true if mincore tells this process the truth. Since Linux 5.2, it reports every page as present to a process
/// that may not write to the file.
bool mincore_is_honest(int descriptor) noexcept {
    struct stat status = {};
    if (calls.fstat(descriptor, &status) == 0 && status.st_uid == ::geteuid()) return true;
    return calls.faccessat(descriptor, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) == 0;
}

}  // namespace

std::optional<std::uint64_t> resident_in(std::span<const std::byte> mapped, int descriptor) noexcept {
    if (!mincore_is_honest(descriptor)) return std::nullopt;
    const Pages all = pages_of(mapped);
    const std::uint64_t count = all.size / page_size();
    std::uint64_t resident = 0;
    std::array<unsigned char, 4096> flags;
    for (std::uint64_t done = 0; done < count; done += flags.size()) {
        const std::uint64_t some = std::min<std::uint64_t>(flags.size(), count - done);
        void* const from = static_cast<std::byte*>(all.address) + done * page_size();
        if (uninterrupted([&] { return calls.mincore(from, some * page_size(), flags.data()); }) != 0)
            return std::nullopt;
        // Only bit 0 has a meaning.
        resident += static_cast<std::uint64_t>(
            std::count_if(flags.data(), flags.data() + some, [](unsigned char flag) { return (flag & 1) != 0; }));
    }
    return known_resident(mapped.size(), count, resident);
}

std::optional<std::uint64_t> resident_in(Extent extent, int descriptor) noexcept {
    std::uint64_t pages = 0;
    if (calls.cachestat(descriptor, extent, &pages) != 0) return std::nullopt;
    return known_resident(extent.size, whole_pages(extent).size / page_size(), pages);
}

bool populate(std::span<const std::byte> mapped) noexcept {
    const Pages pages = pages_of(mapped);
    return uninterrupted([&] { return calls.madvise(pages.address, pages.size, advice_populate_read); }) == 0;
}

void unmap_pages(std::span<const std::byte> mapped) noexcept {
    const Pages pages = pages_of(mapped);
    calls.madvise(pages.address, pages.size, MADV_DONTNEED);
}

void drop_cache(Extent extent, int descriptor) noexcept {
    calls.fadvise(descriptor, static_cast<off_t>(extent.offset), static_cast<off_t>(extent.size), POSIX_FADV_DONTNEED);
}

}  // namespace safemap::SAFEMAP_ABI::io
