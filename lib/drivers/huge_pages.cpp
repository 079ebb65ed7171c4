// Maps more memory than asked for, and returns to the system what is before and after the aligned part.
#include "drivers/huge_pages.hpp"

#include "base/checked.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::byte* map_memory(std::uint64_t size) noexcept {
    const std::uint64_t spare = size < huge_page ? 0 : huge_page;
    const auto mapped = checked_add(size, spare);
    if (!mapped) return nullptr;
    void* const at = ::mmap(nullptr, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(at);
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    const std::uint64_t before = spare == 0 ? 0 : round_up(address, huge_page) - address;
    const std::uint64_t end = round_up(before + size, static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
    if (before > 0) ::munmap(begin, before);
    if (end < *mapped) ::munmap(begin + end, *mapped - end);
    // Pages are first touched while a tensor is read. With small pages, that takes longer than the reading.
    ::madvise(begin + before, size, MADV_HUGEPAGE);
    return begin + before;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
